package policy

import (
	"slices"
	"testing"

	"github.com/parley-hub/parley"
)

// What is told about the rules is what they do: the rule of a message is the first that permits it, and without one the
// message is refused.
func TestRuleOfAMessage(t *testing.T) {
	weather := parley.Agent{Name: "weather", Exposed: parley.Everywhere, Skills: []parley.SkillSpec{{ID: "forecast"},
		{ID: "history"}}}
	p, err := New(Config{Allow: []Rule{
		{From: "crew/*", To: []string{"store"}, Place: Place{"parley.toml", 3}},
		{From: "acme/*", To: []string{"weather.forecast"}, Place: Place{"parley.toml", 7}},
		{From: "acme/buyer", To: []string{"weather"}, Place: Place{"parley.toml", 11}},
	}, Least: []Least{{To: []string{"weather"}, Protocol: "samvad", Assurance: parley.Session,
		Place: Place{"parley.toml", 20}}}})
	if err != nil {
		t.Fatal(err)
	}
	origin := parley.Origin{Protocol: "samvad", Verdict: parley.Verdict{Assurance: parley.Signed}}
	for _, c := range []struct {
		from, skill string
		want        int
	}{
		{"acme/buyer", "forecast", 1}, {"acme/buyer", "history", 2}, {"acme/seller", "forecast", 1},
		{"acme/seller", "history", -1}, {"crew/a", "forecast", -1},
	} {
		m := &parley.Message{Kind: parley.Request, From: c.from, To: "weather", Skill: c.skill, Origin: origin}
		rule, needed := p.RuleOf(m, &weather)
		if rule != c.want || !needed || p.Permits(m, Recipient{Agent: &weather}) != (rule >= 0) {
			t.Errorf("%s calls %s: rule %d, needed %v, permitted %v; want rule %d", c.from, c.skill, rule, needed,
				p.Permits(m, Recipient{Agent: &weather}), c.want)
		}
	}
	reply := &parley.Message{Kind: parley.Response, From: "crew/a", To: "weather", InReplyTo: parley.ID{1}}
	if rule, needed := p.RuleOf(reply, &weather); rule >= 0 || needed {
		t.Errorf("a reply has rule %d", rule)
	}
	if got := p.Callers(&weather); !slices.Equal(got, []int{1, 2}) {
		t.Errorf("rules about weather: %v", got)
	}
	if got, at := p.LeastOf("weather", "samvad"); got != parley.Session || at.Line != 20 {
		t.Errorf("least assurance in samvad: %s, line %d", got, at.Line)
	}
	if got, at := p.LeastOf("weather", "uagents"); got != parley.Signed || at.Line != 0 {
		t.Errorf("least assurance in uagents: %s, line %d", got, at.Line)
	}
	open, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	m := &parley.Message{Kind: parley.Request, From: "x", To: "weather", Origin: origin}
	if rule, needed := open.RuleOf(m, &weather); rule >= 0 || needed {
		t.Errorf("without rules: rule %d, needed %v", rule, needed)
	}
}
