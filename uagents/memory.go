package uagents

import (
	"container/heap"
	"context"
	"strings"
	"sync"
	"time"
)

// Memory remembers which envelopes were processed. Keys are made by
// [Verified.ReplayKey]: the sender, a space, the digest.
type Memory interface {
	// Known reports whether the key was seen and is not forgotten yet.
	Known(ctx context.Context, key string) (bool, error)
	// Seen remembers the key until the given time, atomically, and reports
	// whether it was new. The error is ErrBusy when there is no room.
	Seen(ctx context.Context, key string, until time.Time) (fresh bool, err error)
}

// MemoryStore is a bounded [Memory] in process. It never forgets a key before
// its time: when it is full it refuses. Keys that live long may take only half
// of the room, so that those of ordinary envelopes (30 s) always find some
// soon. The zero value is ready; fields must not change once it is in use.
type MemoryStore struct {
	Max       int              // keys; default 262144
	MaxSender int              // keys of one sender; default a sixteenth of Max
	Long      time.Duration    // what "live long" means; default 5 min
	Now       func() time.Time // nil: time.Now

	mu      sync.Mutex
	until   map[string]time.Time
	senders map[string]int
	queue   expiries
	long    int
}

type expiry struct {
	at   time.Time
	key  string
	long bool
}

type expiries []expiry

func (q expiries) Len() int           { return len(q) }
func (q expiries) Less(i, j int) bool { return q[i].at.Before(q[j].at) }
func (q expiries) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *expiries) Push(x any)        { *q = append(*q, x.(expiry)) }
func (q *expiries) Pop() any {
	old := *q
	x := old[len(old)-1]
	old[len(old)-1] = expiry{}
	*q = old[:len(old)-1]
	return x
}

// purge drops what is past its time. The caller holds the lock.
func (m *MemoryStore) purge() time.Time {
	now := time.Now
	if m.Now != nil {
		now = m.Now
	}
	t := now()
	for len(m.queue) > 0 && m.queue[0].at.Before(t) {
		x := heap.Pop(&m.queue).(expiry)
		delete(m.until, x.key)
		if x.long {
			m.long--
		}
		sender := senderOf(x.key)
		if m.senders[sender]--; m.senders[sender] <= 0 {
			delete(m.senders, sender)
		}
	}
	return t
}

func senderOf(key string) string {
	sender, _, _ := strings.Cut(key, " ")
	return sender
}

// Known implements [Memory].
func (m *MemoryStore) Known(_ context.Context, key string) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.purge()
	_, ok := m.until[key]
	return ok, nil
}

// Seen implements [Memory].
func (m *MemoryStore) Seen(_ context.Context, key string, until time.Time) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.purge()
	if _, ok := m.until[key]; ok {
		return false, nil
	}
	limit := orDefault(m.Max, 1<<18)
	sender := senderOf(key)
	long := until.Sub(now) > orDefault(m.Long, 5*time.Minute)
	if len(m.until) >= limit || m.senders[sender] >= orDefault(m.MaxSender, max(1, limit/16)) || long && m.long >= max(1, limit/2) {
		return false, ErrBusy
	}
	if m.until == nil {
		m.until, m.senders = map[string]time.Time{}, map[string]int{}
	}
	m.until[key] = until
	m.senders[sender]++
	if long {
		m.long++
	}
	heap.Push(&m.queue, expiry{until, key, long})
	return true, nil
}
