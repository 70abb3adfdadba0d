package journal

import (
	"slices"
	"testing"
	"time"

	"github.com/parley-hub/parley/journal/store"
)

// shared is a store that other nodes write to as well.
type shared struct{ store.Store }

func (shared) Exclusive() bool { return false }

// TestLeaseThatLapsed: if an owner's lease expires before it is renewed, its watchers
// are told that the partition was lost and gained, because records of the time in
// between were not dispatched.
func TestLeaseThatLapsed(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	j := &Journal{store: shared{}, meta: store.Meta{Partitions: 2}, cfg: Config{Now: func() time.Time { return now }}}
	for range j.meta.Partitions {
		l := &Lease{j: j}
		l.until.Store(now.Add(10 * time.Second).UnixNano())
		j.owners.parts = append(j.owners.parts, ownership{lease: l})
	}
	var told []bool // of partition 0
	defer j.WatchOwned(func(partition int, owned bool) {
		if partition == 0 {
			told = append(told, owned)
		}
	})()
	j.notifyOwned()
	renew := func(after time.Duration, want ...bool) {
		t.Helper()
		now = now.Add(after)
		j.owners.parts[0].lease.prolong(now.Add(10 * time.Second))
		j.notifyOwned()
		j.notifyOwned()
		if !slices.Equal(told, want) {
			t.Fatalf("watchers were told %v, want %v", told, want)
		}
	}
	renew(9*time.Second, true)
	renew(11*time.Second, true, false, true)
	renew(5*time.Second, true, false, true)
	// A lease that is found expired is reported at once, and again when it is renewed.
	now = now.Add(11 * time.Second)
	j.notifyOwned()
	renew(0, true, false, true, false, true)
}
