package jsonx

import (
	"encoding/base64"
	"errors"
	"strconv"
	"time"
)

// An Object writes one JSON object member by member, with the same bytes as
// [Encode] for a struct of these members. It is faster than Encode, so use it for
// objects that are written often. It does not check for duplicate names.
// [Object.End] returns the first error.
type Object struct {
	b   []byte
	err error // the first
}

// AppendObject begins an object after the bytes of b.
func AppendObject(b []byte) Object { return Object{b: append(b, '{')} }

// End returns the buffer with the object, or the first error.
func (o *Object) End() ([]byte, error) { return append(o.b, '}'), o.err }

// keep takes over the grown buffer b, or notes the error.
func (o *Object) keep(b []byte, err error) {
	switch {
	case err == nil:
		o.b = b
	case o.err == nil:
		o.err = err
	}
}

func (o *Object) name(s string) {
	if o.b[len(o.b)-1] != '{' { // no value ends so
		o.b = append(o.b, ',')
	}
	o.keep(AppendString(o.b, s))
	o.b = append(o.b, ':')
}

// String writes a string. Invalid UTF-8 is an error.
func (o *Object) String(name, v string) {
	o.name(name)
	o.keep(AppendString(o.b, v))
}

// Optional is [Object.String], but writes nothing for an empty string.
func (o *Object) Optional(name, v string) {
	if v != "" {
		o.String(name, v)
	}
}

// Strings writes an array of strings, [] for nil.
func (o *Object) Strings(name string, vs []string) {
	o.name(name)
	o.b = append(o.b, '[')
	for i, v := range vs {
		if i > 0 {
			o.b = append(o.b, ',')
		}
		o.keep(AppendString(o.b, v))
	}
	o.b = append(o.b, ']')
}

// Int writes a whole number.
func (o *Object) Int(name string, n int64) {
	o.name(name)
	o.b = strconv.AppendInt(o.b, n, 10)
}

// Float writes a number. Infinities and NaN are errors.
func (o *Object) Float(name string, f float64) {
	o.name(name)
	v, err := Encode(f)
	o.keep(append(o.b, v...), err)
}

// Bool writes true or false.
func (o *Object) Bool(name string, v bool) {
	o.name(name)
	o.b = strconv.AppendBool(o.b, v)
}

// Time writes an RFC 3339 time with as many decimals as it needs. A time that the
// format cannot express, such as the year 10000, is an error.
func (o *Object) Time(name string, t time.Time) {
	o.name(name)
	b, err := t.AppendText(append(o.b, '"'))
	o.keep(append(b, '"'), err)
}

// Base64 writes bytes, in the standard alphabet with padding.
func (o *Object) Base64(name string, v []byte) {
	o.name(name)
	o.b = append(base64.StdEncoding.AppendEncode(append(o.b, '"'), v), '"')
}

// Raw writes a JSON value without white space, null for an empty v. A v that is
// not strict JSON is an error.
func (o *Object) Raw(name string, v []byte) {
	o.name(name)
	if len(v) == 0 {
		o.b = append(o.b, "null"...)
		return
	}
	o.keep(AppendCompact(o.b, v))
}

// Append writes the value that write appends to the buffer. It must be one valid,
// compact value. Append is for values that no other method writes.
func (o *Object) Append(name string, write func(b []byte) ([]byte, error)) {
	o.name(name)
	b, err := write(o.b)
	if err == nil && len(b) <= len(o.b) {
		err = errors.New("a member has no value")
	}
	o.keep(b, err)
}

// Open begins a member that is an object; [Object.Close] ends it.
func (o *Object) Open(name string) {
	o.name(name)
	o.b = append(o.b, '{')
}

// Close ends the object of the last Open.
func (o *Object) Close() { o.b = append(o.b, '}') }
