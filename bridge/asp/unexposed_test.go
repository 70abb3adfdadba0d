package asp_test

import (
	"slices"
	"testing"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/node"
)

// An unexposed agent sends a request to an ASP agent through its stand-in and gets the
// answer, also if rules let no agent call it. No peer can find or call it, not even the
// agent that it asks.
func TestUnexposedAgentAsks(t *testing.T) {
	w := newWorld(t, node.Config{Allow: []node.Allow{{From: "hidden", To: []string{"**"}}}})
	bob, eve := w.client("bob"), w.client("eve")
	ctx := w.ctx()
	called := make(chan error, 1)
	var hidden string
	answer(ctx, t, bob, func(s *asp.Session, m *asp.Message) error {
		var err error
		switch {
		case m.IsInvitation():
			hidden = m.Sender.AgentID
			_, err = s.Send(ctx, asp.Accept, asp.Answer{}, asp.InReplyTo(m))
		case m.Performative == asp.Query:
			if _, err = s.Send(ctx, asp.Observe, asp.Information{Topic: "noted"}); err != nil {
				return err
			}
			_, err = s.Send(ctx, asp.Query, asp.Question{QueryType: "x"}) // to the requester
			called <- err
			_, err = s.Send(ctx, asp.Inform, asp.Information{InformType: "result", Data: map[string]any{"n": 42}},
				asp.InReplyTo(m))
		}
		return err
	})
	ask := question(nameOf(t, w, bob.Identity.ID()), "well?")
	ask.From = "hidden"
	m, err := w.Hub().Ask(ctx, hub.Submission{Scope: "go", Message: ask})
	if err != nil || m.Kind != parley.Response || string(m.Parts[0].Data) != `{"n":42}` {
		t.Fatalf("%+v, %v", m, err)
	}
	if err := <-called; !isCode(err, "agent_not_found") {
		t.Errorf("the recipient could call the requester: %v", err)
	}
	found := func(id string) bool {
		t.Helper()
		cards, err := eve.Discover(ctx, "x", 0)
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(cards, func(c *asp.Card) bool { return c.AgentID == id })
	}
	if found(hidden) {
		t.Error("a search found it")
	}
	if _, err := eve.Open(ctx, asp.Invitation{To: []string{hidden}}); !isCode(err, "agent_not_found") {
		t.Errorf("another agent invited it: %v", err)
	}
	if card, err := eve.Card(ctx, hidden); err != nil || len(card.Capabilities) > 0 {
		t.Errorf("its card: %+v, %v", card, err)
	}
	// A search finds it while it is exposed.
	for _, exposed := range []bool{true, false} {
		e, ok := w.Hub().Directory().Agent("hidden")
		if !ok {
			t.Fatal("the agent is gone")
		}
		a := e.Agent
		if a.Exposed = nil; exposed {
			a.Exposed = []string{"asp"}
		}
		if _, err := w.Hub().Directory().Put(ctx, a, e.Source); err != nil {
			t.Fatal(err)
		}
		for found(hidden) != exposed { // the hub follows the directory in the background
			if ctx.Err() != nil {
				t.Fatalf("exposed: %v, found: %v", exposed, !exposed)
			}
		}
	}
}
