package agh

import (
	"cmp"
	"container/heap"
	"context"
	"crypto/sha256"
	"hash/maphash"
	"strings"
	"sync"
	"time"
)

// Memory remembers which messages were accepted. A hub makes it durable.
type Memory interface {
	// Seen consumes key until the time given, atomically: fresh is true for
	// exactly one of any number of calls with the same key. An error means
	// that nothing was consumed; the message is refused as busy. Keys are
	// those of [ReplayKey].
	Seen(ctx context.Context, key string, until time.Time) (fresh bool, err error)
}

// ReplayMemory is a bounded [Memory] in process. It never forgets a key before
// its time: when it is full it takes no more, and a single sender can fill only
// its own share.
type ReplayMemory struct {
	Max       int // keys in all; 0 means 1,048,576
	PerSender int // keys of one (workspace, sender); 0 means an eighth of Max
	Now       func() time.Time

	mu      sync.Mutex
	seed    maphash.Seed
	keys    map[[16]byte]struct{}
	senders map[uint64]int
	queue   replayQueue
}

type replayEntry struct {
	until  int64
	key    [16]byte
	sender uint64
}

type replayQueue []replayEntry

func (q replayQueue) Len() int           { return len(q) }
func (q replayQueue) Less(i, j int) bool { return q[i].until < q[j].until }
func (q replayQueue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *replayQueue) Push(x any)        { *q = append(*q, x.(replayEntry)) }
func (q *replayQueue) Pop() any {
	old := *q
	last := old[len(old)-1]
	*q = old[:len(old)-1]
	return last
}

// Seen implements [Memory].
func (m *ReplayMemory) Seen(_ context.Context, key string, until time.Time) (bool, error) {
	sum := sha256.Sum256([]byte(key))
	e := replayEntry{until: until.Unix(), key: [16]byte(sum[:16])}
	now := time.Now
	if m.Now != nil {
		now = m.Now
	}
	at := now().Unix()

	m.mu.Lock()
	defer m.mu.Unlock()
	if m.keys == nil {
		m.keys, m.senders, m.seed = map[[16]byte]struct{}{}, map[uint64]int{}, maphash.MakeSeed()
	}
	e.sender = maphash.String(m.seed, sender(key))
	for len(m.queue) > 0 && m.queue[0].until <= at {
		m.forget(heap.Pop(&m.queue).(replayEntry))
	}
	if _, ok := m.keys[e.key]; ok {
		return false, nil
	}
	limit := cmp.Or(m.Max, 1<<20)
	if len(m.keys) >= limit || m.senders[e.sender] >= cmp.Or(m.PerSender, max(limit/8, 1)) {
		return false, refuse(ErrBusy, StepRouting, "id", "the replay memory is full")
	}
	m.keys[e.key] = struct{}{}
	m.senders[e.sender]++
	heap.Push(&m.queue, e)
	return true, nil
}

func (m *ReplayMemory) forget(e replayEntry) {
	delete(m.keys, e.key)
	m.senders[e.sender]--
	if m.senders[e.sender] == 0 {
		delete(m.senders, e.sender)
	}
}

// Len gives the number of keys remembered.
func (m *ReplayMemory) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.keys)
}

// sender is the part of a replay key before the message id.
func sender(key string) string {
	if i := strings.IndexByte(key, 0); i >= 0 {
		if j := strings.IndexByte(key[i+1:], 0); j >= 0 {
			return key[:i+1+j]
		}
	}
	return key
}

// ReplayKey gives the key under which a message is remembered: workspace,
// sender and id, separated by zero bytes, which the first two cannot hold.
func ReplayKey(e *Envelope) string {
	return strings.Join([]string{e.WorkspaceID, e.From, e.ID}, "\x00")
}
