package jsonx

import (
	"bytes"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// A Scanner reads JSON tokens from left to right, as RFC 8259 defines them. Each
// method skips white space, reads one token and reports whether it was there; the
// caller chooses the method by [Scanner.Next]. After a method returned false, the
// position is undefined.
//
// A Scanner knows tokens only. It does not check UTF-8, duplicate names or depth:
// that is [Valid].
type Scanner[T string | []byte] struct {
	text T
	at   int
}

// Scan returns a Scanner at the first byte of text.
func Scan[T string | []byte](text T) Scanner[T] { return Scanner[T]{text: text} }

// Offset is the position in bytes.
func (s *Scanner[T]) Offset() int { return s.at }

// Next skips white space and returns the first byte of the next token, 0 at the
// end of the text.
func (s *Scanner[T]) Next() byte {
	for ; s.at < len(s.text); s.at++ {
		if c := s.text[s.at]; c != ' ' && c != '\n' && c != '\t' && c != '\r' {
			return c
		}
	}
	return 0
}

// Take reads one byte of punctuation.
func (s *Scanner[T]) Take(c byte) bool {
	if s.Next() != c {
		return false
	}
	s.at++
	return true
}

// End reports whether only white space is left.
func (s *Scanner[T]) End() bool {
	s.Next()
	return s.at == len(s.text)
}

// Literal reads true, false or null.
func (s *Scanner[T]) Literal(word string) bool {
	s.Next()
	if len(s.text)-s.at < len(word) || string(s.text[s.at:s.at+len(word)]) != word {
		return false
	}
	s.at += len(word)
	return true
}

// Number reads a number and returns its literal.
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

// String reads a string and returns what is written between its quotes. escaped
// reports a backslash in it; escapes are not checked.
func (s *Scanner[T]) String() (inside T, escaped, ok bool) {
	if s.Next() != '"' {
		return inside, false, false
	}
	text, from := s.text, s.at+1
	for i := from; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			s.at = i + 1
			return text[from:i], escaped, true
		case c == '\\':
			escaped = true
			i++ // a quote after it does not end the string
		case c < ' ':
			return inside, false, false
		}
	}
	return inside, false, false
}

// Text reads a string and decodes it. Wrong escapes, a lone surrogate among them,
// are errors.
func (s *Scanner[T]) Text() (string, bool) {
	inside, escaped, ok := s.String()
	if !ok || !escaped {
		return string(inside), ok
	}
	text, err := jsontext.AppendUnquote(nil, s.text[s.at-len(inside)-2:s.at])
	return string(text), err == nil
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

// Skim reads a value of any kind and returns it as written. In objects and arrays
// it looks at brackets and strings only.
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

// brackets reads to the bracket that closes the one at the position.
func (s *Scanner[T]) brackets() bool {
	for level := 0; s.at < len(s.text); {
		switch s.text[s.at] {
		case '{', '[':
			level++
		case '}', ']':
			level--
			if level == 0 {
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

// Members calls each with the members of an object in their order, until it
// returns false. The values are parts of b. Members reports whether b is an object
// as far as it was read. It checks no more than [Scanner.Skim]: call [Valid] first
// for text from outside.
func Members(b []byte, each func(name string, value Value) (more bool)) bool {
	return members(b, func(name string, from, to int) bool { return each(name, Value(b[from:to:to])) })
}

// members is Members with the place of each value in b. Lone surrogates in names are
// read as U+FFFD.
func members(b []byte, each func(name string, from, to int) (more bool)) bool {
	s := Scan(b)
	if !s.Take('{') {
		return false
	}
	if s.Take('}') {
		return s.End()
	}
	for {
		inside, _, ok := s.String()
		if !ok {
			return false
		}
		name, _ := Unquote(s.text[s.at-len(inside)-2 : s.at])
		if !s.Take(':') {
			return false
		}
		value, ok := s.Skim()
		if !ok {
			return false
		}
		if !each(name, s.at-len(value), s.at) {
			return true
		}
		if !s.Take(',') {
			return s.Take('}') && s.End()
		}
	}
}

// Find follows a path of member names and returns where in b the value is:
// b[from:to], empty if there is none. b must have passed [Valid].
func Find(b []byte, path ...string) (from, to int) {
	to = len(b)
	for _, name := range path {
		start, end := 0, 0
		members(b[from:to], func(n string, a, z int) bool {
			if n == name {
				start, end = from+a, from+z
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
	members(b[from:to], func(name string, start, end int) bool {
		if name == path[0] {
			eachAt(b, from+start, from+end, path[1:], f)
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
