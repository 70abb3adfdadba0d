package pairs

import (
	"errors"
	"fmt"
	"testing"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge/a2a"
	"github.com/parley-hub/parley/bridge/peerauth"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/node"
)

// TestLoopA2A has agents that are at the other hub, or at the same one, by A2A alone
// (A2A-063): the hops go in the extension's metadata. A message ends where it comes a second time.
func TestLoopA2A(t *testing.T) {
	t.Parallel()
	peer := newPeer(t, "a2a", "a2a-peer")
	a, b := newTestNode(t, node.Config{Name: "hub-a"}, peer), newTestNode(t, node.Config{Name: "hub-b"})
	for _, way := range []struct {
		at, other *testNode
		agent     string
	}{{a, b, "mirror"}, {b, a, "mirror"}, {a, a, "self"}} {
		// The other hub knows this one by a token.
		hub := "hub-of-" + way.agent
		if _, err := way.other.Hub().Directory().Put(t.Context(), parley.Agent{Name: hub,
			Identities: []parley.Identity{a2a.IdentityOfCaller(hub)}}, directory.FromOperator); err != nil {
			t.Fatal(err)
		}
		token, err := At(way.other.Node).Token(t.Context(), hub)
		if err != nil {
			t.Fatal(err)
		}
		way.at.A2A().SetAgent(way.agent, a2a.AgentSettings{Credentials: peerauth.Credentials{Token: token}})
		id, err := a2a.IdentityAt(way.other.A2A().AgentURL(way.agent))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := way.at.Hub().Directory().Put(t.Context(), parley.Agent{Name: way.agent, Exposed: parley.Everywhere,
			Identities: []parley.Identity{id}, Skills: []parley.SkillSpec{{ID: "talk", Default: true}}},
			directory.FromOperator); err != nil {
			t.Fatal(err)
		}
	}
	a.join(t, peer)
	for _, c := range []struct {
		agent         string
		first, second int // requests that each hub records, refused ones too
	}{{"mirror", 2, 1}, {"self", 2, 0}} {
		t.Run(c.agent, func(t *testing.T) {
			before := [2]int{a.requests(), b.requests()}
			text := "say " + c.agent
			answer, err := peer.Ask(patient(t), Question{To: named(c.agent), Text: text})
			var f *Failure
			if !errors.As(err, &f) {
				t.Fatalf("%+v, %v", answer, err)
			}
			refused := a.record(t, "the refusal", func(r *journal.Record) bool {
				return r.Refused != nil && r.Refused.Code == parley.Loop && r.Message != nil && holds(r.Message, text)
			})
			if n := len(refused.Message.Hops); n == 0 || n > parley.MaxHops {
				t.Errorf("%d hops", n)
			}
			got := fmt.Sprint(a.requests()-before[0], b.requests()-before[1])
			if want := fmt.Sprint(c.first, c.second); got != want {
				t.Errorf("the hubs recorded %s requests, want %s", got, want)
			}
		})
	}
}
