package agh_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/agh/aghnats"
	"github.com/parley-hub/parley/node"
)

// Plain peers see a verified peer under a plain peer id, agents under its handle.
// Greetings, whois, threads, rooms and work go both ways, agents learn that the peer
// signed, and no other peer can use its name.
func TestVerifiedPeerAmongPlainOnes(t *testing.T) {
	seed := func(b byte) *agh.Identity {
		id, err := agh.IdentityFromSeed("dora", []byte(strings.Repeat(string(b), 32)))
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	dora, impostor := seed('d'), seed('x')
	alias, ok := aghnats.Alias(dora.ID())
	if back, okBack := aghnats.HandleOf(alias); !ok || !okBack || back != dora.ID() {
		t.Fatalf("alias %q, back %q", alias, back)
	}
	w := newWorld(t, func(c *node.Config) {
		c.AGH.Trust = true
		c.AGH.Users["dora"] = node.AGHUser{Token: "td", Peers: []string{dora.ID()}, Workspaces: []string{"acme"}}
		c.AGH.Users["any"] = node.AGHUser{Token: "ty", Peers: []string{"dora*"}, Workspaces: []string{"acme"}}
		c.Policy.Assurance = "session"
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	alice := w.bare("ta", "alice")
	got := make(chan *agh.Request, 16)
	nc := w.connect("td")
	client := &agh.Client{Transport: transport(nc), WorkspaceID: "acme", Channel: "builders", Identity: dora,
		Handler: func(_ context.Context, r *agh.Request) { got <- r }}
	if err := client.Join(ctx); err != nil {
		t.Fatal(err)
	}
	// alice decodes without handles, and gets the greeting of the alias.
	for {
		select {
		case m := <-alice.got:
			e, err := agh.Decode(m.Data)
			if err != nil {
				if !strings.Contains(string(m.Data), dora.ID()) {
					t.Fatalf("%s: %v", m.Data, err)
				}
				continue // the original, for peers that can read it
			}
			if g, ok := e.Content().(*agh.Greet); ok && e.From == alias {
				var v aghnats.Verified
				if err := json.Unmarshal(e.ExtValue(aghnats.ExtHandle), &v); err != nil || v.Handle != dora.ID() ||
					g.Card.PeerID != alias || e.Proof != nil {
					t.Errorf("%s", m.Data)
				}
			} else {
				continue
			}
		case <-ctx.Done():
			t.Fatal("the alias did not greet")
		}
		break
	}
	name := "guest/agh/acme/" + alias
	w.until("dora is known", func() bool {
		e, ok := w.Hub().Directory().Lookup("agh", "acme/"+dora.ID())
		return ok && e.Name == name
	})
	hear := func() *agh.Request {
		t.Helper()
		select {
		case r := <-got:
			return r
		case <-ctx.Done():
			t.Fatal("dora receives nothing")
			return nil
		}
	}
	// A room: alice computes it with the alias, dora with alice and her handle.
	roomOf := func(a, b string) string {
		id, err := agh.VerifiedDirectID("acme", "builders", a, b)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	alice.publish(t, &agh.Envelope{From: "alice", To: alias, Surface: agh.SurfaceDirect,
		DirectID: roomOf("alice", alias), WorkID: "work_1"}, &agh.Say{Text: "mend it"})
	r := hear()
	if r.Envelope.To != dora.ID() || r.Envelope.DirectID != roomOf("alice", dora.ID()) || r.Envelope.From != "alice" {
		t.Errorf("%s", r.Envelope.Raw())
	}
	if err := errors.Join(r.Trace(ctx, &agh.Trace{State: agh.StateCompleted, Message: "mended"})); err != nil {
		t.Fatal(err)
	}
	if e, s := alice.next(t); s != "trace completed" || e.From != alias || e.DirectID != roomOf("alice", alias) ||
		e.Proof != nil {
		t.Errorf("%s", e.Raw())
	}
	// A thread: the channel gets the alias's message, an agent one signed by dora.
	if _, err := client.Say(ctx, "", &agh.Say{Text: "hello all"}); err != nil {
		t.Fatal(err)
	}
	for {
		m := <-alice.got
		if e, err := agh.Decode(m.Data); err == nil && e.Kind == agh.KindSay {
			if e.From != alias || text(t, e) != "hello all" {
				t.Errorf("%s", m.Data)
			}
			break
		}
	}
	if m := <-w.notices; m.From != name || m.Origin.Verdict.Assurance != parley.Signed ||
		!strings.HasPrefix(m.Origin.Verdict.KeyID, "sha256:") {
		t.Errorf("%+v", m)
	}
	// Work with an agent of the directory.
	(&peer{Client: client, nc: nc}).meets(t, "crew__weather")
	end, err := client.Ask(ctx, "crew__weather", &agh.Say{Text: `{"city":"Bern"}`})
	if err != nil || end.State != agh.StateCompleted {
		t.Errorf("%+v, %v", end, err)
	}

	// Refused: another key, a changed text, another peer that uses the alias.
	refused := len(w.Hub().Refused(100))
	any := w.connect("ty")
	cast := "agh.network.v0.acme.builders.broadcast"
	signed := &agh.Envelope{ID: agh.NewID(), WorkspaceID: "acme", Channel: "builders", Surface: agh.SurfaceThread,
		ThreadID: "thread_abc", TS: time.Now().Unix()}
	if err := signed.SetContent(&agh.Say{Text: "I am dora"}); err != nil {
		t.Fatal(err)
	}
	good, err := dora.Sign(signed)
	if err != nil {
		t.Fatal(err)
	}
	other, err := impostor.Sign(signed)
	if err != nil {
		t.Fatal(err)
	}
	for what, b := range map[string][]byte{
		"tampered":  []byte(strings.Replace(string(good), "I am dora", "I am DORA", 1)),
		"other key": []byte(strings.ReplaceAll(string(other), impostor.ID(), dora.ID())),
		"not hers":  good, // signed by dora, sent by a user that may not speak as her
		"as alias": []byte(strings.Replace(strings.Replace(string(good), `"from":"`+dora.ID()+`"`, `"from":"`+alias+
			`"`, 1), `"proof":{`, `"proof":null,"ext":{`, 1)),
		"no signing": []byte(strings.Replace(string(good), `"proof":{`, `"proof":null,"ext":{`, 1)),
	} {
		if err := errors.Join(any.Publish(cast, b), any.Flush()); err != nil {
			t.Fatal(err)
		}
		refused++
		w.until(what+" is refused", func() bool { return len(w.Hub().Refused(100)) == refused })
	}
	alice.publish(t, &agh.Envelope{From: "alice", To: alias, Surface: agh.SurfaceThread, ThreadID: "thread_end"},
		&agh.Say{Text: "the last word"})
	if r := hear(); text(t, r.Envelope) != "the last word" {
		t.Errorf("%s", r.Envelope.Raw())
	}
	for len(alice.got) > 0 {
		if m := <-alice.got; strings.Contains(strings.ToLower(string(m.Data)), "i am dora") {
			t.Errorf("reached a peer: %s", m.Data)
		}
	}
}
