package uagents

import (
	"context"
	"net/http"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/policy"
)

// This file keeps guests within the hub's budget of guests. A guest is an address that is
// not in the directory, or only in an entry of its own registration, which any key can
// make. The budget counts, by address, a registration with its entry in the directory, and
// a mailbox; and, by digest, a manifest that no enrolled agent names.

// A write to the state costs writeBytes, and writeTimes its content: the state holds the
// content in base64, writes it again when it makes room, and keeps new blocks in memory.
const (
	writeBytes = 2 << 10
	writeTimes = 6
)

// newGuestLedger makes the ledger of one kind of entries.
func (b *Binding) newGuestLedger(kind policy.Kind, evict func(key string)) *bridge.GuestLedger {
	return bridge.NewGuestLedger(b.c.Hub.Guests(), kind, Protocol, evict,
		func(e *parley.Error) error { return toError(e) })
}

// writeCost is the cost of a guest's write of n bytes in its source's budget.
func writeCost(n int) int { return writeTimes*n + writeBytes }

// guest reports whether an address is unknown or came only from its own registration.
func (b *Binding) guest(address string) bool {
	e, ok := b.c.Hub.Directory().Lookup(Protocol, address)
	return !ok || isGuest(e)
}

// countsAsGuest reports whether an address counts in the budget of guests. The address
// of an account's agent counts in the account's budget.
func (b *Binding) countsAsGuest(address string) bool {
	return b.accounts.of(address) == nil && b.guest(address)
}

// isGuest reports whether an entry comes only from the agent's own registration.
func isGuest(e *directory.Entry) bool { return e.Source == directory.FromGuest }

// withCaller gives a request a caller, whose source has the budget, unless the listener
// did.
func withCaller(r *http.Request) *http.Request {
	if policy.SourceOf(r.Context()) != "" {
		return r
	}
	return r.WithContext(policy.WithCaller(r.Context(), policy.NewCaller(policy.Source(r.RemoteAddr), nil)))
}

// noteProof notes that a request proved the key of an address.
func (b *Binding) noteProof(ctx context.Context, address string) {
	if !b.guest(address) {
		policy.Vouch(ctx)
	}
}

// evict removes a guest to make room for another.
func (b *Binding) evict(address string) {
	if !b.countsAsGuest(address) {
		return // the agent was enrolled meanwhile
	}
	if err := b.almanac.remove(b.ctx, address); err != nil {
		b.c.Logger.Warn("cannot remove a guest's registration", "address", address, "error", err)
	}
	b.evictMailbox(address)
	b.removeGuest(b.ctx, address)
}

func (b *Binding) evictManifest(digest string) {
	if err := b.almanac.removeManifest(b.ctx, digest); err != nil {
		b.c.Logger.Warn("cannot remove a guest's manifest", "digest", digest, "error", err)
	}
}

func (b *Binding) evictMailbox(address string) {
	if !b.countsAsGuest(address) {
		return
	}
	if err := b.mailbox.remove(b.ctx, address); err != nil {
		b.c.Logger.Warn("cannot remove a guest's mailbox", "address", address, "error", err)
	}
}

// removeGuest removes a guest from the directory.
func (b *Binding) removeGuest(ctx context.Context, address string) {
	e, ok := b.c.Hub.Directory().Lookup(Protocol, address)
	if !ok || !isGuest(e) {
		return
	}
	if err := b.c.Hub.Directory().Remove(ctx, e.Name); err != nil {
		b.c.Logger.Warn("cannot remove a guest", "agent", e.Name, "error", err)
	}
}

// recount updates the budgets after a change of an address or its enrolment.
func (b *Binding) recount(address string) {
	b.almanac.setGuest(address, b.guest(address))
	guest := b.countsAsGuest(address)
	b.mailbox.weigh(address, guest)
	_, entered := b.c.Hub.Directory().Lookup(Protocol, address)
	if source, bytes, held := b.almanac.footprint(address); guest && (held || entered) {
		b.almanac.budget.Restore(address, source, bytes)
	} else {
		b.almanac.budget.Drop(address)
	}
}

// directoryBytes is about the memory of an address in the directory.
func (b *Binding) directoryBytes(address string) int64 {
	e, ok := b.c.Hub.Directory().Lookup(Protocol, address)
	if !ok {
		return 0
	}
	return skillBytes(e.Skills)
}

// skillBytes is about the memory of skills in the directory.
func skillBytes(skills []parley.SkillSpec) (n int64) {
	for _, s := range skills {
		n += int64(len(s.ID)+len(s.Name)+len(s.Description)+len(s.Input)+len(s.Output)) + 256
	}
	return n
}

// sweepGuests removes guests that have neither a registration nor a mailbox.
func (b *Binding) sweepGuests(ctx context.Context) {
	if b.upstream != nil {
		return // the guests may be registered there
	}
	for _, e := range b.c.Hub.Directory().All() {
		id, ok := e.Identity(Protocol)
		if !ok || id.StandIn || !isGuest(e) || len(e.Identities) > 1 || len(e.Exposed) > 0 {
			continue
		}
		if !b.mailbox.has(id.ID) && b.almanac.registered(id.ID) == nil {
			b.removeGuest(ctx, id.ID)
		}
	}
}
