package agh_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/agh"
	bridge "github.com/parley-hub/parley/bridge/agh"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/node"
)

// What waits at one hub for a peer that is away goes on when the peer comes back
// at another.
func TestHeldUntilBackElsewhere(t *testing.T) {
	var ahead atomic.Int64 // of the first hub's clock
	one, two := twoHubs(t, func(c *node.Config) {
		c.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	})
	bob := two.join("tb", "acme", "bob")
	one.here("acme", "bob")
	bob.stop()
	bob.nc.Close()
	e, _ := one.Hub().Directory().Lookup("agh", "acme/bob")
	two.until("bob is away", func() bool { return two.AGH().Holds(e, bridge.Identity("acme", "bob")) })
	ahead.Store(int64(time.Hour)) // so that it was long ago that he greeted
	if !one.AGH().Holds(e, bridge.Identity("acme", "bob")) {
		t.Fatal("bob is still thought to be at the other hub")
	}

	j, scope := one.Hub().Journal(), ""
	one.until("it delivers from some partition", func() bool { // from the others, the second hub does
		for n := range 64 {
			if scope = fmt.Sprint("go ", n); j.Owned(j.Partition(scope)) {
				return true
			}
		}
		return false
	})
	m, err := one.Hub().Accept(t.Context(), hub.Submission{Scope: scope, Message: &parley.Message{Kind: parley.Request, From: "listener", To: "guest/agh/acme/bob",
		Parts: []parley.Part{parley.Text("work")}, Origin: parley.Origin{Protocol: "go", Peer: "listener"}}})
	if err != nil {
		t.Fatal(err)
	}
	if d, ok := j.Delivery(m.ID, "guest/agh/acme/bob"); !ok || d.State != parley.Waiting || d.Attempt != 0 {
		t.Fatalf("it is not held: %+v, %v", d, ok)
	}
	ahead.Store(0)
	bob = two.join("tb", "acme", "bob")
	select {
	case r := <-bob.got:
		if text(t, r.Envelope) != "work" {
			t.Errorf("%s", r.Envelope.Raw())
		}
		if err := r.Trace(t.Context(), &agh.Trace{State: agh.StateCompleted, Message: "done"}); err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("nothing was brought to bob")
	}
	one.replyTo(m.ID)
}
