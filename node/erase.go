package node

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/sleep"
	"github.com/parley-hub/parley/journal"
)

// eraser erases content: by retention, and when operators ask for it.
type eraser struct {
	n      *Node
	state  journal.State
	cancel context.CancelFunc
	ctx    context.Context
	work   sync.WaitGroup
	one    sync.Mutex // one erasure at a time
	erased *prometheus.CounterVec
	drops  prometheus.Counter
	held   prometheus.Gauge
	passed prometheus.Gauge
}

func newEraser(n *Node) *eraser {
	e := &eraser{n: n, state: n.journal.State("retention"),
		erased: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "parley_erased_messages_total",
			Help: "Messages whose content was erased, by why."}, []string{"by"}),
		drops: prometheus.NewCounter(prometheus.CounterOpts{Name: "parley_dropped_records_total",
			Help: "Records that were removed from the front of the journal."}),
		held: prometheus.NewGauge(prometheus.GaugeOpts{Name: "parley_retention_held",
			Help: "Messages that are due but still needed: not delivered, dead letters, sessions that go on."}),
		passed: prometheus.NewGauge(prometheus.GaugeOpts{Name: "parley_retention_pass_seconds",
			Help: "When retention last went through without an error; 0: not since the start."})}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	for _, by := range []string{"retention", "forget"} {
		e.erased.WithLabelValues(by)
	}
	n.metrics.registry.MustRegister(e.erased, e.drops, e.held, e.passed)
	return e
}

// start finishes interrupted erasures, and makes a pass of retention from time
// to time.
func (e *eraser) start() {
	if err := e.follow(e.ctx); err != nil {
		e.n.log.Error("messages that other hubs erase stay in this hub's index; start the hub again", "error", err)
	}
	e.work.Go(func() {
		if err := e.resume(e.ctx); err != nil && e.ctx.Err() == nil {
			e.n.log.Error("an interrupted erasure cannot be finished; the next start tries again", "error", err)
		}
		pass := func() {
			if err := e.retain(e.ctx); err != nil && e.ctx.Err() == nil {
				e.n.log.Error("retention failed; the next pass tries again", "error", err)
			}
		}
		pass()
		every(e.ctx, cmp.Or(e.n.c.Retention.Every.Duration, time.Hour), pass)
	})
}

func (e *eraser) close() {
	e.cancel()
	e.work.Wait()
}

// eraseTTL is how long a hub that crashed in the middle of an erasure keeps the
// others from theirs.
const eraseTTL = 2 * time.Minute

// lock makes this hub the only one on its journal that erases, until end is
// called. ErrExists: another hub erases.
func (e *eraser) lock(ctx context.Context) (end func(), err error) {
	e.one.Lock()
	lease, err := e.n.journal.Lease(ctx, "erasing", "erasing", eraseTTL)
	if err != nil {
		e.one.Unlock()
		return nil, err
	}
	var renewing sync.WaitGroup
	held, stop := context.WithCancel(context.Background())
	renewing.Go(func() {
		every(held, eraseTTL/4, func() {
			if err := lease.Renew(e.ctx); err != nil && e.ctx.Err() == nil {
				e.n.log.Warn("the lease on erasures cannot be renewed; another hub may erase at the same time",
					"error", err)
			}
		})
	})
	return func() {
		stop()
		renewing.Wait()
		if err := lease.Release(context.WithoutCancel(ctx)); err != nil {
			e.n.log.Warn("the lease on erasures cannot be released; other hubs wait until it expires", "error", err)
		}
		e.one.Unlock()
	}, nil
}

// waitLock is lock, and waits while another hub erases.
func (e *eraser) waitLock(ctx context.Context) (end func(), err error) {
	for {
		end, err := e.lock(ctx)
		if !errors.Is(err, journal.ErrExists) {
			return end, err
		}
		if err := sleep.For(ctx, 2*time.Second); err != nil {
			return nil, err
		}
	}
}

// erasedElsewhere are erasures by other hubs whose messages this hub's index may
// still have: the revision of each by its number.
type erasedElsewhere struct {
	mu      sync.Mutex
	numbers map[uint64]uint64
	wake    chan struct{}
}

// follow removes messages that other hubs erase from this hub's index, including those
// erased while this hub was not running.
func (e *eraser) follow(ctx context.Context) error {
	if e.n.index == nil {
		return nil
	}
	const key = "unindexed/"
	var seen uint64
	switch v, err := e.state.Get(ctx, key+e.n.journal.Node()); {
	case err == nil:
		if seen, err = strconv.ParseUint(string(v.Data), 10, 64); err != nil {
			seen = 0
		}
	case !errors.Is(err, journal.ErrNotFound):
		return err
	}
	w := erasedElsewhere{numbers: map[uint64]uint64{}, wake: make(chan struct{}, 1)}
	stop, err := e.n.journal.WatchErasures(ctx, func(x journal.Erasure, revision uint64) {
		if x.Node == e.n.journal.Node() || revision <= seen {
			return
		}
		w.mu.Lock()
		w.numbers[x.Number] = revision
		w.mu.Unlock()
		select {
		case w.wake <- struct{}{}:
		default:
		}
	})
	if err != nil {
		return err
	}
	e.work.Go(func() {
		defer stop()
		for {
			select {
			case <-w.wake:
			case <-e.ctx.Done():
				return
			}
			w.mu.Lock()
			numbers := w.numbers
			w.numbers = map[uint64]uint64{}
			w.mu.Unlock()
			err := e.unindex(e.ctx, numbers)
			if err == nil && len(numbers) > 0 {
				last := slices.Max(slices.Collect(maps.Values(numbers)))
				_, err = e.state.Put(e.ctx, key+e.n.journal.Node(), strconv.AppendUint(nil, last, 10), time.Time{})
			}
			if err != nil && e.ctx.Err() == nil {
				e.n.log.Error("messages that another hub erased may still be in this hub's index; the next start "+
					"tries again", "error", err)
			}
		}
	})
	return nil
}

// unindex takes the messages of some erasures out of the index.
func (e *eraser) unindex(ctx context.Context, numbers map[uint64]uint64) error {
	e.n.hub.ForgetRecent()
	var ids []parley.ID
	for p := range e.n.journal.Partitions() {
		for r, err := range e.n.journal.Records(ctx, p, journal.From{}) {
			if err != nil {
				return err
			}
			if r.Message == nil || r.Erased == nil {
				continue
			}
			if _, ok := numbers[r.Erased.Number]; ok {
				ids = append(ids, r.Message.ID)
			}
			if len(ids) >= 2048 {
				if err := e.unindexMessages(false)(ctx, ids); err != nil {
					return err
				}
				ids = ids[:0]
			}
		}
	}
	return e.unindexMessages(true)(ctx, ids)
}

// unindexMessages takes erased messages out of the index. Thorough: no trace of
// earlier ones remains in its file either.
func (e *eraser) unindexMessages(thorough bool) func(context.Context, []parley.ID) error {
	return func(ctx context.Context, ids []parley.ID) error {
		if e.n.index == nil {
			return nil
		}
		return e.n.index.Erase(ctx, thorough, ids...)
	}
}

// sessionsEnd is how long a chain of records may be needed after its last record.
const sessionsEnd = time.Hour

// ongoing reports whether a record belongs to a chain that has grown since a
// time. The chain's owner reads all of it to continue.
func (e *eraser) ongoing(ctx context.Context, r *journal.Record, since time.Time) bool {
	if r.Chain == nil {
		return false
	}
	if !r.Time.Before(since) {
		return true
	}
	head, err := e.n.journal.Head(ctx, r.Scope, r.Chain.Name)
	if err != nil {
		return true
	}
	last, err := e.n.journal.Read(ctx, journal.Position{Partition: r.Position.Partition, Sequence: head})
	if errors.Is(err, journal.ErrNotFound) {
		return false
	}
	return err != nil || !last.Time.Before(since)
}
