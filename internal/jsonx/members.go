package jsonx

import (
	"bytes"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// The functions of this file find members and elements where they stand, without
// decoding their values. They check no more than they must to find the end of a
// value: call [Valid] first for text from outside.

// A Place is where something stands in a text: its first byte, and the one after its
// last.
type Place struct{ From, To int }

// Of gives the bytes at the place in b.
func (p Place) Of(b []byte) []byte { return b[p.From:p.To:p.To] }

// Places calls each with the members of an object in their order, until it returns
// false: the place of the name with its quotes, and of the value. Places reports
// whether b is an object as far as it was read.
func Places(b []byte, each func(name, value Place) (more bool)) bool {
	at := space(b, 0)
	if at == len(b) || b[at] != '{' {
		return false
	}
	at = space(b, at+1)
	if at < len(b) && b[at] == '}' {
		return space(b, at+1) == len(b)
	}
	for {
		name := Place{at, stringEnd(b, at)}
		if name.To < 0 {
			return false
		}
		at = space(b, name.To)
		if at == len(b) || b[at] != ':' {
			return false
		}
		at = space(b, at+1)
		value := Place{at, valueEnd(b, at)}
		if value.To < 0 {
			return false
		}
		if !each(name, value) {
			return true
		}
		var more, ok bool
		if at, more, ok = next(b, value.To, '}'); !more {
			return ok
		}
	}
}

// Members is [Places] with the decoded names, and the values as parts of b. Lone
// surrogates in names are read as U+FFFD.
func Members(b []byte, each func(name string, value Value) (more bool)) bool {
	return members(b, func(name string, v Place) bool { return each(name, v.Of(b)) })
}

func members(b []byte, each func(name string, value Place) (more bool)) bool {
	return Places(b, func(quoted, value Place) bool {
		name, _ := Unquote(quoted.Of(b))
		return each(name, value)
	})
}

// Elements calls each with the elements of an array in their order, parts of b, until
// it returns false. It reports whether b is an array as far as it was read.
func Elements(b []byte, each func(value Value) (more bool)) bool {
	return ElementPlaces(b, func(v Place) bool { return each(v.Of(b)) })
}

// ElementPlaces is [Elements] with the places of the elements.
func ElementPlaces(b []byte, each func(value Place) (more bool)) bool {
	at := space(b, 0)
	if at == len(b) || b[at] != '[' {
		return false
	}
	at = space(b, at+1)
	if at < len(b) && b[at] == ']' {
		return space(b, at+1) == len(b)
	}
	for {
		v := Place{at, valueEnd(b, at)}
		if v.To < 0 {
			return false
		}
		if !each(v) {
			return true
		}
		var more, ok bool
		if at, more, ok = next(b, v.To, ']'); !more {
			return ok
		}
	}
}

// next finds the next member or element behind the one that ends at at. ok: there is
// none, because end comes, and nothing after it.
func next(b []byte, at int, end byte) (start int, more, ok bool) {
	at = space(b, at)
	switch {
	case at == len(b):
		return at, false, false
	case b[at] == ',':
		return space(b, at+1), true, false
	}
	return at, false, b[at] == end && space(b, at+1) == len(b)
}

// space returns the first position from at on without white space.
func space(b []byte, at int) int {
	for at < len(b) && (b[at] == ' ' || b[at] == '\n' || b[at] == '\t' || b[at] == '\r') {
		at++
	}
	return at
}

// stringEnd returns the position behind the string at at, -1 if there is none.
func stringEnd(b []byte, at int) int {
	if at == len(b) || b[at] != '"' {
		return -1
	}
	for at++; at < len(b); at++ {
		switch c := b[at]; {
		case c == '"':
			return at + 1
		case c == '\\':
			at++ // a quote after it does not end the string
		case c < ' ':
			return -1
		}
	}
	return -1
}

// valueEnd returns the position behind the value at at, -1 if there is none. In
// objects and arrays it looks at brackets and strings only.
func valueEnd(b []byte, at int) int {
	if at == len(b) {
		return -1
	}
	switch b[at] {
	case '"':
		return stringEnd(b, at)
	case '{', '[':
		return bracketsEnd(b, at)
	}
	n := bytes.IndexAny(b[at:], ",]} \n\t\r")
	switch {
	case n == 0:
		return -1
	case n < 0:
		return len(b)
	}
	return at + n
}

// bracketsEnd returns the position behind the bracket that closes the one at at.
func bracketsEnd(b []byte, at int) int {
	for level := 0; at >= 0 && at < len(b); {
		switch b[at] {
		case '{', '[':
			level++
		case '}', ']':
			level--
			if level == 0 {
				return at + 1
			}
		case '"':
			at = stringEnd(b, at)
			continue
		}
		at++
	}
	return -1
}

// Unquote decodes a JSON string, quotes included, whose syntax was checked before.
// An escaped lone surrogate becomes U+FFFD; whole is false then.
func Unquote(quoted []byte) (text string, whole bool) {
	if bytes.IndexByte(quoted, '\\') < 0 {
		return string(quoted[1 : len(quoted)-1]), true
	}
	b, err := jsontext.AppendUnquote(nil, quoted)
	return string(b), err == nil
}

// Find follows a path of member names and returns where in b the value is:
// b[from:to], empty if there is none. b must have passed [Valid].
func Find(b []byte, path ...string) (from, to int) {
	to = len(b)
	for _, name := range path {
		start, end := 0, 0
		members(b[from:to], func(n string, v Place) bool {
			if n == name {
				start, end = from+v.From, from+v.To
			}
			return n != name
		})
		if end == 0 {
			return 0, 0
		}
		from, to = start, end
	}
	return from, to
}

// Replace returns a copy of b in which the string at a path of member names is
// another, each of them where names repeat; all other bytes are the same. It returns
// b and false if there is no such string or it is empty. The syntax of b must have
// been checked; lone surrogates are read as U+FFFD.
func Replace(b []byte, by func(text string) string, path ...string) ([]byte, bool) {
	var out []byte
	done := 0 // b[:done] is in out
	eachAt(b, 0, len(b), path, func(from, to int) {
		if b[from] != '"' || to-from <= len(`""`) {
			return
		}
		text, _ := Unquote(b[from:to])
		out = AppendText(append(slices.Grow(out, len(b)-done+64), b[done:from]...), by(text))
		done = to
	})
	if done == 0 {
		return b, false
	}
	return append(out, b[done:]...), true
}

// eachAt calls f with the place in b of each value at a path in b[from:to].
func eachAt(b []byte, from, to int, path []string, f func(from, to int)) {
	if len(path) == 0 {
		f(from, to)
		return
	}
	members(b[from:to], func(name string, v Place) bool {
		if name == path[0] {
			eachAt(b, from+v.From, from+v.To, path[1:], f)
		}
		return true
	})
}

// Member returns the member of an object with that name, a part of b. It returns
// nil if there is none, or if b is not strict JSON.
func Member(b []byte, name string) (value Value) {
	if Valid(b, 0) != nil {
		return nil
	}
	Members(b, func(n string, v Value) bool {
		if n == name {
			value = v
		}
		return value == nil
	})
	return value
}
