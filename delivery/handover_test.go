package delivery

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// hubLog gives one hub access to a log that several hubs share.
type hubLog struct {
	*log
	name  string
	owner *atomic.Value // the name of the hub that owns the partition
	lease *atomic.Pointer[journal.Lease]
	alive map[string]bool
}

func (p hubLog) Append(_ context.Context, e journal.Entry) (journal.Position, error) {
	return p.append(p.name, e)
}
func (p hubLog) Node() string   { return p.name }
func (p hubLog) Owned(int) bool { return p.owner.Load() == p.name }
func (p hubLog) Owner(int) *journal.Lease {
	if !p.Owned(0) {
		return nil
	}
	return p.lease.Load()
}
func (p hubLog) LivesElsewhere(node string, _ time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return node != p.name && p.alive[node]
}

// hubs are two hubs, a and b, on one log. At first a owns the partition.
type hubs struct {
	*log
	owner *atomic.Value
	lease *atomic.Pointer[journal.Lease] // the owner's lease
	alive map[string]bool
	a, b  *world
}

// holdAttempts makes each attempt of h wait until the test sends its result to end, or until its context ends.
func holdAttempts(h *fakeTransport) (begun chan Attempt, end chan Result) {
	begun, end = make(chan Attempt, 16), make(chan Result)
	h.attempt = func(ctx context.Context, a Attempt) Result {
		begun <- a
		select {
		case r := <-end:
			return r
		case <-ctx.Done():
			return Result{Err: parley.AsError(ctx.Err()), Unknown: true}
		}
	}
	return begun, end
}

// runTwoHubs calls f with two hubs on one log in a synctest bubble, and closes both at the end.
func runTwoHubs(t *testing.T, c Config, f func(t *testing.T, h *hubs)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := &hubs{log: newLog(), owner: new(atomic.Value), lease: new(atomic.Pointer[journal.Lease]),
			alive: map[string]bool{"a": true, "b": true}}
		h.owner.Store("a")
		one := func(name string) *world {
			w := &world{log: h.log, transport: &fakeTransport{paused: map[string]bool{}}}
			w.transport.attempt = func(context.Context, Attempt) Result { return Result{} }
			c := c
			c.Log, c.Transport = hubLog{h.log, name, h.owner, h.lease, h.alive}, w.transport
			c.Jitter = func() float64 { return 1 }
			w.d = New(c)
			return w
		}
		h.a, h.b = one("a"), one("b")
		h.watch = func(r *journal.Record) {
			h.a.d.Recorded(r)
			h.b.d.Recorded(r)
		}
		f(t, h)
		synctest.Wait()
		for _, w := range []*world{h.a, h.b} {
			if err := w.d.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
}

// handOver hands the partition over from a to b, as the journal does.
func (h *hubs) handOver(t *testing.T) {
	t.Helper()
	h.owner.Store("nobody")
	h.a.d.Lose(0)
	h.a.d.HandOver(t.Context(), 0)
	h.owner.Store("b")
	if err := h.b.d.Resume(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
}

// unknown counts the recorded steps with an unknown outcome.
func (h *hubs) unknown() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.steps {
		if s.Error != nil && s.Error.Code == parley.OutcomeUnknown {
			n++
		}
	}
	return n
}

// A hub drains its lanes before it hands over a partition: attempts in flight end, and no new ones begin. The next
// owner delivers the waiting messages, in order.
func TestHandOver(t *testing.T) {
	runTwoHubs(t, Config{}, func(t *testing.T, h *hubs) {
		begun, end := holdAttempts(h.a.transport)
		for n := range byte(3) {
			h.a.record(message(n+1, "bob", 9, parley.Notice))
		}
		<-begun
		done := make(chan struct{})
		go func() { defer close(done); h.handOver(t) }()
		synctest.Wait()
		select {
		case <-done:
			t.Fatal("the partition was handed over while an attempt was in flight")
		default:
		}
		h.a.record(message(4, "bob", 9, parley.Notice)) // while the partition has no owner
		if h.a.d.Claim(0, id(5), "carol", id(5), false) != nil {
			t.Error("Claim succeeded in a partition that is being handed over")
		}
		end <- Result{}
		<-done
		equal(t, "attempts of a", h.a.transport.order(), "[bob/m1#1]")
		equal(t, "attempts of b", h.b.transport.order(), "[bob/m2#1 bob/m3#1 bob/m4#1]")
		time.Sleep(time.Second)
		synctest.Wait()
		equal(t, "open deliveries", len(h.open), 0)
		equal(t, "unknown outcomes", h.unknown(), 0)
		equal(t, "lanes of a", h.a.d.Stats().Lanes, 0)
	})
}

// An attempt that outlasts the hand-over continues at its hub. While that hub lives, the next owner neither repeats the
// attempt nor delivers the messages behind it.
func TestHandOverOfALongAttempt(t *testing.T) {
	failed := Result{Err: parley.Fail(parley.Unavailable, nil, "away")}
	for name, c := range map[string]struct {
		end    func(h *hubs, end chan Result)
		second string // attempts of the new owner
		states []parley.DeliveryState
	}{
		"attempt succeeds": {func(_ *hubs, end chan Result) { end <- Result{} }, "[bob/m2#1]",
			[]parley.DeliveryState{parley.Delivering, parley.Delivered}},
		"attempt fails": {func(_ *hubs, end chan Result) { end <- failed }, "[bob/m1#2 bob/m2#1]",
			[]parley.DeliveryState{parley.Delivering, parley.Waiting, parley.Delivering, parley.Delivered}},
		"hub is gone": {func(h *hubs, _ chan Result) {
			h.mu.Lock()
			defer h.mu.Unlock()
			delete(h.alive, "a")
		}, "[bob/m2#1]", []parley.DeliveryState{parley.Delivering, parley.Dead}},
	} {
		t.Run(name, func(t *testing.T) {
			runTwoHubs(t, Config{}, func(t *testing.T, h *hubs) {
				begun, end := holdAttempts(h.a.transport)
				h.a.record(message(1, "bob", 9, parley.Notice))
				h.a.record(message(2, "bob", 9, parley.Notice))
				<-begun
				before := time.Now()
				h.handOver(t)
				equal(t, "time of the hand-over", time.Since(before), 5*time.Second)
				time.Sleep(20 * time.Second)
				synctest.Wait()
				equal(t, "attempts of the next owner during the long attempt", h.b.transport.order(), "[]")
				c.end(h, end)
				time.Sleep(10 * time.Second)
				synctest.Wait()
				equal(t, "attempts of the next owner", h.b.transport.order(), c.second)
				equal(t, "steps", h.states(id(1)), c.states)
				want := 0
				if strings.Contains(name, "gone") {
					want = 1
				}
				equal(t, "unknown outcomes", h.unknown(), want)
			})
		})
	}
}

// If a hub lives but does not record the outcome of an attempt, the next owner waits only until the attempt's time
// limit has passed. Then it makes the next attempt.
func TestAttemptElsewhereOutOfTime(t *testing.T) {
	runTwoHubs(t, Config{}, func(t *testing.T, h *hubs) {
		// Hub a has restarted under the same name, and does not know the attempt.
		m := message(1, "bob", 9, parley.Notice)
		if _, err := h.append("a", journal.Entry{Message: m,
			Open: []journal.Opening{{To: "bob", Attempt: 1}}}); err != nil {
			t.Fatal(err)
		}
		h.b.transport.repeatable = true
		h.handOver(t)
		time.Sleep(time.Minute)
		synctest.Wait()
		equal(t, "attempts before the time limit", h.b.transport.order(), "[]")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		equal(t, "attempts after the time limit", h.b.transport.order(), "[bob/m1#2]")
	})
}

// A live hub has claimed a message and handed over its partition. The record of the message appears long after its
// deadline. The next owner gives that hub the time to record that it made no attempt. The message then expires, and its
// outcome is known.
func TestRecordAppearsAtTheNextOwner(t *testing.T) {
	runTwoHubs(t, Config{}, func(t *testing.T, h *hubs) {
		m := message(1, "bob", 9, parley.Request)
		m.Deadline = time.Now().Add(25 * time.Second)
		c := h.a.d.Claim(0, m.ID, "bob", id(9), false)
		time.Sleep(time.Minute)
		c.Release(journal.ErrUnknown)
		h.handOver(t)
		h.fail = func(e journal.Entry) error { // the hub cannot hand the attempt back at first
			if len(e.Steps) == 1 && e.Steps[0].State == parley.Waiting && time.Since(m.Deadline) < 38*time.Second {
				return journal.ErrUnknown
			}
			return nil
		}
		if _, err := h.append("a", journal.Entry{Message: m,
			Open: []journal.Opening{{To: "bob", Attempt: 1}}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Second)
		synctest.Wait()
		equal(t, "attempts", append(h.a.transport.order(), h.b.transport.order()...), "[]")
		equal(t, "steps", h.states(m.ID), []parley.DeliveryState{parley.Waiting, parley.Expired})
		equal(t, "unknown outcomes", h.unknown(), 0)
	})
}

// A caller waits for the outcome of its request at one hub, and another hub takes over the partition. While the
// caller's hub lives, the next owner leaves the request to it. When that hub is gone, the next owner abandons the
// request.
func TestCallerOfAHubThatIsGone(t *testing.T) {
	runTwoHubs(t, Config{}, func(t *testing.T, h *hubs) {
		for n := range byte(2) {
			m := message(n+1, "bob", n+1, parley.Request)
			if _, err := h.append("a", journal.Entry{Message: m,
				Open: []journal.Opening{{To: "bob", Attempt: 1, Sync: true}}}); err != nil {
				t.Fatal(err)
			}
			h.mu.Lock()
			h.alive["a"] = n == 0
			h.mu.Unlock()
			h.handOver(t)
			time.Sleep(30 * time.Second)
			synctest.Wait()
			if n == 0 {
				equal(t, "steps while the hub lives", len(h.states(m.ID)), 0)
				if _, err := h.append("a",
					journal.Entry{Steps: []journal.Step{{Message: m.ID, To: "bob", State: parley.Answered,
						Attempt: 1}}}); err != nil {
					t.Fatal(err)
				}
				continue
			}
			equal(t, "steps when the hub is gone", h.states(m.ID), []parley.DeliveryState{parley.Abandoned})
		}
		equal(t, "attempts", h.b.transport.order(), "[]")
	})
}

// At a hand-over, a hub hands back the attempts that it recorded ahead of their turn and has not made.
func TestHandOverOfWhatIsAhead(t *testing.T) {
	runTwoHubs(t, Config{}, func(t *testing.T, h *hubs) {
		h.a.transport.repeatable = true
		begun, end := holdAttempts(h.a.transport)
		h.a.record(message(1, "bob", 9, parley.Notice))
		<-begun
		record := func(n byte) {
			m := message(n, "bob", 9, parley.Notice)
			if h.a.d.Claim(0, m.ID, "bob", id(9), false) == nil {
				t.Fatal("Claim failed")
			}
			p := hubLog{h.log, "a", h.owner, h.lease, h.alive}
			if _, err := p.Append(t.Context(), journal.Entry{Message: m,
				Open: []journal.Opening{{To: "bob", Attempt: 1}}}); err != nil {
				t.Fatal(err)
			}
		}
		record(2)
		if h.a.d.Claim(0, id(3), "bob", id(9), false) == nil { // recorded during the hand-over
			t.Fatal("Claim failed")
		}
		done := make(chan struct{})
		go func() { defer close(done); h.handOver(t) }()
		synctest.Wait()
		p := hubLog{h.log, "a", h.owner, h.lease, h.alive}
		m := message(3, "bob", 9, parley.Notice)
		if _, err := p.Append(t.Context(), journal.Entry{Message: m,
			Open: []journal.Opening{{To: "bob", Attempt: 1}}}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		v, _ := h.Delivery(id(2), "bob")
		if v.State != parley.Waiting || v.Error == nil || !strings.Contains(v.Error.Text, "moved to another hub") {
			t.Errorf("delivery of m2: %v, %v; want waiting, moved to another hub", v.State, v.Error)
		}
		end <- Result{}
		<-done
		time.Sleep(time.Second)
		synctest.Wait()
		equal(t, "attempts of a", h.a.transport.order(), "[bob/m1#1]")
		equal(t, "attempts of b", h.b.transport.order(), "[bob/m2#2 bob/m3#2]")
		equal(t, "open deliveries", len(h.open), 0)
	})
}

// A hub that is stopped during an attempt records its outcome. The next owner makes another attempt, unless the
// recipient may have received the message and does not deduplicate.
func TestStoppedDuringAnAttempt(t *testing.T) {
	for name, c := range map[string]struct {
		unknown, repeatable bool
		state               parley.DeliveryState
		attempts            string
	}{
		"attempt not made": {false, false, parley.Delivered, "[bob/m1#2]"},
		"attempt may have been made, recipient deduplicates": {true, true, parley.Delivered, "[bob/m1#2]"},
		"attempt may have been made":                         {true, false, parley.Dead, "[]"},
	} {
		t.Run(name, func(t *testing.T) {
			runTwoHubs(t, Config{}, func(t *testing.T, h *hubs) {
				h.a.transport.repeatable, h.b.transport.repeatable = c.repeatable, c.repeatable
				h.a.transport.attempt = func(ctx context.Context, _ Attempt) Result {
					<-ctx.Done()
					return Result{Err: parley.Fail(parley.Unavailable, ctx.Err(), "cut"), Unknown: c.unknown}
				}
				h.a.record(message(1, "bob", 9, parley.Notice))
				synctest.Wait()
				h.handOver(t)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				if err := h.a.d.Close(ctx); err == nil {
					t.Error("Close did not report the attempt in flight")
				}
				h.mu.Lock()
				why := h.steps[len(h.steps)-1].Error
				for _, s := range h.steps {
					if s.Error != nil {
						why = s.Error
					}
				}
				h.mu.Unlock()
				if why == nil || !strings.Contains(why.Text, "moved to another hub") {
					t.Errorf("recorded error %v does not say that the partition moved to another hub", why)
				}
				time.Sleep(time.Second)
				synctest.Wait()
				states := h.states(id(1))
				equal(t, "the last step", states[len(states)-1], c.state)
				equal(t, "attempts of the next owner", h.b.transport.order(), c.attempts)
			})
		})
	}
}

// A hub that gets a partition back dispatches it again, and does not repeat its attempts still in flight.
func TestPartitionComesBack(t *testing.T) {
	runTwoHubs(t, Config{}, func(t *testing.T, h *hubs) {
		begun, end := holdAttempts(h.a.transport)
		h.a.record(message(1, "bob", 9, parley.Notice))
		<-begun
		h.handOver(t)
		h.owner.Store("nobody")
		h.b.d.HandOver(t.Context(), 0)
		h.owner.Store("a")
		if err := h.a.d.Resume(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		h.a.record(message(2, "carol", 8, parley.Notice))
		equal(t, "recipient of the next attempt", (<-begun).To, "carol")
		end <- Result{}
		end <- Result{}
		time.Sleep(time.Second)
		synctest.Wait()
		equal(t, "attempts of a", h.a.transport.order(), "[bob/m1#1 carol/m2#1]")
		equal(t, "attempts of b", h.b.transport.order(), "[]")
		equal(t, "open deliveries", len(h.open), 0)
	})
}

// A hub loses a partition and gets it back with another lease while the journal records an attempt and reports
// ErrUnknown. The hub makes the attempt once.
func TestPartitionComesBackWhileAnAttemptIsRecorded(t *testing.T) {
	runTwoHubs(t, Config{}, func(t *testing.T, h *hubs) {
		h.lease.Store(new(journal.Lease))
		lost := false
		h.silent = func(e journal.Entry) bool {
			if lost || len(e.Steps) != 1 || e.Steps[0].State != parley.Delivering {
				return false
			}
			lost = true
			h.mu.Unlock()
			defer h.mu.Lock()
			h.owner.Store("nobody")
			h.a.d.Lose(0)
			h.lease.Store(new(journal.Lease))
			h.owner.Store("a")
			if err := h.a.d.Resume(t.Context(), 0); err != nil {
				t.Error(err)
			}
			return true
		}
		h.a.record(message(1, "bob", 9, parley.Notice))
		time.Sleep(time.Minute)
		synctest.Wait()
		equal(t, "attempts", append(h.a.transport.order(), h.b.transport.order()...), "[bob/m1#1]")
		equal(t, "steps", h.states(id(1)), []parley.DeliveryState{parley.Delivering, parley.Delivered})
		equal(t, "open deliveries", len(h.open), 0)
	})
}

// A hub cannot record an attempt, loses the partition, and gets it back while it cannot
// record either that the attempt was not made. The journal then says that the attempt was
// never recorded. The message is delivered.
func TestPartitionComesBackWhileAnAttemptIsHandedBack(t *testing.T) {
	runTwoHubs(t, Config{}, func(t *testing.T, h *hubs) {
		unknown, busy := 0, 0
		h.fail = func(e journal.Entry) error {
			switch {
			case len(e.Steps) != 1:
			case e.Steps[0].State == parley.Delivering && unknown == 0:
				unknown++
				return journal.ErrUnknown
			case e.Steps[0].State == parley.Waiting && busy < 3:
				busy++
				return journal.ErrBusy
			}
			return nil
		}
		h.a.record(message(1, "bob", 9, parley.Notice))
		synctest.Wait()
		h.owner.Store("nobody")
		h.a.d.Lose(0)
		synctest.Wait()
		h.owner.Store("a")
		if err := h.a.d.Resume(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		equal(t, "failed appends", fmt.Sprint(unknown, busy), "1 3")
		equal(t, "attempts", append(h.a.transport.order(), h.b.transport.order()...), "[bob/m1#1]")
		equal(t, "steps", h.states(id(1)), []parley.DeliveryState{parley.Delivering, parley.Delivered})
		equal(t, "still tracked", h.a.tracked(), 0)
	})
}
