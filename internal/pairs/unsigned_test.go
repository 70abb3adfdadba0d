package pairs

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/uagents"
)

// TestUnsigned has a sender of uAgents that signs nothing ask agents of all protocols.
// Where signatures or sessions are demanded, the sender gets a refusal of its protocol,
// and no agent hears the message. Where an operator lets it in, each recipient sees in
// a field of its own protocol that the message is unsigned, whatever the hub itself
// signs. An agent of uAgents gets the envelope unchanged and refuses it itself: the hub
// never makes it look signed.
func TestUnsigned(t *testing.T) {
	t.Parallel()
	user, err := uagents.NewUser()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		assurance string
		let       bool
	}{{"signed", false}, {"session", false}, {"unsigned", true}} {
		t.Run(c.assurance, func(t *testing.T) {
			var all []Peer
			for _, p := range Protocols {
				all = append(all, newPeer(t, p, p+"-to"))
			}
			w := newTestNode(t, node.Config{Policy: node.Policy{Assurance: c.assurance}}, all...)
			w.join(t, all...)
			at := At(w.Node)
			_, web := all[0].(*samvadPeer).place()
			client := &uagents.Client{User: user, HTTP: web,
				Resolver: hubOnly{&uagents.AlmanacResolver{URL: at.HTTP, HTTP: web}, at.HTTP +
					"/submit", new(sync.Map)}}
			for _, to := range all {
				text := "say " + to.Name()
				r, err := client.Ask(patient(t), to.Name(), uagents.NewChat(w.Hub().Now(),
					uagents.Text(text)).Message())
				native := to.Protocol() == "uagents"
				if !c.let || native {
					if uagents.AsError(err).Text != uagents.ErrVerifiedOnly.Text {
						t.Errorf("%s: %+v, %v", to.Name(), r, err)
					}
				} else if err != nil {
					t.Fatalf("%s: %v", to.Name(), err)
				}
				if !c.let {
					continue
				}
				if native {
					if n := len(to.Heard()); n > 0 {
						t.Errorf("%s heard %d of it", to.Name(), n)
					}
				} else if h := hears(t, to, text); !strings.Contains(h.Provenance, "unsigned") ||
					!strings.Contains(h.Provenance, "uagents") {
					t.Errorf("%s is told: %s", to.Name(), h.Provenance)
				}
				m := w.record(t, text, func(r *journal.Record) bool {
					return r.Refused == nil && r.Message != nil && r.Message.To == to.Name() &&
						r.Message.InReplyTo.IsZero() && holds(r.Message, text)
				}).Message
				if m.Origin.Verdict.Assurance != parley.Unsigned || m.Origin.Peer != user {
					t.Errorf("recorded as %s of %s", m.Origin.Verdict.Assurance, m.Origin.Peer)
				}
			}
			if c.let {
				return
			}
			w.untouched(t, user, all...)
		})
	}
}

// untouched checks that no message of a sender was accepted or heard.
func (w *testNode) untouched(t *testing.T, sender string, by ...Peer) {
	t.Helper()
	for _, to := range by {
		if n := len(to.Heard()); n > 0 {
			t.Errorf("%s heard %d of it", to.Name(), n)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.records {
		if m := r.Message; m != nil && m.Origin.Peer == sender && r.Refused == nil {
			t.Errorf("recorded as if it was taken: %+v", m)
		}
	}
}

// TestUnsignedAGH has a peer of AGH Network ask agents of the other protocols. Nothing
// is signed there. The hub's own NATS proves the session; an operator's proves nothing.
// Where more is demanded than is proved, the peer gets a refusal as a receipt, and no
// agent hears the message. Else each recipient sees in a field of its own protocol what
// was proved, whatever the hub itself signs.
func TestUnsignedAGH(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		operator bool // the peers meet on an operator's NATS
		demanded string
		proved   parley.Assurance
		let      bool
	}{
		{true, "signed", parley.Unsigned, false}, {true, "session", parley.Unsigned, false},
		{true, "unsigned", parley.Unsigned, true},
		{false, "signed", parley.Session, false}, {false, "session", parley.Session, true},
	} {
		name := c.demanded + " at the hub's"
		if c.operator {
			name = c.demanded + " at an operator's"
		}
		t.Run(name, func(t *testing.T) {
			from := newPeer(t, "agh", "agh-from")
			var all []Peer
			for _, p := range Protocols {
				if p != "agh" { // between AGH peers the envelope passes unchanged and unsigned
					all = append(all, newPeer(t, p, p+"-to"))
				}
			}
			config := node.Config{Policy: node.Policy{Assurance: c.demanded}}
			if c.operator {
				config.AGH.URL = operatorsNATS(t)
			}
			w := newTestNode(t, config, append(all, from)...)
			w.join(t, all...)
			at := At(w.Node)
			if c.operator {
				at.AGH = config.AGH.URL
			}
			if err := from.Join(patient(t), at, false); err != nil {
				t.Fatal(err)
			}
			for _, to := range all {
				text := "say " + to.Name()
				_, err := from.Ask(patient(t), Question{To: to, Text: text})
				var f *Failure
				if !c.let {
					if !errors.As(err, &f) || !f.Refused || !strings.HasPrefix(f.Text,
						string(agh.ReasonVerificationFailed)) {
						t.Errorf("%s: %v", to.Name(), err)
					}
					continue
				}
				if err != nil {
					t.Fatalf("%s: %v", to.Name(), err)
				}
				if h := hears(t, to, text); !strings.Contains(h.Provenance, c.proved.String()) ||
					!strings.Contains(h.Provenance, "agh") {
					t.Errorf("%s is told: %s", to.Name(), h.Provenance)
				}
				if m := w.said(t, from, to, text); m.Origin.Verdict.Assurance != c.proved || m.Origin.Peer != Workspace+
					"/"+from.Name() {
					t.Errorf("recorded as %s of %s", m.Origin.Verdict.Assurance, m.Origin.Peer)
				}
			}
			if !c.let {
				w.untouched(t, Workspace+"/"+from.Name(), all...)
			}
		})
	}
}

// operatorsNATS starts a NATS server that lets every client in.
func operatorsNATS(t *testing.T) (url string) {
	t.Helper()
	s, err := server.NewServer(&server.Options{ServerName: "operator", Host: "127.0.0.1", Port: server.RANDOM_PORT,
		NoLog: true, NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(within) {
		t.Fatal("the server does not get ready")
	}
	return s.ClientURL()
}
