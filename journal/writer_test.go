package journal

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/parley-hub/parley/journal/store"
)

// heldStore blocks the first Append until goOn is closed, and then refuses it if refuse
// is set.
type heldStore struct {
	store.Store
	refuse     bool
	first      atomic.Bool
	in, goOn   chan struct{}
	concurrent atomic.Int32
	conflicts  atomic.Int32
}

func (s *heldStore) Append(ctx context.Context, partition int, after uint64, records []store.Record) error {
	if s.concurrent.Add(1) > 1 {
		return errors.New("two groups at once")
	}
	defer s.concurrent.Add(-1)
	if !s.first.Swap(true) {
		close(s.in)
		<-s.goOn
		if s.refuse {
			return store.ErrNoSpace
		}
	}
	err := s.Store.Append(ctx, partition, after, records)
	if errors.Is(err, store.ErrConflict) {
		s.conflicts.Add(1)
	}
	return err
}

// TestNextGroup: while the store writes a group, the next one is prepared. Entries that
// depend on the first group wait for its outcome. Whether the store accepts it or not,
// the other entries are recorded after it, once.
func TestNextGroup(t *testing.T) {
	for _, refuse := range []bool{false, true} {
		t.Run(fmt.Sprint("refused ", refuse), func(t *testing.T) {
			t.Parallel()
			held := &heldStore{refuse: refuse, in: make(chan struct{}), goOn: make(chan struct{})}
			prepared := make(chan struct{}, 4*pipelineFrom)
			j := open(t, setup{
				Memory:    true,
				wrap:      func(s store.Store) store.Store { held.Store = s; return held },
				FreeSpace: func() (uint64, error) { prepared <- struct{}{}; return 1 << 40, nil },
			})
			var callers sync.WaitGroup
			var recorded, priors, failed atomic.Int32
			accept := func(key string) {
				callers.Go(func() {
					_, prior, err := j.Accept(t.Context(),
						Entry{Scope: "s", Message: request(t, "a", "b"), Key: Key{ID: key}})
					switch {
					case err != nil:
						failed.Add(1)
					case prior != nil:
						priors.Add(1)
					default:
						recorded.Add(1)
					}
				})
			}
			accept("the first")
			<-held.in
			for len(prepared) > 0 {
				<-prepared
			}
			accept("the first")
			for i := range pipelineFrom - 1 {
				accept(fmt.Sprint(i / 2)) // each key twice, the last once
			}
			<-prepared
			close(held.goOn)
			callers.Wait()
			want := [3]int32{1 + pipelineFrom/2, pipelineFrom / 2, 0}
			if refuse {
				want = [3]int32{1 + pipelineFrom/2, pipelineFrom/2 - 1, 1}
			}
			if got := [3]int32{recorded.Load(), priors.Load(), failed.Load()}; got != want {
				t.Errorf("recorded, replays, failed: %d, want %d", got, want)
			}
			if n := held.conflicts.Load(); n > 0 {
				t.Errorf("%d groups followed a record that was refused", n)
			}
			n := uint64(0)
			for r, err := range j.Records(t.Context(), 0, From{}) {
				if n++; err != nil || r.Position.Sequence != n {
					t.Fatalf("record %d: %v, %v", n, r, err)
				}
			}
			if n != uint64(want[0]) {
				t.Errorf("%d records", n)
			}
		})
	}
}
