// Package recent remembers for a while which keys were seen. The replay
// memories of the protocols are built on it: the nonce of a message is
// remembered for as long as the message could be accepted again.
package recent

import (
	"crypto/sha256"
	"errors"
	"hash/maphash"
	"sync"
	"time"
)

// ErrFull means that there is no room for a new key.
var ErrFull = errors.New("recent: full")

// Keys is a bounded set of keys, each with a time at which it is forgotten. It
// never forgets a key earlier: a full set refuses new keys. Set Max before the
// first use; the other fields may stay zero. A key takes about 80 bytes,
// whatever its length.
type Keys struct {
	Max      int           // keys in all
	MaxOwner int           // keys of one owner; 0: as many as Max
	Long     time.Duration // keys that live longer take at most half of Max; 0: no such share

	mu     sync.Mutex
	seed   maphash.Seed
	known  map[digest]struct{}
	owners map[uint64]int // keys by hash of their owner
	long   int
	due    map[int64][]entry // by the second in which they are forgotten
	swept  int64             // due holds no earlier second
}

type digest [16]byte

func digestOf(key string) digest {
	sum := sha256.Sum256([]byte(key))
	return digest(sum[:16])
}

type entry struct {
	key   digest
	owner uint64
	long  bool
}

// Known reports whether key is remembered.
func (k *Keys) Known(key string, now time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.sweep(now.Unix())
	_, known := k.known[digestOf(key)]
	return known
}

// Seen reports whether key is new, and remembers it to the end of the second
// until, in one step. The error is ErrFull, and nothing is remembered, when
// there is no room for the key.
func (k *Keys) Seen(owner, key string, now, until time.Time) (fresh bool, err error) {
	e := entry{key: digestOf(key), long: k.Long > 0 && until.Sub(now) > k.Long}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.sweep(now.Unix())
	if _, known := k.known[e.key]; known {
		return false, nil
	}
	if k.known == nil {
		k.seed = maphash.MakeSeed()
		k.known, k.owners, k.due = make(map[digest]struct{}), make(map[uint64]int), make(map[int64][]entry)
	}
	e.owner = maphash.String(k.seed, owner)
	switch {
	case len(k.known) >= k.Max,
		k.MaxOwner > 0 && k.owners[e.owner] >= k.MaxOwner,
		e.long && k.long >= max(k.Max/2, 1):
		return false, ErrFull
	}
	k.known[e.key] = struct{}{}
	k.owners[e.owner]++
	if e.long {
		k.long++
	}
	second := max(until.Unix(), now.Unix()) + 1
	k.due[second] = append(k.due[second], e)
	k.swept = min(k.swept, second) // the clock may have been set back
	return true, nil
}

// Len gives the number of keys that are held; those that are due count until
// the next call of Known or Seen.
func (k *Keys) Len() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.known)
}

// sweep forgets the keys that are due in the second now or earlier.
func (k *Keys) sweep(now int64) {
	if now-k.swept > int64(len(k.due)) { // fewer seconds are in the map than have passed
		for second := range k.due {
			if second <= now {
				k.forget(second)
			}
		}
	} else {
		for second := k.swept; second <= now; second++ {
			k.forget(second)
		}
	}
	k.swept = max(k.swept, now+1)
}

func (k *Keys) forget(second int64) {
	for _, e := range k.due[second] {
		delete(k.known, e.key)
		if e.long {
			k.long--
		}
		k.owners[e.owner]--
		if k.owners[e.owner] == 0 {
			delete(k.owners, e.owner)
		}
	}
	delete(k.due, second)
}
