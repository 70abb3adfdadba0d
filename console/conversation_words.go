package console

import (
	"fmt"
	"html/template"
	"strings"
	"time"

	"github.com/parley-hub/parley"
)

// This file has the functions of the template of the screen Conversation.

// tail is the end of an id.
func tail(id fmt.Stringer) string {
	s := id.String()
	return s[max(0, len(s)-4):]
}

// moment is a time without an age.
func moment(t time.Time) Moment { return Moment{t, t} }

// messageLink is the address of a message: it leads to its conversation.
func messageLink(id parley.ID) string { return Base + "conversations/" + id.String() }

// advice marks the commands in a sentence of advice, which stand between backquotes.
func advice(s string) template.HTML {
	var b strings.Builder
	for i, part := range strings.Split(s, "`") {
		if part = template.HTMLEscapeString(part); i%2 == 1 {
			part = "<code>" + part + "</code>"
		}
		b.WriteString(part)
	}
	return template.HTML(b.String())
}

// stateSign is the sign of the state of a row.
func stateSign(state string) Sign {
	for s, sign := range signs {
		if s.String() == state {
			return sign
		}
	}
	if state == "refused" {
		return Sign{"refused", "refused", "refused"}
	}
	return Sign{}
}
