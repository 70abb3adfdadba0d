package agh

import (
	"errors"
	"strings"
	"testing"
)

// AGH-006, AGH-007, AGH-013, AGH-014: the error of an unreadable message says which
// member is wrong and how.
func TestUnreadableNamesTheMember(t *testing.T) {
	good := string(say1K())
	with := func(member string) string { return "{" + member + "," + good[1:] }
	for in, want := range map[string][2]string{
		with(`"priority":1`):                         {"priority", "put it into ext"},
		with(`"interaction_id":null`):                {"interaction_id", "older draft"},
		with(`"From":"x"`):                           {"From", "case"},
		with(`"id":"x"`):                             {"id", "more than once"},
		with(`"a/b~c":1`):                            {"a/b~c", "put it into ext"},
		with(`"` + strings.Repeat("x", 100) + `":1`): {strings.Repeat("x", 64) + "…", "put it into ext"},
		strings.Replace(good, `"ts":1776366000`, `"ts":"1776366000"`, 1):   {"ts", "Unix seconds"},
		strings.Replace(good, `"ts":1776366000`, `"ts":1776366000.0`, 1):   {"ts", "Unix seconds"},
		strings.Replace(good, `"channel":"builders"`, `"channel":[]`, 1):   {"channel", "want a string"},
		strings.Replace(good, `"high"`, `"high","acme.priority":"low"`, 1): {"ext.acme.priority", "more than once"},
		good + "x": {"", "malformed JSON at byte "},
		"[]":       {"", "JSON object"},
		`"x"`:      {"", "JSON object"},
		"":         {"", "no JSON value"},
		"{":        {"", "malformed JSON"},
		strings.Replace(good, "Run", "R\xffn", 1): {"body.text", "UTF-8"},
	} {
		_, err := Decode([]byte(in))
		var e *Error
		if !errors.As(err, &e) || !errors.Is(err, ErrMalformed) || e.Step != StepParse || e.Field != want[0] ||
			!strings.Contains(e.Text, want[1]) {
			t.Errorf("%.60s: %#v, want %q", in, err, want)
		}
	}
}
