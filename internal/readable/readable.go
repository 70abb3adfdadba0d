// Package readable writes texts for people: of an agent's text "a\x1b[31mb" it makes one that cannot control a
// terminal.
package readable

import (
	"fmt"
	"strings"
	"time"
	"unicode"
)

// Clean replaces the characters of an agent's text that could control a terminal.
// Line feeds and tabs stay.
func Clean(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case unicode.IsControl(r), unicode.In(r, unicode.Cf): // Cf includes changes of writing direction
			return '\uFFFD'
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
}

// OneLine makes one clean line of a text.
func OneLine(s string) string { return strings.Join(strings.Fields(Clean(s)), " ") }

// Short makes a text fit a table cell: one line of at most n characters, without
// control characters.
func Short(s string, n int) string {
	s = OneLine(s)
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

// Plural counts things: "1 skill", "2 skills".
func Plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// Stamp formats a time in UTC.
func Stamp(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02 15:04:05Z")
}
