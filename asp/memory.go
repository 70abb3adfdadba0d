package asp

import (
	"context"
	"strings"
	"sync"
	"time"
)

// Memory is what must be remembered of proofs: which were used. Seen reports
// whether key is new, and remembers it until the given time, in one step. It
// must fail rather than forget: an error refuses the message.
type Memory interface {
	Seen(ctx context.Context, key string, until time.Time) (fresh bool, err error)
}

// GuestOwner is the owner of the proofs of all agents for whom nobody vouches
// ([Server.Guest]): the part of their keys before the first space.
const GuestOwner = "guest"

// NewMemory gives a Memory in process. It holds at most size keys (0 means
// 1,048,576) and at most a sixteenth of them for one owner, which is the part
// of a key before the first space: one agent cannot use up the room of all.
// What does not fit is refused with capacity_unavailable.
func NewMemory(size int, now func() time.Time) Memory {
	size = or(size, 1<<20)
	return &memory{size: size, perOwner: max(size/16, 1), now: clock(now), keys: make(map[string]int64),
		owners: make(map[string]int), slots: make(map[int64][]string)}
}

func clock(now func() time.Time) func() time.Time {
	if now == nil {
		return time.Now
	}
	return now
}

type memory struct {
	size, perOwner int
	now            func() time.Time

	mu     sync.Mutex
	keys   map[string]int64 // key → the second in which it is forgotten
	owners map[string]int
	slots  map[int64][]string
	swept  int64 // all seconds before it are empty
}

func (m *memory) Seen(_ context.Context, key string, until time.Time) (bool, error) {
	owner, _, _ := strings.Cut(key, " ")
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now().Unix()
	m.sweep(now)
	if _, known := m.keys[key]; known {
		return false, nil
	}
	if len(m.keys) >= m.size || m.owners[owner] >= m.perOwner {
		return false, refuse("capacity_unavailable", "")
	}
	end := max(until.Unix()+1, now+1)
	if len(m.slots) == 0 || end < m.swept {
		m.swept = min(end, now)
	}
	m.keys[key] = end
	m.owners[owner]++
	m.slots[end] = append(m.slots[end], key)
	return true, nil
}

func (m *memory) sweep(now int64) {
	if len(m.slots) == 0 {
		return
	}
	if now-m.swept > 4096 { // a long sleep: look at what there is instead of each second
		for end := range m.slots {
			if end <= now {
				m.drop(end)
			}
		}
		m.swept = now
	}
	for ; m.swept <= now; m.swept++ {
		m.drop(m.swept)
	}
}

func (m *memory) drop(end int64) {
	for _, key := range m.slots[end] {
		delete(m.keys, key)
		owner, _, _ := strings.Cut(key, " ")
		if m.owners[owner]--; m.owners[owner] <= 0 {
			delete(m.owners, owner)
		}
	}
	delete(m.slots, end)
}
