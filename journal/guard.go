package journal

import (
	"container/heap"
	"crypto/sha256"
	"encoding/binary"
	"time"

	"github.com/parley-hub/parley"
)

// The replay guard holds the exact keys of one partition. It is fed from the
// log alone: what it knows is recorded, and what was recorded within the
// window it knows.
//
// With the embedded engine it is the authority: the lock on the directory
// makes this process the only writer, and the partition's one writer consults
// it just before the append, so a second check by the engine (the stream's
// window of message ids) would cost some 180 bytes a key and find nothing.
// With an external engine other nodes write too; there the engine's window
// decides, and for keys that outlive it a compare-and-set on a record of the
// key, and the guard answers what it knows without asking.

// keyHash is what is kept of a replay key.
func keyHash(scope, id string) hash16 {
	b := make([]byte, 0, 128)
	b = binary.AppendUvarint(b, uint64(len(scope)))
	b = append(b, scope...)
	b = append(b, id...)
	sum := sha256.Sum256(b)
	return hash16(sum[:16])
}

// nameHash is what is kept of a sender, a chain or a lease.
func nameHash(kind, name string) hash16 { return keyHash(kind, name) }

const slotsPerChunk = 4096

// slot is one key of the window, or one that outlives it.
type slot struct {
	key     hash16
	message parley.ID
	seq     uint64
	at      int64 // when it was recorded, unix nanoseconds
	until   int64 // when it ends
	reply   Position
	refused bool
	request bool
	sender  hash16 // of a key that outlives the window
}

func (s *slot) prior(partition int) *Prior {
	return &Prior{
		Position: Position{Partition: partition, Sequence: s.seq},
		Message:  s.message,
		Recorded: time.Unix(0, s.at).UTC(),
		Refused:  s.refused,
		Reply:    s.reply,
	}
}

type guard struct {
	window time.Duration

	chunks [][]slot // those within the window, in the order of the log
	first  uint64   // number of the first slot in chunks[0][head]
	head   int
	count  int
	byKey  map[hash16]uint64    // number of the slot
	byID   map[parley.ID]uint64 // of requests, for their replies

	long    map[hash16]*longKey
	longID  map[parley.ID]*longKey
	ends    longHeap
	senders map[hash16]int
}

type longKey struct {
	slot
	index int
}

type longHeap []*longKey

func (h longHeap) Len() int           { return len(h) }
func (h longHeap) Less(i, k int) bool { return h[i].until < h[k].until }
func (h longHeap) Swap(i, k int)      { h[i], h[k] = h[k], h[i]; h[i].index, h[k].index = i, k }
func (h *longHeap) Push(x any)        { k := x.(*longKey); k.index = len(*h); *h = append(*h, k) }
func (h *longHeap) Pop() any {
	old := *h
	k := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return k
}

func newGuard(window time.Duration) *guard {
	return &guard{
		window: window,
		byKey:  make(map[hash16]uint64), byID: make(map[parley.ID]uint64),
		long: make(map[hash16]*longKey), longID: make(map[parley.ID]*longKey), senders: make(map[hash16]int),
	}
}

// at gives the slot of a number that is held.
func (g *guard) at(number uint64) *slot {
	i := number - g.first + uint64(g.head)
	return &g.chunks[i/slotsPerChunk][i%slotsPerChunk]
}

// find looks a key up that has not ended.
func (g *guard) find(key hash16, now int64) *slot {
	if n, ok := g.byKey[key]; ok {
		if s := g.at(n); s.until > now {
			return s
		}
	}
	if k, ok := g.long[key]; ok && k.until > now {
		return &k.slot
	}
	return nil
}

// expire forgets what has ended.
func (g *guard) expire(now int64) {
	for g.count > 0 {
		s := &g.chunks[0][g.head]
		if s.until > now {
			break
		}
		if g.byKey[s.key] == g.first {
			delete(g.byKey, s.key)
		}
		if s.request && g.byID[s.message] == g.first {
			delete(g.byID, s.message)
		}
		g.first++
		g.head++
		g.count--
		if g.head == slotsPerChunk {
			g.chunks[0] = nil
			g.chunks = g.chunks[1:]
			g.head = 0
		}
	}
	for len(g.ends) > 0 && g.ends[0].until <= now {
		g.forget(g.ends[0])
	}
}

func (g *guard) forget(k *longKey) {
	heap.Remove(&g.ends, k.index)
	delete(g.long, k.key)
	if g.longID[k.message] == k {
		delete(g.longID, k.message)
	}
	if g.senders[k.sender]--; g.senders[k.sender] <= 0 {
		delete(g.senders, k.sender)
	}
}

// add remembers a key. Its time is that of its record.
func (g *guard) add(s slot) {
	if end := s.at + int64(g.window); s.until <= end {
		s.until = end
		if len(g.chunks) == 0 || g.head+g.count == len(g.chunks)*slotsPerChunk {
			g.chunks = append(g.chunks, make([]slot, slotsPerChunk))
		}
		n := g.first + uint64(g.count)
		g.count++
		*g.at(n) = s
		g.byKey[s.key] = n
		if s.request {
			g.byID[s.message] = n
		}
		return
	}
	if k := g.long[s.key]; k != nil {
		g.forget(k)
	}
	k := &longKey{slot: s}
	heap.Push(&g.ends, k)
	g.long[s.key] = k
	g.senders[s.sender]++
	if s.request {
		g.longID[s.message] = k
	}
}

// replied remembers where the terminal reply to a request stands; the first
// one counts.
func (g *guard) replied(request parley.ID, at Position) bool {
	var s *slot
	if n, ok := g.byID[request]; ok {
		s = g.at(n)
	} else if k, ok := g.longID[request]; ok {
		s = &k.slot
	}
	if s == nil {
		return false
	}
	if s.reply.IsZero() {
		s.reply = at
	}
	return true
}

// each visits all slots, those of the window in the order of the log.
func (g *guard) each(fn func(*slot)) {
	for i := range g.count {
		fn(g.at(g.first + uint64(i)))
	}
	for _, k := range g.ends {
		fn(&k.slot)
	}
}
