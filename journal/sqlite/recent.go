package sqlite

import (
	"sync"

	"github.com/parley-hub/parley/journal/store"
)

// recentBytes bounds the values kept in memory, approximately; there are two
// generations.
const recentBytes = 2 << 20

// recent caches the last changed values: most are read again soon. Only the writer
// writes to the file and adds to the cache, so the two agree.
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

// clear empties the cache.
func (r *recent) clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now, r.before, r.bytes = nil, nil, 0
}
