package pairs

import (
	"strings"
	"testing"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/uagents"
)

// TestUnsigned has a sender of uAgents that signs nothing ask agents of the
// other protocols. Where signatures or sessions are demanded it is refused in
// the words of its protocol, and nobody hears it; where an operator lets it in,
// each is told by the field of its own protocol that it is unsigned, whoever
// signed the message that it gets.
func TestUnsigned(t *testing.T) {
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
				if p != "uagents" { // there the envelope goes on as it is
					all = append(all, newPeer(t, p, p+"-to"))
				}
			}
			w := newWorld(t, node.Config{Policy: node.Policy{Assurance: c.assurance}}, all...)
			w.join(t, all...)
			at := At(w.Node)
			_, web := all[0].(*samvadPeer).place()
			client := &uagents.Client{User: user, HTTP: web, Resolver: hubOnly{&uagents.AlmanacResolver{URL: at.HTTP, HTTP: web}, at.HTTP + "/submit"}}
			for _, to := range all {
				text := "say " + to.Name()
				r, err := client.Ask(patient(t), to.Name(), uagents.NewChat(w.Hub().Now(), uagents.Text(text)).Message())
				if !c.let {
					if uagents.AsError(err).Text != uagents.ErrVerifiedOnly.Text {
						t.Errorf("%s: %+v, %v", to.Name(), r, err)
					}
					continue
				}
				if err != nil {
					t.Fatalf("%s: %v", to.Name(), err)
				}
				if h := hears(t, to, text); !strings.Contains(h.Provenance, "unsigned") || !strings.Contains(h.Provenance, "uagents") {
					t.Errorf("%s is told: %s", to.Name(), h.Provenance)
				}
				m := w.record(t, text, func(r *journal.Record) bool {
					return r.Message != nil && r.Message.To == to.Name() && r.Message.Kind == parley.Request && holds(r.Message, text)
				}).Message
				if m.Origin.Verdict.Assurance != parley.Unsigned || m.Origin.Peer != user {
					t.Errorf("recorded as %s of %s", m.Origin.Verdict.Assurance, m.Origin.Peer)
				}
			}
			if c.let {
				return
			}
			for _, to := range all {
				if n := len(to.Heard()); n > 0 {
					t.Errorf("%s heard %d of it", to.Name(), n)
				}
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			for _, r := range w.records {
				if m := r.Message; m != nil && m.Origin.Peer == user && r.Refused == nil {
					t.Errorf("recorded as if it was taken: %+v", m)
				}
			}
		})
	}
}
