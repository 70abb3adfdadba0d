package pairs

import (
	"context"
	"encoding/base64"
	"errors"
	"strings"
	"testing"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/samvad"
)

// TestLoop has two hubs, each with an entry that the agent "mirror" is at the other.
func TestLoop(t *testing.T) {
	t.Parallel()
	var peers []Peer
	for _, p := range Protocols {
		peers = append(peers, newPeer(t, p, p+"-peer"))
	}
	a, b := newTestNode(t, node.Config{Name: "hub-a"}, peers...), newTestNode(t, node.Config{Name: "hub-b"})
	for _, way := range []struct{ at, other *testNode }{{a, b}, {b, a}} {
		other := way.other.SAMVAD().Hosting()
		key, err := base64.StdEncoding.DecodeString(other.Key)
		if err != nil {
			t.Fatal(err)
		}
		hub, err := way.at.SAMVAD().Identity(other.Identity, "")
		if err != nil {
			t.Fatal(err)
		}
		mirror := parley.Identity{Protocol: "samvad", ID: strings.Replace(other.Identity,
			"127.0.0.1", "mirror.localhost", 1), URL: other.Base + "/agents/mirror"}
		for _, agent := range []parley.Agent{
			{Name: "other-hub", Identities: []parley.Identity{hub}},
			{Name: "mirror", Exposed: parley.Everywhere, Identities: []parley.Identity{mirror}},
		} {
			if _, err := way.at.Hub().Directory().Put(t.Context(), agent, directory.FromOperator); err != nil {
				t.Fatal(err)
			}
		}
		if err := way.at.SAMVAD().Enroll("other-hub", other.Identity, "", key, "test"); err != nil {
			t.Fatal(err)
		}
	}
	a.join(t, peers...)
	t.Run("cards", func(t *testing.T) {
		// Neither hub knows the agent's skills, and both ask for them.
		_, err := (&samvad.Client{HTTP: a.peers[0].(*samvadPeer).web}).Card(patient(t), a.SAMVAD().Hosting().Base+
			"/agents/mirror")
		if err == nil {
			t.Error("a card came from nowhere")
		}
	})
	// From here on both list a skill.
	for _, w := range []*testNode{a, b} {
		e, ok := w.Hub().Directory().Agent("mirror")
		if !ok {
			t.Fatal("the mirror is not there")
		}
		agent := e.Agent
		agent.Skills = []parley.SkillSpec{{ID: "talk", Default: true}}
		if _, err := w.Hub().Directory().Put(t.Context(), agent, directory.FromOperator); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range peers {
		t.Run(p.Protocol(), func(t *testing.T) {
			before := [2]int{a.requests(), b.requests()}
			answer, err := p.Ask(patient(t), Question{To: named("mirror"), Text: "say " + p.Name()})
			var f *Failure
			if !errors.As(err, &f) {
				t.Fatalf("%+v, %v", answer, err)
			}
			// From the requester to one hub, to the other, and back once, where it is
			// refused.
			if n := a.requests() - before[0]; n != 2 {
				t.Errorf("the first hub recorded %d requests", n)
			}
			if n := b.requests() - before[1]; n != 1 {
				t.Errorf("the second hub recorded %d requests", n)
			}
			refused := a.record(t, "the refusal", func(r *journal.Record) bool {
				return r.Refused != nil && r.Refused.Code == parley.Loop && r.Message != nil &&
					holds(r.Message, "say "+p.Name())
			})
			if len(refused.Message.Hops) > parley.MaxHops {
				t.Errorf("%d hops", len(refused.Message.Hops))
			}
			if err := p.Tell(patient(t), named("mirror"), "note "+p.Name()); err != nil {
				t.Fatal(err)
			}
			a.record(t, "the refusal of a notice", func(r *journal.Record) bool {
				return r.Refused != nil && r.Refused.Code == parley.Loop && r.Message != nil &&
					holds(r.Message, "note "+p.Name())
			})
		})
	}
}

// requests counts the requests that were recorded, refused ones too.
func (w *testNode) requests() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, r := range w.records {
		if r.Message != nil && r.Message.Kind == parley.Request {
			n++
		}
	}
	return n
}

// named is an agent of which only the name is known.
type named string

func (n named) Name() string                                { return string(n) }
func (named) Protocol() string                              { return "" }
func (named) Agent(string) (node.Agent, error)              { return node.Agent{}, nil }
func (named) Join(context.Context, Place, bool) error       { return nil }
func (named) Leave()                                        {}
func (named) Ask(context.Context, Question) (Answer, error) { return Answer{}, nil }
func (named) Tell(context.Context, Peer, string) error      { return nil }
func (named) Heard() <-chan Heard                           { return nil }
