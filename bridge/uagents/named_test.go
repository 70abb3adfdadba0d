package uagents_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/uagents"
)

// TestAddressForName: operators and programs may name an agent by its address, with and
// without prefix, or by its id in any protocol.
func TestAddressForName(t *testing.T) {
	w := newWorld(t, node.Config{Listen: node.Listen{HTTP: "127.0.0.1:0", Admin: "127.0.0.1:0"}})
	says := func(_ context.Context, _ *uagents.Request, m *uagents.ChatMessage) (*uagents.ChatMessage, error) {
		out := uagents.NewChat(time.Now(), uagents.Text("you said "+m.Text()))
		return &out, nil
	}
	bob := w.newPeer(uagents.ChatHandler(nil, says))
	by := admin.Actor{Name: "test", Role: admin.Administer, Speak: []string{"**"}}
	ctx, text := t.Context(), "hello"
	name := w.nameOf(bob.Identity)
	for _, ref := range []string{bob.Address(), "agent://" + bob.Address(), name} {
		if v, err := w.Admin().Agent(ctx, by, ref, 0); err != nil || v.Name != name {
			t.Errorf("agent %s: %q, %v", ref, v.Name, err)
		}
		r, err := w.Admin().Ask(ctx, by, admin.Send{From: "crew/echo", To: ref, Text: &text})
		if err != nil || r.Reply == nil || r.Reply.Kind != parley.Response || r.Reply.From != name {
			t.Errorf("ask %s: %+v, %v", ref, r.Reply, err)
		}
		if m, err := w.ask("crew/echo", ref, "", parley.Text(text)); err != nil || m.Text() != "you said hello" {
			t.Errorf("ask %s from Go: %+v, %v", ref, m, err)
		}
		if v, err := w.Admin().Pause(ctx, by, ref, false); err != nil || v.Name != name {
			t.Errorf("resume %s: %q, %v", ref, v.Name, err)
		}
		list, err := w.Admin().Dead(by, admin.DeadFilter{To: ref})
		if err != nil || len(list) != 0 {
			t.Errorf("dead letters to %s: %v, %v", ref, list, err)
		}
	}
	if v, err := w.Admin().Agent(ctx, by, w.address("crew/echo"), 0); err != nil || v.Name != "crew/echo" {
		t.Errorf("by the address of its stand-in: %q, %v", v.Name, err)
	}
	put := func(name string, ids ...parley.Identity) {
		t.Helper()
		a := parley.Agent{Name: name, Identities: ids}
		if _, err := w.Hub().Directory().Put(ctx, a, directory.FromOperator); err != nil {
			t.Fatal(err)
		}
	}
	put("one", parley.Identity{Protocol: "samvad", ID: "agent://x.example", URL: "http://192.0.2.1"})
	if v, err := w.Admin().Agent(ctx, by, "agent://x.example", 0); err != nil || v.Name != "one" {
		t.Errorf("by its id in SAMVAD: %q, %v", v.Name, err)
	}
	put("two", parley.Identity{Protocol: "asp", ID: "agent://x.example"})
	_, shown := w.Admin().Agent(ctx, by, "agent://x.example", 0)
	_, sent := w.Admin().Send(ctx, by, admin.Send{To: "agent://x.example", Text: &text})
	for _, err := range []error{shown, sent} {
		if parley.CodeOf(err) != parley.Conflict || !strings.Contains(err.Error(), "one, two") {
			t.Errorf("an id of two agents: %v", err)
		}
	}
	_, err := w.Admin().Send(ctx, by, admin.Send{To: identity(t).Address(), Text: &text})
	if parley.CodeOf(err) != parley.UnknownAgent {
		t.Errorf("an address of no agent: %v", err)
	}
}
