package delivery

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// retry revives a dead letter, as an operator does.
func (w *world) retry(t *testing.T, n byte, to string) {
	t.Helper()
	v, _ := w.log.Delivery(id(n), to)
	if v.State != parley.Dead {
		t.Fatalf("message %d is %s", n, v.State)
	}
	if _, err := w.log.Append(t.Context(), journal.Entry{Steps: []journal.Step{{Message: id(n), To: to,
		State: parley.Waiting, Attempt: v.Attempt}}}); err != nil {
		t.Fatal(err)
	}
}

func (w *world) states(ids ...byte) (out []string) {
	for _, n := range ids {
		state := "settled"
		if v, ok := w.log.Delivery(id(n), "bob"); ok {
			state = v.State.String()
		}
		out = append(out, state)
	}
	return out
}

// rejected makes a message a dead letter after one attempt.
var rejected = Result{Err: parley.Refuse(parley.Rejected, "no").With(parley.ByPeer, parley.PeerRefused, "")}

// A retried dead letter is tried once: if that fails, however it fails, it is a dead letter again.
func TestRetryOfADeadLetterIsOneAttempt(t *testing.T) {
	busy := Result{Err: parley.Fail(parley.Unavailable, nil, "busy").With(parley.ByPeer, parley.PeerBusy, ""),
		Wait: time.Minute}
	for name, second := range map[string]Result{"not reached": {Err: refused}, "busy": busy} {
		t.Run(name, func(t *testing.T) {
			run(t, Config{}, func(t *testing.T, w *world) {
				w.transport.attempt = func(_ context.Context, a Attempt) Result {
					if a.Number == 1 {
						return rejected
					}
					return second
				}
				w.record(message(1, "bob", 9, parley.Notice))
				synctest.Wait()
				w.retry(t, 1, "bob")
				synctest.Wait()
				equal(t, "state", w.states(1), []string{"dead"})
				time.Sleep(time.Hour)
				synctest.Wait()
				equal(t, "attempts", w.transport.order(), []string{"bob/m1#1", "bob/m1#2"})
				equal(t, "failures", w.d.Health("bob").Failures, 0)
			})
		})
	}
}

// It is tried although the recipient is paused and earlier messages of its conversation wait, in order with other
// retried ones. The planned attempt of the failing recipient stays as it was.
func TestRetryOfDeadLettersToABrokenRecipient(t *testing.T) {
	run(t, Config{}, func(t *testing.T, w *world) {
		result := rejected
		w.transport.attempt = func(context.Context, Attempt) Result { return result }
		for n := byte(1); n <= 3; n++ {
			w.record(message(n, "bob", 9, parley.Notice))
		}
		synctest.Wait()
		result = Result{Err: refused}
		w.record(message(4, "bob", 9, parley.Notice))
		synctest.Wait()
		before := w.d.Health("bob")
		if before.Failures != 1 || !before.Next.After(time.Now()) {
			t.Fatalf("health %+v", before)
		}
		w.transport.mu.Lock()
		w.transport.paused["bob"] = true
		w.transport.mu.Unlock()
		for n := byte(1); n <= 3; n++ {
			w.retry(t, n, "bob")
		}
		synctest.Wait()
		equal(t, "attempts", w.transport.order()[4:], []string{"bob/m1#2", "bob/m2#2", "bob/m3#2"})
		equal(t, "states", w.states(1, 2, 3, 4), []string{"dead", "dead", "dead", "waiting"})
		equal(t, "health", w.d.Health("bob"), before)

		result = Result{}
		for n := byte(1); n <= 3; n++ {
			w.retry(t, n, "bob")
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		equal(t, "states at the end", w.states(1, 2, 3, 4), []string{"settled", "settled", "settled", "waiting"})
		w.transport.mu.Lock()
		w.transport.paused["bob"] = false
		w.transport.mu.Unlock()
		w.d.Kick("bob")
		synctest.Wait()
	})
}

// For a recipient that is not connected it waits, for no attempt can be made. It is tried once then.
func TestRetryOfADeadLetterToAnAbsentRecipient(t *testing.T) {
	run(t, Config{}, func(t *testing.T, w *world) {
		result := rejected
		w.transport.attempt = func(context.Context, Attempt) Result { return result }
		w.record(message(1, "bob", 9, parley.Notice))
		synctest.Wait()
		result = Result{Err: refused}
		here := func(is bool) {
			w.transport.mu.Lock()
			w.transport.absent = map[string]bool{"bob": !is}
			w.transport.mu.Unlock()
			w.d.Kick("bob")
			synctest.Wait()
		}
		here(false)
		w.retry(t, 1, "bob")
		synctest.Wait()
		equal(t, "state", w.states(1), []string{"waiting"})
		here(true)
		time.Sleep(time.Hour)
		equal(t, "state after an attempt", w.states(1), []string{"dead"})
		equal(t, "attempts", w.transport.order(), []string{"bob/m1#1", "bob/m1#2"})
	})
}

// That it is a retry is known after a restart, too.
func TestRetryOfADeadLetterAfterARestart(t *testing.T) {
	run(t, Config{}, func(t *testing.T, w *world) {
		result := rejected
		w.transport.attempt = func(context.Context, Attempt) Result { return result }
		w.record(message(1, "bob", 9, parley.Notice))
		synctest.Wait()
		result = Result{Err: refused}
		w.log.watch = nil // the hub stops before the attempt
		w.retry(t, 1, "bob")
		w.log.watch = w.d.Recorded
		if err := w.d.Resume(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		equal(t, "attempts", w.transport.order(), []string{"bob/m1#1", "bob/m1#2"})
	})
}
