package sqlite

import (
	"context"
	"sync"

	"zombiezen.com/go/sqlite"

	"github.com/parley-hub/parley/journal/store"
)

// change is one of the state.
type change struct {
	bucket string
	value  store.Value
}

// followers are told of changes when they are committed.
type followers struct {
	mu  sync.Mutex
	all map[*follower]bool
}

type follower struct {
	fn func(bucket string, v store.Value)
}

// FollowState is described in [store.Store].
func (s *Store) FollowState(ctx context.Context, _ uint64, ready func(), fn func(bucket string, v store.Value)) error {
	if err := s.enter(); err != nil {
		return err
	}
	f := &follower{fn}
	s.followers.mu.Lock()
	if s.followers.all == nil {
		s.followers.all = map[*follower]bool{}
	}
	s.followers.all[f] = true
	s.followers.mu.Unlock()
	s.leave()
	ready()
	<-ctx.Done()
	s.followers.mu.Lock()
	delete(s.followers.all, f)
	s.followers.mu.Unlock()
	return ctx.Err()
}

// tell is called by the writer alone, in the order of revisions.
func (s *Store) tell(changes []change) {
	if len(changes) == 0 {
		return
	}
	s.followers.mu.Lock()
	defer s.followers.mu.Unlock()
	for f := range s.followers.all {
		for _, c := range changes {
			f.fn(c.bucket, c.value)
		}
	}
}

// Buckets is described in [store.Store].
func (s *Store) Buckets(ctx context.Context) (out []string, err error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	err = s.reading(ctx, func(c *conn) error {
		for found := true; found; {
			found = false
			row := func(st *sqlite.Stmt) bool {
				out, found = append(out, st.ColumnText(0)), true
				return true
			}
			var err error
			if len(out) == 0 {
				err = c.query("SELECT bucket FROM state WHERE bucket IS NOT NULL ORDER BY bucket LIMIT 1", row)
			} else {
				err = c.query("SELECT bucket FROM state WHERE bucket > ? ORDER BY bucket LIMIT 1", row, out[len(out)-1])
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	return out, err
}
