package journal

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/parley-hub/parley/journal/store"
)

// interrupted is a store whose first FollowState fails before it reports any change.
type interrupted struct {
	store.Store
	calls atomic.Int32
	ends  chan struct{}
}

func (s *interrupted) FollowState(ctx context.Context, after uint64, ready func(), fn func(string, store.Value)) error {
	ready()
	if s.calls.Add(1) == 1 {
		<-s.ends
		return errors.New("the connection was lost")
	}
	if after > 0 { // otherwise only later changes are followed
		err := s.Range(ctx, "b", "", func(v store.Value) bool {
			if v.Data = bytes.Clone(v.Data); v.Revision > after {
				fn("b", v)
			}
			return true
		})
		if err != nil {
			return err
		}
	}
	<-ctx.Done()
	return ctx.Err()
}

// TestInterruptedStateIsTold: changes made by another hub before an interruption are
// reported when following resumes.
func TestInterruptedStateIsTold(t *testing.T) {
	s := &interrupted{ends: make(chan struct{})}
	j := open(t, setup{Dir: t.TempDir(), wrap: func(x store.Store) store.Store {
		s.Store = x
		return s
	}})
	put := func(key string) {
		t.Helper()
		data := j.sealer.seal(valueAAD("b", key), payload{data: []byte("v")})
		// A change by another hub.
		if _, err := s.Put(t.Context(), "b", store.Value{Key: key, Data: data}, nil); err != nil {
			t.Fatal(err)
		}
	}
	put("before")
	var mu sync.Mutex
	told := map[string]int{}
	stop, err := j.State("b").Watch(t.Context(), "", func(v Value) {
		mu.Lock()
		defer mu.Unlock()
		told[v.Key]++
	})
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	put("after")
	close(s.ends)
	eventually(t, "the change is reported", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return told["after"] > 0
	})
	mu.Lock()
	defer mu.Unlock()
	if len(told) != 2 || told["before"] != 1 || told["after"] != 1 {
		t.Error(told)
	}
}
