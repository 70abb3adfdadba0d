package parleytest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/parley-hub/parley"
)

// A Want says what a message must be. A zero field may be anything.
type Want struct {
	Kind     parley.Kind
	State    parley.State
	From     string
	To       string // one of the recipients
	Skill    string
	Act      string
	Protocol string      // in which the message came
	Code     parley.Code // of the error of a failure
	Text     string      // as [parley.Message.Text] gives it; of a failure, the error's
	JSON     string      // of the main JSON part, in any order of members and with any white space

	// Least is the least proof of the sender.
	Least parley.Assurance
}

// Diff tells how a message differs from what is wanted, one field a line; "" if it does
// not.
func (w Want) Diff(m *parley.Message) string {
	var diff []string
	field := func(name string, got, want any) {
		if !reflect.ValueOf(want).IsZero() && got != want {
			diff = append(diff, fmt.Sprintf("%s is %q, want %q", name, fmt.Sprint(got), fmt.Sprint(want)))
		}
	}
	field("kind", m.Kind, w.Kind)
	field("state", m.State, w.State)
	field("from", m.From, w.From)
	if to := m.Recipients(); w.To != "" && !slices.Contains(to, w.To) {
		field("to", strings.Join(to, ", "), w.To)
	}
	field("skill", m.Skill, w.Skill)
	field("act", m.Act, w.Act)
	field("protocol", m.Origin.Protocol, w.Protocol)
	text := m.Text()
	if m.Error != nil {
		text = m.Error.Text
	}
	field("code", parley.CodeOf(errorOf(m)), w.Code)
	field("text", text, w.Text)
	if got := m.Origin.Verdict.Assurance; got < w.Least {
		field("assurance", got, w.Least)
	}
	if w.JSON != "" {
		got := "none"
		if i := parley.MainJSON(m.Parts); i >= 0 {
			got = string(m.Parts[i].Data)
		}
		if !sameJSON(got, w.JSON) {
			field("JSON", got, w.JSON)
		}
	}
	return strings.Join(diff, "\n")
}

// errorOf gives the error of a message as an error; nil if there is none.
func errorOf(m *parley.Message) error {
	if m.Error == nil {
		return nil
	}
	return m.Error
}

// sameJSON reports whether two texts are the same JSON value, numbers as they are written.
func sameJSON(a, b string) bool {
	value := func(s string) (v any, err error) {
		d := json.NewDecoder(bytes.NewReader([]byte(s)))
		d.UseNumber()
		err = d.Decode(&v)
		return v, err
	}
	x, err := value(a)
	if err != nil {
		return false
	}
	y, err := value(b)
	return err == nil && reflect.DeepEqual(x, y)
}

// Check fails the test if a message is not as wanted.
func Check(t testing.TB, m *parley.Message, w Want) {
	t.Helper()
	if d := w.Diff(m); d != "" {
		t.Errorf("parleytest: the message is not as wanted:\n%s", d)
	}
}
