package asp

import (
	"cmp"
	"context"
	"time"

	protocol "github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/policy"
)

// Bytes that a guest's disk budget is charged beside the content: for a message that
// the hub does not charge itself, and for a value of the state.
const (
	recordBytes = 3 << 10
	stateBytes  = 512
)

// cardCopies is the number of copies of a card in memory: its bytes, the parsed card,
// and the directory's entry.
const cardCopies = 3

// guest reports whether nobody vouches for an agent: it registered itself, or is about
// to, and is not in the operator's configuration.
func (b *Binding) guest(id string) bool {
	name, standIn := b.nameOf(id)
	if standIn || !b.c.Hub.Guest(name) {
		return false
	}
	a := b.store.held(id)
	return a == nil || !a.Enrolled
}

// authenticated notes that an agent authenticated in an HTTP request, and that its connection is no guest's.
func (b *Binding) authenticated(ctx context.Context, id string) {
	b.heard.authenticated(ctx, id, b.c.Now())
	if b.guest(id) {
		b.registrations.Use(id)
		return
	}
	policy.Vouch(ctx)
}

// charge takes n bytes, to be written for a guest, from the guests' budget.
func (b *Binding) charge(ctx context.Context, n int) error {
	return b.registrations.Write(policy.SourceOf(ctx), n)
}

// byHub is the context of records that the hub itself makes during a request: they do
// not authenticate the caller.
func byHub(ctx context.Context) context.Context {
	return policy.WithCaller(ctx, policy.NewCaller(policy.SourceOf(ctx), nil))
}

// admitAgent takes a registration of size bytes into the budget before it is written.
// undo gives the bytes back.
func (b *Binding) admitAgent(ctx context.Context, a *protocol.Agent, size int) (undo func(), err error) {
	undo = func() {}
	switch {
	case a.Removed:
		return undo, nil
	case a.Enrolled || !b.guest(a.ID):
		if a.Revision == 1 && b.store.agents.Len()-b.registrations.Len() >= cmp.Or(b.c.MaxAgents, 100_000) {
			return nil, protocol.ErrFull
		}
		return undo, nil
	}
	if err := b.charge(ctx, 2*size+stateBytes); err != nil { // the agent, and its entry in the directory
		return nil, err
	}
	r, bytes := b.registrations, cardCopies*int64(size)
	if before, counted := r.Bytes(a.ID); counted {
		if err := r.Grow(a.ID, bytes-before); err != nil {
			return nil, err
		}
		return func() { _ = r.Grow(a.ID, before-bytes) }, nil // back to the old size
	}
	if err := r.Keep(a.ID, policy.SourceOf(ctx), bytes); err != nil {
		return nil, err
	}
	return func() {
		r.Drop(a.ID)
		b.recount(a.ID)
	}, nil
}

// recount updates the counted size of a registration.
func (b *Binding) recount(id string) {
	a := b.store.held(id)
	if a == nil || a.Removed || !b.isPeer(a) || !b.guest(id) {
		b.registrations.Drop(id)
		return
	}
	var bytes int64
	for _, v := range a.Cards {
		bytes += cardCopies * int64(len(v.Card))
	}
	b.registrations.Restore(id, "", bytes)
}

// evict removes the registration of a guest to make room for another. A guest in a live
// session stays.
func (b *Binding) evict(id string) {
	if b.ctx.Err() != nil || !b.guest(id) {
		return
	}
	if !b.store.inSession(id) {
		if err := b.server.Evict(b.ctx, id); err != nil {
			b.c.Logger.Warn("cannot take out a guest that gives its place to another", "agent", id, "error", err)
		} else {
			b.evicted.Store(id, b.c.Now())
		}
	}
	b.recount(id)
}

// forgetAfter bounds the time until this hub knows a session that another hub opened
// with an agent, and the other hub knows the agent's eviction.
const forgetAfter = time.Minute

// forgetEvicted removes all traces of evicted guests that were never in a session. The
// keys of other evicted guests stay known, so that transcripts verify and no other
// agent can take the id.
func (b *Binding) forgetEvicted(ctx context.Context) {
	b.evicted.Range(func(id, at any) bool {
		if b.c.Now().Sub(at.(time.Time)) < forgetAfter || !b.evicted.CompareAndDelete(id, at) {
			return true // too early, or the guest was evicted again
		}
		if err := b.store.forgetAgent(ctx, id.(string)); err != nil {
			b.c.Logger.Warn("cannot forget a guest that gave its place to another", "agent", id, "error", err)
		}
		return true
	})
}

// keepBusy marks the guests in live sessions as used, so that they are not evicted.
func (b *Binding) keepBusy() {
	for _, participants := range b.store.live() {
		for _, id := range participants {
			b.registrations.Use(id)
		}
	}
}
