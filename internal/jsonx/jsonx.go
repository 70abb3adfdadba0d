// Package jsonx is the one place where JSON enters and leaves Parley.
//
// Reading is strict: one value, valid UTF-8 without a byte order mark, no
// lone surrogates, no duplicate member names at any level, member names
// compared exactly (case included), nesting bounded. Writing is compact,
// deterministic and without HTML escapes. [Canonicalize] is RFC 8785.
//
// It stands on github.com/go-json-experiment/json; callers see only this
// package, so that the rules cannot be loosened in one place by accident.
package jsonx

import (
	"bytes"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// MaxDepth is the nesting that [Valid], [Decode] and [DecodeKnown] allow:
// the bound of SAMVAD §2.1, generous for every other protocol.
const MaxDepth = 1000

// A Value is one JSON value as it was written: numbers keep their literals.
// A nil Value is an absent member.
type Value = jsontext.Value

// Errors of a document. Every error of this package that concerns its input wraps
// exactly one of them in an [*Error].
var (
	ErrSyntax    = errors.New("malformed JSON")
	ErrUTF8      = errors.New("invalid UTF-8")
	ErrBOM       = errors.New("byte order mark before the JSON text")
	ErrDuplicate = errors.New("duplicate member name")
	ErrDepth     = errors.New("nesting too deep")
	ErrTrailing  = errors.New("data after the JSON value")
	ErrEmpty     = errors.New("no JSON value")
	ErrType      = errors.New("wrong type")
	ErrUnknown   = errors.New("unknown member")
)

// Error tells what is wrong with a document and where.
type Error struct {
	Is      error  // one of the sentinels above
	Pointer string // RFC 6901 pointer to the offending value, if known
	Offset  int64  // byte offset, if known
	cause   error
}

func (e *Error) Error() string {
	s := e.Is.Error()
	if e.Pointer != "" {
		s += " at " + e.Pointer
	}
	if e.Offset > 0 {
		s += fmt.Sprintf(" (byte %d)", e.Offset)
	}
	return s
}

// Unwrap returns the sentinel and the decoder's own error.
func (e *Error) Unwrap() []error { return []error{e.Is, e.cause} }

// Valid checks that b is exactly one strict JSON value, nested at most depth
// deep (0 means [MaxDepth]).
func Valid(b []byte, depth int) error {
	if depth <= 0 {
		depth = MaxDepth
	}
	if err := check(b, depth); err != nil {
		return err
	}
	if Value(b).IsValid() {
		return nil
	}
	d := jsontext.NewDecoder(bytes.NewBuffer(b)) // says what is wrong
	if _, err := d.ReadValue(); err != nil {
		return wrap(err)
	}
	_, err := d.ReadToken()
	return &Error{Is: ErrTrailing, Offset: d.InputOffset(), cause: err}
}

// Tolerable reports whether b is one JSON value of RFC 8259, which allows duplicate
// names and escaped lone surrogates. It checks neither UTF-8 nor depth.
func Tolerable(b []byte) bool {
	return Value(b).IsValid(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
}

// Decode reads exactly one strict JSON value into v. Members that v does not
// know are skipped (but still checked).
func Decode(b []byte, v any) error {
	if err := check(b, MaxDepth); err != nil {
		return err
	}
	return wrap(json.Unmarshal(b, v))
}

// DecodeKnown is [Decode] that refuses members v does not know with
// [ErrUnknown].
func DecodeKnown(b []byte, v any) error {
	if err := check(b, MaxDepth); err != nil {
		return err
	}
	return wrap(json.Unmarshal(b, v, json.RejectUnknownMembers(true)))
}

// Encode writes v compactly, maps in sorted order, without HTML escapes.
// Nil slices become [] and nil maps {}; a nil [Value] becomes null.
func Encode(v any) ([]byte, error) { return json.Marshal(v, json.Deterministic(true)) }

// EncodeTree is [Encode] for what encoding/json decodes into an any: a
// [stdjson.Number] is written as it stands.
func EncodeTree(v any) ([]byte, error) {
	return json.Marshal(v, json.Deterministic(true), json.WithMarshalers(literalNumber))
}

var literalNumber = json.MarshalFunc(func(n stdjson.Number) ([]byte, error) { return []byte(n), nil })

// Canonicalize returns the RFC 8785 form of b, which must pass [Valid].
// Numbers become IEEE 754 doubles in ECMAScript format, as the RFC says: an
// integer beyond 2^53 loses precision, and a number beyond the doubles is
// refused with [ErrSyntax].
func Canonicalize(b []byte) ([]byte, error) {
	if err := check(b, MaxDepth); err != nil {
		return nil, err
	}
	v := Value(bytes.Clone(b))
	if err := v.Canonicalize(); err != nil {
		return nil, wrap(err)
	}
	// The formatter saturates what is beyond the doubles. Such a number is
	// the only one that becomes the largest double without being it.
	if bytes.Contains(v, largest) {
		if err := inRange(b); err != nil {
			return nil, err
		}
	}
	return v, nil
}

var largest = []byte("1.7976931348623157e+308")

// inRange refuses numbers beyond the doubles.
func inRange(b []byte) error {
	d := jsontext.NewDecoder(bytes.NewBuffer(b))
	for {
		t, err := d.ReadToken()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return wrap(err)
		}
		if t.Kind() == '0' {
			if _, err := strconv.ParseFloat(t.String(), 64); err != nil {
				return &Error{Is: ErrSyntax, Pointer: string(d.StackPointer()), Offset: d.InputOffset(), cause: err}
			}
		}
	}
}

// Kind is the first byte of the value v, '0' for every number; 0 for an absent one.
func Kind(v []byte) byte { return byte(Value(v).Kind()) }

// IsNull reports whether v is absent or the literal null.
func IsNull(v []byte) bool { return len(v) == 0 || Kind(v) == 'n' }

// check refuses what the decoder below would accept (deep nesting) or name
// unclearly (no value, a byte order mark).
func check(b []byte, depth int) error {
	if bytes.HasPrefix(b, []byte("\xef\xbb\xbf")) {
		return &Error{Is: ErrBOM}
	}
	if len(bytes.TrimLeft(b, " \t\r\n")) == 0 {
		return &Error{Is: ErrEmpty}
	}
	if at := tooDeep(b, depth); at >= 0 {
		return &Error{Is: ErrDepth, Offset: int64(at)}
	}
	return nil
}

// TooDeep reports whether JSON nests deeper than depth (0 means [MaxDepth]).
func TooDeep(b []byte, depth int) bool {
	if depth <= 0 {
		depth = MaxDepth
	}
	return tooDeep(b, depth) >= 0
}

// tooDeep returns the offset of the first bracket beyond depth, or -1. It skips
// strings and leaves all other checks to the decoder.
func tooDeep(b []byte, depth int) int {
	if bytes.Count(b, []byte{'{'})+bytes.Count(b, []byte{'['}) <= depth {
		return -1 // as in most texts
	}
	level, inside := 0, false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case c == '"':
			inside = !inside
		case inside && c == '\\':
			i++
		case inside:
		case c == '{' || c == '[':
			level++
			if level > depth {
				return i
			}
		case c == '}' || c == ']':
			level--
		}
	}
	return -1
}

func wrap(err error) error {
	if err == nil {
		return nil
	}
	e := &Error{Is: ErrSyntax, cause: err}
	var syn *jsontext.SyntacticError
	var sem *json.SemanticError
	switch {
	case errors.As(err, &syn):
		e.Pointer, e.Offset = string(syn.JSONPointer), syn.ByteOffset
		switch {
		case errors.Is(err, jsontext.ErrDuplicateName):
			e.Is = ErrDuplicate
		case errors.Is(err, errUTF8):
			e.Is = ErrUTF8
		}
	case errors.As(err, &sem):
		e.Is, e.Pointer, e.Offset = ErrType, string(sem.JSONPointer), sem.ByteOffset
		if errors.Is(err, json.ErrUnknownName) {
			e.Is = ErrUnknown
		}
	}
	return e
}

// The decoder keeps this as a private value: it is taken from it once by
// provoking it, so that no message text is compared.
var errUTF8 = func() error {
	_, err := jsontext.NewDecoder(bytes.NewReader([]byte("\"\xff\""))).ReadValue()
	if syn, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		return syn.Err
	}
	return err
}()
