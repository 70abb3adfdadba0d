package delivery

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// hubLog is one hub on a log that several share.
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

// hubs are two hubs: a, which owns the partition, and b.
type hubs struct {
	*log
	owner *atomic.Value
	lease *atomic.Pointer[journal.Lease] // of the owner
	alive map[string]bool
	a, b  *world
}

// holdAttempts makes a recipient whose attempts end when the test says so.
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

// runTwoHubs runs two hubs on one log, in a bubble of its own time.
func runTwoHubs(t *testing.T, c Config, f func(t *testing.T, h *hubs)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := &hubs{log: newLog(), owner: new(atomic.Value), lease: new(atomic.Pointer[journal.Lease]), alive: map[string]bool{"a": true, "b": true}}
		h.owner.Store("a")
		one := func(name string) *world {
			w := &world{log: h.log, transport: &fakeTransport{paused: map[string]bool{}}}
			w.transport.attempt = func(context.Context, Attempt) Result { return Result{} }
			c := c
			c.Log, c.Transport, c.Jitter = hubLog{h.log, name, h.owner, h.lease, h.alive}, w.transport, func() float64 { return 1 }
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

// handOver hands the partition from a to b, as the journal does.
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

// The lane is drained before the lease is given up: attempts in flight end, and no
// new ones begin. Waiting messages are for the next owner, in order.
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
			t.Fatal("the partition is given up while an attempt is in flight")
		default:
		}
		h.a.record(message(4, "bob", 9, parley.Notice)) // while the partition has no owner
		if h.a.d.Claim(0, id(5), "carol", id(5), false) != nil {
			t.Error("an attempt begins in a partition that is handed over")
		}
		end <- Result{}
		<-done
		equal(t, "attempts of the first", h.a.transport.order(), "[bob/m1#1]")
		equal(t, "attempts of the second", h.b.transport.order(), "[bob/m2#1 bob/m3#1 bob/m4#1]")
		time.Sleep(time.Second)
		synctest.Wait()
		equal(t, "open", len(h.open), 0)
		equal(t, "unknown", h.unknown(), 0)
		equal(t, "lanes of the first", h.a.d.Stats().Lanes, 0)
	})
}

// An attempt that takes longer goes on at its hub. The next owner leaves it, and the
// messages behind it in its lane, as long as that hub lives.
func TestHandOverOfALongAttempt(t *testing.T) {
	failed := Result{Err: parley.Fail(parley.Unavailable, nil, "away")}
	for name, c := range map[string]struct {
		end    func(h *hubs, end chan Result)
		second string // attempts of the new owner
		states []parley.DeliveryState
	}{
		"it ends": {func(_ *hubs, end chan Result) { end <- Result{} }, "[bob/m2#1]",
			[]parley.DeliveryState{parley.Delivering, parley.Delivered}},
		"it fails": {func(_ *hubs, end chan Result) { end <- failed }, "[bob/m1#2 bob/m2#1]",
			[]parley.DeliveryState{parley.Delivering, parley.Waiting, parley.Delivering, parley.Delivered}},
		"its hub is gone": {func(h *hubs, _ chan Result) {
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
				equal(t, "the hand-over took", time.Since(before), 5*time.Second)
				time.Sleep(20 * time.Second)
				synctest.Wait()
				equal(t, "attempts of the next owner meanwhile", h.b.transport.order(), "[]")
				c.end(h, end)
				time.Sleep(10 * time.Second)
				synctest.Wait()
				equal(t, "attempts of the next owner", h.b.transport.order(), c.second)
				equal(t, "steps", h.states(id(1)), c.states)
				want := 0
				if strings.Contains(name, "gone") {
					want = 1
				}
				equal(t, "unknown", h.unknown(), want)
			})
		})
	}
}

// The next owner does not wait for a hub that lives but records nothing about an
// attempt long after its time.
func TestAttemptElsewhereOutOfTime(t *testing.T) {
	runTwoHubs(t, Config{}, func(t *testing.T, h *hubs) {
		// a has restarted under its name, and does not know the attempt.
		m := message(1, "bob", 9, parley.Notice)
		if _, err := h.append("a", journal.Entry{Message: m,
			Open: []journal.Opening{{To: "bob", Attempt: 1}}}); err != nil {
			t.Fatal(err)
		}
		h.b.transport.repeatable = true
		h.handOver(t)
		time.Sleep(time.Minute)
		synctest.Wait()
		equal(t, "attempts in its time", h.b.transport.order(), "[]")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		equal(t, "attempts after it", h.b.transport.order(), "[bob/m1#2]")
	})
}

// A message whose record appears long after its deadline was claimed by a hub that lives
// and does not own the partition any more. The next owner leaves that hub the time to
// say that no attempt was made: the message has expired, and its outcome is known.
func TestRecordAppearsAtTheNextOwner(t *testing.T) {
	runTwoHubs(t, Config{}, func(t *testing.T, h *hubs) {
		m := message(1, "bob", 9, parley.Request)
		m.Deadline = time.Now().Add(25 * time.Second)
		c := h.a.d.Claim(0, m.ID, "bob", id(9), false)
		time.Sleep(time.Minute)
		c.Release(journal.ErrUnknown)
		h.handOver(t)
		h.fail = func(e journal.Entry) error { // the hub's first try to hand the attempt back
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

// A request whose caller waited at a hub that is gone is abandoned by the next owner.
// While that hub lives, the request stays with it.
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
			equal(t, "steps when it is gone", h.states(m.ID), []parley.DeliveryState{parley.Abandoned})
		}
		equal(t, "attempts", h.b.transport.order(), "[]")
	})
}

// Attempts that were recorded ahead of their turn, and not made, are handed back.
func TestHandOverOfWhatIsAhead(t *testing.T) {
	runTwoHubs(t, Config{}, func(t *testing.T, h *hubs) {
		h.a.transport.repeatable = true
		begun, end := holdAttempts(h.a.transport)
		h.a.record(message(1, "bob", 9, parley.Notice))
		<-begun
		record := func(n byte) {
			m := message(n, "bob", 9, parley.Notice)
			if h.a.d.Claim(0, m.ID, "bob", id(9), false) == nil {
				t.Fatal("no claim")
			}
			p := hubLog{h.log, "a", h.owner, h.lease, h.alive}
			if _, err := p.Append(t.Context(), journal.Entry{Message: m,
				Open: []journal.Opening{{To: "bob", Attempt: 1}}}); err != nil {
				t.Fatal(err)
			}
		}
		record(2)
		if h.a.d.Claim(0, id(3), "bob", id(9), false) == nil { // its record comes while the partition is handed over
			t.Fatal("no claim")
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
			t.Errorf("%v, %v", v.State, v.Error)
		}
		end <- Result{}
		<-done
		time.Sleep(time.Second)
		synctest.Wait()
		equal(t, "attempts of the first", h.a.transport.order(), "[bob/m1#1]")
		equal(t, "attempts of the second", h.b.transport.order(), "[bob/m2#2 bob/m3#2]")
		equal(t, "open", len(h.open), 0)
	})
}

// A hub that is stopped records the end of an attempt: the message waits for the next
// hub, unless the recipient may have received it and does not deduplicate.
func TestStoppedDuringAnAttempt(t *testing.T) {
	for name, c := range map[string]struct {
		unknown, repeatable bool
		state               parley.DeliveryState
		attempts            string
	}{
		"it was not made": {false, false, parley.Delivered, "[bob/m1#2]"},
		"it may have been, and the recipient deduplicates": {true, true, parley.Delivered, "[bob/m1#2]"},
		"it may have been": {true, false, parley.Dead, "[]"},
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
					t.Error("nothing was cut")
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
					t.Errorf("why: %v", why)
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

// A partition that comes back is dispatched again, and attempts still in flight are
// not repeated.
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
		equal(t, "the other recipient's", (<-begun).To, "carol")
		end <- Result{}
		end <- Result{}
		time.Sleep(time.Second)
		synctest.Wait()
		equal(t, "attempts", h.a.transport.order(), "[bob/m1#1 carol/m2#1]")
		equal(t, "of the other hub", h.b.transport.order(), "[]")
		equal(t, "open", len(h.open), 0)
	})
}

// A hub loses a partition and gets it back, with another lease, while the journal cannot
// say whether it recorded an attempt. The attempt is made.
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
		equal(t, "open", len(h.open), 0)
	})
}
