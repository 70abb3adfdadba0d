package hub

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/delivery"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/internal/sleep"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/policy"
)

// Config of a Hub. Journal, Directory and Policy must be set.
type Config struct {
	ID        string // of this hub, as in Message.Hops
	Secret    []byte // 32 bytes, from which conversations are derived; must stay the same
	Journal   *journal.Journal
	Directory *directory.Directory
	Policy    *policy.Policy
	Guests    *policy.Guests // nil: one of default size

	Delivery     delivery.Config // Log and Transport are set by the hub
	Timeout      time.Duration   // deadline of a request without one whose caller waits; 30 s
	LongTimeout  time.Duration   // deadline of other requests without one; 2 h, so that an hour's work has time
	HandlerCalls int             // of one Go agent at once, without the calls by other handlers; 1,024
	Events       int             // of one request, kept for a caller that reads slowly; 1,024
	Refusals     int             // kept for `parley refused`; 4,096
	Relaxed      bool            // answer before the reply is recorded
	Sent         func() bool     // whether the bytes that leave are recorded with the attempt; nil: they are not

	Now      func() time.Time
	Rand     io.Reader
	Logger   *slog.Logger
	Observer Observer // nil: none

	Progress func(what string, done, total uint64) // of long work at start; nil: nobody is told
}

// Hub is safe for concurrent use.
type Hub struct {
	c         Config
	deliver   *delivery.Dispatcher
	policy    atomic.Pointer[policy.Policy]
	maps      atomic.Pointer[map[mapKey]Program] // nil: none
	refusals  *refusals
	bindings  map[string]*bound // by protocol
	life      context.Context   // ends with Close
	endLife   context.CancelFunc
	open      context.Context // ends when Close begins
	endOpen   context.CancelFunc
	stopWatch func()
	macs      sync.Pool // of hash.Hash, keyed with Config.Secret

	recent requestCache
	health *healthRecord

	begun time.Time

	mu      sync.Mutex
	local   map[string]*local
	waiters map[parley.ID]*waiter
	asking  map[turnKey]int                       // how many answers a handler waits for
	running map[parley.ID]context.CancelCauseFunc // attempts in flight, by request
	numbers map[numbered]int                      // last numbers of events and inputs of open requests
	inputs  map[parley.ID]*inputs                 // of requests that handlers of this process work on
	timers  map[parley.ID]*time.Timer             // deadlines of delivered requests without a reply
	inboxes map[string]*inbox
	started bool
	drained chan struct{} // closed when no caller waits; nil until Drain
	closing bool          // the time of Close is up
}

// New makes a hub; Bind and Handle may follow, then Start.
func New(c Config) (*Hub, error) {
	if c.Journal == nil || c.Directory == nil || c.Policy == nil {
		return nil, errors.New("hub: Journal, Directory and Policy must be set")
	}
	if len(c.Secret) < 32 {
		return nil, errors.New("hub: Secret must have 32 bytes")
	}
	c.Timeout = cmp.Or(c.Timeout, 30*time.Second)
	c.LongTimeout = cmp.Or(c.LongTimeout, 2*time.Hour)
	c.HandlerCalls = cmp.Or(c.HandlerCalls, 1024)
	c.Events = cmp.Or(c.Events, 1024)
	c.Refusals = cmp.Or(c.Refusals, 4096)
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Guests == nil {
		c.Guests = policy.NewGuests(policy.GuestConfig{Now: c.Now})
	}
	if c.Rand == nil {
		c.Rand = rand.Reader
	}
	h := &Hub{c: c, bindings: map[string]*bound{}, local: map[string]*local{}, waiters: map[parley.ID]*waiter{},
		asking: map[turnKey]int{}, running: map[parley.ID]context.CancelCauseFunc{}, numbers: map[numbered]int{},
		inputs: map[parley.ID]*inputs{}, timers: map[parley.ID]*time.Timer{}, inboxes: map[string]*inbox{},
		refusals: newRefusals(c.Refusals, c.Rand), begun: c.Now()}
	h.life, h.endLife = context.WithCancel(context.Background())
	h.open, h.endOpen = context.WithCancel(context.Background())
	h.policy.Store(c.Policy)
	dc := c.Delivery
	dc.Log, dc.Transport, dc.Now, dc.Logger, dc.Relaxed = c.Journal, (*transport)(h), c.Now, c.Logger, c.Relaxed
	h.health = newHealthRecord(h)
	dc.HealthChanged = h.health.note
	h.deliver = delivery.New(dc)
	return h, nil
}

// ID is this hub's own.
func (h *Hub) ID() string { return h.c.ID }

// Bindings lists the bound protocols by name.
func (h *Hub) Bindings() []Binding {
	var out []Binding
	for _, protocol := range slices.Sorted(maps.Keys(h.bindings)) {
		out = append(out, h.bindings[protocol].Binding)
	}
	return out
}

// Directory is the hub's directory of agents.
func (h *Hub) Directory() *directory.Directory { return h.c.Directory }

// Journal is the hub's journal.
func (h *Hub) Journal() *journal.Journal { return h.c.Journal }

// SetPolicy replaces the rules for later messages.
func (h *Hub) SetPolicy(p *policy.Policy) { h.policy.Store(p) }

// Policy gives the rules in force; a change of the rules makes new ones.
func (h *Hub) Policy() *policy.Policy { return h.policy.Load() }

// SenderRate is the rate limit of one proved sender.
func (h *Hub) SenderRate() policy.Rate { return h.policy.Load().SenderRate() }

// Guests is the budget of guests.
func (h *Hub) Guests() *policy.Guests { return h.c.Guests }

// Progress tells how much of some long work at the start of a binding is done.
func (h *Hub) Progress(what string, done, total int) {
	if h.c.Progress != nil {
		h.c.Progress(what, uint64(done), uint64(total))
	}
}

// Now is the hub's clock.
func (h *Hub) Now() time.Time { return h.c.Now() }

// Bind adds a protocol; before Start.
func (h *Hub) Bind(b Binding) error {
	if h.started || h.bindings[b.Protocol()] != nil {
		return fmt.Errorf("hub: protocol %q is bound already, or the hub has started", b.Protocol())
	}
	h.bindings[b.Protocol()] = &bound{b, b.Capabilities()}
	return nil
}

// Start begins to deliver, with the open deliveries of the journal first.
func (h *Hub) Start() {
	h.started = true
	stopHealth := h.health.start()
	stopRecords := h.c.Journal.Watch(h.onRecord)
	stopAgents := h.c.Directory.Watch(func(c directory.Change) {
		if c.Old == nil {
			return
		}
		if c.New == nil || !slices.Equal(ownIdentities(c.Old), ownIdentities(c.New)) {
			h.forgetHealth(c.Old.Name)
		}
		if c.New != nil && (c.Old.Paused && !c.New.Paused || !c.Old.Retries.Unordered && c.New.Retries.Unordered) {
			h.deliver.Kick(c.New.Name)
		}
	})
	var resuming sync.WaitGroup
	resume := func(partition int) {
		resuming.Add(1)
		go func() {
			defer resuming.Done()
			h.resumeLoop(partition)
		}()
	}
	var starting sync.Mutex // guards first
	first := []int{}        // partitions that this hub owns now; nil: the start is over
	stopOwned := h.c.Journal.WatchOwned(func(partition int, owned bool) {
		starting.Lock()
		defer starting.Unlock()
		switch {
		case !owned:
			h.deliver.Lose(partition)
		case first != nil:
			first = append(first, partition)
		default:
			resume(partition)
		}
	})
	starting.Lock()
	owned := first
	first = nil
	starting.Unlock()
	for _, partition := range owned {
		// Before a new message could overtake the open ones.
		if h.resumePartition(h.life, partition) != nil {
			resume(partition)
		}
	}
	stopDrain := h.c.Journal.OnHandOver(h.deliver.HandOver)
	h.stopWatch = func() {
		stopDrain()
		stopAgents()
		stopOwned()
		resuming.Wait()
		stopRecords()
		stopHealth()
	}
}

// resumeLoop calls resumePartition until it succeeds: a partition often changes its
// owner while servers do not answer.
func (h *Hub) resumeLoop(partition int) {
	for h.c.Journal.Owned(partition) {
		err := h.resumePartition(h.life, partition)
		if err == nil || h.life.Err() != nil {
			return
		}
		h.c.Logger.Error("cannot resume the deliveries of a partition; trying again", "partition", partition,
			"error", err)
		if sleep.For(h.life, retryPause) != nil {
			return
		}
	}
}

func (h *Hub) resumePartition(ctx context.Context, partition int) error {
	if err := h.deliver.Resume(ctx, partition); err != nil {
		return err
	}
	delivered := journal.Filter{States: []parley.DeliveryState{parley.Delivered},
		Partition: func(p int) bool { return p == partition }}
	for _, v := range h.c.Journal.Deliveries(delivered) {
		if v.Kind == parley.Request {
			h.awaitReply(v.Message, v.To, v.Position, v.Deadline)
		}
	}
	return nil
}

// Close stops delivering, and hands over to other hubs on the journal. Attempts in
// flight have until ctx ends, but for handlers that wait for an answer from outside.
func (h *Hub) Close(ctx context.Context) error {
	h.endOpen()
	// Callers of this process wait with contexts of their own.
	cut := false // an attempt was in flight when ctx ended; under h.mu
	stop := context.AfterFunc(ctx, func() {
		h.mu.Lock()
		h.closing = true
		cut = len(h.running) > 0
		for _, cancel := range h.running {
			cancel(delivery.ErrStopped)
		}
		var held []*waiter
		for _, w := range h.waiters {
			if w.claim != nil {
				held = append(held, w)
			}
		}
		h.mu.Unlock()
		for _, w := range held {
			w.cancelAttempt()
		}
	})
	defer stop()
	if err := h.c.Journal.Leave(ctx); err != nil {
		h.c.Logger.Warn("not all partitions are handed over", "error", err)
	}
	err := h.deliver.Close(ctx)
	h.endLife()
	if h.stopWatch != nil {
		h.stopWatch()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range h.timers {
		t.Stop()
	}
	clear(h.timers)
	for _, w := range h.waiters {
		w.end(errStopping())
	}
	if err == nil && cut {
		err = context.Cause(ctx)
	}
	return err
}

// onRecord gets every record, in order.
func (h *Hub) onRecord(r *journal.Record) {
	h.deliver.Recorded(r)
	j := h.c.Journal
	elsewhere := len(r.Steps) > 0 && j.Owned(r.Position.Partition) && j.LivesElsewhere(r.Node, r.Time)
	for _, s := range r.Steps {
		if elsewhere && s.State == parley.Delivered {
			go h.awaitReplyOf(s.Message, s.To) // the journal must not be called from here
		}
		if s.State.Settled(parley.Request) {
			h.dropTimers(s.Message)
		}
	}
	m := r.Message
	if m == nil || m.InReplyTo.IsZero() || m.Kind == parley.Cancel || r.Refused != nil {
		return
	}
	if m.Kind == parley.Input {
		h.takeInput(m)
		return
	}
	if w := h.waiter(m.InReplyTo); w != nil {
		w.push(m)
	}
}

// Stats are the numbers of the moment.
type Stats struct {
	Delivery delivery.Stats
	Waiting  int // callers that wait for an answer
	Agents   int
	Refused  uint64
}

// Stats gives the numbers of the moment.
func (h *Hub) Stats() Stats {
	h.mu.Lock()
	waiting := len(h.waiters)
	h.mu.Unlock() // the dispatcher calls this hub while it holds its own lock
	return Stats{h.deliver.Stats(), waiting, h.c.Directory.Len(), h.refusals.total()}
}
