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

// away is a store whose servers have no quorum: each Append waits until its context
// ends, and fails.
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

// TestBusyWhenTheStoreIsAway: an entry that the store does not accept in time is not
// recorded. The sender gets a retryable error, not an expired deadline of its own.
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
