package agh_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/parley-hub/parley/agh"
)

func ExampleVerifier() {
	now := func() time.Time { return time.Unix(1776366000, 0) } // leave Now out to use the clock
	v := &agh.Verifier{
		Memory: &agh.ReplayMemory{Now: now}, // bounded, in process; share your own between replicas
		Now:    now,
	}
	raw := []byte(`{"protocol":"agh-network/v0","id":"m1","workspace_id":"ws_alpha","kind":"say","channel":"builders",
		"surface":"thread","thread_id":"thread_check","from":"ops.session-42","to":null,"ts":1776366000,
		"body":{"text":"Good morning."},"proof":null}`)
	for range 2 {
		m, err := v.Verify(context.Background(), raw)
		var e *agh.Error
		if errors.As(err, &e) {
			fmt.Println("refused:", e.Code)
			continue
		}
		fmt.Println(m.Envelope.From, "says:", m.Envelope.Content().(*agh.Say).Text, m.Verdict.Trust)
	}
	// Output:
	// ops.session-42 says: Good morning. unverified
	// refused: duplicate
}

func ExampleIdentity_Sign() {
	id, err := agh.IdentityFromSeed("patch-worker", make([]byte, 32))
	if err != nil {
		fmt.Println(err)
		return
	}
	e := &agh.Envelope{ID: "m1", WorkspaceID: "ws_alpha", Channel: "builders", Surface: agh.SurfaceThread,
		ThreadID: "thread_check", TS: 1776366000}
	if err := e.SetContent(&agh.Say{Text: "Signed, sealed."}); err != nil {
		fmt.Println(err)
		return
	}
	signed, err := id.Sign(e)
	if err != nil {
		fmt.Println(err)
		return
	}
	v := &agh.Verifier{Trust: true, Now: func() time.Time { return time.Unix(1776366000, 0) }}
	m, err := v.Verify(context.Background(), signed)
	fmt.Println(m.Verdict.Trust, m.Verdict.Handle, err)
	// Output: verified patch-worker@139e3940e64b5491722088d9a0d74162 <nil>
}

func ExampleDirectID() {
	fmt.Println(agh.DirectID("ws_alpha", "builders", "ops-coordinator.session-42", "patch-worker.session-19"))
	// Output: direct_a610973e3c0d915853982f4bfe1534e8 <nil>
}

func ExampleCapability_Digest() {
	fmt.Println((&agh.Capability{ID: "cap-a", Summary: "Sum", Outcome: "Out"}).Digest())
	// Output: sha256:277f36b1bfc0ff72ea37b01288da9395139b078b53f243b872614b96d38cd535 <nil>
}
