package delivery

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// log is a journal in memory. It checks steps as the real journal does: attempts count up by one, and a settled
// delivery stays settled.
type log struct {
	mu      sync.Mutex
	seq     uint64
	records map[uint64]*journal.Record
	open    map[string]*journal.Delivery
	steps   []journal.Step
	replies []*parley.Message
	watch   func(*journal.Record)
	fail    func(journal.Entry) error
	silent  func(journal.Entry) bool // the entry is recorded, but Append fails with ErrUnknown
}

func newLog() *log {
	return &log{records: map[uint64]*journal.Record{}, open: map[string]*journal.Delivery{}}
}

func (l *log) Append(_ context.Context, e journal.Entry) (journal.Position, error) {
	return l.append("", e)
}

func (l *log) append(node string, e journal.Entry) (journal.Position, error) {
	l.mu.Lock()
	if l.fail != nil {
		if err := l.fail(e); err != nil {
			l.mu.Unlock()
			return journal.Position{}, err
		}
	}
	for _, s := range e.Steps {
		v := l.open[s.Message.String()+s.To]
		if v == nil || s.State == parley.Delivering && s.Attempt != v.Attempt+1 ||
			s.State != parley.Delivering && s.Attempt != v.Attempt {
			l.mu.Unlock()
			return journal.Position{}, journal.ErrConflict
		}
	}
	for _, s := range e.Steps {
		v := l.open[s.Message.String()+s.To]
		if v.State == parley.Dead {
			v.Retried = s.State == parley.Waiting
		}
		v.State, v.Attempt, v.Next, v.Error, v.Changed = s.State, s.Attempt, s.Next, s.Error, time.Now()
		if s.State == parley.Delivering {
			v.Node = node
		}
		if s.Postponed {
			v.Postponed++
		}
		if s.State.Settled(v.Kind) && s.State != parley.Dead {
			delete(l.open, s.Message.String()+s.To)
		}
		l.steps = append(l.steps, s)
	}
	l.seq++
	p := journal.Position{Sequence: l.seq}
	r := &journal.Record{Position: p, Time: time.Now(), Node: node, Scope: e.Scope, Message: e.Message, Open: e.Open,
		Steps: e.Steps}
	l.records[l.seq] = r
	if m := e.Message; m != nil {
		if m.Kind.Terminal() {
			l.replies = append(l.replies, m)
		}
		for _, o := range e.Open {
			state := parley.Waiting
			if o.Attempt > 0 {
				state = parley.Delivering
			}
			l.open[m.ID.String()+o.To] = &journal.Delivery{Delivery: parley.Delivery{Message: m.ID, To: o.To,
				State: state, Attempt: o.Attempt, Next: o.NotBefore, Changed: r.Time},
				Node: node, Position: p, Kind: m.Kind, From: m.From, Conversation: m.Conversation, Expires: m.Expires,
				Deadline: m.Deadline, Sync: o.Sync}
		}
	}
	watch, silent := l.watch, l.silent != nil && l.silent(e)
	l.mu.Unlock()
	if watch != nil {
		watch(r)
	}
	if silent {
		return journal.Position{}, journal.ErrUnknown
	}
	return p, nil
}

func (l *log) Read(_ context.Context, p journal.Position) (*journal.Record, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.records[p.Sequence]; r != nil {
		return r, nil
	}
	return nil, journal.ErrNotFound
}

func (l *log) Deliveries(f journal.Filter) []journal.Delivery {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []journal.Delivery
	for _, v := range l.open {
		if slices.Contains(f.States, v.State) {
			out = append(out, *v)
		}
	}
	slices.SortFunc(out, func(a, b journal.Delivery) int { return int(a.Position.Sequence) - int(b.Position.Sequence) })
	return out
}

func (l *log) Delivery(m parley.ID, to string) (journal.Delivery, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := l.open[m.String()+to]
	if v == nil {
		return journal.Delivery{}, false
	}
	return *v, true
}

func (l *log) Owned(int) bool                        { return true }
func (l *log) LivesElsewhere(string, time.Time) bool { return false }
func (l *log) Node() string                          { return "" }
func (l *log) Owner(int) *journal.Lease              { return nil }

// answers counts the recorded terminal replies.
func (l *log) answers() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.replies)
}

// states lists the recorded states of a message's deliveries, in order.
func (l *log) states(id parley.ID) []parley.DeliveryState {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []parley.DeliveryState
	for _, s := range l.steps {
		if s.Message == id {
			out = append(out, s.State)
		}
	}
	return out
}

// fakeTransport is a Transport whose attempts call a function of the test.
type fakeTransport struct {
	mu         sync.Mutex
	attempt    func(ctx context.Context, a Attempt) Result
	seen       []string
	repeatable bool
	paused     map[string]bool
	absent     map[string]bool
	retries    parley.Retries // of every recipient
	forgetful  bool           // KeepsHealth is false
	nested     []parley.ID
	waits      []parley.ID
}

func (h *fakeTransport) Attempt(ctx context.Context, a Attempt) Result {
	h.mu.Lock()
	h.seen = append(h.seen, fmt.Sprintf("%s/%s#%d", a.To, a.Message.Skill, a.Number))
	h.mu.Unlock()
	return h.attempt(ctx, a)
}

func (h *fakeTransport) FailureReply(m *parley.Message, _ journal.Position, to string, err *parley.Error) *Reply {
	if m.Kind != parley.Request {
		return nil
	}
	return &Reply{Message: &parley.Message{ID: id(200), Kind: parley.Failure, Error: err, From: to, To: m.From,
		InReplyTo: m.ID}}
}
func (h *fakeTransport) Repeatable(parley.ID, string) bool  { return h.repeatable }
func (h *fakeTransport) LaneLimit(string) int               { return 0 }
func (h *fakeTransport) KeepsHealth(string) bool            { return !h.forgetful }
func (h *fakeTransport) Nested(id parley.ID, _ string) bool { return slices.Contains(h.nested, id) }
func (h *fakeTransport) Waits(id parley.ID, _ string) bool  { return slices.Contains(h.waits, id) }

func (h *fakeTransport) Retries(string) parley.Retries {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.retries
}

func (h *fakeTransport) Paused(to string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.paused[to]
}

func (h *fakeTransport) Absent(to string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.absent[to]
}

func (h *fakeTransport) order() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.seen)
}

func id(n byte) parley.ID { return parley.ID{6: 0x70, 8: 0x80, 15: n} }

func message(n byte, to string, conversation byte, k parley.Kind) *parley.Message {
	return &parley.Message{ID: id(n), Kind: k, From: "sender", To: to, Skill: fmt.Sprint("m", n),
		Conversation: id(conversation)}
}

type world struct {
	log       *log
	transport *fakeTransport
	d         *Dispatcher
}

// run calls f with a dispatcher in a synctest bubble, and closes the dispatcher at the end.
func run(t *testing.T, c Config, f func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{log: newLog(), transport: &fakeTransport{paused: map[string]bool{}}}
		w.transport.attempt = func(context.Context, Attempt) Result { return Result{} }
		c.Log, c.Transport, c.Jitter = w.log, w.transport, func() float64 { return 1 }
		w.d = New(c)
		w.log.watch = w.d.Recorded
		f(t, w)
		synctest.Wait()
		if err := w.d.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// tracked counts the deliveries and lanes that the dispatcher has in memory.
func (w *world) tracked() int {
	w.d.mu.Lock()
	defer w.d.mu.Unlock()
	return len(w.d.tracked) + len(w.d.recordedAhead) + len(w.d.lanes)
}

func (w *world) record(m *parley.Message) {
	if _, err := w.log.Append(context.Background(), journal.Entry{Message: m,
		Open: []journal.Opening{{To: m.To}}}); err != nil {
		panic(err)
	}
}

func equal(t *testing.T, what string, got, want any) {
	t.Helper()
	if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
		t.Errorf("%s: got %s, want %s", what, g, w)
	}
}

// Messages of one conversation to one recipient share a lane: they are delivered in order, one at a time. Other lanes
// do not wait.
func TestOrderWithinAConversation(t *testing.T) {
	run(t, Config{}, func(t *testing.T, w *world) {
		gate := make(chan struct{})
		w.transport.attempt = func(ctx context.Context, a Attempt) Result {
			if a.Message.Skill == "m1" {
				<-gate
			}
			return Result{}
		}
		for n := byte(1); n <= 3; n++ {
			w.record(message(n, "bob", 9, parley.Notice))
		}
		w.record(message(4, "bob", 8, parley.Notice))
		w.record(message(5, "eve", 9, parley.Notice))
		synctest.Wait()
		got := w.transport.order()
		slices.Sort(got)
		equal(t, "attempts while m1 is in flight", got,
			[]string{"bob/m1#1", "bob/m4#1", "eve/m5#1"})
		close(gate)
		synctest.Wait()
		equal(t, "attempts after m1", w.transport.order()[3:], []string{"bob/m2#1", "bob/m3#1"})
		equal(t, "lanes left", w.d.Stats().Lanes, 0)
	})
}

// A failed attempt is retried with back-off, and blocks only its conversation. After the last try the message is a dead
// letter, and its sender gets a failure. An operator may retry it.
func TestAFailureIsRepeatedAndBlocksOnlyItsConversation(t *testing.T) {
	run(t, Config{Retry: Retry{First: time.Second, Longest: 8 * time.Second, Tries: 4}}, func(t *testing.T, w *world) {
		w.transport.attempt = func(ctx context.Context, a Attempt) Result {
			if a.Message.Skill == "m1" {
				return Result{Err: parley.Fail(parley.Unavailable, nil, "down")}
			}
			return Result{}
		}
		start := time.Now()
		w.record(message(1, "bob", 9, parley.Request))
		w.record(message(2, "bob", 9, parley.Notice))
		w.record(message(3, "bob", 8, parley.Notice))
		synctest.Wait()
		equal(t, "attempts without a pause", len(w.transport.order()), 2)
		time.Sleep(time.Minute) // of the bubble
		synctest.Wait()
		equal(t, "steps", w.log.states(id(1)), []parley.DeliveryState{parley.Delivering, parley.Waiting,
			parley.Delivering, parley.Waiting,
			parley.Delivering, parley.Waiting, parley.Delivering, parley.Dead})
		equal(t, "failures for the sender", len(w.log.replies), 1)
		equal(t, "last attempt", w.transport.order()[len(w.transport.order())-1], "bob/m2#1")
		if took := time.Since(start); took < 7*time.Second {
			t.Errorf("back-off of 1+2+4 s took %s", took)
		}
		// An operator's retry makes the next attempt of the same message.
		w.transport.attempt = func(context.Context, Attempt) Result { return Result{} }
		if _, err := w.log.Append(t.Context(),
			journal.Entry{Steps: []journal.Step{{Message: id(1), To: "bob", State: parley.Waiting,
				Attempt: 4}}}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		equal(t, "attempt after the operator's retry", w.transport.order()[len(w.transport.order())-1], "bob/m1#5")
	})
}

// If the recipient asks to be retried later, the attempt does not count as a try.
func TestComeBackLaterUsesUpNoTry(t *testing.T) {
	run(t, Config{Retry: Retry{Tries: 2}}, func(t *testing.T, w *world) {
		calls := 0
		w.transport.attempt = func(context.Context, Attempt) Result {
			if calls++; calls <= 20 {
				return Result{Err: parley.Fail(parley.RateLimited, nil, "later"), Wait: 30 * time.Second}
			}
			return Result{}
		}
		w.record(message(1, "bob", 9, parley.Notice))
		time.Sleep(time.Hour)
		synctest.Wait()
		states := w.log.states(id(1))
		equal(t, "attempts", len(w.transport.order()), 21)
		equal(t, "outcome", states[len(states)-1], parley.Delivered)
	})
}

// A message that the recipient refuses for good is not retried.
func TestRefusalIsNotRepeated(t *testing.T) {
	run(t, Config{}, func(t *testing.T, w *world) {
		w.transport.attempt = func(context.Context, Attempt) Result {
			return Result{Err: parley.Refuse(parley.InvalidContent, "no")}
		}
		w.record(message(1, "bob", 9, parley.Notice))
		time.Sleep(time.Hour)
		synctest.Wait()
		equal(t, "steps", w.log.states(id(1)), []parley.DeliveryState{parley.Delivering, parley.Dead})
	})
}

// A dead letter can be retried at once, even while its last attempt is still in its lane.
func TestDeadLetterThatIsRetriedAtOnce(t *testing.T) {
	run(t, Config{}, func(t *testing.T, w *world) {
		refusals := 1
		w.transport.attempt = func(context.Context, Attempt) Result {
			if refusals--; refusals >= 0 {
				return Result{Err: parley.Refuse(parley.InvalidContent, "no")}
			}
			return Result{}
		}
		w.log.watch = func(r *journal.Record) {
			w.d.Recorded(r)
			for _, s := range r.Steps {
				if s.State != parley.Dead {
					continue
				}
				// The dispatcher is still recording this step.
				if _, err := w.log.Append(t.Context(),
					journal.Entry{Steps: []journal.Step{{Message: s.Message, To: s.To, State: parley.Waiting,
						Attempt: s.Attempt}}}); err != nil {
					t.Error(err)
				}
				synctest.Wait() // the dispatcher has received the retry
			}
		}
		w.record(message(1, "bob", 9, parley.Notice))
		time.Sleep(time.Hour)
		synctest.Wait()
		equal(t, "steps", w.log.states(id(1)), []parley.DeliveryState{parley.Delivering, parley.Dead, parley.Waiting,
			parley.Delivering, parley.Delivered})
	})
}

// If it is unknown whether the recipient got the message, the attempt is repeated only if the recipient deduplicates or
// AtLeastOnce is set. Otherwise the message is a dead letter.
func TestUnknownOutcome(t *testing.T) {
	for _, c := range []struct {
		name        string
		repeatable  bool
		atLeastOnce bool
		want        parley.DeliveryState
	}{
		{"at most once", false, false, parley.Dead},
		{"at least once", false, true, parley.Delivered},
		{"recipient deduplicates", true, false, parley.Delivered},
	} {
		t.Run(c.name, func(t *testing.T) {
			run(t, Config{AtLeastOnce: c.atLeastOnce}, func(t *testing.T, w *world) {
				w.transport.repeatable = c.repeatable
				w.transport.attempt = func(_ context.Context, a Attempt) Result {
					if a.Number == 1 {
						return Result{Err: parley.Fail(parley.Unavailable, nil, "cut off"), Unknown: true}
					}
					return Result{}
				}
				w.record(message(1, "bob", 9, parley.Notice))
				time.Sleep(time.Hour)
				synctest.Wait()
				states := w.log.states(id(1))
				equal(t, "outcome", states[len(states)-1], c.want)
			})
			// The outcome is the same if the hub was stopped during the attempt.
			run(t, Config{AtLeastOnce: c.atLeastOnce}, func(t *testing.T, w *world) {
				w.transport.repeatable = c.repeatable
				m := message(1, "bob", 9, parley.Notice)
				w.log.watch = nil
				if _, err := w.log.Append(t.Context(), journal.Entry{Message: m,
					Open: []journal.Opening{{To: "bob", Attempt: 1}}}); err != nil {
					t.Fatal(err)
				}
				if err := w.d.Resume(t.Context(), 0); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second)
				synctest.Wait()
				states := w.log.states(id(1))
				equal(t, "outcome after a restart", states[len(states)-1], c.want)
				if c.want == parley.Delivered {
					equal(t, "attempt", w.transport.order(), []string{"bob/m1#2"})
				}
			})
		})
	}
}

// A recipient whose attempts hang uses only its own PerRecipient attempts. Others are not delayed.
func TestDeadPeerDelaysNobodyElse(t *testing.T) {
	run(t, Config{PerRecipient: 2, Attempt: time.Hour}, func(t *testing.T, w *world) {
		w.transport.attempt = func(ctx context.Context, a Attempt) Result {
			if a.To == "tar" {
				<-ctx.Done()
				return Result{Err: parley.Fail(parley.TimedOut, nil, "stuck")}
			}
			return Result{}
		}
		for n := byte(1); n <= 50; n++ {
			w.record(message(n, "tar", n, parley.Notice))
		}
		w.record(message(100, "bob", 100, parley.Notice))
		synctest.Wait()
		equal(t, "attempts: two to tar, one to bob", len(w.transport.order()), 3)
		time.Sleep(time.Second)
		synctest.Wait()
		equal(t, "steps to bob", w.log.states(id(100)), []parley.DeliveryState{parley.Delivering, parley.Delivered})
		if err := w.d.Close(func() context.Context { c, stop := context.WithCancel(t.Context()); stop(); return c }()); err == nil {
			t.Error("Close waited for a stuck attempt")
		}
	})
}

// TestExpiryAndDeadline: a message that expires while its recipient is paused is settled at that time, at any position
// in its lane. Other messages stay pending.
func TestExpiryAndDeadline(t *testing.T) {
	run(t, Config{}, func(t *testing.T, w *world) {
		w.transport.paused["bob"] = true
		n := message(1, "bob", 1, parley.Notice)
		n.Expires = time.Now().Add(time.Minute)
		r := message(2, "bob", 2, parley.Request)
		r.Deadline = time.Now().Add(time.Minute)
		behind := message(5, "bob", 3, parley.Request)
		behind.Deadline, behind.Expires = time.Now().Add(2*time.Minute), time.Now().Add(time.Hour)
		w.record(n)
		w.record(r)
		w.record(message(3, "bob", 3, parley.Notice))
		w.record(behind)
		synctest.Wait()
		equal(t, "attempts while paused", len(w.transport.order()), 0)
		if w.d.Claim(0, id(4), "bob", id(4), false) != nil {
			t.Error("Claim succeeded for a paused recipient")
		}
		time.Sleep(time.Minute - time.Nanosecond)
		synctest.Wait()
		equal(t, "steps before the expiry", len(w.log.states(id(1)))+len(w.log.states(id(2))), 0)
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		equal(t, "steps of the notice", w.log.states(id(1)), []parley.DeliveryState{parley.Expired})
		equal(t, "steps of the request", w.log.states(id(2)), []parley.DeliveryState{parley.Expired})
		equal(t, "failures for the sender", w.log.answers(), 1)
		time.Sleep(time.Minute)
		synctest.Wait()
		equal(t, "steps of the second request", w.log.states(id(5)), []parley.DeliveryState{parley.Expired})
		equal(t, "failures for the sender", w.log.answers(), 2)
		equal(t, "attempts", len(w.transport.order()), 0)
		w.transport.mu.Lock()
		w.transport.paused["bob"] = false
		w.transport.mu.Unlock()
		w.d.Kick("bob")
		synctest.Wait()
		equal(t, "attempts after the pause", w.transport.order(), []string{"bob/m3#1"})
	})
}

// TestOverBetweenAttempts: a request whose deadline passes during the back-off is settled at its deadline, not at the
// end of the back-off.
func TestOverBetweenAttempts(t *testing.T) {
	run(t, Config{Retry: Retry{First: time.Hour, Longest: time.Hour}}, func(t *testing.T, w *world) {
		w.transport.attempt = func(context.Context, Attempt) Result {
			return Result{Err: parley.Fail(parley.Unavailable, nil, "down")}
		}
		r := message(1, "bob", 9, parley.Request)
		r.Deadline = time.Now().Add(time.Minute)
		w.record(r)
		time.Sleep(time.Minute)
		synctest.Wait()
		equal(t, "steps", w.log.states(id(1)), []parley.DeliveryState{parley.Delivering, parley.Waiting,
			parley.Expired})
		equal(t, "failures for the sender", w.log.answers(), 1)
		equal(t, "lanes left", w.d.Stats().Lanes, 0)
	})
}

// TestOverWhileTheJournalCannot: if the journal cannot record the expiry of a message, the dispatcher retries once a
// second, and settles the message once.
func TestOverWhileTheJournalCannot(t *testing.T) {
	run(t, Config{}, func(t *testing.T, w *world) {
		w.transport.paused["bob"] = true
		w.record(message(1, "bob", 9, parley.Notice))
		r := message(2, "bob", 9, parley.Request)
		r.Deadline = time.Now().Add(time.Minute)
		w.record(r)
		tried := 0
		w.log.mu.Lock()
		w.log.fail = func(journal.Entry) error { tried++; return journal.ErrBusy }
		w.log.mu.Unlock()
		time.Sleep(time.Minute + 10*time.Second)
		synctest.Wait()
		equal(t, "steps while the journal is busy", len(w.log.states(id(2))), 0)
		w.log.mu.Lock()
		equal(t, "calls of Append", tried, 11)
		w.log.fail = nil
		w.log.mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		equal(t, "steps", w.log.states(id(2)), []parley.DeliveryState{parley.Expired})
		equal(t, "failures for the sender", w.log.answers(), 1)
		equal(t, "attempts", len(w.transport.order()), 0)
	})
}

// TestOverAfterResume: a message that was waiting for a paused recipient when the hub started is settled when it
// expires.
func TestOverAfterResume(t *testing.T) {
	run(t, Config{}, func(t *testing.T, w *world) {
		w.transport.paused["bob"] = true
		r := message(1, "bob", 9, parley.Request)
		r.Deadline = time.Now().Add(time.Minute)
		w.log.watch = nil // another hub recorded it, and stopped
		w.record(r)
		w.log.watch = w.d.Recorded
		if err := w.d.Resume(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		equal(t, "steps", w.log.states(id(1)), []parley.DeliveryState{parley.Expired})
		equal(t, "failures for the sender", w.log.answers(), 1)
	})
}

// Claim takes an idle lane, and keeps it until Run or Release. While the lane is taken, Claim fails for a recipient
// that does not deduplicate.
func TestClaim(t *testing.T) {
	run(t, Config{}, func(t *testing.T, w *world) {
		c := w.d.Claim(0, id(1), "bob", id(9), false)
		if c == nil || w.d.Claim(0, id(8), "bob", id(9), false) != nil {
			t.Fatal("an idle lane was not claimed, or was claimed twice")
		}
		m := message(1, "bob", 9, parley.Request)
		w.transport.attempt = func(_ context.Context, a Attempt) Result {
			return Result{Reply: &Reply{Message: &parley.Message{ID: id(50), Kind: parley.Response,
				InReplyTo: a.Message.ID}}}
		}
		p, err := w.log.Append(t.Context(), journal.Entry{Message: m,
			Open: []journal.Opening{{To: "bob", Attempt: 1, Sync: true}}})
		if err != nil {
			t.Fatal(err)
		}
		w.record(message(2, "bob", 9, parley.Notice)) // waits for its turn
		r := c.Run(t.Context(), Attempt{Message: m, Position: p, To: "bob", Sync: true})
		if r.Reply == nil || r.Err != nil {
			t.Fatalf("result %+v, want a reply", r)
		}
		synctest.Wait()
		equal(t, "order", w.transport.order(), []string{"bob/m1#1", "bob/m2#1"})
		c = w.d.Claim(0, id(8), "bob", id(9), false)
		c.Release(nil)
		equal(t, "lanes left", w.d.Stats().Lanes, 0)

		// The caller does not get a reply that cannot be recorded.
		m = message(3, "bob", 9, parley.Request)
		c = w.d.Claim(0, id(3), "bob", id(9), false)
		p, _ = w.log.Append(t.Context(), journal.Entry{Message: m,
			Open: []journal.Opening{{To: "bob", Attempt: 1, Sync: true}}})
		w.log.fail = func(journal.Entry) error { return journal.ErrNoSpace }
		r = c.Run(t.Context(), Attempt{Message: m, Position: p, To: "bob", Sync: true})
		w.log.fail = nil
		if r.Reply != nil || r.Err == nil {
			t.Errorf("result with a reply that was not recorded: %+v, want an error", r)
		}
	})
}

// The dispatcher holds at most HeldBytes of pending content, and reads the rest from the journal again.
func TestContentBeyondTheBoundIsReadAgain(t *testing.T) {
	run(t, Config{HeldBytes: 2000}, func(t *testing.T, w *world) {
		w.transport.paused["bob"] = true
		for n := byte(1); n <= 20; n++ {
			m := message(n, "bob", 9, parley.Notice)
			m.Parts = []parley.Part{{Data: make([]byte, 500)}}
			w.record(m)
		}
		if held := w.d.Stats().Held; held > 2000 {
			t.Errorf("%d bytes are held, more than the 2000 allowed", held)
		}
		w.transport.mu.Lock()
		w.transport.paused["bob"] = false
		w.transport.mu.Unlock()
		w.d.Kick("bob")
		synctest.Wait()
		got := w.transport.order()
		if len(got) != 20 || got[19] != "bob/m20#1" {
			t.Errorf("attempts %v, want 20 in order", got)
		}
		equal(t, "bytes held", w.d.Stats().Held, 0)
	})
}

// If the journal cannot record the outcome of an attempt, the dispatcher records it later. Meanwhile the attempt is not
// repeated, and its lane waits.
func TestOutcomeIsRecordedLater(t *testing.T) {
	for _, repeatable := range []bool{true, false} {
		t.Run(fmt.Sprint("repeatable ", repeatable), func(t *testing.T) {
			run(t, Config{}, func(t *testing.T, w *world) {
				w.transport.repeatable = repeatable
				full := true
				w.log.fail = func(e journal.Entry) error {
					if full && e.Steps != nil && e.Steps[0].State != parley.Delivering {
						return journal.ErrNoSpace
					}
					return nil
				}
				w.transport.attempt = func(_ context.Context, a Attempt) Result {
					if a.Message.ID == id(1) {
						return Result{Reply: &Reply{Message: &parley.Message{ID: id(50), Kind: parley.Response,
							InReplyTo: a.Message.ID}}}
					}
					return Result{}
				}
				w.record(message(1, "bob", 9, parley.Request))
				w.record(message(2, "bob", 9, parley.Notice))
				time.Sleep(5 * time.Second)
				equal(t, "attempts while the disk is full", w.transport.order(), []string{"bob/m1#1"})
				w.log.mu.Lock()
				full = false
				w.log.mu.Unlock()
				time.Sleep(2 * time.Second)
				equal(t, "attempts", w.transport.order(), []string{"bob/m1#1", "bob/m2#1"})
				equal(t, "states", w.log.states(id(1)), []parley.DeliveryState{parley.Delivering, parley.Answered})
				equal(t, "replies", len(w.log.replies), 1)
				equal(t, "lanes left", w.d.Stats().Lanes, 0)
			})
		})
	}
}

// Resume does not touch a delivery that this hub has in flight, neither before its first attempt begins nor while its
// outcome is recorded.
func TestResumeLeavesWhatIsAtWork(t *testing.T) {
	run(t, Config{}, func(t *testing.T, w *world) {
		w.transport.attempt, w.transport.repeatable = func(context.Context, Attempt) Result { return Result{} }, true
		resume := func() {
			t.Helper()
			if err := w.d.Resume(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		m := message(1, "bob", 9, parley.Notice)
		c := w.d.Claim(0, m.ID, "bob", id(9), false)
		p, err := w.log.Append(t.Context(), journal.Entry{Message: m, Open: []journal.Opening{{To: "bob", Attempt: 1}}})
		if err != nil {
			t.Fatal(err)
		}
		resume()
		recording := 0
		w.log.fail = func(e journal.Entry) error {
			if len(e.Steps) == 1 && e.Steps[0].Message == m.ID {
				recording++
				w.log.mu.Unlock()
				defer w.log.mu.Lock()
				return w.d.Resume(t.Context(), 0)
			}
			return nil
		}
		c.Run(t.Context(), Attempt{Message: m, Position: p, To: "bob"})
		equal(t, "records of the outcome", recording, 1)
		time.Sleep(time.Second)
		synctest.Wait()
		equal(t, "attempts", w.transport.order(), []string{"bob/m1#1"})
		equal(t, "state", w.log.states(m.ID), []parley.DeliveryState{parley.Delivered})
		// Resume queues a delivery that an earlier process began.
		if _, err := w.log.Append(t.Context(), journal.Entry{Message: message(2, "bob", 9, parley.Notice),
			Open: []journal.Opening{{To: "bob", Attempt: 1}}}); err != nil {
			t.Fatal(err)
		}
		resume()
		time.Sleep(time.Second)
		synctest.Wait()
		equal(t, "attempts", w.transport.order(), []string{"bob/m1#1", "bob/m2#2"})
	})
}

// The hub claims a message for its first attempt, and the journal cannot say whether it recorded the message. When the
// record appears, however late, the hub makes the attempt once. If the sender waited for the outcome, the hub abandons
// the delivery instead. A Resume in between does not mistake the attempt for one of a stopped hub.
func TestRecordAppearsLate(t *testing.T) {
	for _, waits := range []bool{false, true} {
		for _, when := range []string{"before the release", "after the release", "after the release and a Resume"} {
			t.Run(fmt.Sprint("sender waits ", waits, ", recorded ", when), func(t *testing.T) {
				run(t, Config{}, func(t *testing.T, w *world) {
					m := message(1, "bob", 9, parley.Notice)
					c := w.d.Claim(0, m.ID, "bob", id(9), waits)
					late := when != "before the release"
					if late {
						c.Release(journal.ErrUnknown)
					}
					if when == "after the release and a Resume" {
						w.log.watch = func(r *journal.Record) {
							if err := w.d.Resume(t.Context(), 0); err != nil {
								t.Error(err)
							}
							w.d.Recorded(r)
						}
					}
					if _, err := w.log.Append(t.Context(), journal.Entry{Message: m,
						Open: []journal.Opening{{To: "bob", Attempt: 1, Sync: waits}}}); err != nil {
						t.Fatal(err)
					}
					if !late {
						c.Release(journal.ErrUnknown)
					}
					synctest.Wait()
					attempts, states := []string{"bob/m1#1"}, []parley.DeliveryState{parley.Delivered}
					if waits {
						attempts, states = nil, []parley.DeliveryState{parley.Abandoned}
					}
					equal(t, "attempts", w.transport.order(), attempts)
					equal(t, "states", w.log.states(m.ID), states)
					equal(t, "still tracked", w.tracked(), 0)
				})
			})
		}
	}
}

// The dispatcher remembers a bounded number of attempts whose records have not appeared.
func TestUncertainAttemptsAreBounded(t *testing.T) {
	run(t, Config{}, func(t *testing.T, w *world) {
		for n := range maxUncertain + 100 {
			m := parley.ID{6: 0x70, 8: 0x80, 14: byte(n >> 8), 15: byte(n)}
			w.d.Claim(0, m, "bob", m, false).Release(journal.ErrUnknown)
		}
		equal(t, "attempts remembered", w.tracked(), maxUncertain)
	})
}

// If the reply to a waiting caller cannot be recorded, the caller gets an error, and the request is recorded as
// abandoned.
func TestLostAnswerOfAWaitingCaller(t *testing.T) {
	run(t, Config{}, func(t *testing.T, w *world) {
		w.transport.attempt = func(_ context.Context, a Attempt) Result {
			return Result{Reply: &Reply{Message: &parley.Message{ID: id(50), Kind: parley.Response,
				InReplyTo: a.Message.ID}}}
		}
		m := message(1, "bob", 9, parley.Request)
		c := w.d.Claim(0, id(1), "bob", id(9), false)
		p, err := w.log.Append(t.Context(), journal.Entry{Message: m,
			Open: []journal.Opening{{To: "bob", Attempt: 1, Sync: true}}})
		if err != nil {
			t.Fatal(err)
		}
		w.log.fail = func(journal.Entry) error { return journal.ErrNoSpace }
		if r := c.Run(t.Context(), Attempt{Message: m, Position: p, To: "bob", Sync: true}); r.Reply != nil ||
			r.Err == nil {
			t.Errorf("result %+v, want an error and no reply", r)
		}
		w.log.mu.Lock()
		w.log.fail = nil
		w.log.mu.Unlock()
		time.Sleep(2 * time.Second)
		equal(t, "states", w.log.states(id(1)), []parley.DeliveryState{parley.Abandoned})
		equal(t, "lanes left", w.d.Stats().Lanes, 0)
	})
}

// If a reply is too large for the journal, the attempt is not repeated, and the sender gets a failure.
func TestAnswerTooLargeToRecord(t *testing.T) {
	run(t, Config{}, func(t *testing.T, w *world) {
		w.transport.repeatable = true
		w.log.fail = func(e journal.Entry) error {
			if e.Message != nil && e.Message.ID == id(50) {
				return fmt.Errorf("%w: %w", journal.ErrTooLarge, parley.Refuse(parley.TooLarge, "too large"))
			}
			return nil
		}
		w.transport.attempt = func(_ context.Context, a Attempt) Result {
			return Result{Reply: &Reply{Message: &parley.Message{ID: id(50), Kind: parley.Response,
				InReplyTo: a.Message.ID}}}
		}
		w.record(message(1, "bob", 9, parley.Request))
		time.Sleep(time.Minute)
		equal(t, "attempts", w.transport.order(), []string{"bob/m1#1"})
		equal(t, "states", w.log.states(id(1)), []parley.DeliveryState{parley.Delivering, parley.Answered})
		if len(w.log.replies) != 1 || parley.CodeOf(w.log.replies[0].Error) != parley.TooLarge {
			t.Errorf("replies %v, want one failure with the code %s", w.log.replies, parley.TooLarge)
		}
	})
}

// TestAttemptThatWasRecordedAfterAll: if the journal recorded an attempt but reported ErrUnknown, the attempt is made
// once.
func TestAttemptThatWasRecordedAfterAll(t *testing.T) {
	run(t, Config{}, func(t *testing.T, w *world) {
		lost := 2 // both attempts of the message
		w.log.silent = func(e journal.Entry) bool {
			if len(e.Steps) == 1 && e.Steps[0].State == parley.Delivering && lost > 0 {
				lost--
				return true
			}
			return false
		}
		w.transport.attempt = func(_ context.Context, a Attempt) Result {
			if a.Number == 1 {
				return Result{Err: parley.Fail(parley.Unavailable, nil, "down")}
			}
			return Result{}
		}
		w.record(message(1, "bob", 9, parley.Notice))
		time.Sleep(time.Minute) // of the bubble
		synctest.Wait()
		equal(t, "attempts", w.transport.order(), []string{"bob/m1#1", "bob/m1#2"})
		equal(t, "steps", w.log.states(id(1)), []parley.DeliveryState{parley.Delivering, parley.Waiting,
			parley.Delivering, parley.Delivered})
		equal(t, "lanes left", w.d.Stats().Lanes, 0)
	})
}
