package a2e

import (
	"unicode/utf8"
)

// The rules of A2E for JSON differ from those of the other protocols
// (A2E §2.1): the last of several equal names wins, and an escaped lone
// surrogate is tolerated in content. The scanner below checks RFC 8259 syntax
// in one pass without allocating; a differential fuzz test holds it to
// jsontext with the same two allowances.

// span is a piece of a line: its first byte and the one after its last.
type span struct{ from, to int32 }

func (s span) of(b []byte) []byte { return b[s.from:s.to] }

// member is one member of an object: name without its quotes, value without
// white space around it. escaped says that the name holds a backslash.
type member struct {
	name, value span
	escaped     bool
}

type scanner struct {
	b     []byte
	i     int
	depth int // how many more levels may open
	deep  bool
}

func (s *scanner) space() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\t', '\r', '\n':
			s.i++
		default:
			return
		}
	}
}

// str reads a string that starts at the current quote.
func (s *scanner) str() (escaped, ok bool) {
	b := s.b
	i := s.i + 1
	for i < len(b) {
		if plain[b[i]] {
			i++
			continue
		}
		if b[i] == '"' {
			s.i = i + 1
			return escaped, true
		}
		escaped = true
		if b[i] != '\\' || i+1 >= len(b) {
			return escaped, false
		}
		switch b[i+1] {
		case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			i += 2
		case 'u':
			if i+6 > len(b) || hex4(b[i+2:i+6]) < 0 {
				return escaped, false
			}
			i += 6
		default:
			return escaped, false
		}
	}
	return escaped, false
}

// plain are the bytes that stand for themselves in a string.
var plain = func() (p [256]bool) {
	for c := range p {
		p[c] = c >= ' ' && c != '"' && c != '\\'
	}
	return p
}()

func digits(b []byte, i int) int {
	for i < len(b) && b[i] >= '0' && b[i] <= '9' {
		i++
	}
	return i
}

func (s *scanner) number() bool {
	b, i := s.b, s.i
	if i < len(b) && b[i] == '-' {
		i++
	}
	switch {
	case i < len(b) && b[i] == '0':
		i++
	case i < len(b) && b[i] >= '1' && b[i] <= '9':
		i = digits(b, i)
	default:
		return false
	}
	if i < len(b) && b[i] == '.' {
		j := digits(b, i+1)
		if j == i+1 {
			return false
		}
		i = j
	}
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		j := digits(b, i)
		if j == i {
			return false
		}
		i = j
	}
	s.i = i
	return true
}

func (s *scanner) literal(word string) bool {
	if len(s.b)-s.i < len(word) || string(s.b[s.i:s.i+len(word)]) != word {
		return false
	}
	s.i += len(word)
	return true
}

// open counts a level of nesting.
func (s *scanner) open() bool {
	if s.depth == 0 {
		s.deep = true
		return false
	}
	s.depth--
	s.i++
	return true
}

// value reads one value; white space before it has been skipped.
func (s *scanner) value() bool {
	if s.i >= len(s.b) {
		return false
	}
	switch s.b[s.i] {
	case '"':
		_, ok := s.str()
		return ok
	case '{':
		return s.object()
	case '[':
		if !s.open() {
			return false
		}
		s.space()
		if s.i < len(s.b) && s.b[s.i] == ']' {
			s.i++
			s.depth++
			return true
		}
		for {
			s.space()
			if !s.value() {
				return false
			}
			s.space()
			if s.i >= len(s.b) {
				return false
			}
			switch s.b[s.i] {
			case ',':
				s.i++
			case ']':
				s.i++
				s.depth++
				return true
			default:
				return false
			}
		}
	case 't':
		return s.literal("true")
	case 'f':
		return s.literal("false")
	case 'n':
		return s.literal("null")
	default:
		return s.number()
	}
}

// object reads an object that starts at the current brace.
func (s *scanner) object() bool {
	more, ok := s.begin()
	for more {
		_, more, ok = s.member()
	}
	return ok
}

// collect reads one too, and appends its own members (not those further inside)
// to m.
func (s *scanner) collect(m []member) ([]member, bool) {
	more, ok := s.begin()
	for more {
		var one member
		if one, more, ok = s.member(); ok {
			m = append(m, one)
		}
	}
	return m, ok
}

// begin passes the brace of an object; more says that a member follows.
func (s *scanner) begin() (more, ok bool) {
	if !s.open() {
		return false, false
	}
	s.space()
	if s.i < len(s.b) && s.b[s.i] == '}' {
		s.i++
		s.depth++
		return false, true
	}
	return true, true
}

// member reads one member and what follows it: another one, or the end of the
// object.
func (s *scanner) member() (m member, more, ok bool) {
	s.space()
	if s.i >= len(s.b) || s.b[s.i] != '"' {
		return m, false, false
	}
	from := s.i + 1
	if m.escaped, ok = s.str(); !ok {
		return m, false, false
	}
	m.name = span{int32(from), int32(s.i - 1)}
	s.space()
	if s.i >= len(s.b) || s.b[s.i] != ':' {
		return m, false, false
	}
	s.i++
	s.space()
	start := s.i
	if !s.value() {
		return m, false, false
	}
	m.value = span{int32(start), int32(s.i)}
	s.space()
	if s.i >= len(s.b) {
		return m, false, false
	}
	c := s.b[s.i]
	s.i++
	switch c {
	case ',':
		return m, true, true
	case '}':
		s.depth++
		return m, false, true
	}
	return m, false, false
}

// scanObject checks that b is one JSON value nested at most depth deep and
// nothing else, and appends the members of an object to m.
func scanObject(b []byte, depth int, m []member) (ms []member, isObject bool, fault string) {
	s := scanner{b: b, depth: depth}
	if fault = s.start(); fault != "" {
		return m, false, fault
	}
	if s.i >= len(b) || b[s.i] != '{' {
		return m, false, s.end(s.value())
	}
	m, ok := s.collect(m)
	return m, true, s.end(ok)
}

// scanValue is scanObject where the members do not matter.
func scanValue(b []byte, depth int) (isObject bool, fault string) {
	s := scanner{b: b, depth: depth}
	if fault = s.start(); fault != "" {
		return false, fault
	}
	isObject = s.i < len(b) && b[s.i] == '{'
	return isObject, s.end(s.value())
}

func (s *scanner) start() (fault string) {
	switch {
	case len(s.b) > 1<<30: // spans count in 32 bits
		return "too_large"
	case !utf8.Valid(s.b):
		return "invalid_utf8"
	}
	s.space()
	return ""
}

func (s *scanner) end(ok bool) (fault string) {
	s.space()
	switch {
	case !ok && s.deep:
		return "too_deep"
	case !ok || s.i != len(s.b):
		return "syntax"
	}
	return ""
}

// members collects the members of an object that has been checked before.
func members(object []byte) []member { return membersInto(nil, object) }

// membersInto appends them to m, which may lie on the caller's stack.
func membersInto(m []member, object []byte) []member {
	s := scanner{b: object, depth: len(object)}
	m, _ = s.collect(m)
	return m
}

// fewMembers is how many members are collected without an allocation.
const fewMembers = 16

// elements calls f with each element of an array that has been checked before.
func elements(array []byte, f func(i int, v []byte) bool) {
	s := scanner{b: array, i: 1, depth: len(array)}
	s.space()
	for n := 0; s.i < len(array) && array[s.i] != ']'; n++ {
		from := s.i
		if !s.value() || !f(n, array[from:s.i]) {
			return
		}
		s.space()
		if s.i < len(array) && array[s.i] == ',' {
			s.i++
			s.space()
		}
	}
}

func hex4(b []byte) rune {
	var r rune
	for _, c := range b[:4] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return -1
		}
		r = r<<4 | rune(c)
	}
	return r
}

// unquote decodes the inside of a checked JSON string. A lone surrogate
// becomes U+FFFD and is reported: such text must not be used to match
// anything (A2E §2.1).
func unquote(b []byte) (s string, lone bool) {
	plain := true
	for _, c := range b {
		if c == '\\' {
			plain = false
			break
		}
	}
	if plain {
		return string(b), false
	}
	out := make([]byte, 0, len(b))
	for i := 0; i < len(b); {
		if b[i] != '\\' {
			out = append(out, b[i])
			i++
			continue
		}
		switch c := b[i+1]; c {
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			r := hex4(b[i+2 : i+6])
			i += 6
			if r >= 0xd800 && r < 0xe000 {
				low := rune(-1)
				if r < 0xdc00 && i+6 <= len(b) && b[i] == '\\' && b[i+1] == 'u' {
					low = hex4(b[i+2 : i+6])
				}
				if low >= 0xdc00 && low < 0xe000 {
					r = 0x10000 + (r-0xd800)<<10 + (low - 0xdc00)
					i += 6
				} else {
					r, lone = utf8.RuneError, true
				}
			}
			out = utf8.AppendRune(out, r)
			continue
		default: // quote, backslash, slash
			out = append(out, c)
		}
		i += 2
	}
	return string(out), lone
}

const lowerHex = "0123456789abcdef"

func appendEscape(dst []byte, r rune) []byte {
	return append(dst, '\\', 'u', lowerHex[r>>12&15], lowerHex[r>>8&15], lowerHex[r>>4&15], lowerHex[r&15])
}

// appendRune writes a character beyond ASCII as one or two \u escapes.
func appendRune(dst []byte, r rune) []byte {
	if r >= 0x10000 {
		r -= 0x10000
		dst = appendEscape(dst, 0xd800+r>>10)
		return appendEscape(dst, 0xdc00+r&0x3ff)
	}
	return appendEscape(dst, r)
}

// appendString writes s as a JSON string in ASCII. Bytes that are not UTF-8
// become U+FFFD.
func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	from := 0 // what is written as it is
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c < utf8.RuneSelf && c != '"' && c != '\\' {
			i++
			continue
		}
		dst = append(dst, s[from:i]...)
		switch {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c == '\n':
			dst = append(dst, '\\', 'n')
		case c == '\r':
			dst = append(dst, '\\', 'r')
		case c == '\t':
			dst = append(dst, '\\', 't')
		case c < ' ':
			dst = appendEscape(dst, rune(c))
		default:
			r, n := utf8.DecodeRuneInString(s[i:])
			dst = appendRune(dst, r)
			i += n - 1
		}
		i++
		from = i
	}
	return append(append(dst, s[from:]...), '"')
}

// appendASCII writes a checked JSON value compactly and in ASCII, every number
// and every escape as it was written (A2E §2.1, the output rule).
func appendASCII(dst, v []byte) []byte {
	inside := false
	from := 0 // what is written as it is
	for i := 0; i < len(v); i++ {
		switch c := v[i]; {
		case c >= utf8.RuneSelf:
			r, n := utf8.DecodeRune(v[i:])
			dst = appendRune(append(dst, v[from:i]...), r)
			i += n - 1
			from = i + 1
		case c == '"':
			inside = !inside
		case inside:
			if c == '\\' {
				i++
			}
		case isSpace(c):
			dst = append(dst, v[from:i]...)
			from = i + 1
		}
	}
	return append(dst, v[from:]...)
}
