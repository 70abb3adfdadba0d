package aghtest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/agh/aghtest"
)

// In a program, t is that of the test.
var t *testing.T

// TestExamples runs the examples, which need a test.
func TestExamples(real *testing.T) {
	t = real
	ExamplePeer_Forgeries()
	ExamplePeer_Handle()
}

// A verifier takes the genuine envelope and none of the forgeries.
func ExamplePeer_Forgeries() {
	alice := aghtest.NewVerifiedPeer(t, &aghtest.Bus{}, "alice")
	v := alice.Verifier() // in a program: your own, with your table of keys
	for _, f := range alice.Forgeries("Good morning.") {
		if _, err := v.Verify(t.Context(), f.Envelope); !errors.Is(err, f.Err) {
			t.Errorf("an envelope %s: %v", f.Name, err)
		}
	}
}

// Test a program that gives work to a peer, without NATS.
func ExamplePeer_Handle() {
	bus := &aghtest.Bus{}
	worker := aghtest.NewPeer(t, bus, "worker")
	worker.Handle(func(ctx context.Context, r *agh.Request) error {
		return r.Trace(ctx, &agh.Trace{State: agh.StateCompleted, Message: "all green"})
	})
	end, err := aghtest.NewPeer(t, bus, "boss").Ask(t.Context(), "worker", &agh.Say{Text: "Run the tests."})
	if got := worker.Received(); err != nil || end.State != agh.StateCompleted || len(got) != 1 {
		t.Errorf("%v, %v; the worker received %v", end.State, err, got)
	}
}

// Check an own store. Here it is the one of package agh.
func ExampleTestWorks() {
	err := aghtest.TestWorks(func() agh.Works { return &agh.WorkTable{} })
	fmt.Println(err)
	// Output: <nil>
}
