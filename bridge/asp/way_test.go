package asp_test

import (
	"testing"

	"github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/bridge/bridgetest"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/node"
)

// The way to an agent without a card, to one that has called, and to one that reads a stream of events.
func TestWay(t *testing.T) {
	w := newWorld(t, node.Config{Agents: map[string]node.Agent{
		"bare": {ASP: &node.ASPAgent{ID: "agent://bare.test/x/y"}}}})
	bridgetest.WantFinding(t, w.Hub(), "bare", "card", hub.FindingFailed, "no card of agent://bare.test/x/y",
		"agents.bare.asp.card", "or let it register itself")

	name := func(c *asp.Client) string {
		t.Helper()
		e, ok := w.Hub().Directory().Lookup("asp", c.Identity.ID())
		if !ok {
			t.Fatalf("%s is not in the directory", c.Identity.ID())
		}
		return e.Name
	}
	alice, bob := w.client("alice"), w.client("bob")
	bridgetest.WantFinding(t, w.Hub(), name(alice), "card", hub.FindingOK, "it registered itself")
	bridgetest.WantFinding(t, w.Hub(), name(alice), "connection", hub.FindingOK, "it last called this hub at ")
	ctx := w.ctx()
	s, _ := introduced(t, ctx, alice, bob)
	for range s.Messages(ctx) { // a stream of events is open in the loop
		bridgetest.WantFinding(t, w.Hub(), name(alice), "connection", hub.FindingOK, "of its calls or streams are open")
		break
	}
}
