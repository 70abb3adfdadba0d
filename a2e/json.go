package a2e

import (
	"bytes"
	"unicode/utf8"

	"github.com/parley-hub/parley/internal/jsonx"
)

// The rules of A2E for JSON differ from those of the other protocols
// (A2E §2.1): the last of several equal names wins, and an escaped lone
// surrogate is tolerated in content.

// span is a piece of a line: the indexes of its first byte and of the byte after its
// last.
type span struct{ from, to int32 }

func (s span) of(b []byte) []byte { return b[s.from:s.to] }

func spanOf(p jsonx.Place) span { return span{int32(p.From), int32(p.To)} }

// member is one member of an object: name with its quotes, value without surrounding
// white space. escaped: the name holds a backslash.
type member struct {
	name, value span
	escaped     bool
}

// is reports whether m, of object, has the given name.
func (m member) is(object []byte, name string) bool {
	quoted := m.name.of(object)
	if m.escaped {
		s, _ := unquote(quoted)
		return s == name
	}
	return string(quoted[1:len(quoted)-1]) == name
}

// checkJSON checks that b is exactly one JSON value nested at most depth deep. It gives
// the reason of a parse_error, "" if there is none.
func checkJSON(b []byte, depth int) (fault string) {
	switch {
	case len(b) > 1<<30: // spans count in 32 bits
		return "too_large"
	case !utf8.Valid(b):
		return "invalid_utf8"
	case jsonx.TooDeep(b, depth):
		return "too_deep"
	case !jsonx.Tolerable(b):
		return "syntax"
	}
	return ""
}

// checkObject is checkJSON for an object.
func checkObject(b []byte, depth int) (fault string) {
	if fault := checkJSON(b, depth); fault != "" {
		return fault
	}
	if trimLine(b)[0] != '{' {
		return "not_an_object"
	}
	return ""
}

// members lists the direct members of an object that has been checked before.
func members(object []byte) []member { return membersInto(nil, object) }

// membersInto appends the members to ms, which may lie on the caller's stack.
func membersInto(ms []member, object []byte) []member {
	jsonx.Places(object, func(name, value jsonx.Place) bool {
		ms = append(ms, member{name: spanOf(name), value: spanOf(value),
			escaped: bytes.IndexByte(name.Of(object), '\\') >= 0})
		return true
	})
	return ms
}

// lookup gives the value of the last member with the given name, nil if there is none.
func lookup(object []byte, ms []member, name string) []byte {
	for i := len(ms) - 1; i >= 0; i-- {
		if ms[i].is(object, name) {
			return ms[i].value.of(object)
		}
	}
	return nil
}

// fewMembers is how many members are collected without an allocation.
const fewMembers = 16

// elements calls f with each element of an array that has been checked before,
// until it returns false.
func elements(array []byte, f func(i int, v []byte) bool) {
	i := -1
	jsonx.Elements(array, func(v jsonx.Value) bool {
		i++
		return f(i, v)
	})
}

// textOf decodes a value that is a string.
func textOf(v []byte) (s string, ok bool) {
	if len(v) == 0 || v[0] != '"' {
		return "", false
	}
	s, _ = unquote(v)
	return s, true
}

// unquote decodes a checked JSON string. A lone surrogate becomes U+FFFD and is
// reported: such text must not be matched (A2E §2.1).
func unquote(quoted []byte) (s string, lone bool) {
	s, whole := jsonx.Unquote(quoted)
	return s, !whole
}
