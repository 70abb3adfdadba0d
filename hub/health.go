package hub

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/delivery"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/internal/sleep"
	"github.com/parley-hub/parley/journal"
)

// AgentState says in one word whether messages reach an agent.
type AgentState string

const (
	Ready        AgentState = "ready"         // nothing speaks against it
	Paused       AgentState = "paused"        // by an operator
	Unreachable  AgentState = "unreachable"   // the last attempt did not reach it
	Failing      AgentState = "failing"       // it was reached, and does not work
	Postponed    AgentState = "waiting"       // it asked the hub to come back later
	NotConnected AgentState = "not_connected" // it connects to the hub, and is not connected now
	NoReader     AgentState = "no_reader"     // nobody reads its inbox
)

// A Condition is the state of an agent, with its reason. Messages are accepted in every
// state. Only attempts show whether an agent can be reached, not messages from it.
type Condition struct {
	State    AgentState
	Since    time.Time     // it is so since then; Ready: zero if not known
	Failures int           // Unreachable, Failing: failed attempts since then, at least
	Err      *parley.Error // Unreachable, Failing, Postponed: the last of them
	Next     time.Time     // the next attempt; zero: with the next message, or it is being made
}

// Condition gives the state of an agent, as this hub knows it. Hubs on one journal tell
// each other which agents fail, but not who is connected to them.
func (h *Hub) Condition(e *directory.Entry) Condition {
	l, box := h.here(e.Name)
	switch {
	case e.Paused:
		return Condition{State: Paused}
	case box != nil && !box.isRead():
		c, _, _ := box.condition()
		return c
	case l == nil && box == nil:
		if b, id, ok := h.route(e, ""); ok && b.can.Holds != nil && b.can.Holds(e, id) {
			var known Connection
			if b.can.Connection != nil {
				known = b.can.Connection(e, id)
			}
			return h.notConnected(e, known)
		}
	}
	c := condition(h.deliver.Health(e.Name), h.c.Now())
	if c.State == Unreachable && e.Source == directory.FromCode {
		c.State = Failing // it is in this process
	}
	return c
}

func condition(v delivery.Health, now time.Time) Condition {
	c := Condition{State: Ready}
	switch {
	case v.Failing():
		c = Condition{State: Unreachable, Since: v.Since, Failures: v.Failures, Err: v.Err}
		if v.Err.Source == parley.ByPeer {
			c.State = Failing
		}
	case v.Until.After(now):
		c = Condition{State: Postponed, Since: v.Since, Err: v.Err, Next: v.Until}
	default:
		return c
	}
	if v.Next.After(now) {
		c.Next = v.Next
	}
	return c
}

// Failing gives the conditions of all agents that fail, by name. Here reports whether
// this hub made one of the failed attempts; other agents are for other hubs to report.
func (h *Hub) Failing() (list map[string]Condition, here func(name string) bool) {
	all, now := h.deliver.Failing(), h.c.Now()
	list = make(map[string]Condition, len(all))
	for name, v := range all {
		list[name] = condition(v, now)
	}
	return list, func(name string) bool { return all[name].Here }
}

// healthRecord tells other hubs, and this one after a restart, which agents fail. A row
// is written when that changes, at most once a second for an agent, and not for each
// attempt.
type healthRecord struct {
	h    *Hub
	rows *journal.Table[storedHealth] // by agent; none for an agent that was reached
	done sync.WaitGroup
	wake chan struct{}

	mu      sync.Mutex
	changed map[string]bool // here; to be written
	writing string
}

// storedHealth is a [delivery.Health]. It has no text that may quote a message.
type storedHealth struct {
	Since    time.Time     `json:"since"`
	Failures int           `json:"failures"`
	Code     parley.Code   `json:"code"`
	Source   parley.Source `json:"source,omitzero"`
	Reason   parley.Reason `json:"reason,omitzero"`
	Text     string        `json:"text,omitzero"`
	Detail   string        `json:"detail,omitzero"`
}

const (
	healthBucket  = "hub.health"
	healthPause   = time.Second         // between two rounds of writing
	keepHealth    = 90 * 24 * time.Hour // for an agent that no hub has tried since
	healthAtStart = 10 * time.Second    // for reading the rows
	healthAtEnd   = 2 * time.Second     // for the last round
)

func newHealthRecord(h *Hub) *healthRecord {
	return &healthRecord{h: h, rows: journal.NewTable[storedHealth](h.c.Journal, healthBucket, 0),
		wake: make(chan struct{}, 1), changed: map[string]bool{}}
}

// start takes up what is recorded, and follows other hubs.
func (r *healthRecord) start() (stop func()) {
	ctx, cancel := context.WithTimeout(r.h.life, healthAtStart)
	defer cancel()
	unfollow, err := r.rows.Follow(ctx, func(_, after journal.Row[storedHealth]) {
		r.mu.Lock()
		ours := r.changed[after.Key] || r.writing == after.Key
		r.mu.Unlock()
		if !ours {
			r.h.deliver.SetHealth(after.Key, after.Value.health())
		}
	})
	if err != nil {
		r.h.c.Logger.Error("the state of agents is unknown until messages are sent to them", "error", err)
		unfollow = func() {}
	}
	r.done.Go(func() {
		for {
			select {
			case <-r.wake:
			case <-r.h.life.Done():
				return
			}
			r.write(r.h.life)
			if sleep.For(r.h.life, healthPause) != nil {
				return
			}
		}
	})
	return func() {
		r.done.Wait()
		// The counts of a hub that stops in order are exact.
		for name, v := range r.h.deliver.Failing() {
			if v.Here && r.rows.Known(name).Value.Failures != v.Failures {
				r.note(name)
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), healthAtEnd)
		defer cancel()
		r.write(ctx)
		unfollow()
	}
}

// note has the health of an agent recorded; see [delivery.Config].
func (r *healthRecord) note(name string) {
	r.mu.Lock()
	r.changed[name] = true
	r.mu.Unlock()
	token(r.wake)
}

// write records what has changed.
func (r *healthRecord) write(ctx context.Context) {
	r.mu.Lock()
	names := slices.Collect(maps.Keys(r.changed))
	r.mu.Unlock()
	for _, name := range names {
		if ctx.Err() != nil {
			return
		}
		r.mu.Lock()
		delete(r.changed, name)
		r.writing = name
		r.mu.Unlock()
		err := r.writeOne(ctx, name)
		r.mu.Lock()
		r.writing = ""
		r.mu.Unlock()
		if err != nil && ctx.Err() == nil {
			r.h.c.Logger.Warn("the state of an agent cannot be recorded; trying again", "agent", name, "error", err)
			r.note(name)
		}
	}
}

func (r *healthRecord) writeOne(ctx context.Context, name string) error {
	v := r.h.deliver.Health(name)
	e, ok := r.h.c.Directory.Agent(name)
	switch {
	case ok && e.Source == directory.FromGuest:
		return nil // guests cause no writes
	case !ok || !v.Failing():
		if r.rows.Known(name).Revision == 0 {
			return nil
		}
		return r.rows.Delete(ctx, name, 0)
	}
	row := storedHealth{Since: v.Since, Failures: v.Failures, Code: v.Err.Code, Source: v.Err.Source,
		Reason: v.Err.Reason}
	if row.Source == parley.ByNetwork {
		row.Text, row.Detail = v.Err.Text, v.Err.Detail
	}
	_, err := r.rows.Put(ctx, name, row, r.h.c.Now().Add(keepHealth))
	return err
}

// health is zero for the zero value.
func (s *storedHealth) health() delivery.Health {
	if s.Failures == 0 {
		return delivery.Health{}
	}
	return delivery.Health{Since: s.Since, Failures: s.Failures, Err: &parley.Error{Code: s.Code, Source: s.Source,
		Reason: s.Reason, Text: s.Text, Detail: s.Detail}}
}

// forgetHealth ends the record of an agent that is removed, or has another address.
func (h *Hub) forgetHealth(name string) {
	v := h.deliver.Health(name)
	h.deliver.SetHealth(name, delivery.Health{})
	if v.Failing() {
		h.health.note(name)
	}
}

// ownIdentities are those under which an agent is reached.
func ownIdentities(e *directory.Entry) []parley.Identity {
	return slices.DeleteFunc(slices.Clone(e.Identities), func(i parley.Identity) bool { return i.StandIn })
}

// Schedule is how failed attempts are repeated for an agent with retries of its own.
func (h *Hub) Schedule(own parley.Retries) delivery.Retry { return h.deliver.Schedule(own) }
