package agh_test

import (
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/node"
)

// The configuration's pins say which keys may speak as a nickname, for any user, and
// whether unpinned handles are verified at all.
func TestPinsOfTheConfiguration(t *testing.T) {
	identity := func(nickname string, b byte) *agh.Identity {
		id, err := agh.IdentityFromSeed(nickname, []byte(strings.Repeat(string(b), 32)))
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	key := func(id *agh.Identity) string { return base64.RawURLEncoding.EncodeToString(id.Public()) }
	dora, twin, otto, free := identity("dora", 'd'), identity("dora", 'x'), identity("otto", 'o'), identity("free", 'f')
	for name, c := range map[string]struct {
		require bool
		refused map[*agh.Identity]string // the step's text
	}{
		"pins":         {false, map[*agh.Identity]string{twin: "pinned key"}},
		"require pins": {true, map[*agh.Identity]string{twin: "pinned key", free: "not pinned"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, func(cfg *node.Config) {
				cfg.AGH.Trust, cfg.AGH.RequirePins = true, c.require
				cfg.AGH.Pins = map[string]node.AGHPin{"dora": {Keys: []string{key(dora)}},
					otto.ID(): {Keys: []string{key(otto)}}}
				cfg.AGH.Users["any"] = node.AGHUser{Token: "ty", Peers: []string{"*"}, Workspaces: []string{"acme"}}
			})
			nc := w.connect("ty")
			for _, id := range []*agh.Identity{dora, twin, otto, free} {
				card, err := agh.NewCard(id.ID(), "", nil)
				if err != nil {
					t.Fatal(err)
				}
				e := &agh.Envelope{ID: agh.NewID(), WorkspaceID: "acme", Channel: "builders", TS: time.Now().Unix()}
				if err := e.SetContent(&agh.Greet{Card: card}); err != nil {
					t.Fatal(err)
				}
				b, err := id.Sign(e)
				if err != nil {
					t.Fatal(err)
				}
				before := len(w.Hub().Refused(100))
				if err := errors.Join(nc.Publish("agh.network.v0.acme.builders.broadcast", b), nc.Flush()); err != nil {
					t.Fatal(err)
				}
				why, no := c.refused[id]
				if !no {
					w.until(id.ID()+" is known", func() bool {
						_, ok := w.Hub().Directory().Lookup("agh", "acme/"+
							id.ID())
						return ok
					})
					continue
				}
				w.until(id.ID()+" is refused", func() bool { return len(w.Hub().Refused(100)) > before })
				if r := w.Hub().Refused(100); !strings.Contains(r[0].Text+r[0].Cause+r[len(r)-1].Text+r[len(r)-1].Cause,
					why) {
					t.Errorf("%s: %+v, want %q", id.ID(), r, why)
				}
				if _, ok := w.Hub().Directory().Lookup("agh", "acme/"+id.ID()); ok {
					t.Errorf("%s is known", id.ID())
				}
			}
		})
	}
	for want, c := range map[string]node.AGH{
		"need agh.trust":      {Pins: map[string]node.AGHPin{"dora": {Keys: []string{key(dora)}}}},
		"agh.require_pins":    {RequirePins: true},
		"names no keys":       {Trust: true, Pins: map[string]node.AGHPin{"dora": {}}},
		"verified handle":     {Trust: true, Pins: map[string]node.AGHPin{"Dora": {Keys: []string{key(dora)}}}},
		"base64url":           {Trust: true, Pins: map[string]node.AGHPin{"dora": {Keys: []string{"AAAA"}}}},
		"has the fingerprint": {Trust: true, Pins: map[string]node.AGHPin{dora.ID(): {Keys: []string{key(twin)}}}},
	} {
		_, err := node.Open(t.Context(), node.Config{Durability: "memory", Listen: node.Listen{AGH: "127.0.0.1:0"},
			AGH: c})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
