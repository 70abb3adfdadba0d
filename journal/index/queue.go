package index

import (
	"sync"

	"github.com/parley-hub/parley/journal"
)

// queue passes records from the journal's Watch, which must not block, to the
// writer. If a record does not fit, its partition is marked as behind, and the
// writer reads it from the journal.
type queue struct {
	mu       sync.Mutex
	list     []*journal.Record
	bytes    int
	behind   []bool
	latest   []uint64 // by partition: the last known sequence
	overflow uint64
	max      int
	wake     chan struct{}
}

// queueBytes bounds the memory of queued records.
const queueBytes = 64 << 20

func newQueue(partitions, most int) *queue {
	return &queue{behind: make([]bool, partitions), latest: make([]uint64, partitions), max: most,
		wake: make(chan struct{}, 1)}
}

func (q *queue) push(r *journal.Record) {
	q.mu.Lock()
	p := r.Position.Partition
	q.latest[p] = max(q.latest[p], r.Position.Sequence)
	size := 512 + journal.ContentSize(r) // of memory, about
	switch {
	case q.behind[p]:
	case len(q.list) >= q.max || q.bytes+size > queueBytes && len(q.list) > 0:
		q.behind[p] = true
		q.overflow++
	default:
		q.list = append(q.list, r)
		q.bytes += size
	}
	q.mu.Unlock()
	q.wakeWriter()
}

func (q *queue) wakeWriter() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// take empties the queue into list. behind are the partitions that must then be read
// from the journal. A record that arrives later is queued, or marks its partition
// again.
func (q *queue) take(into []*journal.Record) (list []*journal.Record, behind []int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	list, q.list, q.bytes = q.list, into[:0], 0
	for p, is := range q.behind {
		if is {
			behind = append(behind, p)
			q.behind[p] = false
		}
	}
	return list, behind
}

// readAll marks all partitions to be read from the journal.
func (q *queue) readAll(j *journal.Journal) {
	for _, p := range j.Stats().Partitions {
		q.setLatest(p.Partition, p.Applied)
		q.mu.Lock()
		q.behind[p.Partition] = true
		q.mu.Unlock()
	}
	q.wakeWriter()
}

// setLatest notes the last sequence of a partition.
func (q *queue) setLatest(p int, seq uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.latest[p] = max(q.latest[p], seq)
}

func (q *queue) targets() []uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return append([]uint64(nil), q.latest...)
}

func (q *queue) waiting() (records int, overflow uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.list), q.overflow
}
