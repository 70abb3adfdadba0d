package delivery

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

var refused = parley.Fail(parley.Unavailable, nil, "the agent cannot be reached").With(parley.ByNetwork,
	parley.ConnectionRefused, "connection refused by 192.0.2.7:80")

// recipients counts the recipients that the dispatcher has in memory.
func (w *world) recipients() int {
	w.d.mu.Lock()
	defer w.d.mu.Unlock()
	return len(w.d.recipients)
}

// A recipient fails since its first failed attempt; the count grows over its conversations. A success ends that.
func TestHealthOfARecipient(t *testing.T) {
	var changed []string
	run(t, Config{Retry: Retry{First: time.Second, Longest: time.Minute}, HealthChanged: func(to string) {
		changed = append(changed, to)
	}}, func(t *testing.T, w *world) {
		start := time.Now()
		var up atomic.Bool
		w.transport.attempt = func(context.Context, Attempt) Result {
			if up.Load() {
				return Result{}
			}
			return Result{Err: refused}
		}
		w.record(message(1, "bob", 9, parley.Notice))
		synctest.Wait()
		h := w.d.Health("bob")
		equal(t, "since and failures", []any{h.Since.Equal(start), h.Failures, h.Here}, []any{true, 1, true})
		equal(t, "next attempt", h.Next, start.Add(time.Second))
		equal(t, "reason", h.Err.Detail, "connection refused by 192.0.2.7:80")
		time.Sleep(100 * time.Millisecond)
		w.record(message(2, "bob", 8, parley.Notice))
		synctest.Wait()
		h = w.d.Health("bob")
		equal(t, "since and failures of two conversations", []any{h.Since.Equal(start), h.Failures}, []any{true, 2})
		equal(t, "the earlier of two attempts is next", h.Next, start.Add(time.Second))
		equal(t, "failing recipients", len(w.d.Failing()), 1)
		up.Store(true)
		time.Sleep(time.Hour)
		synctest.Wait()
		equal(t, "after a success", w.d.Health("bob"), Health{})
		equal(t, "recipients in memory", w.recipients(), 0)
		equal(t, "reports of changes", changed, []string{"bob", "bob", "bob"}) // at 1 and 2 failures, and the success
	})
}

// Which results speak of the recipient, and which only of the message or of the hub.
func TestWhatAnAttemptShows(t *testing.T) {
	fail := parley.Fail(parley.Unavailable, nil, "x")
	reject := parley.Refuse(parley.Rejected, "x")
	for _, c := range []struct {
		name   string
		result Result
		want   evidence
	}{
		{"delivered", Result{}, reached},
		{"no cause stated", Result{Err: fail}, broken},
		{"the network", Result{Err: refused}, broken},
		{"no answer in time", Result{Err: parley.Refuse(parley.TimedOut, "x"), Unknown: true}, broken},
		{"a peer's 500", Result{Err: fail.With(parley.ByPeer, parley.PeerFailed, "")}, broken},
		{"a peer refuses this message", Result{Err: reject.With(parley.ByPeer, parley.PeerRefused, "")}, reached},
		{"a peer refuses the hub's token", Result{Err: reject.With(parley.ByPeer, parley.WrongToken, "")}, broken},
		{"a peer's 429", Result{Err: fail.With(parley.ByPeer, parley.PeerRate, ""), Wait: time.Minute}, postponed},
		{"a peer is busy", Result{Err: fail.With(parley.ByPeer, parley.PeerBusy, "")}, postponed},
		{"the agent is not connected", Result{Err: fail.With(parley.ByNetwork, parley.NotConnected, ""),
			Wait: time.Millisecond}, nothing},
		{"the hub's own fault", Result{Err: fail.With(parley.ByHub, "", "")}, nothing},
		{"a limit of the hub", Result{Err: fail.With(parley.ByLimit, "", "")}, nothing},
		{"content that does not fit", Result{Err: parley.Refuse(parley.InvalidContent, "x")}, nothing},
		{"the caller has gone", Result{Err: fail.Because(context.Canceled)}, nothing},
	} {
		if got := c.result.shows(false); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

// A recipient that does not answer in time fails, unless its sender gave it little time.
func TestShortDeadlineShowsNothing(t *testing.T) {
	for _, c := range []struct {
		deadline time.Duration
		failures int
	}{{fairTime - 1, 0}, {fairTime, 1}} {
		run(t, Config{}, func(t *testing.T, w *world) {
			w.transport.attempt = func(ctx context.Context, _ Attempt) Result {
				<-ctx.Done()
				return Result{Err: parley.Fail(parley.Unavailable, ctx.Err(), "no answer").With(parley.ByNetwork,
					parley.NoAnswer, ""), Unknown: true}
			}
			m := message(1, "bob", 9, parley.Request)
			m.Deadline = time.Now().Add(c.deadline)
			w.record(m)
			time.Sleep(time.Minute)
			synctest.Wait()
			equal(t, fmt.Sprintf("failures after a deadline of %s", c.deadline), w.d.Health("bob").Failures, c.failures)
		})
	}
	// The recipient's end of the connection timed out, not the attempt.
	run(t, Config{}, func(t *testing.T, w *world) {
		w.transport.attempt = func(context.Context, Attempt) Result {
			time.Sleep(time.Second)
			return Result{Err: parley.Fail(parley.Unavailable, os.ErrDeadlineExceeded, "i/o timeout")}
		}
		w.record(message(1, "bob", 9, parley.Notice))
		time.Sleep(time.Second)
		synctest.Wait()
		equal(t, "failures after a timeout of the network", w.d.Health("bob").Failures, 1)
	})
}

// A peer that asks to come back later was reached; it is left alone until then.
func TestHealthOfABusyRecipient(t *testing.T) {
	run(t, Config{}, func(t *testing.T, w *world) {
		start := time.Now()
		results := []Result{{Err: refused}, {Err: parley.Fail(parley.RateLimited, nil, "slow down").With(parley.ByPeer,
			parley.PeerRate, "429"), Wait: time.Hour}, {}}
		w.transport.attempt = func(_ context.Context, a Attempt) Result { return results[a.Number-1] }
		w.record(message(1, "bob", 9, parley.Notice))
		time.Sleep(time.Minute)
		synctest.Wait()
		h := w.d.Health("bob")
		equal(t, "failing, and until when it is left alone", []any{h.Failing(), h.Until}, []any{false,
			start.Add(time.Second + time.Hour)})
		equal(t, "next attempt", h.Next, h.Until)
		next := w.restart(t, Config{})
		r := next.d.Health("bob")
		equal(t, "until when it is left alone after a restart", []any{r.Until, r.Err.Reason}, []any{h.Until,
			parley.PeerRate})
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		equal(t, "after the success", w.d.Health("bob"), Health{})
		equal(t, "after a success of the next hub", next.d.Health("bob"), Health{})
		if err := next.d.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A peer that is busy and does not say until when is left alone until the next attempt.
func TestHealthOfARecipientThatIsJustBusy(t *testing.T) {
	run(t, Config{Retry: Retry{First: time.Minute}}, func(t *testing.T, w *world) {
		start := time.Now()
		w.transport.attempt = func(_ context.Context, a Attempt) Result {
			if a.Number == 1 {
				return Result{Err: parley.Fail(parley.Unavailable, nil, "full").With(parley.ByPeer, parley.PeerBusy, "")}
			}
			return Result{}
		}
		w.record(message(1, "bob", 9, parley.Notice))
		synctest.Wait()
		h := w.d.Health("bob")
		equal(t, "failing, and until when it is left alone", []any{h.Failing(), h.Until}, []any{false,
			start.Add(time.Minute)})
		time.Sleep(time.Hour)
		synctest.Wait()
		equal(t, "after the success", w.d.Health("bob"), Health{})
	})
}

// An operator's retry of a dead letter is one attempt. Its failure leaves the health as it was; its success counts.
func TestRetryOfADeadLetterAndHealth(t *testing.T) {
	run(t, Config{Retry: Retry{Tries: 1}}, func(t *testing.T, w *world) {
		w.transport.attempt = func(context.Context, Attempt) Result { return Result{Err: refused} }
		retry := func() {
			v, _ := w.log.Delivery(id(1), "bob")
			if _, err := w.log.Append(t.Context(), journal.Entry{Steps: []journal.Step{{Message: id(1), To: "bob",
				State: parley.Waiting, Attempt: v.Attempt}}}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			synctest.Wait()
		}
		w.record(message(1, "bob", 9, parley.Notice))
		synctest.Wait()
		before := w.d.Health("bob")
		retry()
		equal(t, "attempts", len(w.transport.order()), 2)
		equal(t, "health of a failing recipient", w.d.Health("bob"), before)
		w.d.SetHealth("bob", Health{})
		retry()
		equal(t, "health of a working recipient", w.d.Health("bob"), Health{})
		w.d.SetHealth("bob", Health{Since: time.Now(), Failures: 3, Err: refused})
		w.transport.attempt = func(context.Context, Attempt) Result { return Result{} }
		retry()
		equal(t, "health after a success", w.d.Health("bob"), Health{})
	})
}

// What another process found is merged with what this one found. A recipient that failed often is tried through one
// lane.
func TestSetHealth(t *testing.T) {
	run(t, Config{}, func(t *testing.T, w *world) {
		since := time.Now().Add(-time.Hour)
		w.d.SetHealth("bob", Health{Since: since, Failures: suspectAfter, Err: refused})
		gate := make(chan struct{})
		w.transport.attempt = func(context.Context, Attempt) Result { <-gate; return Result{Err: refused} }
		for n := byte(1); n <= 3; n++ {
			w.record(message(n, "bob", n, parley.Notice))
		}
		synctest.Wait()
		equal(t, "attempts at once", len(w.transport.order()), 1)
		close(gate)
		synctest.Wait()
		h := w.d.Health("bob")
		equal(t, "failures", []any{h.Failures, h.Since.Equal(since), h.Here}, []any{suspectAfter + 3, true, true})
		w.d.SetHealth("bob", Health{Since: since.Add(-time.Hour), Failures: 2, Err: refused})
		h = w.d.Health("bob")
		equal(t, "failures", []any{h.Failures, h.Since.Equal(since.Add(-time.Hour)), h.Here},
			[]any{suspectAfter + 3, true, true})
		w.d.SetHealth("eve", Health{})
		equal(t, "recipients in memory", w.recipients(), 1)
	})
}

// The health of recipients that are in no directory ends with their last delivery.
func TestHealthIsForgotten(t *testing.T) {
	run(t, Config{Retry: Retry{Tries: 1}}, func(t *testing.T, w *world) {
		w.transport.forgetful = true
		w.transport.attempt = func(context.Context, Attempt) Result { return Result{Err: refused} }
		for n := byte(1); n <= 9; n++ {
			w.record(message(n, fmt.Sprint("guest", n), n, parley.Notice))
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		equal(t, "recipients in memory", w.recipients(), 0)
	})
}

// The retry policy of a recipient replaces the numbers of the hub, also for deliveries that wait already.
func TestRetriesOfARecipient(t *testing.T) {
	fails := func(context.Context, Attempt) Result { return Result{Err: refused} }
	run(t, Config{Retry: Retry{Tries: 9}}, func(t *testing.T, w *world) {
		w.transport.attempt, w.transport.retries = fails, parley.Retries{Tries: 3}
		w.record(message(1, "bob", 9, parley.Notice))
		time.Sleep(time.Hour)
		synctest.Wait()
		equal(t, "attempts", len(w.transport.order()), 3)
	})
	run(t, Config{Retry: Retry{Tries: 900}}, func(t *testing.T, w *world) {
		w.transport.attempt, w.transport.retries = fails, parley.Retries{Patience: time.Hour}
		start := time.Now()
		var end time.Time
		w.log.watch = func(r *journal.Record) {
			w.d.Recorded(r)
			if len(r.Steps) == 1 && r.Steps[0].State == parley.Dead {
				end = time.Now()
			}
		}
		w.record(message(1, "bob", 9, parley.Notice))
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if d := end.Sub(start); d < time.Hour || d > time.Hour+5*time.Minute {
			t.Errorf("given up after %s, want an hour and at most one pause", d)
		}
	})
	run(t, Config{}, func(t *testing.T, w *world) {
		w.transport.attempt = fails
		w.record(message(1, "bob", 9, parley.Notice))
		time.Sleep(2 * time.Second)
		synctest.Wait()
		w.transport.mu.Lock()
		w.transport.retries = parley.Retries{Tries: 3}
		w.transport.mu.Unlock()
		time.Sleep(time.Hour)
		synctest.Wait()
		equal(t, "attempts if the policy changes meanwhile", len(w.transport.order()), 3)
	})
}

// Without an order, later messages of a conversation overtake one that failed: also messages that wait behind it
// already when the order ends, and after a restart.
func TestUnordered(t *testing.T) {
	firstFails := func(_ context.Context, a Attempt) Result {
		if a.Message.Skill == "m1" && a.Number < 3 {
			return Result{Err: refused}
		}
		return Result{}
	}
	finished := []string{"bob/m1#1", "bob/m2#1", "bob/m3#1", "bob/m1#2", "bob/m1#3"}
	run(t, Config{}, func(t *testing.T, w *world) {
		w.transport.attempt, w.transport.retries = firstFails, parley.Retries{Unordered: true}
		for n := byte(1); n <= 3; n++ {
			w.record(message(n, "bob", 9, parley.Notice))
		}
		synctest.Wait()
		equal(t, "attempts at once", w.transport.order(), finished[:3])
		time.Sleep(time.Minute)
		synctest.Wait()
		equal(t, "attempts", w.transport.order(), finished)
		equal(t, "what is left in memory", w.tracked(), 0)
	})
	run(t, Config{}, func(t *testing.T, w *world) {
		w.transport.attempt = firstFails
		for n := byte(1); n <= 3; n++ {
			w.record(message(n, "bob", 9, parley.Notice))
		}
		synctest.Wait()
		equal(t, "attempts in order", w.transport.order(), finished[:1])
		w.transport.mu.Lock()
		w.transport.retries.Unordered = true
		w.transport.mu.Unlock()
		w.d.Kick("bob")
		synctest.Wait()
		equal(t, "attempts without an order", w.transport.order(), finished[:3])
		time.Sleep(time.Minute)
		synctest.Wait()
		equal(t, "attempts", w.transport.order(), finished)
		equal(t, "what is left in memory", w.tracked(), 0)
	})
	run(t, Config{}, func(t *testing.T, w *world) {
		w.log.watch = nil
		for n := byte(1); n <= 3; n++ {
			w.record(message(n, "bob", 9, parley.Notice))
		}
		for _, s := range []parley.DeliveryState{parley.Delivering, parley.Waiting} {
			if _, err := w.log.Append(t.Context(), journal.Entry{Steps: []journal.Step{{Message: id(1), To: "bob",
				State: s, Attempt: 1, Next: time.Now().Add(time.Hour), Error: refused}}}); err != nil {
				t.Fatal(err)
			}
		}
		w.transport.retries = parley.Retries{Unordered: true}
		if err := w.d.Resume(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		equal(t, "attempts after a restart", w.transport.order(), finished[1:3])
		// The message that was set aside is queued once, whoever queues it again.
		w.d.revive(id(1), "bob")
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		equal(t, "attempts", w.transport.order(), finished[1:4])
		equal(t, "what is left in memory", w.tracked(), 0)
	})
	// A message may be alone in a conversation that has its own id.
	run(t, Config{}, func(t *testing.T, w *world) {
		w.transport.attempt, w.transport.retries = firstFails, parley.Retries{Unordered: true}
		w.record(message(1, "bob", 1, parley.Notice))
		w.record(message(2, "bob", 1, parley.Notice))
		time.Sleep(time.Minute)
		synctest.Wait()
		equal(t, "attempts", len(w.transport.order()), 4)
	})
}
