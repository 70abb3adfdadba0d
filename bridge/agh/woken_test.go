package agh_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/agh"
	bridge "github.com/parley-hub/parley/bridge/agh"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
)

// A message that waits at one hub for an unknown peer is delivered when the peer
// connects to another hub.
func TestHeldUntilBackElsewhere(t *testing.T) {
	t.Parallel()
	one, two := twoHubs(t, 8)
	if _, err := one.Hub().Directory().Put(t.Context(), parley.Agent{Name: "guest/agh/acme/bob",
		Identities: []parley.Identity{bridge.Identity("acme", "bob")},
		Skills:     []parley.SkillSpec{{ID: "say", Default: true}}}, directory.FromAgent); err != nil {
		t.Fatal(err)
	}
	// The scope is in a partition of the first hub, so that this hub delivers the message.
	j, other, scope := one.Hub().Journal(), two.Hub().Journal(), ""
	one.until("the partitions are shared", func() bool {
		mine, others := 0, 0
		for p := range j.Partitions() {
			switch {
			case j.Owned(p) && !other.Owned(p):
				mine++
			case other.Owned(p) && !j.Owned(p):
				others++
			}
		}
		return mine > 0 && others > 0 && mine+others == j.Partitions()
	})
	for n := range 1024 {
		if scope = fmt.Sprint("go ", n); j.Owned(j.Partition(scope)) {
			break
		}
	}
	m, err := one.Hub().Accept(t.Context(), hub.Submission{Scope: scope,
		Message: &parley.Message{Kind: parley.Request, From: "listener", To: "guest/agh/acme/bob",
			Parts: []parley.Part{parley.Text("work")}, Origin: parley.Origin{Protocol: "go", Peer: "listener"}}})
	if err != nil {
		t.Fatal(err)
	}
	if d, ok := j.Delivery(m.ID, "guest/agh/acme/bob"); !ok || d.State != parley.Waiting || d.Attempt != 0 {
		t.Fatalf("the delivery is not waiting: %+v, %v", d, ok)
	}
	bob := two.join("tb", "acme", "bob")
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
