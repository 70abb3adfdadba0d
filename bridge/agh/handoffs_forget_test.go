package agh_test

import (
	"encoding/hex"
	"encoding/json"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/hub"
)

// An unpublished hand-off is forgotten with its agent, with its room's conversation,
// and with the hub's message that it carries. Other hand-offs stay.
func TestForgetsWhatIsHandedOver(t *testing.T) {
	w := newWorld(t, nil)
	handoffs := w.Hub().Journal().State("agh.handoffs")
	room := func(from, to, id string) *agh.Envelope {
		e := &agh.Envelope{ID: id, WorkspaceID: "acme", Channel: "builders", Surface: agh.SurfaceDirect, From: from,
			To: to, TS: time.Now().Unix()}
		var err error
		if e.DirectID, err = agh.VerifiedDirectID("acme", "builders", from, to); err == nil {
			err = e.SetContent(&agh.Say{Text: "handed over"})
		}
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	message := parley.HashID([]byte("message"))
	all := map[string]*agh.Envelope{
		"a room":    room("dan", "bob", "msg_1"),
		"a message": room("crew.weather", "bob", "msg_"+hex.EncodeToString(message[:])),
		"an agent":  room("alice", "carol", "msg_3"),
		"the rest":  room("alice", "bob", "msg_4"),
	}
	for key, e := range all {
		raw, err := e.Encode()
		if err != nil {
			t.Fatal(err)
		}
		v, err := json.Marshal(map[string]any{"Peer": e.To, "Raw": raw})
		if err == nil {
			_, err = handoffs.Put(t.Context(), "another hub/"+key, v, time.Time{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	none := func(parley.ID) bool { return false }
	for _, f := range []struct {
		what string
		hub.Forgetting
	}{
		{"a room", hub.Forgetting{Message: none, Conversation: w.AGH().Conversation(all["a room"])}},
		{"a message", hub.Forgetting{Message: func(id parley.ID) bool { return id == message }, Conversation: message}},
		{"an agent", hub.Forgetting{Message: none, Agent: "acme-carol",
			Identities: []parley.Identity{{Protocol: "agh", ID: "acme/carol"}}}},
	} {
		if n, err := w.AGH().Forget(t.Context(), f.Forgetting); n != 1 || err != nil {
			t.Errorf("%s: %d values, %v", f.what, n, err)
		}
		delete(all, f.what)
		left := 0
		for v, err := range handoffs.Range(t.Context(), "another hub/") {
			if err != nil {
				t.Fatal(err)
			}
			if left++; all[v.Key[len("another hub/"):]] == nil {
				t.Errorf("%s: %s is left", f.what, v.Key)
			}
		}
		if left != len(all) {
			t.Errorf("%s: %d are left, want %d", f.what, left, len(all))
		}
	}
}
