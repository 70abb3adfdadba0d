package sqlite

import (
	"context"
	"sync"

	"github.com/parley-hub/parley/journal/store"
)

// stateChange is a changed value of a bucket.
type stateChange struct {
	bucket string
	value  store.Value
}

// followers are called with committed changes.
type followers struct {
	mu  sync.Mutex
	all map[*func(bucket string, v store.Value)]bool
}

// FollowState implements [store.Store].
func (s *Store) FollowState(ctx context.Context, _ uint64, ready func(), fn func(bucket string, v store.Value)) error {
	if err := s.beginCall(); err != nil {
		return err
	}
	s.followers.mu.Lock()
	s.followers.all[&fn] = true
	s.followers.mu.Unlock()
	s.endCall()
	ready()
	<-ctx.Done()
	s.followers.mu.Lock()
	delete(s.followers.all, &fn)
	s.followers.mu.Unlock()
	return ctx.Err()
}

// notify calls the followers. Only the writer calls it, in the order of revisions.
func (s *Store) notify(changes []stateChange) {
	if len(changes) == 0 {
		return
	}
	s.followers.mu.Lock()
	defer s.followers.mu.Unlock()
	for fn := range s.followers.all {
		for _, c := range changes {
			(*fn)(c.bucket, c.value)
		}
	}
}
