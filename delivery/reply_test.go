package delivery

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// answers makes bob answer requests, with a reply that goes back to alice.
func (w *world) answers(then func(a Attempt) Result) {
	w.hands.carry = func(_ context.Context, a Attempt) Result {
		if a.Message.Kind == parley.Request {
			return Result{Reply: &Reply{Message: &parley.Message{ID: id(50), Kind: parley.Response, From: "bob", To: "alice", Skill: "reply", Conversation: id(9), InReplyTo: a.Message.ID},
				Open: []journal.Opening{{To: "alice"}}}}
		}
		return then(a)
	}
}

// A reply is recorded with the first attempt to bring it, if nothing is before
// it; that attempt has the request at hand.
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
				w.hands.paused["alice"] = true
				w.record(message(2, "alice", 9, parley.Notice))
			}
			w.record(message(1, "bob", 9, parley.Request))
			synctest.Wait()
			if busy {
				equal(t, "while alice is paused", w.hands.order(), []string{"bob/m1#1"})
				w.hands.mu.Lock()
				w.hands.paused["alice"] = false
				w.hands.mu.Unlock()
				w.d.Kick("alice")
				synctest.Wait()
				equal(t, "order", w.hands.order(), []string{"bob/m1#1", "alice/m2#1", "alice/reply#1"})
				equal(t, "states", w.log.states(id(50)), []parley.DeliveryState{parley.Delivering, parley.Delivered})
				return
			}
			equal(t, "order", w.hands.order(), []string{"bob/m1#1", "alice/reply#1"})
			equal(t, "states", w.log.states(id(50)), []parley.DeliveryState{parley.Delivered})
			if request == nil || request.ID != id(1) {
				t.Errorf("the request is not at hand: %v", request)
			}
			equal(t, "lanes left", w.d.Stats().Lanes, 0)
		})
	}
}

// A reply that could not be recorded is recorded later, and then brought; also
// if it was recorded after all and nobody heard of that.
func TestReplyIsBroughtOnceRecorded(t *testing.T) {
	for _, lost := range []bool{false, true} {
		run(t, Config{}, func(t *testing.T, w *world) {
			w.hands.repeatable = true
			w.answers(func(Attempt) Result { return Result{} })
			failed := false
			w.log.fail = func(e journal.Entry) error {
				if failed || e.Message == nil || e.Message.ID != id(50) {
					return nil
				}
				failed = true
				if lost { // it is in the log, and so is what it opened and settled
					w.log.open[id(50).String()+"alice"] = &journal.Delivery{Delivery: parley.Delivery{Message: id(50), To: "alice", State: parley.Delivering, Attempt: 1},
						Position: journal.Position{Sequence: 99}, Kind: parley.Response, Conversation: id(9)}
					w.log.records[99] = &journal.Record{Position: journal.Position{Sequence: 99}, Message: e.Message}
					delete(w.log.open, id(1).String()+"bob")
				}
				return journal.ErrUnknown
			}
			w.record(message(1, "bob", 9, parley.Request))
			time.Sleep(5 * time.Second)
			want := []string{"bob/m1#1", "alice/reply#1"}
			if lost {
				want[1] = "alice/reply#2" // the first may have been made
			}
			equal(t, "attempts", w.hands.order(), want)
			if _, open := w.log.Delivery(id(50), "alice"); open {
				t.Error("the reply is not settled")
			}
			equal(t, "lanes left", w.d.Stats().Lanes, 0)
		})
	}
}

// What is only sent is recorded as delivered a little later, many at a time,
// does not hold up what follows, and is not forgotten when the hub closes, the
// disk is full, or one of them was settled by somebody else meanwhile.
func TestSentIsRecordedTogether(t *testing.T) {
	sent := func(w *world) {
		w.hands.carry = func(context.Context, Attempt) Result { return Result{Sent: true} }
	}
	records := func(w *world) (n int) {
		w.log.mu.Lock()
		defer w.log.mu.Unlock()
		for _, r := range w.log.records {
			if slices.ContainsFunc(r.Steps, func(s journal.Step) bool { return s.State == parley.Delivered }) {
				n++
			}
		}
		return n
	}
	run(t, Config{}, func(t *testing.T, w *world) {
		sent(w)
		for n := range byte(20) {
			w.record(message(1+n, "bob", 9, parley.Notice))
		}
		synctest.Wait()
		equal(t, "attempts at once", len(w.hands.order()), 20)
		equal(t, "outcomes at once", records(w), 0)
		time.Sleep(lateness)
		synctest.Wait()
		equal(t, "records of outcomes", records(w), 1)
		equal(t, "open", len(w.log.open), 0)

		// A request waits for its answer: that it was delivered is recorded at once.
		w.record(message(30, "bob", 9, parley.Request))
		synctest.Wait()
		equal(t, "a request", w.log.states(id(30)), []parley.DeliveryState{parley.Delivering, parley.Delivered})

		w.record(message(40, "bob", 9, parley.Notice))
		w.record(message(41, "bob", 9, parley.Notice))
		synctest.Wait()
		w.log.mu.Lock()
		delete(w.log.open, id(40).String()+"bob")
		failures := 3
		w.log.fail = func(e journal.Entry) error {
			if failures--; failures >= 0 {
				return journal.ErrNoSpace
			}
			return nil
		}
		w.log.mu.Unlock()
		time.Sleep(10 * time.Second)
		if _, open := w.log.Delivery(id(41), "bob"); open {
			t.Error("the outcome is forgotten because of another one")
		}
	})
	var w *world
	run(t, Config{}, func(t *testing.T, inside *world) {
		w = inside
		sent(w)
		w.record(message(1, "bob", 9, parley.Notice))
	})
	equal(t, "open after the close", len(w.log.open), 0)
}
