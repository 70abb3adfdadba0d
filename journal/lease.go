package journal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parley-hub/parley/journal/store"
)

// A Lease is held by one at a time. It is lost when it is not renewed in time
// and another takes it; an entry fenced with it is then refused by the engine.
//
// Taking it appends a record to the partition, if the one before it is the last
// of the lease: its sequence is the epoch, and a fenced entry is recorded only
// while that record is the last of the lease. How long it is held stands
// in the state, under a key with the epoch in it, so that who lost the lease
// cannot prolong or end it for its successor. Clocks decide when a lease may be
// taken over; nothing but the epoch decides who may write.
type Lease struct {
	j     *Journal
	part  *partition
	name  string
	tag   string // of the records that take it
	ttl   time.Duration
	epoch uint64
	mu    sync.Mutex // one renewal at a time
	until atomic.Int64
	lost  atomic.Bool

	lapsed atomic.Bool // it was over for a while before it was renewed, and nobody was told yet
}

// term is how long a lease is held, and by whom.
type term struct {
	Until  time.Time `json:"until"`
	Node   string    `json:"node"`
	Run    uint64    `json:"run,omitempty"` // which append took it
	Number uint64    `json:"number,omitempty"`
}

const leaseBucket = "parley-leases"

// Lease takes the named lease for ttl, or says with ErrExists who holds it.
// The scope decides the partition: only entries of the same partition can be
// fenced with it.
func (j *Journal) Lease(ctx context.Context, scope, name string, ttl time.Duration) (*Lease, error) {
	return j.lease(ctx, j.parts[j.Partition(scope)], name, ttl)
}

func (j *Journal) lease(ctx context.Context, p *partition, name string, ttl time.Duration) (*Lease, error) {
	if ttl <= 0 {
		return nil, fail(ErrInvalid, "a lease needs a time to live")
	}
	x := &Lease{j: j, part: p, name: name, tag: tagOfLease + nameHash("lease", name).String(), ttl: ttl}
	last, err := j.store.Tagged(ctx, p.index, x.tag)
	switch {
	case err == nil:
		t, err := x.term(ctx, last)
		if err != nil {
			return nil, err
		}
		// This node's own from before it was started again holds nobody up, nor does
		// that of a process that has ended, as all but this one have where the store
		// is for one alone.
		other := t.Node != j.cfg.Node && !j.store.Exclusive()
		if t.Until.After(j.cfg.Now()) && (other || t.Run == j.runID) {
			return nil, fail(ErrExists, "lease %q is held by %s until %s", name, t.Node, t.Until.Format(time.RFC3339))
		}
	case !errors.Is(err, store.ErrNotFound):
		return nil, storeError(ctx, err)
	}
	until := j.cfg.Now().Add(ttl)
	id := opID{j.runID, j.opNumber.Add(1)}
	b, err := json.Marshal(term{Until: until.Round(0).UTC(), Node: j.cfg.Node, Run: id.run, Number: id.number})
	if err != nil {
		return nil, err
	}
	o := &op{id: id, data: payload{data: b}, tag: x.tag, after: last.Sequence, size: len(b) + 200, reserve: true}
	err = p.writer.submit(ctx, o)
	if errors.Is(err, ErrConflict) {
		return nil, failBy(ErrExists, err, "lease %q was taken by another just now", name)
	}
	if err != nil {
		return nil, err
	}
	x.epoch = o.seq
	x.until.Store(until.UnixNano())
	return x, nil
}

func (l *Lease) key(epoch uint64) string {
	return fmt.Sprintf("%d/%s/%d", l.part.index, l.tag[len(tagOfLease):], epoch)
}

// term tells how long the lease is held by who wrote the record taken: what it
// was renewed to, or else what it was taken for.
func (l *Lease) term(ctx context.Context, taken store.Record) (t term, err error) {
	data, err := l.j.sealer.open(recordAAD(l.part.index, taken.Sequence), taken.Data)
	if err != nil {
		return t, damaged(err, "lease %q", l.name)
	}
	v, err := l.j.State(leaseBucket).Get(ctx, l.key(taken.Sequence))
	switch {
	case err == nil:
		data = v.Data
	case !errors.Is(err, ErrNotFound):
		return t, err
	}
	if err := json.Unmarshal(data, &t); err != nil {
		return t, failBy(ErrCorrupt, err, "lease %q", l.name)
	}
	return t, nil
}

// Name is what the lease was taken by.
func (l *Lease) Name() string { return l.name }

// Epoch grows with every take-over.
func (l *Lease) Epoch() uint64 { return l.epoch }

// Until is when the lease ends unless it is renewed.
func (l *Lease) Until() time.Time { return time.Unix(0, l.until.Load()).UTC() }

// Renew extends the lease by its ttl from now. ErrFenced: it was lost.
func (l *Lease) Renew(ctx context.Context) error { return l.extend(ctx, l.ttl) }

// Release gives the lease up, so that another need not wait for its end.
// What is fenced with it may still be recorded until another has taken it.
func (l *Lease) Release(ctx context.Context) error { return l.extend(ctx, 0) }

func (l *Lease) extend(ctx context.Context, ttl time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost.Load() {
		return fail(ErrFenced, "lease %q was lost", l.name)
	}
	last, err := l.j.store.Tagged(ctx, l.part.index, l.tag)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return storeError(ctx, err)
	}
	if last.Sequence != l.epoch {
		l.lost.Store(true)
		return fail(ErrFenced, "lease %q was lost", l.name)
	}
	until := l.j.cfg.Now().Add(ttl)
	b, err := json.Marshal(term{Until: until.Round(0).UTC(), Node: l.j.cfg.Node, Run: l.j.runID})
	if err != nil {
		return err
	}
	// It stays until the time it was taken for has passed in any case.
	if _, err := l.j.State(leaseBucket).Put(ctx, l.key(l.epoch), b, until.Add(l.ttl)); err != nil {
		return err
	}
	l.prolong(until)
	if ttl == 0 {
		l.lost.Store(true)
	}
	return nil
}

// prolong notes until when the lease is held from now on, and whether it was
// not for a while.
func (l *Lease) prolong(until time.Time) {
	before := l.Until()
	l.until.Store(until.UnixNano())
	if !before.After(l.j.cfg.Now()) {
		l.lapsed.Store(true)
	}
}
