package admin

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/policy"
)

// telex takes the name of a protocol. Its messages do not get through; some of its agents are not connected.
type telex struct{ away bool }

func (*telex) Protocol() string { return "agh" }

func (x *telex) Capabilities() hub.Capabilities {
	return hub.Capabilities{
		Holds:   func(e *directory.Entry, _ parley.Identity) bool { return x.away && strings.HasPrefix(e.Name, "away") },
		Address: func(e *directory.Entry) string { return "telex:" + e.Name },
	}
}

func (*telex) Deliver(context.Context, hub.Outbound) hub.Outcome {
	return hub.Outcome{Err: parley.Fail(parley.Unavailable, nil, "no line").With(parley.ByNetwork,
		parley.ConnectionRefused, "no line to the exchange")}
}

// troubled opens a hub with agents in every state.
func troubled(t *testing.T) *bench {
	t.Helper()
	b := open(t, func(c *Config) {
		if err := c.Hub.Bind(&telex{away: true}); err != nil {
			t.Fatal(err)
		}
		c.Line = func(key string) (string, int) {
			if key == "agents.configured" {
				return "/etc/parley/parley.toml", 41
			}
			return "", 0
		}
		c.Losses = func(callers, native string, id parley.Identity) []string {
			return []string{"what " + callers + " says to " + native}
		}
	})
	ctx := t.Context()
	for _, n := range []NewAgent{
		{Name: "down", Identities: []NewIdentity{{Protocol: "agh", ID: "down"}}},
		{Name: "away-1", Identities: []NewIdentity{{Protocol: "agh", ID: "a1"}}},
		{Name: "away-2", Identities: []NewIdentity{{Protocol: "agh", ID: "a2"}}, Expose: []string{"asp"}},
		{Name: "box", Title: "The Box", Inbox: true, Expose: []string{"agh"},
			Skills: []Skill{{ID: "sort-mail"}}},
		{Name: "fine", Identities: []NewIdentity{{Protocol: "agh", ID: "f", URL: "https://fine.example:8443/telex"}}},
	} {
		if _, err := b.client.AddAgent(ctx, n); err != nil {
			t.Fatal(err)
		}
	}
	for name, s := range map[string]directory.Source{"configured": directory.FromConfig, "guest/x": directory.FromGuest} {
		if _, err := b.hub.Directory().Put(ctx, parley.Agent{Name: name, Identities: []parley.Identity{{Protocol: "agh",
			ID: name}}}, s); err != nil {
			t.Fatal(err)
		}
	}
	r, err := b.client.Send(ctx, Send{To: "down", Kind: parley.Notice, Text: text("hello")})
	if err != nil {
		t.Fatal(err)
	}
	for id := range b.settled {
		if id == r.ID {
			break
		}
	}
	if _, err := b.client.Pause(ctx, "fine", true); err != nil {
		t.Fatal(err)
	}
	return b
}

func names(list []Agent) (out []string) {
	for _, v := range list {
		out = append(out, v.Name)
	}
	return out
}

// Those in trouble come first, the worst state first. Pages follow each other without gaps, also when an agent before
// the cursor is removed.
func TestAgentsInTroubleFirst(t *testing.T) {
	b, ctx := troubled(t), t.Context()
	page, err := b.client.Agents(ctx, AgentFilter{Order: "trouble"})
	want := []string{"down", "away-1", "away-2", "box", "fine", "configured", "guest/x", "weather"}
	if err != nil || !slices.Equal(names(page.Agents), want) {
		t.Errorf("%v, %v; want %v", names(page.Agents), err, want)
	}
	if c := *page.Counts; c != (AgentCounts{All: 8, Trouble: 5, StandIns: 2, Guests: 1}) {
		t.Errorf("%+v", c)
	}
	if page.HeardSince.IsZero() {
		t.Error("nothing says since when agents are heard of")
	}
	down := page.Agents[0]
	if down.Waiting.Dead != 1 || down.Waiting.Open != 0 || page.Agents[7].Waiting.Dead != 0 {
		t.Errorf("%+v", down.Waiting)
	}
	var got []string
	cursor := ""
	for i := range 10 {
		page, err := b.client.Agents(ctx, AgentFilter{Order: "trouble", Limit: 3, Cursor: cursor})
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, names(page.Agents)...)
		if i == 0 {
			if err := b.client.RemoveAgent(ctx, "away-1"); err != nil {
				t.Fatal(err)
			}
		}
		if len(page.Agents)+page.More != []int{8, 5, 2}[i] {
			t.Errorf("page %d: %d agents and %d more", i, len(page.Agents), page.More)
		}
		if cursor = page.Next; cursor == "" {
			break
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("page by page: %v, want %v", got, want)
	}
	byName, err := b.client.Agents(ctx, AgentFilter{})
	if err != nil || !slices.IsSorted(names(byName.Agents)) || byName.Counts != nil {
		t.Errorf("without an order: %v, %v", names(byName.Agents), err)
	}
	for _, f := range []AgentFilter{{Order: "size"}, {State: "sad"}, {Order: "trouble", Cursor: "weather"},
		{Order: "trouble", Cursor: "9:weather"}, {Cursor: "0:weather"}} {
		_, err := b.client.Agents(ctx, f)
		code(t, err, parley.Malformed)
	}
}

func TestFiltersOfAgents(t *testing.T) {
	b, ctx := troubled(t), t.Context()
	key := ed25519Key(7)
	if _, err := b.client.Link(ctx, "box", NewIdentity{Protocol: "samvad", ID: "agent://box",
		PublicKey: base64.StdEncoding.EncodeToString(key), KeyID: "box-key"}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		f    AgentFilter
		want string
	}{
		{AgentFilter{Q: "fine.example:8443"}, "fine"},
		{AgentFilter{Q: "SORT-mail"}, "box"},
		{AgentFilter{Q: "Box-Key"}, "box"},
		{AgentFilter{Q: "the box"}, "box"},
		{AgentFilter{Q: "forecast"}, "weather"},
		{AgentFilter{State: "trouble"}, "away-1 away-2 box down fine"},
		{AgentFilter{State: "paused"}, "fine"},
		{AgentFilter{State: "not_connected"}, "away-1 away-2"},
		{AgentFilter{State: "ready", Protocol: "agh"}, "configured guest/x"},
		{AgentFilter{Protocol: "go"}, "weather"},
		{AgentFilter{StandIn: true}, "away-2 box"},
		{AgentFilter{Guest: true}, "guest/x"},
		{AgentFilter{Q: "away", StandIn: true, State: "trouble", Order: "trouble"}, "away-2"},
		{AgentFilter{Q: "nothing like that"}, ""},
	} {
		page, err := b.client.Agents(ctx, c.f)
		if got := strings.Join(names(page.Agents), " "); err != nil || got != c.want {
			t.Errorf("%+v: %s, %v; want %s", c.f, got, err, c.want)
		}
	}
}

// Each identity has a state of its own with its reason, a stand-in what its callers lose. An observer sees no text that
// may quote a message.
func TestBindingsOfAgents(t *testing.T) {
	b, ctx := troubled(t), t.Context()
	v, err := b.client.Agent(ctx, "down", 0)
	if err != nil || len(v.Bindings) != 1 {
		t.Fatalf("%+v, %v", v.Bindings, err)
	}
	if w := v.Bindings[0]; w.Protocol != "agh" || w.State != hub.Unreachable || w.Reason.Detail == "" || w.Since.IsZero() {
		t.Errorf("%+v", w)
	}
	seen, err := b.as(observerToken).Agent(ctx, "down", 0)
	if err != nil || seen.Bindings[0].Reason.Detail != "" || seen.Bindings[0].Reason.Code != parley.Unavailable {
		t.Errorf("an observer sees %+v, %v", seen.Bindings, err)
	}
	if v, err = b.client.Agent(ctx, "box", 0); err != nil || len(v.Bindings) != 2 {
		t.Fatalf("%+v, %v", v.Bindings, err)
	}
	if w := v.Bindings[0]; w.Protocol != "api" || w.State != hub.NoReader || w.Since.IsZero() {
		t.Errorf("the inbox: %+v", w)
	}
	if w := v.Bindings[1]; !w.StandIn || w.ID != "telex:box" || w.State != hub.Ready || w.Text != "answers for it" ||
		len(w.Losses) != 1 || w.Losses[0] != "what agh says to api" {
		t.Errorf("the stand-in: %+v", w)
	}
}

// What the file configures has its line, also in the error for a change of it; what an operator added has the name.
func TestOriginsOfAgents(t *testing.T) {
	b, ctx := troubled(t), t.Context()
	for name, want := range map[string]string{"configured": "parley.toml, line 41", "box": "operator root",
		"guest/x": "registered itself", "weather": "the program"} {
		v, err := b.client.Agent(ctx, name, 0)
		if err != nil || v.Origin.Text != want || v.Origin.At.IsZero() {
			t.Errorf("%s: %+v, %v; want %s", name, v.Origin, err, want)
		}
	}
	const want = "agent configured is configured in parley.toml, line 41: edit the file, then parley config reload"
	_, exposed := b.client.Expose(ctx, "configured", []string{"asp"})
	_, foreseen := b.client.PreviewExpose(ctx, "configured", []string{"asp"})
	_, recorded := b.client.Record(ctx, "configured", "digest")
	for what, err := range map[string]error{"expose": exposed, "preview": foreseen, "record": recorded,
		"remove": b.client.RemoveAgent(ctx, "configured")} {
		if e := code(t, err, parley.Forbidden); e.Text != want {
			t.Errorf("%s: %s", what, e.Text)
		}
	}
	_, err := b.client.AddAgent(ctx, NewAgent{Name: "configured", Inbox: true})
	if e := code(t, err, parley.Conflict); e.Text != want {
		t.Errorf("add: %s", e.Text)
	}
}

// Who may call an agent is what the rules say, with their lines; a message shows the rule that would admit it now.
func TestCallersOfAgents(t *testing.T) {
	b, ctx := troubled(t), t.Context()
	v, err := b.client.Agent(ctx, "box", 0)
	if err != nil || !v.Callers.Open || len(v.Callers.Rules) > 0 {
		t.Fatalf("without rules: %+v, %v", v.Callers, err)
	}
	set := func(rules ...policy.Rule) {
		t.Helper()
		p, err := policy.New(policy.Config{Allow: rules, Least: []policy.Least{{To: []string{"box"},
			Assurance: parley.Session, Place: policy.Place{File: "parley.toml", Line: 60}}}})
		if err != nil {
			t.Fatal(err)
		}
		b.hub.SetPolicy(p)
	}
	set(policy.Rule{From: "acme/*", To: []string{"store"}, Place: policy.Place{File: "parley.toml", Line: 12}},
		policy.Rule{From: "operator", To: []string{"box"}, Place: policy.Place{File: "parley.toml", Line: 16}})
	r, err := b.client.Send(ctx, Send{To: "box", Kind: parley.Notice, Text: text("hello")})
	if err != nil {
		t.Fatal(err)
	}
	v, err = b.client.Agent(ctx, "box", 0)
	if err != nil || v.Callers.Open || len(v.Callers.Rules) != 1 || v.Callers.Rules[0].Number != 2 ||
		v.Callers.Rules[0].Line != 16 {
		t.Errorf("%+v, %v", v.Callers, err)
	}
	if l := v.Callers.Least; len(l) != 1 || l[0].Protocol != "agh" || l[0].Assurance != parley.Session || l[0].Line != 60 {
		t.Errorf("%+v", l)
	}
	m, err := b.client.Message(ctx, r.ID.String(), false)
	if err != nil || len(m.Admissions) != 1 || m.Admissions[0].Rule.Number != 2 ||
		m.Admissions[0].Text != "would be admitted by rule 2, parley.toml, line 16" {
		t.Errorf("%+v, %v", m.Admissions, err)
	}
	set(policy.Rule{From: "acme/*", To: []string{"box"}}) // a reload
	if m, err = b.client.Message(ctx, r.ID.String(), false); err != nil || len(m.Admissions) != 1 ||
		m.Admissions[0].Rule != nil || m.Admissions[0].Text != "no rule would admit it now" {
		t.Errorf("after other rules: %+v, %v", m.Admissions, err)
	}
}

// A preview says what the change does then, needs the same role, and changes nothing.
func TestPreviews(t *testing.T) {
	b, ctx := troubled(t), t.Context()
	before, err := b.client.Agent(ctx, "down", 0)
	if err != nil {
		t.Fatal(err)
	}
	says := func(p Preview, err error, want ...string) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range want {
			if !strings.Contains(strings.Join(append(p.Text, p.Command), "\n"), w) {
				t.Errorf("%q is not said: %q, %q", w, p.Text, p.Command)
			}
		}
	}
	p, err := b.client.PreviewExpose(ctx, "weather", []string{"agh"})
	says(p, err, "weather becomes reachable in agh as telex:weather; callers lose: what agh says to go.",
		"parley agents expose weather agh")
	p, err = b.client.PreviewExpose(ctx, "box", nil)
	says(p, err, "box can no longer be reached in agh.", "parley agents expose box none")
	p, err = b.client.PreviewExpose(ctx, "down", []string{"agh"})
	says(p, err, "Nothing changes")
	_, err = b.client.PreviewExpose(ctx, "down", []string{"morse"})
	code(t, err, parley.Malformed)

	key := base64.StdEncoding.EncodeToString(ed25519Key(3))
	p, err = b.client.PreviewLink(ctx, "box", NewIdentity{Protocol: "agh", ID: "down", URL: "https://box.example",
		PublicKey: key, KeyID: "k2"})
	says(p, err, " --key-id k2", "box is down in agh, too.", "https://box.example", "Its stand-in in agh retires",
		"down has this id already", "are from box from now on")
	_, foreseen := b.client.PreviewLink(ctx, "box", NewIdentity{Protocol: "agh", ID: "down"})
	_, linked := b.client.Link(ctx, "box", NewIdentity{Protocol: "agh", ID: "down"})
	if got, want := code(t, foreseen, parley.Conflict).Text, code(t, linked, parley.Conflict).Text; got != want {
		t.Errorf("the preview is refused with %q, the link with %q", got, want)
	}
	says2 := func(want string) {
		t.Helper()
		p, err := b.client.PreviewEnroll(ctx, Enrolment{Agent: "down", NewIdentity: NewIdentity{Protocol: "agh",
			PublicKey: key}})
		says(p, err, want, "parley keys enroll down")
	}
	says2("are from down from now on")

	_, err = b.client.PreviewRotate(ctx, Rotation{Owner: "hub", Purpose: "samvad"})
	code(t, err, notFound)
	if _, err := b.client.NewKey(ctx, NewKey{Owner: "hub", Purpose: "samvad", Algorithm: "ed25519"}); err != nil {
		t.Fatal(err)
	}
	for i := range previewAgents + 2 {
		id := fmt.Sprint("agent://p", i)
		if _, err := b.client.AddAgent(ctx, NewAgent{Name: fmt.Sprintf("p-%02d", i), Identities: []NewIdentity{{
			Protocol: "samvad", ID: id, URL: "https://p.example"}}}); err != nil {
			t.Fatal(err)
		}
	}
	p, err = b.client.PreviewRotate(ctx, Rotation{Owner: "hub", Purpose: "samvad", Overlap: "48h"})
	says(p, err, "Both keys are published", "These 22 agents may trust the old key by hand", "p-00, p-01", "and 2 more",
		"parley keys rotate hub --protocol samvad --overlap 48h0m0s")
	k, err := b.client.Rotate(ctx, Rotation{Owner: "hub", Purpose: "samvad", Overlap: "48h"})
	if err != nil {
		t.Fatal(err)
	}
	if d := k.Turn.Add(OldKeyPublished).Sub(p.Until); d.Abs() > time.Minute {
		t.Errorf("the old key ends %s after the time that was foretold", d)
	}
	_, err = b.client.PreviewRotate(ctx, Rotation{Owner: "hub", Purpose: "samvad"})
	code(t, err, parley.Conflict)

	for what, err := range map[string]error{
		"expose": second(b.as(operatorToken).PreviewExpose(ctx, "box", nil)),
		"link":   second(b.as(operatorToken).PreviewLink(ctx, "box", NewIdentity{Protocol: "asp", ID: "x"})),
		"enroll": second(b.as(operatorToken).PreviewEnroll(ctx, Enrolment{Agent: "down"})),
		"rotate": second(b.as(operatorToken).PreviewRotate(ctx, Rotation{Owner: "hub"})),
	} {
		if e := code(t, err, parley.Forbidden); !strings.Contains(e.Text, "administer") {
			t.Errorf("%s: %s", what, e.Text)
		}
	}
	after, err := b.client.Agent(ctx, "down", 0)
	if err != nil || !slices.Equal(after.Exposed, before.Exposed) || !slices.Equal(after.Identities, before.Identities) {
		t.Errorf("a preview changed %+v to %+v, %v", before, after, err)
	}
	if keys, err := b.client.AgentKeys(ctx, "down"); err != nil || len(keys.Enrolled) > 0 {
		t.Errorf("a preview enrolled %+v, %v", keys, err)
	}
}

func second[T any](_ T, err error) error { return err }
