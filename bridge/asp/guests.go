package asp

import (
	"cmp"
	"context"
	"sync"
	"time"

	protocol "github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/policy"
)

// Bytes that the disk budget is charged for a guest beside the content: for a
// message that the hub does not charge itself, and for a value of the state.
const (
	recordBytes = 3 << 10
	stateBytes  = 512
)

// cardCopies counts the copies of a card in memory: as it was sent, parsed, and in the
// directory.
const cardCopies = 3

// guest reports whether nobody vouches for an agent: it registered itself, or
// is about to, and the operator named it nowhere.
func (b *Binding) guest(id string) bool {
	name, standIn := b.nameOf(id)
	if standIn || !b.c.Hub.Guest(name) {
		return false
	}
	a := b.store.held(id)
	return a == nil || !a.Enrolled
}

// authenticated notes that an agent proved itself in an HTTP request.
func (b *Binding) authenticated(ctx context.Context, id string) {
	if b.guest(id) {
		b.noteUse(id)
		return
	}
	policy.Vouch(ctx)
}

// noteUse notes that a guest sent or was sent something.
func (b *Binding) noteUse(id string) {
	b.c.Hub.Guests().Use(policy.Registration, guestKey(id))
}

// charge takes bytes that are about to be written for a guest from the guests'
// budget.
func (b *Binding) charge(ctx context.Context, n int) error {
	if err := b.c.Hub.Guests().Write(policy.SourceOf(ctx), n); err != nil {
		return admission(err)
	}
	return nil
}

// byHub is the context of records that the hub itself makes during a request: they
// prove nothing about the caller.
func byHub(ctx context.Context) context.Context {
	return policy.WithCaller(ctx, policy.NewCaller(policy.SourceOf(ctx), nil))
}

// registrations are the guests' registrations with the bytes that each counts for.
type registrations struct {
	mu      sync.Mutex
	bytes   map[string]int64
	evicted map[string]time.Time // when each was evicted
}

func guestKey(id string) string { return Protocol + "/" + id }

func (b *Binding) entry(id, source string, bytes int64) policy.GuestEntry {
	return policy.GuestEntry{Kind: policy.Registration, Key: guestKey(id), Source: source, Bytes: bytes,
		Evict: func() { b.evict(id) }}
}

// set notes the bytes of a registration, and gives those noted before.
func (r *registrations) set(id string, bytes int64) (before int64, counted bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before, counted = r.bytes[id]
	r.bytes[id] = bytes
	return before, counted
}

func (r *registrations) drop(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.bytes, id)
}

func (r *registrations) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.bytes)
}

// admitAgent takes a registration of size bytes into the budget before it is written.
// undo gives the bytes back.
func (b *Binding) admitAgent(ctx context.Context, a *protocol.Agent, size int) (undo func(), err error) {
	undo = func() {}
	switch {
	case a.Removed:
		return undo, nil
	case a.Enrolled || !b.guest(a.ID):
		if a.Revision == 1 && b.store.agents.Len()-b.registrations.count() >= cmp.Or(b.c.MaxAgents, 100_000) {
			return nil, protocol.ErrFull
		}
		return undo, nil
	}
	if err := b.charge(ctx, 2*size+stateBytes); err != nil { // the agent, and its entry in the directory
		return nil, err
	}
	g, r, key, bytes := b.c.Hub.Guests(), &b.registrations, guestKey(a.ID), cardCopies*int64(size)
	before, counted := r.set(a.ID, bytes)
	if counted {
		if err := g.Grow(policy.Registration, key, bytes-before); err != nil {
			r.set(a.ID, before)
			return nil, admission(err)
		}
		return func() {
			r.set(a.ID, before)
			_ = g.Grow(policy.Registration, key, before-bytes) // as it was
		}, nil
	}
	if err := g.Keep(b.entry(a.ID, policy.SourceOf(ctx), bytes)); err != nil {
		r.drop(a.ID)
		return nil, admission(err)
	}
	return func() {
		r.drop(a.ID)
		g.Drop(policy.Registration, key)
		b.recount(a.ID)
	}, nil
}

// recount counts a registration as it is now.
func (b *Binding) recount(id string) {
	a := b.store.held(id)
	counts := a != nil && !a.Removed && b.isPeer(a) && b.guest(id)
	r := &b.registrations
	r.mu.Lock()
	defer r.mu.Unlock()
	_, counted := r.bytes[id]
	switch {
	case counts && !counted:
		var bytes int64
		for _, v := range a.Cards {
			bytes += cardCopies * int64(len(v.Card))
		}
		r.bytes[id] = bytes
		b.c.Hub.Guests().Restore(b.entry(id, "", bytes))
	case !counts && counted:
		delete(r.bytes, id)
		b.c.Hub.Guests().Drop(policy.Registration, guestKey(id))
	}
}

// evict removes the registration of a guest to make room for another. A guest in a live
// session stays.
func (b *Binding) evict(id string) {
	r := &b.registrations
	r.drop(id)
	if b.ctx.Err() != nil || !b.guest(id) {
		return
	}
	if !b.store.inSession(id) {
		if err := b.server.Evict(b.ctx, id); err != nil {
			b.c.Logger.Warn("cannot take out a guest that gives its place to another", "agent", id, "error", err)
		} else {
			r.mu.Lock()
			r.evicted[id] = b.c.Now()
			r.mu.Unlock()
		}
	}
	b.recount(id)
}

// forgetAfter is how long it takes at most until a session that another hub opens
// with an agent is known here, and its eviction there.
const forgetAfter = time.Minute

// forgetEvicted removes all traces of guests that gave their place to another and
// were never in a session. Of the others the keys stay known, so that transcripts
// verify, and nobody else can take the id.
func (b *Binding) forgetEvicted(ctx context.Context) {
	r := &b.registrations
	var due []string
	r.mu.Lock()
	for id, at := range r.evicted {
		if b.c.Now().Sub(at) >= forgetAfter {
			delete(r.evicted, id)
			due = append(due, id)
		}
	}
	r.mu.Unlock()
	for _, id := range due {
		if err := b.store.forgetAgent(ctx, id); err != nil {
			b.c.Logger.Warn("cannot forget a guest that gave its place to another", "agent", id, "error", err)
		}
	}
}

// keepBusy notes the guests in live sessions as used: they do not give way.
func (b *Binding) keepBusy() {
	for _, participants := range b.store.live() {
		for _, id := range participants {
			b.noteUse(id)
		}
	}
}
