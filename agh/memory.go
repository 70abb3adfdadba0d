package agh

import (
	"cmp"
	"context"
	"strings"
	"sync"
	"time"

	"github.com/parley-hub/parley/internal/recent"
)

// Memory remembers accepted messages, by their keys. A hub makes it durable.
type Memory interface {
	// Seen consumes key until the time given, atomically: fresh is true for
	// exactly one of any number of calls with the same key. An error means
	// that the key was not consumed; the message is refused as busy. Keys
	// come from [ReplayKey].
	Seen(ctx context.Context, key string, until time.Time) (fresh bool, err error)
}

// ReplayMemory is a bounded [Memory] in process. It never forgets a key before
// its time: a full memory takes no more keys, and one sender can fill only its
// own share. Do not change the fields after the first call.
type ReplayMemory struct {
	Max       int // keys in all; 0 means 1,048,576
	PerSender int // keys of one (workspace, sender); 0 means an eighth of Max
	Now       func() time.Time

	once sync.Once
	keys recent.Keys
}

// Seen implements [Memory].
func (m *ReplayMemory) Seen(_ context.Context, key string, until time.Time) (bool, error) {
	m.once.Do(func() {
		m.keys.Max = cmp.Or(m.Max, 1<<20)
		m.keys.MaxOwner = cmp.Or(m.PerSender, max(m.keys.Max/8, 1))
	})
	now := time.Now
	if m.Now != nil {
		now = m.Now
	}
	// The window ends at until: from then on the id may be used again.
	fresh, err := m.keys.Seen(sender(key), key, now(), until.Add(-1))
	if err != nil {
		return false, refuse(ErrBusy, StepRouting, "id", "the replay memory is full")
	}
	return fresh, nil
}

// Len gives the number of keys remembered.
func (m *ReplayMemory) Len() int { return m.keys.Len() }

// sender is the part of a replay key before the message id.
func sender(key string) string {
	parts := strings.SplitN(key, "\x00", 3)
	return strings.Join(parts[:min(2, len(parts))], "\x00")
}

// ReplayKey gives the key under which a message is remembered: workspace,
// sender and id, separated by zero bytes, which the first two cannot hold.
func ReplayKey(e *Envelope) string {
	return strings.Join([]string{e.WorkspaceID, e.From, e.ID}, "\x00")
}
