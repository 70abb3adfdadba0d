package uagents

import (
	"context"
	"net/http"
	"sync"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/policy"
)

// This file keeps guests within the hub's budget of guests. A guest is an address that is
// not in the directory, or only in an entry that it made itself: any key can do that. The
// budget counts a registration with its entry in the directory, and a mailbox, by address;
// and a manifest that no enrolled agent names, by digest.

// writeBytes is what a write to the state costs beside its content, and
// writeTimes how often the content counts: the state holds it in base64, writes
// it again when it makes room, and keeps new blocks in memory.
const (
	writeBytes = 2 << 10
	writeTimes = 6
)

// A guestLedger counts the entries of one kind. It knows the counted ones, so that an
// echo of the journal's state is no use.
type guestLedger struct {
	guests *policy.Guests
	kind   policy.Kind
	evict  func(key string) // removes an entry

	mu      sync.Mutex
	counted map[string]bool
}

func newGuestLedger(g *policy.Guests, kind policy.Kind, evict func(key string)) *guestLedger {
	return &guestLedger{guests: g, kind: kind, evict: evict, counted: map[string]bool{}}
}

// keyOf is the key of an entry among those of all protocols.
func keyOf(key string) string { return Protocol + "/" + key }

// note remembers whether an entry is counted, and reports whether it was.
func (l *guestLedger) note(key string, counted bool) (was bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	was = l.counted[key]
	if counted {
		l.counted[key] = true
	} else {
		delete(l.counted, key)
	}
	return was
}

func (l *guestLedger) has(key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.counted[key]
}

func (l *guestLedger) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.counted)
}

func (l *guestLedger) entry(key, source string, bytes int64) policy.GuestEntry {
	return policy.GuestEntry{Kind: l.kind, Key: keyOf(key), Source: source, Bytes: bytes, Evict: func() {
		l.note(key, false)
		l.evict(key)
	}}
}

// write takes the bytes of a write from the source's budget.
func (l *guestLedger) write(source string, n int) error {
	return budgetError(l.guests.Write(source, writeTimes*n+writeBytes))
}

// keep counts an entry, and may evict others for it. The entry itself may be evicted
// before it is written: check has afterwards.
func (l *guestLedger) keep(key, source string, bytes int64) error {
	was := l.note(key, true)
	err := l.guests.Keep(l.entry(key, source, bytes))
	if err != nil && !was {
		l.note(key, false)
	}
	return budgetError(err)
}

// restore counts an entry that is there already.
func (l *guestLedger) restore(key, source string, bytes int64) {
	if !l.note(key, true) {
		l.guests.Restore(l.entry(key, source, bytes))
	}
}

func (l *guestLedger) drop(key string) {
	if l.note(key, false) {
		l.guests.Drop(l.kind, keyOf(key))
	}
}

func (l *guestLedger) use(key string) {
	if l.has(key) {
		l.guests.Use(l.kind, keyOf(key))
	}
}

// grow changes what an entry holds. Entries that are not counted may grow.
func (l *guestLedger) grow(key string, by int64) error {
	if by == 0 || !l.has(key) {
		return nil
	}
	return budgetError(l.guests.Grow(l.kind, keyOf(key), by))
}

// budgetError translates a refusal of the budget: try later.
func budgetError(err *parley.Error) error {
	if err == nil {
		return nil
	}
	return toError(err)
}

// guest reports whether nobody vouches for an address.
func (b *Binding) guest(address string) bool {
	e, ok := b.c.Hub.Directory().Lookup(Protocol, address)
	return !ok || isGuest(e)
}

// countsAsGuest reports whether an address counts in the budget of guests. One of an
// account counts in the account's.
func (b *Binding) countsAsGuest(address string) bool {
	return b.accounts.of(address) == nil && b.guest(address)
}

// isGuest reports whether an entry was made by the agent's own registration.
func isGuest(e *directory.Entry) bool { return e.Source == directory.FromGuest }

// withCaller gives a request a caller with a source for its budget, unless the listener
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
		return // it was enrolled meanwhile
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

// recount counts an address as it is now, after it or its enrolment came or went.
func (b *Binding) recount(address string) {
	b.almanac.setGuest(address, b.guest(address))
	guest := b.countsAsGuest(address)
	b.mailbox.weigh(address, guest)
	_, entered := b.c.Hub.Directory().Lookup(Protocol, address)
	if source, bytes, held := b.almanac.footprint(address); guest && (held || entered) {
		b.almanac.budget.restore(address, source, bytes)
	} else {
		b.almanac.budget.drop(address)
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
		return // they may be registered there
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
