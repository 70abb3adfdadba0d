package console

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
)

// TestRowHasTheWorstWay: the sign of an agent is that of its worst way, with the protocol and the reason.
func TestRowHasTheWorstWay(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	ready, broken := admin.AgentState{State: hub.Ready}, admin.AgentState{State: hub.Unreachable,
		Since: now.Add(-38 * time.Minute), Reason: &admin.Problem{Detail: "TLS: unknown authority"}}
	v := admin.Agent{Name: "ledger", Title: "Accounts " + strings.Repeat("x", 500), Source: directory.FromGuest,
		AgentState: ready, Waiting: &admin.Waiting{Open: 14, Oldest: now.Add(-6 * time.Second)},
		Seen: &admin.Seen{Time: now.Add(-time.Minute), Assurance: parley.Signed}, Bindings: []admin.AgentBinding{
			{Protocol: "agh", AgentState: ready, Text: "connected", Heard: now.Add(-2 * time.Minute)},
			{Protocol: "samvad", AgentState: broken},
			{Protocol: "asp", AgentState: ready, StandIn: true}}}
	r := agentRow(&v, now, "ledger", url.Values{})
	if r.State.Word != "not reached" || r.Note != "SAMVAD, TLS: unknown authority, 38 min" || !r.Bad || !r.Selected {
		t.Errorf("%+v", r)
	}
	if r.Itself != "AGH, SAMVAD" || r.StandIns != "ASP" || r.Count != "waiting" || r.Proof != "signed" ||
		r.Heard.Ago() != "1 min 0 s" {
		t.Errorf("%+v", r)
	}
	if !strings.HasSuffix(r.Title, " · registered itself") || len(r.Title) > 100 {
		t.Errorf("title %q", r.Title)
	}
	v.Bindings[1].AgentState, v.Bindings[0].Heard, v.Waiting.Dead = ready, now, 2
	r = agentRow(&v, now, "", url.Values{})
	if r.State.Word != "ready" || r.Note != "connected" || r.Bad || r.Count != "bad" {
		t.Errorf("%+v", r)
	}
	if r.Proof != "" || r.Heard.Ago() != "now" {
		t.Errorf("a greeting after the last message proves nothing: %+v", r.Heard)
	}
}

// TestEveryStateHasASign: colour, shape and word of each state of agents.
func TestEveryStateHasASign(t *testing.T) {
	seen := map[string]hub.AgentState{}
	for _, s := range []hub.AgentState{hub.Ready, hub.Paused, hub.Unreachable, hub.Failing, hub.Postponed,
		hub.NotConnected, hub.NoReader} {
		v := agentSigns[s]
		if v.Class == "" || v.Icon == "" || v.Word == "" || seen[v.Word] != "" {
			t.Errorf("%s: %+v", s, v)
		}
		seen[v.Word] = s
	}
}

// TestTitleIsNotTheNameAgain: a row has the title only if it says more than the name.
func TestTitleIsNotTheNameAgain(t *testing.T) {
	for title, want := range map[string]string{"Weather": "", "weather": "", "Weather of Bern": "Weather of Bern"} {
		v := admin.Agent{Name: "weather", Title: title}
		if r := agentRow(&v, time.Time{}, "", nil); r.Title != want {
			t.Errorf("%s: %q, want %q", title, r.Title, want)
		}
	}
}
