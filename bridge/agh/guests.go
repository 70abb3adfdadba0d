package agh

import (
	"context"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/policy"
)

// Guests of this protocol are the peers of anonymous users, who can make any number
// of peers. Peers of users with credentials are not guests.

// Bytes that the disk budget is charged for a guest: for its state when it is new
// or has another card, for each of its skills, and for a record.
const (
	stateBytes  = 2 << 10
	skillBytes  = 128
	recordBytes = 3 << 10
)

func guestKey(id string) string { return Protocol + "/" + id }

// sourceOf is the directory source of a peer that is added because it spoke.
func sourceOf(guest bool) directory.Source {
	if guest {
		return directory.FromGuest
	}
	return directory.FromAgent
}

// registered reports whether a peer is in the directory because it spoke.
func registered(e *directory.Entry) bool {
	return e.Source == directory.FromAgent || e.Source == directory.FromGuest
}

// hubCounts reports whether the hub itself charges a guest's message to the budget:
// it charges messages that begin work, if it knows the sender as a guest.
func (b *Binding) hubCounts(m *parley.Message) bool {
	return m.Kind != parley.Event && m.Kind != parley.Cancel && !m.Kind.Terminal() && b.c.Hub.Guest(m.From)
}

// charge charges bytes to the guests' budget before they are written for a guest.
func (b *Binding) charge(ctx context.Context, n int) error {
	if err := b.c.Hub.Guests().Write(policy.SourceOf(ctx), n); err != nil {
		return err
	}
	return nil
}

// admitGuest charges a guest's directory entry to the guests' budget. A new entry
// also takes one of their places.
func (b *Binding) admitGuest(ctx context.Context, a *parley.Agent, known bool) error {
	size := stateBytes + len(a.Title) + skillBytes*len(a.Skills)
	if err := b.charge(ctx, size); err != nil || known {
		return err
	}
	if err := b.c.Hub.Guests().Keep(b.guestEntry(a, policy.SourceOf(ctx), size)); err != nil {
		return err
	}
	return nil
}

func (b *Binding) guestEntry(a *parley.Agent, source string, size int) policy.GuestEntry {
	id := a.Identities[0].ID
	return policy.GuestEntry{Kind: policy.Registration, Key: guestKey(id), Source: source, Bytes: int64(size),
		Evict: func() { b.evict(id) }}
}

// restoreGuests counts the guests that are in the directory at the start.
func (b *Binding) restoreGuests() {
	for _, e := range b.c.Hub.Directory().All() {
		if id, ok := e.Identity(Protocol); ok && e.Source == directory.FromGuest {
			a := e.Agent
			a.Identities = []parley.Identity{id}
			b.c.Hub.Guests().Restore(b.guestEntry(&a, "", stateBytes+skillBytes*len(e.Skills)))
		}
	}
}

// evict forgets a guest to make room for another. Its waiting messages become dead
// letters.
func (b *Binding) evict(id string) {
	e, ok := b.c.Hub.Directory().Lookup(Protocol, id)
	workspaceID, peer, valid := split(id)
	if !ok || !valid || e.Source != directory.FromGuest || b.ctx.Err() != nil {
		return
	}
	err := b.c.Hub.Directory().Remove(b.ctx, e.Name)
	for _, at := range b.members.forget(workspaceID, peer) {
		if derr := b.members.rows.Delete(b.ctx, at.key(), 0); err == nil {
			err = derr
		}
	}
	if err != nil {
		b.c.Logger.Warn("cannot forget a guest that gives its place to another", "peer", id, "error", err)
	}
	b.c.Hub.Kick(e.Name)
}
