package jsonx

import (
	"bytes"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// A Scanner takes JSON apart from left to right, as RFC 8259 has it: each method
// takes one piece behind white space, and says whether it is there. What the
// pieces make is for the caller, who goes by [Scanner.Next]. A method that says
// no may leave the Scanner anywhere.
//
// It knows nothing of what is beyond single pieces, and strict: whether the text
// is UTF-8, whether names repeat, how deep values nest.
type Scanner[T string | []byte] struct {
	text T
	at   int
}

// Scan begins at the first byte of text.
func Scan[T string | []byte](text T) Scanner[T] { return Scanner[T]{text: text} }

// Offset is where the next piece is looked for, in bytes.
func (s *Scanner[T]) Offset() int { return s.at }

// Since is the text from an offset up to where the Scanner is.
func (s *Scanner[T]) Since(offset int) T { return s.text[offset:s.at] }

// Next gives the byte that the next piece begins with, 0 at the end: no part of
// the syntax. The Scanner is then at that byte.
func (s *Scanner[T]) Next() byte {
	for ; s.at < len(s.text); s.at++ {
		if c := s.text[s.at]; c != ' ' && c != '\n' && c != '\t' && c != '\r' {
			return c
		}
	}
	return 0
}

// Take takes one byte of punctuation.
func (s *Scanner[T]) Take(c byte) bool {
	if s.Next() != c {
		return false
	}
	s.at++
	return true
}

// End reports whether nothing is left.
func (s *Scanner[T]) End() bool {
	s.Next()
	return s.at == len(s.text)
}

// Literal takes true, false or null.
func (s *Scanner[T]) Literal(word string) bool {
	s.Next()
	if len(s.text)-s.at < len(word) || string(s.text[s.at:s.at+len(word)]) != word {
		return false
	}
	s.at += len(word)
	return true
}

// Number takes a number, and gives it as it is written.
func (s *Scanner[T]) Number() (literal T, ok bool) {
	s.Next()
	from := s.at
	s.skip('-')
	if !s.skip('0') && !s.digits() {
		return literal, false
	}
	if s.skip('.') && !s.digits() {
		return literal, false
	}
	if s.skip('e') || s.skip('E') {
		_ = s.skip('+') || s.skip('-')
		if !s.digits() {
			return literal, false
		}
	}
	return s.text[from:s.at], true
}

func (s *Scanner[T]) skip(c byte) bool {
	if s.at < len(s.text) && s.text[s.at] == c {
		s.at++
		return true
	}
	return false
}

func (s *Scanner[T]) digits() bool {
	from := s.at
	for s.at < len(s.text) && '0' <= s.text[s.at] && s.text[s.at] <= '9' {
		s.at++
	}
	return s.at > from
}

// A Form says what it takes to read the inside of a string. The zero value: it is
// what it says, in ASCII.
type Form uint8

// The forms, which may come together.
const (
	Escaped Form = 1 << iota // it holds escapes
	Beyond                   // it holds bytes beyond ASCII
)

// String takes a string, and gives what is between its quotes, as it is written.
// Escapes are not looked at.
func (s *Scanner[T]) String() (inside T, form Form, ok bool) {
	if s.Next() != '"' {
		return inside, 0, false
	}
	text, from := s.text, s.at+1
	for i := from; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			s.at = i + 1
			return text[from:i], form, true
		case c == '\\':
			form |= Escaped
			if i++; i < len(text) && text[i] >= utf8.RuneSelf {
				form |= Beyond
			}
		case c < ' ':
			return inside, 0, false
		case c >= utf8.RuneSelf:
			form |= Beyond
		}
	}
	return inside, 0, false
}

// Text takes a string, and gives what it says.
func (s *Scanner[T]) Text() (string, bool) {
	inside, form, ok := s.String()
	if !ok || form&Escaped == 0 {
		return string(inside), ok
	}
	text, err := jsontext.AppendUnquote(nil, s.text[s.at-len(inside)-2:s.at])
	return string(text), err == nil
}

// Unquote decodes a JSON string whose syntax was checked before. An escape of one
// half of a surrogate pair alone becomes U+FFFD; whole is false then.
func Unquote(quoted []byte) (text string, whole bool) {
	if bytes.IndexByte(quoted, '\\') < 0 {
		return string(quoted[1 : len(quoted)-1]), true
	}
	b, err := jsontext.AppendUnquote(nil, quoted)
	return string(b), err == nil
}

// Skim takes a value of any kind, and gives it as it is written. Of an object or
// an array it looks at nothing but brackets and strings: what else is wrong with
// it [Valid] says.
func (s *Scanner[T]) Skim() (value T, ok bool) {
	c := s.Next()
	from := s.at
	switch c {
	case '{', '[':
		ok = s.brackets()
	case '"':
		_, _, ok = s.String()
	case 't':
		ok = s.Literal("true")
	case 'f':
		ok = s.Literal("false")
	case 'n':
		ok = s.Literal("null")
	default:
		_, ok = s.Number()
	}
	if !ok {
		return value, false
	}
	return s.text[from:s.at], true
}

// brackets goes to where as many are closed as were opened.
func (s *Scanner[T]) brackets() bool {
	for level := 0; s.at < len(s.text); {
		switch s.text[s.at] {
		case '{', '[':
			level++
		case '}', ']':
			if level--; level == 0 {
				s.at++
				return true
			}
		case '"':
			if _, _, ok := s.String(); !ok {
				return false
			}
			continue
		}
		s.at++
	}
	return false
}

// Members calls each for the members of an object, one after the other, until it
// returns false. The values are parts of b. It reports whether b is an object, as
// far as it was looked at, which is no further than [Scanner.Skim] looks: what
// others wrote has passed [Valid] before.
func Members(b []byte, each func(name string, value Value) (more bool)) bool {
	s := Scan(b)
	if !s.Take('{') {
		return false
	}
	if s.Take('}') {
		return s.End()
	}
	for {
		name, ok := s.Text()
		if !ok || !s.Take(':') {
			return false
		}
		value, ok := s.Skim()
		if !ok {
			return false
		}
		if !each(name, Value(value[:len(value):len(value)])) {
			return true
		}
		if !s.Take(',') {
			return s.Take('}') && s.End()
		}
	}
}

// Find tells where in b the value lies to which a path of member names leads:
// b[from:to], empty if there is none. b has passed [Valid] before.
func Find(b []byte, path ...string) (from, to int) {
	to = len(b)
	for _, name := range path {
		s := Scan(b[from:to])
		if !s.Take('{') {
			return 0, 0
		}
		for {
			n, ok := s.Text()
			if !ok || !s.Take(':') {
				return 0, 0
			}
			s.Next()
			start := s.Offset()
			if _, ok := s.Skim(); !ok {
				return 0, 0
			}
			if n == name {
				from, to = from+start, from+s.Offset()
				break
			}
			if !s.Take(',') {
				return 0, 0
			}
		}
	}
	return from, to
}

// Replace gives a copy of b with another text in place of the string to which a
// path of member names leads; all other bytes stay. It reports whether there is
// such a string, and not an empty one, and gives b itself where there is none.
// b may hold halves of surrogate pairs, which stay; see [Whole].
func Replace(b []byte, by func(text string) string, path ...string) ([]byte, bool) {
	whole, _, err := Whole(b)
	if err != nil {
		return b, false
	}
	from, to := Find(whole, path...)
	s := Scan(whole[from:to])
	text, ok := s.Text()
	if !ok || text == "" {
		return b, false
	}
	out := append(make([]byte, 0, len(b)+64), b[:from]...)
	return append(AppendText(out, by(text)), b[to:]...), true
}

// Member gives the member of an object that has that name, nil if there is none or
// if b is no strict JSON. It is a part of b.
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
