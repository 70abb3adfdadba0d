package jsonx

import (
	"slices"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// AppendString appends s as a JSON string, as [Encode] writes it: the shortest
// form, which is also that of RFC 8785 §3.2.2.2. Invalid UTF-8 is an error.
func AppendString(b []byte, s string) ([]byte, error) { return jsontext.AppendQuote(b, s) }

// AppendText is [AppendString] for text that is known to be UTF-8; other bytes
// become U+FFFD.
func AppendText(b []byte, s string) []byte {
	b, _ = jsontext.AppendQuote(b, s) // the error is about invalid UTF-8
	return b
}

// ReplaceHalves returns a copy of b in which each escaped lone surrogate ("\ud83d"),
// which the grammar of JSON allows and strict JSON does not, is \ufffd, and whether
// there was one; without one it returns b itself. The copy is as long as b, so that
// offsets are the same in both.
func ReplaceHalves(b []byte) ([]byte, bool) {
	out, inside := b, false
	for i := 0; i < len(b); i++ {
		switch {
		case b[i] == '"':
			inside = !inside
		case b[i] != '\\' || !inside:
		default:
			unit, ok := escapedUnit(b[i:])
			if !ok {
				i++
				continue
			}
			i += 5
			if !utf16.IsSurrogate(unit) {
				continue
			}
			if low, ok := escapedUnit(b[i+1:]); ok && utf16.DecodeRune(unit, low) != utf8.RuneError {
				i += 6
				continue
			}
			if &out[0] == &b[0] {
				out = slices.Clone(b)
			}
			copy(out[i-5:], `\ufffd`)
		}
	}
	return out, len(b) > 0 && &out[0] != &b[0]
}

// escapedUnit reads the \uXXXX at the start of b.
func escapedUnit(b []byte) (unit rune, ok bool) {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return 0, false
	}
	u, err := strconv.ParseUint(string(b[2:6]), 16, 16)
	return rune(u), err == nil
}

// Whole makes JSON readable: it returns b if that is strict, or else b with
// [ReplaceHalves] applied, and true, if that is strict. The error is that of
// [Valid].
func Whole(b []byte) ([]byte, bool, error) {
	err := Valid(b, 0)
	if err == nil {
		return b, false, nil
	}
	out, replaced := ReplaceHalves(b)
	if replaced {
		err = Valid(out, 0) // something else may be wrong, too
	}
	if err != nil {
		return nil, false, err
	}
	return out, true, nil
}
