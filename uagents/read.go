package uagents

import (
	"slices"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// A reader reads strict JSON in one pass. It gives up on what is wrong, and on
// what is rare: both are for [slowly] to judge, which says what is wrong.
type reader struct {
	s     string // the text, of which strings without escapes are parts
	i     int
	nodes []node // made ahead
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
	r.s = string(b)
	n := r.value(0)
	if r.space(); r.i != len(r.s) {
		return nil
	}
	return n
}

func (r *reader) space() {
	for r.i < len(r.s) && (r.s[r.i] == ' ' || r.s[r.i] == '\t' || r.s[r.i] == '\n' || r.s[r.i] == '\r') {
		r.i++
	}
}

// next skips space and gives the byte there, 0 at the end.
func (r *reader) next() byte {
	if r.space(); r.i < len(r.s) {
		return r.s[r.i]
	}
	return 0
}

// takes skips space and the byte c, if it is there.
func (r *reader) takes(c byte) bool {
	if r.next() != c {
		return false
	}
	r.i++
	return true
}

func (r *reader) value(depth int) *node {
	switch c := r.next(); c {
	case '{', '[':
		if depth++; depth > maxSchemaDepth {
			return nil
		}
		r.i++
		n := r.node(c, "")
		if c == '{' {
			return r.members(n, depth)
		}
		if r.takes(']') {
			return n
		}
		for {
			v := r.value(depth)
			if v == nil {
				return nil
			}
			n.vals = append(n.vals, v)
			if !r.takes(',') {
				break
			}
		}
		if !r.takes(']') {
			return nil
		}
		return n
	case '"':
		s, ok := r.text()
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
	return r.number()
}

func (r *reader) members(n *node, depth int) *node {
	if r.takes('}') {
		return n
	}
	for {
		if r.next() != '"' || len(n.keys) >= manyMembers {
			return nil
		}
		name, ok := r.text()
		if !ok || slices.Contains(n.keys, name) || !r.takes(':') {
			return nil
		}
		v := r.value(depth)
		if v == nil {
			return nil
		}
		n.keys, n.vals = append(n.keys, name), append(n.vals, v)
		if !r.takes(',') {
			break
		}
	}
	if !r.takes('}') {
		return nil
	}
	return n
}

// text reads a string; r is at its quote.
func (r *reader) text() (string, bool) {
	start, escaped := r.i, false
	for i := start + 1; i < len(r.s); i++ {
		switch c := r.s[i]; {
		case c == '"':
			r.i = i + 1
			if !escaped {
				return r.s[start+1 : i], true
			}
			b, err := jsontext.AppendUnquote(nil, r.s[start:r.i])
			return string(b), err == nil
		case c == '\\':
			escaped = true
			i++
		case c < ' ':
			return "", false
		}
	}
	return "", false
}

func (r *reader) literal(word string) *node {
	if len(r.s)-r.i < len(word) || r.s[r.i:r.i+len(word)] != word {
		return nil
	}
	r.i += len(word)
	return r.node(word[0], "")
}

// number reads digits, a fraction and an exponent, as RFC 8259 has them.
func (r *reader) number() *node {
	start := r.i
	r.skip('-')
	if !r.skip('0') && !r.digits() {
		return nil
	}
	if r.skip('.') && !r.digits() {
		return nil
	}
	if r.skip('e') || r.skip('E') {
		_ = r.skip('+') || r.skip('-')
		if !r.digits() {
			return nil
		}
	}
	return r.node('0', r.s[start:r.i])
}

func (r *reader) skip(c byte) bool {
	if r.i < len(r.s) && r.s[r.i] == c {
		r.i++
		return true
	}
	return false
}

func (r *reader) digits() bool {
	start := r.i
	for r.i < len(r.s) && r.s[r.i] >= '0' && r.s[r.i] <= '9' {
		r.i++
	}
	return r.i > start
}
