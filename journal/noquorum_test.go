package journal

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal/store"
)

// away is a store whose servers have no quorum: it takes nothing for as long as
// it is given.
type away struct {
	store.Store
	gone atomic.Bool
}

func (s *away) Append(ctx context.Context, p int, after uint64, rows []store.Record) error {
	if !s.gone.Load() {
		return s.Store.Append(ctx, p, after, rows)
	}
	<-ctx.Done()
	return fmt.Errorf("%w: no quorum: %w", store.ErrBusy, ctx.Err())
}

// TestBusyWhenTheStoreIsAway: what the store does not take in time was not
// recorded, and the sender is told to come back, not that a deadline of its own
// has passed.
func TestBusyWhenTheStoreIsAway(t *testing.T) {
	var s *away
	j := open(t, setup{Memory: true, Timeout: 20 * time.Millisecond, wrap: func(x store.Store) store.Store {
		s = &away{Store: x}
		return s
	}})
	s.gone.Store(true)
	_, err := j.Append(t.Context(), Entry{Scope: "s", Message: request(t, "alice", "bob")})
	if e := parley.AsError(err); e == nil || e.Code != parley.Unavailable || !e.Retryable {
		t.Errorf("%v: %v", e, err)
	}
	s.gone.Store(false)
	if _, err := j.Append(t.Context(), Entry{Scope: "s", Message: request(t, "alice", "bob")}); err != nil {
		t.Error(err)
	}
}
