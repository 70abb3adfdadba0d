package hub

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/parley-hub/parley"
)

const nested = `{"type":"object","required":["a/b","list"],"properties":{"a/b":{"type":"string"},
	"list":{"type":"array","items":{"type":"object","properties":{"n":{"type":"integer","maximum":3}}}},
	"either":{"anyOf":[{"type":"integer"},{"type":"object","required":["x"]}]}},"additionalProperties":false}`

// TestMisfitsArePointedAt: each place that does not fit has its JSON Pointer, and a sentence of its own.
func TestMisfitsArePointedAt(t *testing.T) {
	t.Parallel()
	h := start(t, nil)
	if err := h.Handle(parley.Agent{Name: "typed", Skills: []parley.SkillSpec{{ID: "do", Input: json.RawMessage(nested),
		Handler: func(context.Context, *parley.Message, parley.Replier) error { return nil }}}}); err != nil {
		t.Fatal(err)
	}
	at := func(content string) (out []string, m *parley.Message) {
		f := h.Foresee(&parley.Message{Kind: parley.Request, From: "me", To: "typed", Skill: "do",
			Parts: []parley.Part{{MediaType: "application/json", Data: []byte(content)}}, Origin: api})
		if refused := f.Refused != nil; refused != (len(f.Misfits) > 0) {
			t.Errorf("%s: refused %v, misfits %v", content, f.Refused, f.Misfits)
		}
		for _, p := range f.Misfits {
			if p.Why == "" {
				t.Errorf("%s: nothing is said of %q", content, p.At)
			}
			out = append(out, p.At)
		}
		slices.Sort(out)
		return out, f.Message
	}
	for content, want := range map[string][]string{
		`{"a/b":"x","list":[]}`:                        nil,
		`{"a/b":1,"list":[{"n":9},{"n":2},{"n":"x"}]}`: {"/a~1b", "/list/0/n", "/list/2/n"},
		`{}`:                                  {""},
		`{"a/b":"x","list":[],"either":"no"}`: {"/either"},
		`{"a/b":"x","list":[],"more":1}`:      {""},
		`{"a/b":"` + strings.Repeat("x", 1000) + `","list":1}`: {"/list"},
	} {
		if got, _ := at(content); !slices.Equal(got, want) {
			t.Errorf("%.80s: %q, want %q", content, got, want)
		}
	}
	many := `{"a/b":"x","list":[` + strings.TrimSuffix(strings.Repeat(`{"n":9},`, 1000), ",") + `]}`
	if got, _ := at(many); len(got) != maxMisfits {
		t.Errorf("%d places of a thousand, want %d", len(got), maxMisfits)
	}
}

var api = parley.Origin{Protocol: "api", Verdict: parley.Verdict{Assurance: parley.Session}}

// TestForeseeIsAdmit: what is foreseen is what the hub does with the same message then, and nothing is recorded by it.
func TestForeseeIsAdmit(t *testing.T) {
	t.Parallel()
	h := start(t, nil)
	if err := h.Handle(typed("typed", false)); err != nil {
		t.Fatal(err)
	}
	strict := typed("strict", true)
	if err := h.Handle(strict); err != nil {
		t.Fatal(err)
	}
	js := parley.Part{MediaType: "application/json", Data: []byte(`{"city":1}`)}
	before := h.Journal().Stats()
	for _, c := range []struct {
		name, to, skill string
		kind            parley.Kind
		part            parley.Part
	}{
		{"it fits", "typed", "place", parley.Request, parley.Text("Bern")},
		{"it does not fit", "typed", "place", parley.Request, js},
		{"a notice that does not fit", "typed", "place", parley.Notice, js},
		{"no skill", "typed", "", parley.Request, parley.Text("Bern")},
		{"no such skill", "typed", "fly", parley.Request, parley.Text("Bern")},
		{"a notice of no such skill", "typed", "fly", parley.Notice, parley.Text("Bern")},
		{"no such agent", "nobody", "", parley.Request, parley.Text("Bern")},
		{"too weak a proof", "strict", "place", parley.Request, parley.Text("Bern")},
	} {
		m := &parley.Message{Kind: c.kind, From: "me", To: c.to, Skill: c.skill, Parts: []parley.Part{c.part}, Origin: api}
		f := h.Foresee(m)
		if m.To != c.to || !slices.EqualFunc(m.Parts, []parley.Part{c.part}, func(p, q parley.Part) bool {
			return string(p.Data) == string(q.Data)
		}) {
			t.Errorf("%s: the message itself was changed", c.name)
		}
		if now := h.Journal().Stats(); now.Partitions[0].Records != before.Partitions[0].Records {
			t.Fatalf("%s: foreseeing recorded it", c.name)
		}
		got, err := h.Accept(t.Context(), Submission{Message: m, Scope: "api me"})
		before = h.Journal().Stats()
		switch {
		case (err == nil) != (f.Refused == nil):
			t.Errorf("%s: foreseen %v, then %v", c.name, f.Refused, err)
		case err != nil && (parley.CodeOf(err) != f.Refused.Code || err.Error() != f.Refused.Error()):
			t.Errorf("%s: foreseen %v, then %v", c.name, f.Refused, err)
		case err == nil && c.kind == parley.Request && string(got.Parts[0].Data) != string(f.Message.Parts[0].Data):
			t.Errorf("%s: foreseen %s, then %s", c.name, f.Message.Parts[0].Data, got.Parts[0].Data)
		}
		if lost := len(f.Losses) > 0; lost != (c.kind == parley.Notice) {
			t.Errorf("%s: losses %v", c.name, f.Losses)
		}
	}
}
