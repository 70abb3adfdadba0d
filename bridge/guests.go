package bridge

import (
	"sync"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/policy"
)

// GuestLedger counts a binding's entries of one kind in the hub's budget of guests. For
// example, a registration is kept before it is stored, grows with its card, and is
// dropped when the operator enrols the agent. The ledger knows the counted entries, so
// that an echo of the journal's state counts nothing twice. It is safe for concurrent use.
type GuestLedger struct {
	guests   *policy.Guests
	kind     policy.Kind
	protocol string
	evict    func(key string)
	refusal  func(*parley.Error) error

	mu    sync.Mutex
	bytes map[string]int64 // of the counted entries
}

// NewGuestLedger makes a ledger for a protocol. evict removes an entry that the budget
// counts no more; refusal translates the budget's refusals for the protocol.
func NewGuestLedger(g *policy.Guests, kind policy.Kind, protocol string, evict func(key string),
	refusal func(*parley.Error) error) *GuestLedger {
	return &GuestLedger{guests: g, kind: kind, protocol: protocol, evict: evict, refusal: refusal,
		bytes: map[string]int64{}}
}

// name is the key of an entry among those of all protocols.
func (l *GuestLedger) name(key string) string { return l.protocol + "/" + key }

func (l *GuestLedger) entry(key, source string, bytes int64) policy.GuestEntry {
	return policy.GuestEntry{Kind: l.kind, Key: l.name(key), Source: source, Bytes: bytes, Evict: func() {
		l.mu.Lock()
		delete(l.bytes, key)
		l.mu.Unlock()
		l.evict(key)
	}}
}

func (l *GuestLedger) refused(err *parley.Error) error {
	if err == nil {
		return nil
	}
	return l.refusal(err)
}

// Bytes gives the size that an entry counts for; counted is false for one that is not
// counted.
func (l *GuestLedger) Bytes(key string) (bytes int64, counted bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	bytes, counted = l.bytes[key]
	return bytes, counted
}

// Has reports whether an entry is counted.
func (l *GuestLedger) Has(key string) bool {
	_, counted := l.Bytes(key)
	return counted
}

// Len is the number of counted entries.
func (l *GuestLedger) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.bytes)
}

// Write takes n bytes that are about to be written from the budget of a source.
func (l *GuestLedger) Write(source string, n int) error { return l.refused(l.guests.Write(source, n)) }

// Keep counts an entry, and may evict others for it. The entry itself may be evicted
// before it is written: check Has afterwards.
func (l *GuestLedger) Keep(key, source string, bytes int64) error {
	l.mu.Lock()
	before, counted := l.bytes[key]
	l.bytes[key] = bytes
	l.mu.Unlock()
	err := l.guests.Keep(l.entry(key, source, bytes))
	if err == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if counted {
		l.bytes[key] = before
	} else {
		delete(l.bytes, key)
	}
	return l.refusal(err)
}

// Restore counts an entry that is there already.
func (l *GuestLedger) Restore(key, source string, bytes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, counted := l.bytes[key]; !counted {
		l.bytes[key] = bytes
		l.guests.Restore(l.entry(key, source, bytes))
	}
}

// Drop ends the counting of an entry.
func (l *GuestLedger) Drop(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, counted := l.bytes[key]; counted {
		delete(l.bytes, key)
		l.guests.Drop(l.kind, l.name(key))
	}
}

// Use notes that an entry was used.
func (l *GuestLedger) Use(key string) { l.guests.Use(l.kind, l.name(key)) }

// Grow changes the bytes of an entry. One that is not counted may grow.
func (l *GuestLedger) Grow(key string, by int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, counted := l.bytes[key]; !counted {
		return nil
	}
	if err := l.guests.Grow(l.kind, l.name(key), by); err != nil {
		return l.refusal(err)
	}
	l.bytes[key] += by
	return nil
}
