package jsonx

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
		if c := s.text[s.at]; c > ' ' || c != ' ' && c != '\n' && c != '\t' && c != '\r' {
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

// String takes a string, and gives what is between its quotes, as it is written:
// where nothing is escaped, that is what it says. Escapes are not looked at.
func (s *Scanner[T]) String() (inside T, escaped, ok bool) {
	if !s.Take('"') {
		return inside, false, false
	}
	from := s.at
	for s.at < len(s.text) {
		s.at = special(s.text, s.at)
		switch {
		case s.at == len(s.text):
		case s.text[s.at] == '"':
			s.at++
			return s.text[from : s.at-1], escaped, true
		case s.text[s.at] == '\\':
			escaped = true
			s.at = min(s.at+2, len(s.text))
		default:
			return inside, false, false
		}
	}
	return inside, false, false
}

// Text takes a string, and gives what it says.
func (s *Scanner[T]) Text() (string, bool) {
	inside, escaped, ok := s.String()
	if !escaped {
		return string(inside), ok
	}
	return unquote(inside)
}
