package asp_test

import (
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/node"
)

// maxResponseTimeMs, from the message or else from the terms of its session, is the deadline
// of a request. Only the other constraints are lost.
func TestResponseTimeIsTheDeadline(t *testing.T) {
	w := newWorld(t, node.Config{})
	alice := w.client("alice")
	ctx := w.ctx()
	requests := make(chan *parley.Message, 4)
	defer w.Hub().Journal().Watch(func(r *journal.Record) {
		if m := r.Message; m != nil && m.Kind == parley.Request {
			requests <- m
		}
	})()
	s, err := alice.Open(ctx, asp.Invitation{To: []string{w.echoID()},
		Terms: map[string]any{"maxResponseTimeMs": 60_000}})
	if err != nil {
		t.Fatal(err)
	}
	wait(t, s, asp.Introduced)
	for _, c := range []struct {
		options []asp.SendOption
		want    time.Duration
		lost    string
	}{
		{nil, time.Minute, ""},
		{[]asp.SendOption{asp.WithConstraints(asp.Constraints{MaxTokenBudget: 7})}, time.Minute,
			`"constraints":{"maxTokenBudget":7}`},
		{[]asp.SendOption{asp.WithConstraints(asp.Constraints{MaxResponseTimeMs: 30_000})}, 30 * time.Second, ""},
		{[]asp.SendOption{asp.WithConstraints(asp.Constraints{MaxResponseTimeMs: 1 << 53})}, 30 * 24 * time.Hour, ""},
	} {
		if _, err := s.Send(ctx, asp.Query, asp.Question{QueryType: "echo", Parameters: map[string]any{"text": "x"}},
			c.options...); err != nil {
			t.Fatal(err)
		}
		m := <-requests
		if got := m.Deadline.Sub(m.Origin.Received); got != c.want {
			t.Errorf("it waits %s, want %s", got, c.want)
		}
		if x := string(m.Extensions["asp"]); strings.Contains(x, `"constraints"`) != (c.lost != "") ||
			!strings.Contains(x, c.lost) {
			t.Errorf("lost, %q wanted: %s", c.lost, x)
		}
	}
	// A request without an answer in time gets the protocol's timeout.
	m, err := s.Ask(ctx, asp.Question{QueryType: "slow"}, asp.WithConstraints(asp.Constraints{MaxResponseTimeMs: 200}))
	if err != nil || !strings.Contains(string(m.Body), `"code":"timeout"`) {
		t.Errorf("%+v, %v", m, err)
	}
	<-w.ended
}

// The deadline of a request becomes the constraint of its QUERY.
func TestDeadlineIsTheResponseTime(t *testing.T) {
	w := newWorld(t, node.Config{})
	bob := w.client("bob")
	ctx := w.ctx()
	limits := make(chan *asp.Constraints, 1)
	answer(ctx, t, bob, func(s *asp.Session, m *asp.Message) error {
		var err error
		switch {
		case m.IsInvitation():
			_, err = s.Send(ctx, asp.Accept, asp.Answer{}, asp.InReplyTo(m))
		case m.Performative == asp.Query:
			limits <- m.Constraints
			_, err = s.Send(ctx, asp.Inform, asp.Information{InformType: "result", Data: map[string]any{"n": 42}},
				asp.InReplyTo(m))
		}
		return err
	})
	ask := question(nameOf(t, w, bob.Identity.ID()), "well?")
	ask.Deadline = time.Now().Add(time.Hour)
	if m, err := w.Hub().Ask(ctx, hub.Submission{Scope: "go", Message: ask}); err != nil || m.Kind != parley.Response {
		t.Fatalf("%+v, %v", m, err)
	}
	hour := time.Hour.Milliseconds()
	if c := <-limits; c == nil || c.MaxResponseTimeMs > hour || c.MaxResponseTimeMs < hour/2 {
		t.Errorf("%+v", c)
	}
}
