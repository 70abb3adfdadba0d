package samvad

import (
	"context"
	"fmt"
	"time"

	"github.com/parley-hub/parley/internal/recent"
)

// Memory remembers which messages were accepted, by [Envelope.ReplayKey]. It
// is shared by everything that accepts messages for an agent: all endpoints,
// all replicas (SAM-052). It must be safe for concurrent use.
type Memory interface {
	// Known looks a key up and changes nothing.
	Known(ctx context.Context, key string) (bool, error)
	// Seen reserves a key until the given time, atomically: of any number of
	// concurrent calls exactly one gets fresh (SAM-056).
	Seen(ctx context.Context, key string, until time.Time) (fresh bool, err error)
}

// DefaultMemorySize is how many messages a [NewMemory] of size 0 remembers;
// they take about 80 bytes each.
const DefaultMemorySize = 1 << 20

// NewMemory gives a [Memory] in this process for at most size messages (0:
// [DefaultMemorySize]) on the clock now (nil: time.Now). When it is full of
// messages that are not stale yet, Seen fails and the message is refused
// rather than accepted unchecked.
//
// It forgets at the end of the process. A process that restarts within the time
// window must set [Verifier.NotBefore], or use a Memory that lasts (SAM-057).
func NewMemory(size int, now func() time.Time) Memory {
	if size <= 0 {
		size = DefaultMemorySize
	}
	return &memory{now: now, keys: recent.Keys{Max: size}}
}

type memory struct {
	now  func() time.Time
	keys recent.Keys
}

func (m *memory) Known(_ context.Context, key string) (bool, error) {
	return m.keys.Known(key, nowOf(m.now)), nil
}

func (m *memory) Seen(_ context.Context, key string, until time.Time) (bool, error) {
	fresh, err := m.keys.Seen("", key, nowOf(m.now), until)
	if err != nil {
		return false, fmt.Errorf("%w: replay memory is full (%d messages)", ErrBusy, m.keys.Max)
	}
	return fresh, nil
}
