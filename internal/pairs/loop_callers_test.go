package pairs

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge/a2a"
	"github.com/parley-hub/parley/bridge/mcp"
	"github.com/parley-hub/parley/bridge/peerauth"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/node"
)

// callersLoop has agents that are at the other hub ("mirror"), or at the same one ("self"), by one protocol alone, in
// which hubs know each other by tokens. A message ends where it comes a second time.
type callersLoop struct {
	protocol string
	agents   []string
	skills   []parley.SkillSpec // of the agents; nil: those that the other hub tells
	caller   func(name string) parley.Identity
	shows    func(at *testNode, agent, token string)                       // sets the token for calls of an agent
	where    func(at *testNode, agent string) (i parley.Identity, e error) // of an agent, as another hub enrols it
}

// TestLoopA2A: the hops go in the extension's metadata (A2A-063).
func TestLoopA2A(t *testing.T) {
	t.Parallel()
	callersLoop{protocol: "a2a", agents: []string{"mirror", "self"}, caller: a2a.IdentityOfCaller,
		skills: []parley.SkillSpec{{ID: "talk", Default: true}},
		shows: func(at *testNode, agent, token string) {
			at.A2A().SetAgent(agent, a2a.AgentSettings{Credentials: peerauth.Credentials{Token: token}})
		},
		where: func(at *testNode, agent string) (parley.Identity, error) {
			return a2a.IdentityAt(at.A2A().AgentURL(agent))
		}}.test(t)
}

// TestLoopMCP: the hops go in _meta (MCP-090). A hub does not connect to itself as to a server, so there is no agent at
// the same hub.
func TestLoopMCP(t *testing.T) {
	t.Parallel()
	callersLoop{protocol: "mcp", agents: []string{"mirror"}, caller: mcp.IdentityOfCaller,
		shows: func(at *testNode, agent, token string) {
			at.MCP().SetAgent(agent, mcp.AgentSettings{Credentials: peerauth.Credentials{Token: token}})
		},
		where: func(at *testNode, agent string) (parley.Identity, error) {
			return mcp.IdentityAt(At(at.Node).HTTP + mcpOf(agent))
		}}.test(t)
}

func (l callersLoop) test(t *testing.T) {
	peer := newPeer(t, l.protocol, l.protocol+"-peer")
	a, b := newTestNode(t, node.Config{Name: "hub-a"}, peer), newTestNode(t, node.Config{Name: "hub-b"})
	var learned []chan struct{}
	for _, way := range []struct {
		at, other *testNode
		agent     string
	}{{a, b, "mirror"}, {b, a, "mirror"}, {a, a, "self"}} {
		if !slices.Contains(l.agents, way.agent) {
			continue
		}
		// The other hub knows this one by a token.
		hub := "hub-of-" + way.agent
		if _, err := way.other.Hub().Directory().Put(t.Context(), parley.Agent{Name: hub,
			Identities: []parley.Identity{l.caller(hub)}}, directory.FromOperator); err != nil {
			t.Fatal(err)
		}
		token, err := At(way.other.Node).Token(t.Context(), hub)
		if err != nil {
			t.Fatal(err)
		}
		l.shows(way.at, way.agent, token)
		id, err := l.where(way.other, way.agent)
		if err != nil {
			t.Fatal(err)
		}
		dir := way.at.Hub().Directory()
		if l.skills == nil {
			told := make(chan struct{})
			first := sync.OnceFunc(func() { close(told) })
			defer dir.Watch(func(c directory.Change) {
				if c.New != nil && c.New.Name == way.agent && len(c.New.Skills) > 0 {
					first()
				}
			})()
			learned = append(learned, told)
		}
		if _, err := dir.Put(t.Context(), parley.Agent{Name: way.agent, Exposed: parley.Everywhere,
			Identities: []parley.Identity{id}, Skills: l.skills}, directory.FromOperator); err != nil {
			t.Fatal(err)
		}
	}
	for _, told := range learned {
		select {
		case <-told:
		case <-patient(t).Done():
			t.Fatal("a hub never learned what an agent of the other one can do")
		}
	}
	a.join(t, peer)
	for _, c := range []struct {
		agent         string
		first, second int // requests that each hub records, refused ones too
	}{{"mirror", 2, 1}, {"self", 2, 0}} {
		if !slices.Contains(l.agents, c.agent) {
			continue
		}
		t.Run(c.agent, func(t *testing.T) {
			before := [2]int{a.requests(), b.requests()}
			text := "say " + c.agent
			a.explain(t, peer, named(c.agent))
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
