package jsonx

import (
	"math/bits"
	"slices"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// AppendString appends s as a JSON string, as [Encode] writes it. Invalid
// UTF-8 is an error.
func AppendString(b []byte, s string) ([]byte, error) {
	if !plain(s) {
		return jsontext.AppendQuote(b, s)
	}
	b = append(append(slices.Grow(b, len(s)+2), '"'), s...)
	return append(b, '"'), nil
}

const hexDigits = "0123456789abcdef"

// AppendText is [AppendString] for what is known to be UTF-8: the shortest form,
// which is also that of RFC 8785 §3.2.2.2. Other bytes are appended as they are.
func AppendText(b []byte, s string) []byte {
	b = append(b, '"')
	for {
		i := special(s, 0)
		b = append(b, s[:i]...)
		if i == len(s) {
			return append(b, '"')
		}
		switch c := s[i]; c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\b':
			b = append(b, '\\', 'b')
		case '\t':
			b = append(b, '\\', 't')
		case '\n':
			b = append(b, '\\', 'n')
		case '\f':
			b = append(b, '\\', 'f')
		case '\r':
			b = append(b, '\\', 'r')
		default:
			b = append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
		s = s[i+1:]
	}
}

// Eight bytes of a text are looked at as one word. In w - n*ones, a byte of w that
// is ASCII has its high bit if it is below n (and, of those behind such a byte,
// perhaps others).
const ones, highs = 0x0101010101010101, 0x8080808080808080

func word[T string | []byte](t T, i int) uint64 {
	t = t[i : i+8] // so that the eight are read as one
	return uint64(t[0]) | uint64(t[1])<<8 | uint64(t[2])<<16 | uint64(t[3])<<24 |
		uint64(t[4])<<32 | uint64(t[5])<<40 | uint64(t[6])<<48 | uint64(t[7])<<56
}

// marks sets the high bit of the first byte that does not stand for itself within
// a JSON string: a quote, a backslash or a control character. It gives 0 if there
// is none.
func marks(w uint64) uint64 {
	quote, backslash := w^'"'*ones, w^'\\'*ones // 0 is below 1
	return ((w - ' '*ones) | (quote - ones) | (backslash - ones)) &^ w & highs
}

func mark(c byte) bool { return c < ' ' || c == '"' || c == '\\' }

// special gives the offset, from i on, of the first byte that does not stand for
// itself; len(t) if there is none.
func special[T string | []byte](t T, i int) int {
	for ; i+8 <= len(t); i += 8 {
		if found := marks(word(t, i)); found != 0 {
			return i + bits.TrailingZeros64(found)/8
		}
	}
	for i < len(t) && !mark(t[i]) {
		i++
	}
	return i
}

// plain reports whether s is ASCII that stands for itself, as most that is
// written.
func plain(s string) bool {
	if len(s) < 8 {
		for i := range len(s) {
			if c := s[i]; mark(c) || c >= utf8.RuneSelf {
				return false
			}
		}
		return true
	}
	for i := 0; i+8 < len(s); i += 8 {
		if w := word(s, i); (marks(w)|w)&highs != 0 {
			return false
		}
	}
	w := word(s, len(s)-8)
	return (marks(w)|w)&highs == 0
}

// unquote gives what the inside of a JSON string says; false if an escape is
// none, or is one half of a surrogate pair alone.
func unquote[T string | []byte](inside T) (string, bool) {
	out := make([]byte, 0, len(inside))
	for i := 0; ; {
		end := special(inside, i)
		out = append(out, inside[i:end]...)
		if end == len(inside) {
			return string(out), true
		}
		r, size := escape(inside, end)
		if size == 0 {
			return "", false
		}
		out, i = utf8.AppendRune(out, r), end+size
	}
}

// escapesHold reports whether [unquote] would succeed; with shortest, also whether
// [AppendText] would escape the same in the same way.
func escapesHold[T string | []byte](inside T, shortest bool) bool {
	for i := special(inside, 0); i < len(inside); i = special(inside, i) {
		r, size := escape(inside, i)
		if size == 0 || shortest && !isShortest(r, inside[i:i+size]) {
			return false
		}
		i += size
	}
	return true
}

func isShortest[T string | []byte](r rune, as T) bool {
	var room [8]byte
	return r < utf8.RuneSelf && string(AppendText(room[:0], string(r))) == `"`+string(as)+`"`
}

// escape reads the escape at i, of which it gives the size; 0 if it is none.
func escape[T string | []byte](t T, i int) (r rune, size int) {
	if t[i] != '\\' || i+1 == len(t) {
		return 0, 0
	}
	switch c := t[i+1]; c {
	case '"', '\\', '/':
		return rune(c), 2
	case 'b':
		return '\b', 2
	case 'f':
		return '\f', 2
	case 'n':
		return '\n', 2
	case 'r':
		return '\r', 2
	case 't':
		return '\t', 2
	}
	r, ok := escapedUnit(t, i)
	switch {
	case !ok:
		return 0, 0
	case !utf16.IsSurrogate(r):
		return r, 6
	}
	low, ok := escapedUnit(t, i+6)
	if r = utf16.DecodeRune(r, low); !ok || r == utf8.RuneError {
		return 0, 0
	}
	return r, 12
}

// escapedUnit reads the \uXXXX at i.
func escapedUnit[T string | []byte](t T, i int) (r rune, ok bool) {
	if len(t)-i < 6 || t[i] != '\\' || t[i+1] != 'u' {
		return 0, false
	}
	for _, c := range []byte(t[i+2 : i+6]) {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

// ReplaceHalves gives a copy of b in which each escape of one half of a
// surrogate pair alone ("\ud83d"), which JSON's grammar allows and strict JSON
// does not, is that of U+FFFD, and reports whether there was one; else it gives
// b itself. The copy is as long as b, so what lies where in it lies there in b.
func ReplaceHalves(b []byte) ([]byte, bool) {
	out, inside := b, false
	for i := 0; i < len(b); i++ {
		switch {
		case b[i] == '"':
			inside = !inside
		case b[i] != '\\' || !inside:
		default:
			if r, ok := escapedUnit(b, i); !ok {
				i++
			} else if !utf16.IsSurrogate(r) {
				i += 5
			} else if _, size := escape(b, i); size > 0 {
				i += size - 1
			} else {
				if &out[0] == &b[0] {
					out = slices.Clone(b)
				}
				copy(out[i:], `\ufffd`)
				i += 5
			}
		}
	}
	return out, len(b) > 0 && &out[0] != &b[0]
}

// Whole gives JSON for reading: b itself if it is strict, else, with true, what
// [ReplaceHalves] makes of it, if that is. The error is that of [Valid].
func Whole(b []byte) ([]byte, bool, error) {
	err := Valid(b, 0)
	if err == nil {
		return b, false, nil
	}
	if out, replaced := ReplaceHalves(b); replaced && Valid(out, 0) == nil {
		return out, true, nil
	} else if replaced { // which is wrong besides
		err = Valid(out, 0)
	}
	return nil, false, err
}
