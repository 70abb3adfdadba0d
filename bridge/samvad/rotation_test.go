package samvad_test

import (
	"context"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/keyring"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/samvad"
)

// The hub's key is replaced without a restart: cards show both keys while the old one
// signs, then the new one signs, then the old one is withdrawn. An agent that has one
// raw key is reached in every phase, with either key.
func TestKeyIsReplacedInPhases(t *testing.T) {
	c := newClock()
	config := node.Config{Now: c.now, Data: t.TempDir(), Durability: "disk", PublicURL: "http://hub.test"}
	w := newWorld(t, config)
	w.client.Now = c.now

	trusted := samvad.StaticKeys{} // the keys that the agent's operator enrolled
	var signedBy []string
	server := &samvad.Server{}
	peer := agentElsewhere(t, w, nil, func(http.Handler) http.Handler { return server })
	card := &samvad.Card{ID: peer.ID, Name: "Elsewhere", Version: "1", Description: "x", URL: peer.URL,
		PublicKeys: []samvad.CardKey{{KID: "k", Key: w.SAMVAD().Hosting().Key, Active: true}},
		Skills: []samvad.Skill{{ID: "ask", Name: "Ask", Description: "x", InputSchema: []byte(`{"type":"object"}`),
			OutputSchema: []byte(`{"type":"object"}`),
			Modes:        []samvad.Mode{samvad.ModeSync, samvad.ModeAsync}, Trust: samvad.TrustPublic}}}
	server.Agent = &samvad.Agent{Card: card.Complete(), Limit: &samvad.RateLimit{},
		Handler: func(_ context.Context, r *samvad.Request) (samvad.Response, error) {
			signedBy = append(signedBy, r.Verdict.KeyID)
			return samvad.Response{Result: []byte(`{}`)}, nil
		}}
	server.Verifier = &samvad.Verifier{Keys: trusted, Now: c.now}
	if _, err := w.Hub().Directory().Put(t.Context(), parley.Agent{Name: "elsewhere",
		Identities: []parley.Identity{peer}}, directory.FromOperator); err != nil {
		t.Fatal(err)
	}

	hosting := w.SAMVAD().Hosting()
	trust := func(key string) {
		t.Helper()
		k, err := samvad.ParseKey(key)
		if err != nil {
			t.Fatal(err)
		}
		trusted[hosting.Identity] = []samvad.Key{k}
	}
	shown := func() (kids []string) {
		t.Helper()
		for _, at := range []string{"", "/agents/crew/echo"} {
			k, err := w.client.Card(t.Context(), w.base+at)
			if err != nil {
				t.Fatal(err)
			}
			kids = nil
			for _, k := range k.PublicKeys {
				if !k.Active {
					t.Error("a key on a card is not active")
				}
				kids = append(kids, k.KID)
			}
		}
		return kids
	}
	ask := func(phase string, waits bool) {
		t.Helper()
		before := len(signedBy)
		if waits {
			if m, err := w.Hub().Ask(t.Context(), submission("elsewhere")); err != nil || m.Kind != parley.Response {
				t.Fatalf("%s: %+v, %v", phase, m, err)
			}
		} else {
			if _, err := w.Hub().Accept(t.Context(), submission("elsewhere")); err != nil {
				t.Fatal(err)
			}
			eventually(t, phase, func() bool { return len(w.Hub().Journal().Deliveries(journal.Filter{})) == 0 })
		}
		if len(signedBy) != before+1 {
			t.Errorf("%s: served %d times", phase, len(signedBy)-before)
		}
	}

	old := hosting
	trust(old.Key)
	ask("before", true)
	if _, err := admin.ReplaceKey(w.Keys(), keyring.Hub, "samvad", "test", 24*time.Hour); err != nil {
		t.Fatal(err)
	}
	both := w.SAMVAD().Hosting()
	if both.Key != old.Key || both.Next == "" || both.Next == old.Key {
		t.Fatalf("%+v", both)
	}
	first := shown()
	if len(first) != 2 || first[0] != old.KeyID {
		t.Errorf("the cards show %v", first)
	}
	ask("the agent has the old key", true)
	trust(both.Next)
	ask("the agent has the new key already", true)
	ask("and nobody waits", false)

	// A restart in the middle goes on.
	w.close()
	w.open(config)
	w.client.Now = c.now
	if got := shown(); !slices.Equal(got, first) {
		t.Errorf("after a restart the cards show %v", got)
	}
	c.to(c.now().Add(24 * time.Hour))
	turned := w.SAMVAD().Hosting()
	if turned.Key != both.Next || turned.Next != "" {
		t.Errorf("%+v", turned)
	}
	if got := shown(); len(got) != 2 || got[0] != turned.KeyID || got[1] != old.KeyID {
		t.Errorf("after the turn the cards show %v", got)
	}
	ask("the new key signs", true)
	trust(old.Key)
	ask("the agent has the old key still", true)
	c.to(c.now().Add(admin.OldKeyPublished))
	if got := shown(); len(got) != 1 || got[0] != turned.KeyID {
		t.Errorf("at last the cards show %v", got)
	}
	if m, err := w.Hub().Ask(t.Context(), submission("elsewhere")); err != nil || m.Kind != parley.Failure ||
		m.Error.Code != parley.Forbidden {
		t.Errorf("a withdrawn key: %+v, %v", m, err)
	}
	trust(turned.Key)
	ask("after", true)
}
