package samvad

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync"
	"time"
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
// It forgets at the end of the process. Who restarts within the time window
// must set [Verifier.NotBefore], or bring a Memory that lasts (SAM-057).
func NewMemory(size int, now func() time.Time) Memory {
	if size <= 0 {
		size = DefaultMemorySize
	}
	if now == nil {
		now = time.Now
	}
	return &memory{size: size, now: now, seen: map[digest128]time.Time{}, due: map[int64][]digest128{}}
}

// digest128 stands for a key, so that long nonces cost no more than short ones.
type digest128 [16]byte

func digestOf(key string) digest128 {
	sum := sha256.Sum256([]byte(key))
	return digest128(sum[:16])
}

type memory struct {
	size int
	now  func() time.Time

	mu    sync.Mutex
	seen  map[digest128]time.Time
	due   map[int64][]digest128 // by the Unix second in which they may go
	swept int64                 // everything due before this second is gone
}

func (m *memory) Known(_ context.Context, key string) (bool, error) {
	now := m.now()
	m.mu.Lock()
	defer m.mu.Unlock()
	until, ok := m.seen[digestOf(key)]
	return ok && !now.After(until), nil
}

func (m *memory) Seen(_ context.Context, key string, until time.Time) (bool, error) {
	now, d := m.now(), digestOf(key)
	m.mu.Lock()
	defer m.mu.Unlock()
	if old, ok := m.seen[d]; ok && !now.After(old) {
		return false, nil
	}
	m.sweep(now.Unix())
	if now.After(until) {
		return true, nil // stale already: nothing to remember
	}
	if len(m.seen) >= m.size {
		return false, fmt.Errorf("%w: replay memory is full (%d messages)", ErrBusy, m.size)
	}
	m.seen[d] = until
	// A key may go once its second is over.
	second := until.Unix() + 1
	m.due[second] = append(m.due[second], d)
	return true, nil
}

// sweep drops what is due before the second now, a few map operations per
// call on average.
func (m *memory) sweep(now int64) {
	if m.swept == 0 || now-m.swept > int64(len(m.due)) {
		for s := range m.due {
			if s < now {
				m.drop(s)
			}
		}
	} else {
		for s := m.swept; s < now; s++ {
			m.drop(s)
		}
	}
	m.swept = max(m.swept, now)
}

func (m *memory) drop(second int64) {
	for _, d := range m.due[second] {
		// The key may have been reserved anew for a later time.
		if m.seen[d].Unix()+1 == second {
			delete(m.seen, d)
		}
	}
	delete(m.due, second)
}
