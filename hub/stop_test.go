package hub

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/internal/testjournal"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/policy"
)

// stoppable starts hubs after each other on one journal, each with an agent "booker".
func stoppable(t *testing.T) func(parley.Handler) *Hub {
	t.Helper()
	j, err := journal.Open(t.Context(), journal.Config{Store: testjournal.Memory(t)})
	if err != nil {
		t.Fatal(err)
	}
	d, err := directory.Open(t.Context(), directory.Options{State: j.State("agents")})
	if err != nil {
		t.Fatal(err)
	}
	p, err := policy.New(policy.Config{Hub: "here", Assurance: map[string]parley.Assurance{"": parley.Session}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.Close()
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
	return func(f parley.Handler) *Hub {
		h, err := New(Config{ID: "here", Secret: make([]byte, 32), Journal: j, Directory: d, Policy: p})
		if err != nil {
			t.Fatal(err)
		}
		h.handle(t, "booker", f)
		h.Start()
		return h
	}
}

func ended(parent context.Context) context.Context {
	ctx, end := context.WithCancel(parent)
	end()
	return ctx
}

// TestAttemptCutByTheStop: an attempt that the hub's own stop ends is no answer, whatever the handler makes of the end
// of its context: the next hub makes the attempt again. What the handler has replied is the answer.
func TestAttemptCutByTheStop(t *testing.T) {
	for name, c := range map[string]struct {
		kind     parley.Kind
		handler  parley.Handler
		answered bool
	}{
		"the error of the context": {parley.Request, func(ctx context.Context, _ *parley.Message, _ parley.Replier) error {
			<-ctx.Done()
			return ctx.Err()
		}, false},
		"an error of its own": {parley.Request, func(ctx context.Context, _ *parley.Message, _ parley.Replier) error {
			<-ctx.Done()
			return parley.Refuse(parley.HandlerFailed, "the database is gone").Because(ctx.Err())
		}, false},
		"an open question": {parley.Request, booker, false},
		"a reply before": {parley.Request, func(ctx context.Context, _ *parley.Message, r parley.Replier) error {
			err := r.Reply(parley.Text("done"))
			<-ctx.Done()
			return err
		}, true},
		"a notice": {parley.Notice, func(ctx context.Context, _ *parley.Message, _ parley.Replier) error {
			<-ctx.Done()
			return ctx.Err()
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				run := stoppable(t)
				h := run(c.handler)
				s := ask("booker", "do", "a trip")
				s.Message.Kind = c.kind
				m, err := h.Accept(t.Context(), s)
				if err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if err := h.Close(ended(t.Context())); err == nil {
					t.Error("Close did not report an attempt in flight")
				}
				v, open := h.Journal().Delivery(m.ID, "booker")
				if open == c.answered || open && v.State != parley.Waiting {
					t.Errorf("after the stop: open %t, %+v", open, v)
				}
				if open && (v.Error == nil || v.Error.Reason != parley.HubStops || v.Tries() != 0) {
					t.Errorf("after the stop: %v, %d tries", v.Error, v.Tries())
				}
				attempt := 0
				h = run(func(_ context.Context, _ *parley.Message, r parley.Replier) error {
					attempt = r.Attempt()
					return r.Reply(parley.Text("done"))
				})
				defer h.Close(context.Background())
				time.Sleep(retryPause) // of the bubble's clock: an attempt may be recorded with its pause
				synctest.Wait()
				replies := h.recorded(t, parley.Response, parley.Failure)
				if want := map[bool]int{true: 0, false: 2}[c.answered]; attempt != want {
					t.Errorf("attempt %d after the restart, want %d", attempt, want)
				}
				if c.kind == parley.Request && (len(replies) != 1 || replies[0].Text() != "done") {
					t.Errorf("replies %v", replies)
				}
			})
		})
	}
}

// TestStopWithACaller: a caller of this process hears that the outcome is unknown, not that its request was cancelled.
func TestStopWithACaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := stoppable(t)(func(ctx context.Context, _ *parley.Message, _ parley.Replier) error {
			<-ctx.Done()
			return ctx.Err()
		})
		heard := make(chan error, 1)
		go func() {
			m, err := h.Ask(context.Background(), ask("booker", "do", "a trip"))
			if err == nil {
				err = m.Error
			}
			heard <- err
		}()
		synctest.Wait()
		if err := h.Close(ended(t.Context())); err == nil {
			t.Error("Close did not report an attempt in flight")
		}
		if err := code(parley.OutcomeUnknown, <-heard); err != nil {
			t.Error(err)
		}
	})
}

// TestStopWithAnOpenQuestion: a handler that waits for an answer which cannot come any more does not hold the hub up:
// one that asks before the stop, and one that asks after.
func TestStopWithAnOpenQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		working := make(chan struct{})
		run := stoppable(t)
		h := run(func(ctx context.Context, m *parley.Message, r parley.Replier) error {
			if m.Text() == "later" {
				<-working
			}
			return booker(ctx, m, r)
		})
		for _, text := range []string{"now", "later"} {
			s := ask("booker", "do", text)
			s.Foreign = text // two conversations: neither waits for the other
			if _, err := h.Accept(t.Context(), s); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		closed := make(chan error, 1)
		go func() { closed <- h.Close(t.Context()) }()
		synctest.Wait()
		close(working)
		atOnce(t, func() {
			if err := <-closed; err != nil {
				t.Error(err)
			}
		})
		for _, v := range h.Journal().Deliveries(journal.Filter{}) {
			if v.State != parley.Waiting || v.Error == nil || v.Error.Reason != parley.HubStops {
				t.Errorf("after the stop: %+v", v)
			}
		}
		h = run(func(_ context.Context, m *parley.Message, r parley.Replier) error { return r.Reply(m.Parts...) })
		defer h.Close(context.Background())
		time.Sleep(retryPause) // of the bubble's clock
		synctest.Wait()
		if r := h.recorded(t, parley.Response, parley.Failure); len(r) != 2 || r[0].Error != nil || r[1].Error != nil {
			t.Errorf("replies after the restart: %v", r)
		}
	})
}

// TestStopWithAQuestionToACaller: a question to a caller of this process may still be answered.
func TestStopWithAQuestionToACaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := stoppable(t)(booker)
		asked := make(chan struct{})
		h.handle(t, "planner", func(ctx context.Context, _ *parley.Message, r parley.Replier) error {
			for u, err := range parley.Stream[string](ctx, "booker", "do", "a trip") {
				switch {
				case err != nil:
					return err
				case u.Event == nil:
					return r.Reply(parley.Text(u.Result))
				}
				<-asked
				if err := parley.Answer(ctx, u.Event, fmt.Sprint(u.Event.Number)); err != nil {
					return err
				}
			}
			return nil
		})
		if _, err := h.Accept(t.Context(), ask("planner", "do", "a trip")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		closed := make(chan error, 1)
		go func() { closed <- h.Close(t.Context()) }()
		synctest.Wait()
		close(asked)
		if err := <-closed; err != nil {
			t.Error(err)
		}
		if r := h.recorded(t, parley.Response); len(r) != 2 || r[1].Text() != "1 2" {
			t.Errorf("answers %v", r)
		}
	})
}
