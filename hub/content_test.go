package hub

import (
	"context"
	"strings"
	"testing"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/journal"
)

type place struct {
	City string `json:"city"`
}

type stay struct {
	City string `json:"city"`
	Days int    `json:"days"`
}

type note struct {
	Text string `json:"text"`
}

// typed makes an agent of this process whose typed skills answer with their input.
func typed(name string, byDefault bool) parley.Agent {
	option := func(*parley.SkillSpec) {}
	if byDefault {
		option = parley.AsDefault()
	}
	return parley.Agent{Name: name, Exposed: parley.Everywhere, Skills: []parley.SkillSpec{
		parley.Skill("place", func(_ context.Context, _ *parley.Message, p place) (place, error) { return p, nil },
			option),
		parley.Skill("stay", func(_ context.Context, _ *parley.Message, s stay) (stay, error) { return s, nil }),
		parley.Skill("note", func(_ context.Context, _ *parley.Message, n note) (note, error) { return n, nil }),
		parley.Skill("say", func(_ context.Context, _ *parley.Message, s string) (string, error) { return s, nil }),
	}}
}

// TestContentRule: one rule fits content to a typed skill, with and without the
// skill's name.
func TestContentRule(t *testing.T) {
	t.Parallel()
	h := start(t, nil)
	if err := h.Handle(typed("typed", true)); err != nil {
		t.Fatal(err)
	}
	js := func(s string) parley.Part { return parley.Part{MediaType: "application/json", Data: []byte(s)} }
	for _, c := range []struct {
		name, skill string
		parts       []parley.Part
		want        string // the skill's input; "": refused
	}{
		{"what fits", "place", []parley.Part{js(`{"city":"Bern"}`)}, `{"city":"Bern"}`},
		{"what fits, of no skill", "", []parley.Part{js(`{"city":"Bern"}`)}, `{"city":"Bern"}`},
		{"JSON of another shape", "place", []parley.Part{js(`{"town":"Bern"}`)}, ""},
		{"JSON of another shape, of no skill", "", []parley.Part{js(`{"town":"Bern"}`)}, ""},
		{"text", "", []parley.Part{parley.Text("Bern")}, `{"city":"Bern"}`},
		{"text with brackets", "", []parley.Part{parley.Text("{Bern}")}, `{"city":"{Bern}"}`},
		{"text that spells what fits", "", []parley.Part{parley.Text(` {"city":"Bern"}`)}, `{"city":"Bern"}`},
		{"text that spells another shape", "place", []parley.Part{parley.Text(`{"town":"Bern"}`)}, ""},
		{"text that spells another shape, of no skill", "", []parley.Part{parley.Text(` {"town":"Bern"} `)}, ""},
		{"text that spells an object, for text", "note", []parley.Part{parley.Text(`{"a":1}`)}, `{"text":"{\"a\":1}"}`},
		{"JSON of another shape for text", "note", []parley.Part{js(`{"a":1}`)}, ""},
		{"JSON of another shape beside text", "", []parley.Part{parley.Text("Bern"), js(`{"town":"Bern"}`)}, ""},
		{"text for two members", "stay", []parley.Part{parley.Text("Bern")}, ""},
		{"text for text", "say", []parley.Part{parley.Text(`{"town":"Bern"}`)}, `"{\"town\":\"Bern\"}"`},
		{"text in quotes for text", "say", []parley.Part{parley.Text(`"Bern"`)}, `"\"Bern\""`},
		{"an object's text for text", "say", []parley.Part{js(`{"text":"Bern"}`)}, `"Bern"`},
		{"an object's message for text", "say", []parley.Part{js(`{"message":"Bern"}`)}, `"Bern"`},
		{"an object for text", "say", []parley.Part{js(`{ "text": "Bern", "days": 2 }`)},
			`"{\"text\":\"Bern\",\"days\":2}"`},
		{"several for text", "say", []parley.Part{parley.Text("in"), js(`{"town": "Bern"}`)},
			`"in\n{\"town\":\"Bern\"}"`},
		{"bytes for text", "say", []parley.Part{{MediaType: "image/png", Data: []byte{1}}}, ""},
		{"nothing for text", "say", nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := ask("typed", c.skill, "")
			s.Message.Parts = c.parts
			m, err := h.Ask(t.Context(), s)
			switch {
			case c.want == "":
				if parley.CodeOf(err) != parley.InvalidContent || !strings.Contains(err.Error(), "expected {") {
					t.Errorf("%+v, %v; want an error that shows the schema", m, err)
				}
			case err != nil || m.Kind != parley.Response || string(m.Parts[0].Data) != c.want:
				t.Errorf("%+v, %v; want %s", m, err, c.want)
			}
		})
	}
}

// TestNoticeThatDoesNotFit: a notice to many reaches each agent that it fits; for the
// others its delivery has a loss, and there is no dead letter.
func TestNoticeThatDoesNotFit(t *testing.T) {
	t.Parallel()
	heard := make(chan *parley.Message, 8)
	refusal := parley.Refuse(parley.InvalidContent, "a model wants more")
	far := &wire{name: "far", deliver: func(_ context.Context, o Outbound) Outcome {
		switch o.Recipient.Name {
		case "refuses":
			return Outcome{Err: refusal}
		case "answers":
			return Outcome{Answered: true, Failure: refusal}
		}
		heard <- o.Message
		return Outcome{}
	}}
	h := start(t, nil, far)
	input := []byte(`{"type":"object","properties":{"days":{"type":"integer"}},"required":["days"]}`)
	put := func(name string, skills ...parley.SkillSpec) {
		if _, err := h.Directory().Put(t.Context(), parley.Agent{Name: name, Exposed: parley.Everywhere, Skills: skills,
			Identities: []parley.Identity{{Protocol: "far", ID: name}}}, directory.FromOperator); err != nil {
			t.Fatal(err)
		}
	}
	put("declares", parley.SkillSpec{ID: "book", Input: input, Default: true})
	put("talks", parley.SkillSpec{ID: "book", Input: input}, parley.SkillSpec{ID: "stay", Input: input})
	put("refuses")
	put("answers")
	listener := func(name string, options ...parley.SkillOption) parley.Agent {
		return parley.Agent{Name: name, Exposed: parley.Everywhere, Skills: []parley.SkillSpec{
			parley.RawSkill("hear", func(_ context.Context, m *parley.Message,
				_ parley.Replier) error {
				heard <- m
				return nil
			}, options...),
			parley.RawSkill("other", func(context.Context, *parley.Message, parley.Replier) error { return refusal })}}
	}
	for _, a := range []parley.Agent{typed("typed", true), typed("skilled", false),
		listener("listener", parley.AsDefault())} {
		if err := h.Handle(a); err != nil {
			t.Fatal(err)
		}
	}
	audience := []string{"typed", "skilled", "listener", "declares", "talks", "refuses", "answers"}
	settled := make(chan journal.Step, 64)
	t.Cleanup(h.Journal().Watch(func(r *journal.Record) {
		for _, s := range r.Steps {
			if s.State.Settled(parley.Notice) {
				settled <- s
			}
		}
	}))
	tell := func(skill, content string, to ...string) *parley.Message {
		m, err := h.Accept(t.Context(), Submission{Scope: "test",
			Message: &parley.Message{Kind: parley.Notice, From: "alice", Audience: to, Skill: skill,
				Parts: []parley.Part{parley.Text(content)}, Origin: parley.Origin{Protocol: "wire",
					Verdict: parley.Verdict{Assurance: parley.Session}}}})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	m := tell("", `{"hello":"all"}`, audience...)
	for range audience {
		s := <-settled
		took := s.To == "listener" || s.To == "talks"
		if s.Message != m.ID || s.State != parley.Delivered || took != (len(s.Losses) == 0) {
			t.Fatalf("%s: %+v %v %v", s.To, s, s.Error, s.Losses)
		}
		if !took && (s.Losses[0].Field != "Parts" || !strings.HasPrefix(s.Losses[0].Reason,
			"the agent did not get it: ")) {
			t.Errorf("%s: %+v", s.To, s.Losses)
		}
	}
	for range 2 {
		if got := <-heard; got.Text() != `{"hello":"all"}` {
			t.Errorf("got %s", got.Text())
		}
	}
	// Fitting content becomes the skill's input; the record keeps the original.
	tell("", `{"days":3}`, "declares")
	if s := <-settled; s.State != parley.Delivered || len(s.Losses) > 0 {
		t.Errorf("%+v", s)
	}
	if got := <-heard; !got.Parts[0].IsJSON() {
		t.Errorf("a notice that fits came as %+v", got.Parts)
	}
	if dead := h.Journal().Deliveries(journal.Filter{States: []parley.DeliveryState{parley.Dead}}); len(dead) > 0 {
		t.Errorf("dead letters: %+v", dead)
	}
	_, err := h.Accept(t.Context(), Submission{Scope: "test",
		Message: &parley.Message{Kind: parley.Notice, From: "alice", To: "typed", Skill: "none",
			Parts: []parley.Part{parley.Text("x")}, Origin: parley.Origin{Protocol: "wire",
				Verdict: parley.Verdict{Assurance: parley.Session}}}})
	if parley.CodeOf(err) != parley.UnknownSkill {
		t.Errorf("a skill that is not there: %v", err)
	}
}
