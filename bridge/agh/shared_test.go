package agh_test

import (
	"context"
	"encoding/json"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/agh"
	bridge "github.com/parley-hub/parley/bridge/agh"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/node"
)

// Two hubs on one journal share presence: a peer of one hears, and works for,
// those of the other.
func TestTwoHubs(t *testing.T) {
	s, err := server.NewServer(&server.Options{ServerName: "journal", Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(),
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
			c.Durability, c.Name, c.Engine = "replicated", name, node.Engine{URL: s.ClientURL(), Replicas: 1, Partitions: 2}
		}
	}
	one, two := newWorld(t, on("hub-one")), newWorld(t, on("hub-two"))
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
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for _, w := range []*world{one, two} {
		go func() {
			r := <-bob.got
			if err := r.Trace(ctx, &agh.Trace{State: agh.StateCompleted, Result: json.RawMessage(`{"done":true}`)}); err != nil {
				t.Error(err)
			}
		}()
		m, err := w.Hub().Ask(ctx, hub.Submission{Scope: "go listener", Message: &parley.Message{Kind: parley.Request, From: "listener", To: "guest/agh/acme/bob",
			Parts: []parley.Part{parley.Text("work")}, Origin: parley.Origin{Protocol: "go", Peer: "listener"}}})
		if err != nil || m.Kind != parley.Response {
			t.Fatalf("%+v, %v", m, err)
		}
	}
	bob.stop()
	bob.nc.Close()
	e, _ := two.Hub().Directory().Lookup("agh", "acme/bob")
	two.until("bob is away", func() bool { return two.AGH().Holds(e, bridge.Identity("acme", "bob")) })
}
