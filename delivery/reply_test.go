package delivery

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// answers makes bob reply to requests with a message to alice. The function then gives the result of each other
// attempt.
func (w *world) answers(then func(a Attempt) Result) {
	w.transport.attempt = func(_ context.Context, a Attempt) Result {
		if a.Message.Kind == parley.Request {
			return Result{Reply: &Reply{Message: &parley.Message{ID: id(50), Kind: parley.Response,
				From: "bob", To: "alice", Skill: "reply", Conversation: id(9), InReplyTo: a.Message.ID},
				Open: []journal.Opening{{To: "alice"}}}}
		}
		return then(a)
	}
}

// If the lane of a reply is idle, the reply is recorded with its first attempt, and that attempt has the request in
// memory. If the lane is busy, the reply waits for its turn.
func TestReplyIsRecordedWithItsAttempt(t *testing.T) {
	for _, busy := range []bool{false, true} {
		run(t, Config{}, func(t *testing.T, w *world) {
			var request *parley.Message
			w.answers(func(a Attempt) Result {
				if a.Message.ID == id(50) {
					request = a.Request
				}
				return Result{}
			})
			if busy {
				w.transport.paused["alice"] = true
				w.record(message(2, "alice", 9, parley.Notice))
			}
			w.record(message(1, "bob", 9, parley.Request))
			synctest.Wait()
			if busy {
				equal(t, "while alice is paused", w.transport.order(), []string{"bob/m1#1"})
				w.transport.mu.Lock()
				w.transport.paused["alice"] = false
				w.transport.mu.Unlock()
				w.d.Kick("alice")
				synctest.Wait()
				equal(t, "order", w.transport.order(), []string{"bob/m1#1", "alice/m2#1", "alice/reply#1"})
				equal(t, "states", w.log.states(id(50)), []parley.DeliveryState{parley.Delivering, parley.Delivered})
				return
			}
			equal(t, "order", w.transport.order(), []string{"bob/m1#1", "alice/reply#1"})
			equal(t, "states", w.log.states(id(50)), []parley.DeliveryState{parley.Delivered})
			if request == nil || request.ID != id(1) {
				t.Errorf("the attempt has the request %v, want m1", request)
			}
			equal(t, "lanes left", w.d.Stats().Lanes, 0)
		})
	}
}

// A reply that could not be recorded is recorded later, and then delivered. A reply that the journal recorded with
// ErrUnknown is delivered too.
func TestReplyIsBroughtOnceRecorded(t *testing.T) {
	for _, lost := range []bool{false, true} {
		run(t, Config{}, func(t *testing.T, w *world) {
			w.answers(func(Attempt) Result { return Result{} })
			failed := false
			w.log.fail = func(e journal.Entry) error {
				if failed || e.Message == nil || e.Message.ID != id(50) {
					return nil
				}
				failed = true
				if lost { // the journal recorded the reply, with its openings and steps
					w.log.open[id(50).String()+"alice"] = &journal.Delivery{Delivery: parley.Delivery{Message: id(50),
						To: "alice", State: parley.Delivering, Attempt: 1},
						Position: journal.Position{Sequence: 99}, Kind: parley.Response, Conversation: id(9)}
					w.log.records[99] = &journal.Record{Position: journal.Position{Sequence: 99}, Message: e.Message}
					delete(w.log.open, id(1).String()+"bob")
				}
				return journal.ErrUnknown
			}
			w.record(message(1, "bob", 9, parley.Request))
			time.Sleep(5 * time.Second)
			equal(t, "attempts", w.transport.order(), []string{"bob/m1#1", "alice/reply#1"})
			if _, open := w.log.Delivery(id(50), "alice"); open {
				t.Error("the delivery of the reply is not settled")
			}
			equal(t, "still tracked", w.tracked(), 0)
		})
	}
}

// An answer settles its request even if it arrives during the attempt, or while the dispatcher records the delivery.
// The waiting caller gets no other reply and no error.
func TestAnswerBeforeDelivered(t *testing.T) {
	for _, when := range []string{"during the attempt", "while recording"} {
		run(t, Config{}, func(t *testing.T, w *world) {
			answer := func() {
				m := &parley.Message{ID: id(50), Kind: parley.Response, InReplyTo: id(1)}
				settles := journal.Step{Message: id(1), To: "bob", State: parley.Answered, Attempt: 1, Reply: id(50)}
				if _, err := w.log.Append(context.Background(),
					journal.Entry{Message: m, Steps: []journal.Step{settles}}); err != nil {
					t.Error(err)
				}
			}
			w.transport.attempt = func(context.Context, Attempt) Result {
				if when == "during the attempt" {
					answer()
				}
				return Result{}
			}
			w.log.fail = func(e journal.Entry) error {
				if when == "while recording" && len(e.Steps) == 1 && e.Steps[0].State == parley.Delivered {
					w.log.mu.Unlock()
					answer()
					w.log.mu.Lock()
				}
				return nil
			}
			m := message(1, "bob", 9, parley.Request)
			c := w.d.Claim(0, m.ID, "bob", id(9), true)
			open := []journal.Opening{{To: "bob", Attempt: 1, Sync: true}}
			p, err := w.log.Append(t.Context(), journal.Entry{Message: m, Open: open})
			if err != nil {
				t.Fatal(err)
			}
			if r := c.Run(t.Context(), Attempt{Message: m, Position: p, To: "bob", Sync: true}); r.Err != nil ||
				r.Reply != nil {
				t.Errorf("answer %s: the caller gets %+v, want neither reply nor error", when, r)
			}
			equal(t, "states", w.log.states(id(1)), []parley.DeliveryState{parley.Answered})
			equal(t, "still tracked", w.tracked(), 0)
		})
	}
}

// restart starts a hub on a copy of the journal, as if the first hub had been killed.
func (w *world) restart(t *testing.T, c Config) *world {
	t.Helper()
	w.log.mu.Lock()
	defer w.log.mu.Unlock()
	next := &world{log: newLog(), transport: &fakeTransport{paused: map[string]bool{}, repeatable: w.transport.repeatable}}
	next.transport.attempt = func(context.Context, Attempt) Result { return Result{} }
	next.log.seq, next.log.records = w.log.seq, maps.Clone(w.log.records)
	for k, v := range w.log.open {
		left := *v
		next.log.open[k] = &left
	}
	c.Log, c.Transport, c.Jitter = next.log, next.transport, func() float64 { return 1 }
	next.d = New(c)
	next.log.watch = next.d.Recorded
	if err := next.d.Resume(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	return next
}

// A hub is killed after a delivery and before its record. The next hub repeats the attempt if the recipient
// deduplicates or AtLeastOnce is set. Otherwise the message is a dead letter.
func TestStoppedBeforeDeliveredIsRecorded(t *testing.T) {
	for _, kind := range []parley.Kind{parley.Notice, parley.Request} {
		for _, c := range []struct {
			repeatable, atLeastOnce bool
			again                   []string
			state                   parley.DeliveryState
		}{
			{false, false, nil, parley.Dead},
			{false, true, []string{"bob/m1#2"}, parley.Delivered},
			{true, false, []string{"bob/m1#2"}, parley.Delivered},
		} {
			t.Run(fmt.Sprint(kind, c.repeatable, c.atLeastOnce), func(t *testing.T) {
				config := Config{AtLeastOnce: c.atLeastOnce}
				run(t, config, func(t *testing.T, w *world) {
					w.transport.repeatable = c.repeatable
					w.log.fail = func(e journal.Entry) error {
						if len(e.Steps) == 1 && e.Steps[0].State == parley.Delivered {
							return journal.ErrNoSpace
						}
						return nil
					}
					w.record(message(1, "bob", 9, kind))
					synctest.Wait()
					equal(t, "attempts of the first hub", w.transport.order(), []string{"bob/m1#1"})
					next := w.restart(t, config)
					time.Sleep(time.Second)
					synctest.Wait()
					equal(t, "attempts of the next hub", next.transport.order(), c.again)
					states := next.log.states(id(1))
					equal(t, "outcome", states[len(states)-1], c.state)
					if kind == parley.Request && c.state == parley.Dead {
						equal(t, "failures for the sender", len(next.log.replies), 1)
						equal(t, "code of the failure", next.log.replies[0].Error.Code, parley.OutcomeUnknown)
					}
					if err := next.d.Close(t.Context()); err != nil {
						t.Error(err)
					}
				})
			})
		}
	}
}

// ahead brings m1 in flight to bob, and records m2 and m3 behind it, with their first attempts if Claim succeeds. The
// attempt of m1 ends with the result that the test sends to outcome.
func (w *world) ahead(t *testing.T) (outcome chan Result) {
	t.Helper()
	outcome = make(chan Result)
	w.transport.attempt = func(_ context.Context, a Attempt) Result {
		if a.Message.ID == id(1) && a.Number == 1 {
			return <-outcome
		}
		return Result{}
	}
	w.record(message(1, "bob", 9, parley.Notice))
	synctest.Wait()
	for n := byte(2); n <= 3; n++ {
		m := message(n, "bob", 9, parley.Notice)
		o := journal.Opening{To: "bob"}
		c := w.d.Claim(0, m.ID, "bob", id(9), false)
		if (c != nil) != w.transport.repeatable {
			t.Fatalf("Claim succeeded: %v, want %v (recipient deduplicates)", c != nil, w.transport.repeatable)
		}
		if c != nil {
			o.Attempt = 1
		}
		p, err := w.log.Append(t.Context(), journal.Entry{Message: m, Open: []journal.Opening{o}})
		if err != nil {
			t.Fatal(err)
		}
		if c != nil {
			c.Go(Attempt{Message: m, Position: p, To: "bob"})
		}
	}
	synctest.Wait()
	equal(t, "attempts while m1 is in flight", w.transport.order(), []string{"bob/m1#1"})
	return outcome
}

// If the recipient deduplicates, a message behind one in flight is recorded with its first attempt, and still delivered
// in order. For other recipients it is recorded as waiting: if the hub stops, no attempt of it is uncertain.
func TestRecordedAheadOfItsTurn(t *testing.T) {
	for _, repeatable := range []bool{true, false} {
		run(t, Config{}, func(t *testing.T, w *world) {
			w.transport.repeatable = repeatable
			outcome := w.ahead(t)
			if w.d.Claim(0, id(4), "bob", id(9), true) != nil {
				t.Error("Claim succeeded behind a message in flight for a caller that waits for the outcome")
			}
			outcome <- Result{}
			time.Sleep(time.Second)
			synctest.Wait()
			equal(t, "order", w.transport.order(), []string{"bob/m1#1", "bob/m2#1", "bob/m3#1"})
			want := []parley.DeliveryState{parley.Delivering, parley.Delivered}
			if repeatable {
				want = want[1:]
			}
			equal(t, "steps", w.log.states(id(3)), want)
			equal(t, "lanes left", w.d.Stats().Lanes, 0)
			equal(t, "still tracked", w.tracked(), 0)
		})
	}
}

// If a message fails, a message behind it that was recorded ahead of its turn waits too, and loses no try. If the hub
// is killed, the next hub makes the attempt.
func TestAheadOfOneThatFails(t *testing.T) {
	for _, settled := range []bool{false, true} {
		run(t, Config{}, func(t *testing.T, w *world) {
			w.transport.repeatable = true
			outcome := w.ahead(t)
			next := w.restart(t, Config{})
			time.Sleep(time.Second)
			synctest.Wait()
			equal(t, "attempts after a restart", next.transport.order(), []string{"bob/m1#2", "bob/m2#2", "bob/m3#2"})
			if err := next.d.Close(t.Context()); err != nil {
				t.Error(err)
			}

			if settled { // m2 is settled by another process: it must not block m3
				w.log.mu.Lock()
				delete(w.log.open, id(2).String()+"bob")
				w.log.mu.Unlock()
			}
			outcome <- Result{Err: parley.Fail(parley.Unavailable, nil, "down")}
			synctest.Wait()
			equal(t, "steps of m1", w.log.states(id(1)),
				[]parley.DeliveryState{parley.Delivering, parley.Waiting})
			if v, _ := w.log.Delivery(id(3), "bob"); !settled && (v.State != parley.Waiting || v.Tries() != 0) {
				t.Errorf("delivery of m3: %+v, want waiting without a try", v)
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			want := []string{"bob/m1#1", "bob/m1#2", "bob/m2#2", "bob/m3#2"}
			if settled {
				want = []string{"bob/m1#1", "bob/m1#2", "bob/m3#1"}
			}
			equal(t, "order", w.transport.order(), want)
			equal(t, "still tracked", w.tracked(), 0)
		})
	}
}

// A message recorded ahead of its turn is delivered in order, even if the journal reported ErrUnknown for its record. A
// claimed message that was not recorded is not tracked any more.
func TestAheadOfUnknownOutcome(t *testing.T) {
	run(t, Config{}, func(t *testing.T, w *world) {
		w.transport.repeatable = true
		outcome := w.ahead(t)
		m := message(4, "bob", 9, parley.Notice)
		c := w.d.Claim(0, m.ID, "bob", id(9), false)
		w.log.silent = func(journal.Entry) bool { return true }
		if _, err := w.log.Append(t.Context(), journal.Entry{Message: m,
			Open: []journal.Opening{{To: "bob", Attempt: 1}}}); !errors.Is(err, journal.ErrUnknown) {
			t.Fatal(err)
		}
		w.log.silent = nil
		c.Release(journal.ErrUnknown)
		w.d.Claim(0, id(5), "bob", id(9), false).Release(nil)
		outcome <- Result{}
		time.Sleep(time.Second)
		synctest.Wait()
		equal(t, "order", w.transport.order(), []string{"bob/m1#1", "bob/m2#1", "bob/m3#1", "bob/m4#1"})
		equal(t, "still tracked", w.tracked(), 0)
	})
}
