package uagents

import (
	"slices"
	"unicode/utf8"

	"github.com/parley-hub/parley/internal/jsonx"
)

// A reader reads strict JSON in one pass. It gives up on what is wrong, and on
// what is rare: both are for [slowly] to judge, which says what is wrong.
type reader struct {
	jsonx.Scanner[string]        // of which strings without escapes are parts
	nodes                 []node // made ahead
}

// manyMembers is beyond how many members of one object the reader gives up: it
// compares their names one by one.
const manyMembers = 32

func (r *reader) node(kind byte, text string) *node {
	if len(r.nodes) == cap(r.nodes) {
		r.nodes = make([]node, 0, 16)
	}
	r.nodes = append(r.nodes, node{kind: kind, text: text})
	return &r.nodes[len(r.nodes)-1]
}

// read gives the whole text's value, or nil.
func (r *reader) read(b []byte) *node {
	if !utf8.Valid(b) {
		return nil
	}
	r.Scanner = jsonx.Scan(string(b))
	n := r.value(0)
	if !r.End() {
		return nil
	}
	return n
}

func (r *reader) value(depth int) *node {
	switch c := r.Next(); c {
	case '{', '[':
		if depth++; depth > maxSchemaDepth {
			return nil
		}
		r.Take(c)
		n := r.node(c, "")
		if c == '{' {
			return r.members(n, depth)
		}
		if r.Take(']') {
			return n
		}
		for {
			v := r.value(depth)
			if v == nil {
				return nil
			}
			n.vals = append(n.vals, v)
			if !r.Take(',') {
				break
			}
		}
		if !r.Take(']') {
			return nil
		}
		return n
	case '"':
		s, ok := r.Text()
		if !ok {
			return nil
		}
		return r.node('"', s)
	case 't':
		return r.literal("true")
	case 'f':
		return r.literal("false")
	case 'n':
		return r.literal("null")
	}
	number, ok := r.Number()
	if !ok {
		return nil
	}
	return r.node('0', number)
}

func (r *reader) members(n *node, depth int) *node {
	if r.Take('}') {
		return n
	}
	for {
		if len(n.keys) >= manyMembers {
			return nil
		}
		name, ok := r.Text()
		if !ok || slices.Contains(n.keys, name) || !r.Take(':') {
			return nil
		}
		v := r.value(depth)
		if v == nil {
			return nil
		}
		n.keys, n.vals = append(n.keys, name), append(n.vals, v)
		if !r.Take(',') {
			break
		}
	}
	if !r.Take('}') {
		return nil
	}
	return n
}

func (r *reader) literal(word string) *node {
	if !r.Literal(word) {
		return nil
	}
	return r.node(word[0], "")
}
