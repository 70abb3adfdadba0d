package asptest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/asp/asptest"
)

// In a program, t is that of the test.
var t *testing.T

// TestExamples runs the examples, which need a test.
func TestExamples(real *testing.T) {
	t = real
	ExamplePeer_Forgeries()
	ExamplePeer_Handle()
}

// A verifier takes the genuine message and none of the forgeries.
func ExamplePeer_Forgeries() {
	alice := asptest.NewServer(t).Peer("agent://test.example/services/alice")
	v := &asp.Verifier{Keys: alice.Keys()} // in a program: your own
	for _, f := range alice.Forgeries() {
		if _, err := v.Verify(t.Context(), f.Envelope, asp.Transport{}); !errors.Is(err, f.Err) {
			t.Errorf("an envelope %s: %v", f.Name, err)
		}
	}
}

// Test a program that asks an agent: the peer is the agent, and the server is in memory.
func ExamplePeer_Handle() {
	hub := asptest.NewServer(t)
	me, weather := hub.Peer("agent://test.example/me"), hub.Peer("agent://test.example/weather")
	weather.Handle(func(ctx context.Context, s *asp.Session, m *asp.Message) error {
		_, err := s.Send(ctx, asp.Inform, asp.Information{Data: map[string]int{"celsius": 21}}, asp.InReplyTo(m))
		return err
	})
	answer, err := me.Meet(t.Context(), weather.ID()).Ask(t.Context(), asp.Question{QueryType: "forecast"})
	if got := weather.Received(); err != nil || answer.Performative != asp.Inform || len(got) != 2 {
		t.Errorf("%+v, %v; the agent received %v", answer, err, got)
	}
}

// Check an own store. Here it is the one of package asp.
func ExampleTestStore() {
	err := asptest.TestStore(func() asp.Store { return asp.NewMemoryStore(asp.MemoryLimits{}, nil) })
	fmt.Println(err)
	// Output: <nil>
}
