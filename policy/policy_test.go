package policy

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-hub/parley"
)

func message(from, to string, a parley.Assurance) *parley.Message {
	return &parley.Message{Kind: parley.Request, From: from, To: to, Skill: "forecast",
		Parts:  []parley.Part{parley.Text("hello")},
		Origin: parley.Origin{Protocol: "samvad", Peer: "agent://" + from, Verdict: parley.Verdict{Assurance: a}}}
}

// Admit checks hops, size, exposure, assurance and rules of a message, and gives the code of its refusal.
func TestAdmit(t *testing.T) {
	reasons := map[parley.Code][]parley.Reason{parley.Forbidden: {parley.NotAllowed}, parley.Loop: {""},
		parley.Unauthenticated: {parley.AssuranceLow}, parley.UnknownAgent: {parley.NotExposed},
		parley.TooLarge: {parley.BodySize, parley.PartsNumber}}
	weather := Recipient{Agent: &parley.Agent{Name: "weather"}, Native: []string{"samvad"}}
	hidden := Recipient{Agent: &parley.Agent{Name: "hidden"}, Native: []string{"agh"}}
	open := Recipient{Agent: &parley.Agent{Name: "open", Exposed: parley.Everywhere}, Native: []string{"go"}}
	config := Config{Hub: "here", Assurance: map[string]parley.Assurance{"open": parley.Unsigned},
		Least: []Least{{To: []string{"vault/open"}, Assurance: parley.Unsigned},
			{To: []string{"vault/*"}, Assurance: parley.Signed}},
		Allow: []Rule{{From: "guest/**", To: []string{"vault/*"}},
			{From: "crew/*", To: []string{"weather.forecast", "open"}}, {From: "guest/**", To: []string{"open"}}}}
	for _, c := range []struct {
		name string
		m    *parley.Message
		to   Recipient
		edit func(*parley.Message)
		want parley.Code
	}{
		{name: "allowed skill", m: message("crew/a", "weather", parley.Signed), to: weather},
		{name: "other skill", m: message("crew/a", "weather", parley.Signed), to: weather,
			edit: func(m *parley.Message) { m.Skill = "erase" }, want: parley.Forbidden},
		{name: "other sender", m: message("bob", "weather", parley.Signed), to: weather, want: parley.Forbidden},
		{name: "** matches several segments", m: message("guest/samvad/x", "open", parley.Signed), to: open},
		{name: "** needs one segment", m: message("guest", "open", parley.Signed), to: open, want: parley.Forbidden},
		{name: "unsigned", m: message("crew/a", "weather", parley.Unsigned), to: weather, want: parley.Unauthenticated},
		{name: "session where signed is required", m: message("crew/a", "weather", parley.Session), to: weather,
			want: parley.Unauthenticated},
		{name: "unsigned where unsigned is enough", m: message("crew/a", "open", parley.Unsigned), to: open},
		{name: "caller with the hub's token", m: message("crew/a", "weather", parley.Session), to: weather,
			edit: func(m *parley.Message) { m.Origin.Protocol = "api" }},
		{name: "not exposed", m: message("crew/a", "hidden", parley.Signed), to: hidden, want: parley.UnknownAgent},
		{name: "not exposed, but the recipient began the exchange", m: message("bob", "hidden", parley.Signed),
			to: Recipient{Agent: hidden.Agent, Native: hidden.Native, Began: true}},
		{name: "recipient began the exchange, but requires signatures", m: message("bob", "hidden", parley.Session),
			to:   Recipient{Agent: hidden.Agent, Native: hidden.Native, Began: true},
			want: parley.Unauthenticated},
		{name: "message already passed this hub", m: message("crew/a", "open", parley.Signed), to: open,
			edit: func(m *parley.Message) { m.Hops = []string{"x", "here"} }, want: parley.Loop},
		{name: "too many hops", m: message("crew/a", "open", parley.Signed), to: open,
			edit: func(m *parley.Message) { m.Hops = make([]string, 8) }, want: parley.Loop},
		{name: "a call by a handler within this hub", m: message("crew/a", "open", parley.Session), to: open,
			edit: func(m *parley.Message) { m.Origin.Protocol, m.Hops = "go", []string{"here", "here"} }},
		{name: "too many calls by handlers", m: message("crew/a", "open", parley.Session), to: open,
			edit: func(m *parley.Message) { m.Origin.Protocol, m.Hops = "go", make([]string, 8) }, want: parley.Loop},
		{name: "too large", m: message("crew/a", "open", parley.Signed), to: open,
			edit: func(m *parley.Message) { m.Parts[0].Data = make([]byte, 9<<20) }, want: parley.TooLarge},
		{name: "too many parts", m: message("crew/a", "open", parley.Signed), to: open,
			edit: func(m *parley.Message) { m.Parts = make([]parley.Part, 65) }, want: parley.TooLarge},
		{name: "default skill, not named", m: message("crew/a", "weather", parley.Signed),
			to: Recipient{Agent: &parley.Agent{Name: "weather", Skills: []parley.SkillSpec{{ID: "forecast"}}},
				Native: []string{"samvad"}},
			edit: func(m *parley.Message) { m.Skill = "" }},
		{name: "least assurance by pattern", m: message("crew/a", "vault/one", parley.Session),
			to:   Recipient{Agent: &parley.Agent{Name: "vault/one"}, Native: []string{"samvad"}},
			edit: func(m *parley.Message) { m.From = "guest/x" }, want: parley.Unauthenticated},
		{name: "first matching pattern applies", m: message("guest/x/y", "vault/open", parley.Unsigned),
			to: Recipient{Agent: &parley.Agent{Name: "vault/open"}, Native: []string{"samvad"}}},
		{name: "reply needs no rule", m: message("bob", "open", parley.Signed), to: open,
			edit: func(m *parley.Message) { m.InReplyTo = parley.ID{1} }},
		{name: "input needs the rule of its request", m: message("bob", "open", parley.Signed), to: open,
			edit: func(m *parley.Message) { m.Kind, m.InReplyTo = parley.Input, parley.ID{1} }, want: parley.Forbidden},
		{name: "input to the default skill, not named", m: message("crew/a", "weather", parley.Signed),
			to: Recipient{Agent: &parley.Agent{Name: "weather", Skills: []parley.SkillSpec{{ID: "forecast"}}},
				Native: []string{"samvad"}},
			edit: func(m *parley.Message) { m.Kind, m.InReplyTo, m.Skill = parley.Input, parley.ID{1}, "" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := New(config)
			if err != nil {
				t.Fatal(err)
			}
			if c.edit != nil {
				c.edit(c.m)
			}
			got := parley.Code("")
			if err := p.Admit(c.m, []Recipient{c.to}); err != nil {
				got = err.Code
			}
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
			if err := p.Admit(c.m, []Recipient{c.to}); err != nil && !slices.Contains(reasons[got], err.Reason) {
				t.Errorf("reason %q, want one of %q", err.Reason, reasons[got])
			}
		})
	}
}

// New refuses rules and limits with invalid patterns, without recipients or without a rate.
func TestRulesAreChecked(t *testing.T) {
	for _, r := range []Rule{{From: "[", To: []string{"x"}}, {From: "x", To: []string{"["}}, {From: "x"}} {
		for _, c := range []Config{{Allow: []Rule{r}}, {Limits: []Limit{{r.From, r.To, Rate{1, 1}}}}} {
			if _, err := New(c); err == nil {
				t.Errorf("%v: no error", c)
			}
		}
	}
	for _, c := range []Config{{Least: []Least{{To: []string{"["}}}}, {Least: []Least{{}}},
		{Limits: []Limit{{From: "*", To: []string{"*"}}}}} {
		if _, err := New(c); err == nil {
			t.Errorf("%+v: no error", c)
		}
	}
}

// Each sender has a rate of its own. The policy remembers at most MaxSenders senders.
func TestRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := New(Config{SenderRate: Rate{PerSecond: 1, Burst: 2}, UnknownRate: Rate{PerSecond: 1, Burst: 1},
			MaxSenders: 100})
		if err != nil {
			t.Fatal(err)
		}
		open := []Recipient{{Agent: &parley.Agent{Name: "open"}, Native: []string{"samvad"}}}
		take := func(from string) *parley.Error { return p.Admit(message(from, "open", parley.Signed), open) }
		for i := range 2 {
			if err := take("a"); err != nil {
				t.Fatalf("message %d: %v", i, err)
			}
		}
		err2 := take("a")
		if err2 == nil || err2.Code != parley.RateLimited || err2.After != time.Second || !err2.Retryable ||
			err2.Source != parley.ByLimit || err2.Reason != parley.SenderRate {
			t.Fatalf("third message: %+v, want a retryable RateLimited after 1s", err2)
		}
		more := message("a", "open", parley.Signed)
		more.Kind, more.InReplyTo = parley.Input, parley.ID{1}
		if err := p.Admit(more, open); err == nil || err.Code != parley.RateLimited {
			t.Fatalf("an input above the rate: %v", err)
		}
		if err := take("b"); err != nil {
			t.Fatalf("message of another sender: %v", err)
		}
		time.Sleep(time.Second) // of the bubble's clock
		if err := take("a"); err != nil {
			t.Fatalf("message after a second: %v", err)
		}
		for i := range 1000 {
			take(fmt.Sprint("s", i))
		}
		if n := p.senders.recent.Len(); n != 100 || len(p.senders.byName) != 100 {
			t.Errorf("%d senders are remembered, want 100", n)
		}
	})
}

// A limit counts each pair of sender and recipient separately. Replies and refused messages do not count. New rules do
// not reset the counters.
func TestLimitsOfPairs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := Config{Hub: "here", Allow: []Rule{{From: "crew/**", To: []string{"**"}}},
			Limits: []Limit{{"crew/boss", []string{"**"}, Rate{100, 100}},
				{"crew/*", []string{"weather.forecast", "lab"}, Rate{0.5, 2}}}}
		p, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		take := func(from, to string, edit ...func(*parley.Message)) parley.Code {
			m := message(from, to, parley.Signed)
			for _, f := range edit {
				f(m)
			}
			if err := p.Admit(m, []Recipient{{Agent: &parley.Agent{Name: to},
				Native: []string{"samvad"}}}); err != nil {
				if err.Code == parley.RateLimited && (err.After <= 0 || !err.Retryable) {
					t.Errorf("refusal %+v, want a retryable one with After", err)
				}
				return err.Code
			}
			return ""
		}
		skill := func(s string) func(*parley.Message) { return func(m *parley.Message) { m.Skill = s } }
		for i, want := range []parley.Code{"", "", parley.RateLimited} {
			if got := take("crew/a", "weather"); got != want {
				t.Fatalf("call %d: %q, want %q", i+1, got, want)
			}
		}
		if got := take("crew/a", "weather", func(m *parley.Message) {
			m.Kind, m.InReplyTo = parley.Input, parley.ID{1}
		}); got != parley.RateLimited {
			t.Errorf("an input: %q, want %q", got, parley.RateLimited)
		}
		for name, got := range map[string]parley.Code{
			"another sender": take("crew/b", "weather"), "another recipient": take("crew/a", "lab"),
			"a skill that is not limited": take("crew/a", "weather", skill("erase")),
			"a limit that matches first":  take("crew/boss", "weather"),
			"a reply":                     take("crew/a", "weather", func(m *parley.Message) { m.InReplyTo = parley.ID{1} }),
		} {
			if got != "" {
				t.Errorf("%s: refused with %q", name, got)
			}
		}
		if p, err = p.Next(c); err != nil {
			t.Fatal(err)
		}
		if got := take("crew/a", "weather"); got != parley.RateLimited {
			t.Errorf("after Next with the same rules: %q, want %q", got, parley.RateLimited)
		}
		time.Sleep(2 * time.Second) // of the bubble's clock
		if got := take("crew/a", "weather"); got != "" {
			t.Errorf("after the pause: refused with %q", got)
		}
	})
}
