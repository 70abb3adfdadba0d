package jwks

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
)

const (
	// fresh is how long keys are used before they are fetched again.
	fresh = 15 * time.Minute
	// pause is the least time between two attempts to fetch, whatever keys are asked for.
	pause = time.Minute
	// kept is how long keys are used while they cannot be fetched again.
	kept = 24 * time.Hour
)

// A Remote is the keys of an issuer. It fetches them when they are first needed, when
// they are old, and when an unknown one is asked for, but at most once a minute. While
// the issuer does not answer, it goes on with the keys that it has, for a day. Make it
// with NewRemote.
type Remote struct {
	fetch func(context.Context) (Set, error)
	now   func() time.Time
	ctx   context.Context
	stop  context.CancelFunc
	work  sync.WaitGroup

	mu      sync.Mutex
	set     Set
	fetched time.Time     // set; zero: never
	tried   time.Time     // to fetch; zero: never
	flight  chan struct{} // closed at the end of the fetch in flight; nil: there is none
	err     error         // of the last attempt
}

// NewRemote makes a Remote; fetch must end in bounded time.
func NewRemote(fetch func(context.Context) (Set, error), now func() time.Time) *Remote {
	r := &Remote{fetch: fetch, now: now}
	r.ctx, r.stop = context.WithCancel(context.Background())
	return r
}

// Close ends a fetch in flight.
func (r *Remote) Close() {
	r.stop()
	r.work.Wait()
}

// Find gives the keys with an id that sign with an algorithm, none if the issuer has
// none. The error says why the issuer's present keys cannot be fetched, or is the context's.
func (r *Remote) Find(ctx context.Context, kid string, a jose.SignatureAlgorithm) (Set, error) {
	found, flight, err := r.look(kid, a)
	if len(found) > 0 || flight == nil {
		return found, err
	}
	select {
	case <-flight:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	found, _, err = r.look(kid, a)
	return found, err
}

// look gives the known keys, and the fetch in flight, which it begins if it is time.
func (r *Remote) look(kid string, a jose.SignatureAlgorithm) (found Set, flight chan struct{}, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	if now.Sub(r.fetched) >= kept {
		r.set = nil
	}
	found = r.set.Find(kid, a)
	old := len(found) == 0 || now.Sub(r.fetched) >= fresh
	if old && r.flight == nil && (r.tried.IsZero() || now.Sub(r.tried) >= pause) && r.ctx.Err() == nil {
		r.tried, r.flight = now, make(chan struct{})
		r.work.Go(r.renew)
	}
	if len(found) == 0 {
		err = r.err // the issuer may have new keys
	}
	return found, r.flight, err
}

// renew is one attempt to fetch.
func (r *Remote) renew() {
	set, err := r.fetch(r.ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.flight)
	r.flight, r.err = nil, err
	if err != nil {
		r.err = fmt.Errorf("fetch the issuer's keys: %w", err)
		return
	}
	r.set, r.fetched = set, r.now()
}
