package agh_test

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/agh"
	bridge "github.com/parley-hub/parley/bridge/agh"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/node"
)

// Two hubs on one journal share presence: a peer of one hub receives messages from
// peers of the other, and works for them.
func TestTwoHubs(t *testing.T) {
	t.Parallel()
	one, two := twoHubs(t)
	alice := one.join("ta", "acme", "alice")
	bob := two.join("tb", "acme", "bob")
	one.here("acme", "bob")
	two.here("acme", "alice")

	if _, err := alice.Say(t.Context(), "", &agh.Say{Text: "across"}); err != nil {
		t.Fatal(err)
	}
	if e := bob.next(t); text(t, e) != "across" || e.From != "alice" {
		t.Errorf("%s", e.Raw())
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var said sync.WaitGroup
	for _, w := range []*world{one, two} {
		said.Go(func() {
			r := <-bob.got
			if err := r.Trace(ctx, &agh.Trace{State: agh.StateCompleted,
				Result: json.RawMessage(`{"done":true}`)}); err != nil {
				t.Error(err)
			}
		})
		m, err := w.Hub().Ask(ctx, hub.Submission{Scope: "go listener",
			Message: &parley.Message{Kind: parley.Request, From: "listener", To: "guest/agh/acme/bob",
				Parts: []parley.Part{parley.Text("work")}, Origin: parley.Origin{Protocol: "go", Peer: "listener"}}})
		if err != nil || m.Kind != parley.Response {
			t.Fatalf("%+v, %v", m, err)
		}
	}
	said.Wait()
	bob.stop()
	bob.nc.Close()
	e, _ := two.Hub().Directory().Lookup("agh", "acme/bob")
	two.until("bob is away", func() bool { return two.AGH().Holds(e, bridge.Identity("acme", "bob")) })
}

// twoHubs starts two hubs on one external JetStream. Their journal has the given
// number of partitions, by default 2.
func twoHubs(t *testing.T, partitions ...int) (one, two *world) {
	t.Helper()
	s, err := server.NewServer(&server.Options{ServerName: "journal", Host: "127.0.0.1", Port: server.RANDOM_PORT,
		JetStream: true, StoreDir: t.TempDir(),
		MaxPayload: 8 << 20, NoLog: true, NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("the journal's server does not get ready")
	}
	on := func(name string) func(*node.Config) {
		return func(c *node.Config) {
			c.Data = filepath.Join(t.TempDir(), "data")
			c.Passphrase, c.PassphraseWork = []byte("a passphrase"), 4
			c.Durability, c.Name, c.Engine = "replicated", name,
				node.Engine{URL: s.ClientURL(), Replicas: 1, Partitions: append(partitions, 2)[0]}
		}
	}
	return newWorld(t, on("hub-one")), newWorld(t, on("hub-two"))
}

// A peer at one hub gets the greeting of a peer at another, finds that peer by a
// whois, on its own subject and on a reply subject, and talks and works with it.
func TestPeersMeetAcrossHubs(t *testing.T) {
	t.Parallel()
	one, two := twoHubs(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	alice := one.join("ta", "acme", "alice")
	greets, err := alice.nc.SubscribeSync("agh.network.v0.acme.builders.broadcast")
	if err == nil {
		err = alice.nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	bob := two.join("tb", "acme", "bob")
	one.here("acme", "bob")
	two.here("acme", "alice")
	for {
		m, err := greets.NextMsgWithContext(ctx)
		if err != nil {
			t.Fatalf("bob's greeting did not reach the other hub: %v", err)
		}
		if e, err := agh.Decode(m.Data); err == nil && e.Kind == agh.KindGreet && e.From == "bob" {
			break
		}
	}

	// carol is written from the NATS guide: she answers on the reply subject alone.
	carol := two.connect("tc")
	if _, err := carol.Subscribe("agh.network.v0.acme.builders.broadcast", func(m *nats.Msg) {
		q, err := agh.Decode(m.Data)
		if err != nil || q.Kind != agh.KindWhois || m.Reply == "" {
			return
		}
		if w := q.Content().(*agh.Whois); w.Type != agh.WhoisRequest || w.Query != "carol" {
			return
		}
		card, err := agh.NewCard("carol", "Carol", nil)
		if err != nil {
			t.Error(err)
			return
		}
		answer := &agh.Envelope{ID: agh.NewID(), WorkspaceID: "acme", Channel: "builders", From: "carol", To: q.From,
			ReplyTo: q.ID, TS: time.Now().Unix()}
		if err := answer.SetContent(&agh.Whois{Type: agh.WhoisResponse, Card: card}); err != nil {
			t.Error(err)
		}
		b, err := answer.Encode()
		if err == nil {
			err = m.Respond(b)
		}
		if err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := carol.SubscribeSync(own(t, "carol")); err != nil {
		t.Fatal(err)
	}
	subject, greet := greeting(t, "acme", "builders", "carol")
	if err := errors.Join(carol.Publish(subject, greet), carol.Flush()); err != nil {
		t.Fatal(err)
	}
	one.here("acme", "carol")
	for _, c := range []struct{ query, to string }{{"carol", ""}, {"bob", ""}, {"", "bob"}} {
		q := &agh.Envelope{ID: agh.NewID(), WorkspaceID: "acme", Channel: "builders", From: "alice", To: c.to,
			TS: time.Now().Unix()}
		subject, b := written(t, q, &agh.Whois{Type: agh.WhoisRequest, Query: c.query})
		m, err := alice.nc.RequestWithContext(ctx, subject, b)
		if err != nil {
			t.Fatalf("whois %q to %q: %v", c.query, c.to, err)
		}
		if e, err := agh.Decode(m.Data); err != nil || e.From != c.query+c.to || e.ReplyTo != q.ID {
			t.Errorf("whois %q to %q: %s, %v", c.query, c.to, m.Data, err)
		}
	}
	alice.meets(t, "bob")
	if _, err := alice.Direct(ctx, "bob", &agh.Say{Text: "between us"}); err != nil {
		t.Fatal(err)
	}
	if e := bob.next(t); text(t, e) != "between us" || e.From != "alice" {
		t.Errorf("%s", e.Raw())
	}
	done := make(chan error, 1)
	go func() {
		r := <-bob.got
		done <- r.Trace(ctx, &agh.Trace{State: agh.StateCompleted, Message: "built"})
	}()
	end, err := alice.Ask(ctx, "bob", &agh.Say{Text: "build it"})
	if err != nil || end.State != agh.StateCompleted {
		t.Errorf("%+v, %v", end, err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func own(t *testing.T, peer string) string {
	t.Helper()
	s, err := agh.PeerSubject("acme", "builders", peer)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
