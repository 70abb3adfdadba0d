package admin

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/policy"
)

// TestForesee: what would become of a message is told by the API, with the places that do not fit, the state of the
// recipient and the losses; nothing of it is recorded or refused.
func TestForesee(t *testing.T) {
	b := open(t, func(c *Config) {
		c.Workbench.Losses = func(p Passage) (there, back []ForeseenLoss) {
			return []ForeseenLoss{{"Parts.Name", "lost", "by " + p.By}}, []ForeseenLoss{{"Event: working", "absent", p.Back}}
		}
	})
	if _, err := b.client.AddAgent(t.Context(), NewAgent{Name: "box", Inbox: true}); err != nil {
		t.Fatal(err)
	}
	foresee := func(s Send) Foreseen {
		t.Helper()
		v, err := b.client.Foresee(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	text := "Bern"
	before := b.hub.Journal().Stats()
	v := foresee(Send{To: "weather", Skill: "forecast", Text: &text, Timeout: "10s"})
	if !v.Accepted || v.From != "operator" || v.To != "weather" || v.Skill != "forecast" || v.By != "go" ||
		v.Recipient.State != hub.Ready || len(v.Fitted) != 1 || string(v.Fitted[0].JSON) != `{"city":"Bern"}` ||
		len(v.Misfits) > 0 || v.There[0].Why != "by go" || len(v.Back) != 1 || v.Back[0].Why != "" {
		t.Errorf("%+v", v)
	}
	v = foresee(Send{To: "weather", Skill: "forecast", JSON: json.RawMessage(`{"city":7}`)})
	if v.Accepted || v.Refusal.Code != parley.InvalidContent || !slices.Equal(v.Misfits, []Misfit{{"/city",
		"got number, want string"}}) {
		t.Errorf("%+v %+v", v, v.Refusal)
	}
	v = foresee(Send{From: "box", To: "box", Kind: parley.Notice, Text: &text})
	if !v.Accepted || v.By != "api" || v.Recipient.State != hub.NoReader || len(v.Back) > 0 {
		t.Errorf("%+v", v)
	}
	if v = foresee(Send{From: "box", To: "weather", Skill: "forecast", Text: &text}); v.Back[0].Why != "api" {
		t.Errorf("nobody waits: the answers go to the sender's inbox: %+v", v.Back)
	}
	v = foresee(Send{To: "wether", Text: &text})
	if v.Accepted || v.Refusal.Code != parley.UnknownAgent || v.Recipient != nil ||
		!strings.Contains(v.Refusal.Text, `did you mean "weather"`) {
		t.Errorf("%+v %+v", v, v.Refusal)
	}
	if now := b.hub.Journal().Stats(); now.Partitions[0].Records != before.Partitions[0].Records ||
		len(b.hub.Refused(0)) != 0 {
		t.Errorf("%d refusals, %+v", len(b.hub.Refused(0)), now)
	}
}

// TestForeseeIsAsked: only who may send is told, and only for agents that the token may speak as; rules count.
func TestForeseeIsAsked(t *testing.T) {
	b := open(t, nil)
	p, err := policy.New(policy.Config{Allow: []policy.Rule{{From: "bot", To: []string{"weather"},
		Place: policy.Place{File: "/etc/parley.toml", Line: 41}}}})
	if err != nil {
		t.Fatal(err)
	}
	b.hub.SetPolicy(p)
	s := Send{To: "weather", Skill: "forecast", JSON: json.RawMessage(`{"city":"Bern"}`)}
	if v, err := b.as(operatorToken).Foresee(t.Context(), s); err != nil || !v.Accepted || v.From != "bot" ||
		v.Text != "would be admitted by rule 1, parley.toml, line 41" {
		t.Errorf("%+v, %v", v, err)
	}
	if v, err := b.client.Foresee(t.Context(), s); err != nil || v.Accepted || v.Refusal.Reason != parley.NotAllowed ||
		v.Refusal.Advice == "" {
		t.Errorf("%+v, %v", v, err)
	}
	other := s
	other.From = "weather"
	_, err = b.as(operatorToken).Foresee(t.Context(), other)
	code(t, err, parley.Forbidden)
	_, err = b.as(viewerToken).Foresee(t.Context(), s)
	code(t, err, parley.Forbidden)
	other = Send{InReplyTo: parley.HashID([]byte("x")).String(), Kind: parley.Input, To: "weather"}
	_, err = b.client.Foresee(t.Context(), other)
	code(t, err, parley.Unsupported)
}
