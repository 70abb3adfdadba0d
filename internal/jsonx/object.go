package jsonx

import (
	"encoding/base64"
	"errors"
	"strconv"
	"time"
)

// An Object writes one JSON object, member by member, to the byte as [Encode]
// writes a value that has these members in this order; names are the caller's to
// keep apart. It takes a fraction of the time, and so is for what is written
// often. What cannot be written is told at the end.
type Object struct {
	b   []byte
	err error // the first
}

// AppendObject begins an object behind what is in b.
func AppendObject(b []byte) Object { return Object{b: append(b, '{')} }

// End gives the buffer with the object, or the first error.
func (o *Object) End() ([]byte, error) { return append(o.b, '}'), o.err }

// took keeps what was appended, if that went well.
func (o *Object) took(b []byte, err error) {
	switch {
	case err == nil:
		o.b = b
	case o.err == nil:
		o.err = err
	}
}

func (o *Object) name(s string) {
	if o.b[len(o.b)-1] != '{' { // as no value ends
		o.b = append(o.b, ',')
	}
	o.took(AppendString(o.b, s))
	o.b = append(o.b, ':')
}

// String writes a string. Invalid UTF-8 is an error.
func (o *Object) String(name, v string) {
	o.name(name)
	o.took(AppendString(o.b, v))
}

// Optional is [Object.String], and nothing for an empty one.
func (o *Object) Optional(name, v string) {
	if v != "" {
		o.String(name, v)
	}
}

// Strings writes an array of strings; an empty one for nil.
func (o *Object) Strings(name string, vs []string) {
	o.name(name)
	o.b = append(o.b, '[')
	for i, v := range vs {
		if i > 0 {
			o.b = append(o.b, ',')
		}
		o.took(AppendString(o.b, v))
	}
	o.b = append(o.b, ']')
}

// Int writes a whole number.
func (o *Object) Int(name string, n int64) {
	o.name(name)
	o.b = strconv.AppendInt(o.b, n, 10)
}

// Float writes a number. One that is infinite or none is an error.
func (o *Object) Float(name string, f float64) {
	o.name(name)
	v, err := Encode(f)
	o.took(append(o.b, v...), err)
}

// Bool writes true or false.
func (o *Object) Bool(name string, v bool) {
	o.name(name)
	o.b = strconv.AppendBool(o.b, v)
}

// Time writes a time as RFC 3339 has it, with as many decimals as it needs. What
// that cannot say, years beyond 9999 above all, is an error.
func (o *Object) Time(name string, t time.Time) {
	o.name(name)
	b, err := t.AppendText(append(o.b, '"'))
	o.took(append(b, '"'), err)
}

// Base64 writes bytes, in the standard alphabet with padding.
func (o *Object) Base64(name string, v []byte) {
	o.name(name)
	o.b = append(base64.StdEncoding.AppendEncode(append(o.b, '"'), v), '"')
}

// Raw writes a JSON value, compact; null for an absent one. What is not strict
// JSON is an error.
func (o *Object) Raw(name string, v []byte) {
	o.name(name)
	if len(v) == 0 {
		o.b = append(o.b, "null"...)
		return
	}
	o.took(AppendCompact(o.b, v))
}

// Append writes what write appends to the buffer, which must be one value, sound
// and compact. It is for values that there is no other method for.
func (o *Object) Append(name string, write func(b []byte) ([]byte, error)) {
	o.name(name)
	b, err := write(o.b)
	if err == nil && len(b) <= len(o.b) {
		err = errors.New("a member has no value")
	}
	o.took(b, err)
}

// Open begins an object that is a member; [Object.Close] ends it.
func (o *Object) Open(name string) {
	o.name(name)
	o.b = append(o.b, '{')
}

// Close ends what the last Open began.
func (o *Object) Close() { o.b = append(o.b, '}') }

// List writes an array of objects; write writes the members of one.
func List[T any](o *Object, name string, vs []T, write func(o *Object, v T)) {
	o.name(name)
	o.b = append(o.b, '[')
	for i, v := range vs {
		if i > 0 {
			o.b = append(o.b, ',')
		}
		o.b = append(o.b, '{')
		write(o, v)
		o.b = append(o.b, '}')
	}
	o.b = append(o.b, ']')
}
