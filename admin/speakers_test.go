package admin

import (
	"fmt"
	"slices"
	"testing"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/policy"
)

// TestSpeakers: a token is told as whom it may speak: the default first, then what is written out, then the directory.
func TestSpeakers(t *testing.T) {
	b := open(t, nil)
	for _, name := range []string{"crew/cook", "crew/scout"} {
		if _, err := b.client.AddAgent(t.Context(), NewAgent{Name: name, Inbox: true}); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		speak []string
		def   string
		want  []string
	}{
		{nil, "operator", []string{"operator"}},
		{[]string{"crew/cook"}, "crew/cook", []string{"crew/cook"}},
		{[]string{"crew/*", "nobody"}, "", []string{"nobody", "crew/cook", "crew/scout"}},
		{[]string{"**"}, "operator", []string{"operator", "crew/cook", "crew/scout", "weather"}},
	} {
		v, err := b.admin.Speakers(Actor{Name: "x", Role: Observe, Speak: c.speak})
		if err != nil || v.Default != c.def || !slices.Equal(v.Agents, c.want) || v.More != 0 {
			t.Errorf("%v: %+v, %v", c.speak, v, err)
		}
	}
	if v, err := b.as(operatorToken).Speakers(t.Context()); err != nil || v.Default != "bot" {
		t.Errorf("%+v, %v", v, err)
	}
	_, err := b.admin.Speakers(Actor{Name: "x", Role: Register})
	code(t, err, parley.Forbidden)
	for i := range maxSpeakers + 7 {
		if _, err := b.admin.AddAgent(t.Context(), Actor{Name: "x", Role: Administer}, NewAgent{
			Name: fmt.Sprint("many/n", i), Inbox: true}); err != nil {
			t.Fatal(err)
		}
	}
	v, err := b.admin.Speakers(Actor{Name: "x", Role: Observe, Speak: []string{"crew/new", "many/*"}})
	if err != nil || len(v.Agents) != maxSpeakers || v.Agents[0] != "crew/new" || v.More != 8 {
		t.Errorf("%d names, %d more, %v", len(v.Agents), v.More, err)
	}
}

// TestCallableBy lists the agents to which rules let an agent send, also those of which it may call one skill only.
func TestCallableBy(t *testing.T) {
	b := open(t, nil)
	if _, err := b.client.AddAgent(t.Context(), NewAgent{Name: "box", Inbox: true}); err != nil {
		t.Fatal(err)
	}
	p, err := policy.New(policy.Config{Allow: []policy.Rule{{From: "bot", To: []string{"weather.forecast"}},
		{From: "crew/*", To: []string{"**"}}}})
	if err != nil {
		t.Fatal(err)
	}
	b.hub.SetPolicy(p)
	for from, want := range map[string]int{"bot": 1, "crew/a": 2, "other": 0, "": 2} {
		page, err := b.as(observerToken).Agents(t.Context(), AgentFilter{CallableBy: from})
		if err != nil || len(page.Agents) != want {
			t.Errorf("%q may call %d agents, want %d, %v", from, len(page.Agents), want, err)
		}
	}
}
