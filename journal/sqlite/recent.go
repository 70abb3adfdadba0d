package sqlite

import (
	"sync"

	"github.com/parley-hub/parley/journal/store"
)

// recentBytes is about how much of the state is kept in memory, twice.
const recentBytes = 2 << 20

// recent holds the values that were put or removed last: most are read again
// soon, as nobody else writes to the file. Only the writer adds to it, so that
// what it holds is what the file holds.
type recent struct {
	mu          sync.Mutex
	now, before map[stateKey]store.Value
	bytes       int // of now
}

type stateKey struct{ bucket, key string }

func (r *recent) get(bucket, key string) (v store.Value, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := stateKey{bucket, key}
	if v, known = r.now[k]; !known {
		v, known = r.before[k]
	}
	return v, known
}

func (r *recent) add(changes []stateChange) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range changes {
		if r.now == nil || r.bytes > recentBytes {
			r.now, r.before, r.bytes = map[stateKey]store.Value{}, r.now, 0
		}
		r.now[stateKey{c.bucket, c.value.Key}] = c.value
		r.bytes += len(c.value.Key) + len(c.value.Data) + 200
	}
}

// clear forgets all.
func (r *recent) clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now, r.before, r.bytes = nil, nil, 0
}
