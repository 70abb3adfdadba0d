package uagents

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/parley-hub/parley/internal/recent"
)

// Memory remembers which envelopes were processed. Keys are made by
// [Verified.ReplayKey]: the sender, a space, the digest.
type Memory interface {
	// Known reports whether the key is remembered.
	Known(ctx context.Context, key string) (bool, error)
	// Seen remembers the key until the given time, atomically, and reports
	// whether it was new. The error is ErrBusy when there is no room.
	Seen(ctx context.Context, key string, until time.Time) (fresh bool, err error)
}

// NewMemory gives a [Memory] in process for at most size keys (0: 262,144) on
// the clock now (nil: time.Now). It never forgets a key before its time: when
// it is full, Seen gives ErrBusy. One sender may take a sixteenth of the room, and keys
// that live longer than five minutes half of it, so that there is soon room again for
// the keys of ordinary envelopes (30 s).
func NewMemory(size int, now func() time.Time) Memory {
	size = cmp.Or(size, 1<<18)
	if now == nil {
		now = time.Now
	}
	return &memory{now: now, keys: recent.Keys{Max: size, MaxOwner: max(size/16, 1), Long: 5 * time.Minute}}
}

type memory struct {
	now  func() time.Time
	keys recent.Keys
}

func (m *memory) Known(_ context.Context, key string) (bool, error) {
	return m.keys.Known(key, m.now()), nil
}

func (m *memory) Seen(_ context.Context, key string, until time.Time) (bool, error) {
	sender, _, _ := strings.Cut(key, " ")
	fresh, err := m.keys.Seen(sender, key, m.now(), until)
	if err != nil {
		return false, ErrBusy
	}
	return fresh, nil
}
