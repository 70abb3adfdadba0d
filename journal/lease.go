package journal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// A Lease is held by one at a time. It is lost when it is not renewed in time
// and another takes it; an entry fenced with it is then refused by the engine.
//
// Taking it writes a record into the partition's stream, with compare-and-set
// on the one before it: its sequence is the epoch, and a fenced entry is stored
// only while that record is the last of its subject. How long it is held stands
// in the state, under a key with the epoch in it, so that who lost the lease
// cannot prolong or end it for its successor. Clocks decide when a lease may be
// taken over; nothing but the epoch decides who may write.
type Lease struct {
	j     *Journal
	part  *partition
	name  string
	hash  hash16
	ttl   time.Duration
	epoch uint64
	mu    sync.Mutex // one renewal at a time
	until atomic.Int64
	lost  atomic.Bool

	lapsed atomic.Bool // it was over for a while before it was renewed, and nobody was told yet
}

// term is how long a lease is held, and by whom.
type term struct {
	Until time.Time `json:"until"`
	Node  string    `json:"node"`
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
	l, err := j.live()
	if err != nil {
		return nil, err
	}
	x := &Lease{j: j, part: p, name: name, hash: nameHash("lease", name), ttl: ttl}
	last, err := l.get(ctx, p.writer.stream, 0, x.subject())
	var before uint64
	switch {
	case err == nil:
		before = last.seq
		t, err := x.term(ctx, last)
		if err != nil {
			return nil, err
		}
		if t.Until.After(j.cfg.Now()) {
			return nil, fail(ErrExists, "lease %q is held by %s until %s", name, t.Node, t.Until.Format(time.RFC3339))
		}
	case !errors.Is(err, errNoMessage):
		return nil, j.readError(ctx, err)
	}
	until := j.cfg.Now().Add(ttl)
	b, err := x.encode(until)
	if err != nil {
		return nil, err
	}
	m := &outgoing{subject: x.subject(), data: b, expect: &expectation{ofLease, x.subject(), before}}
	o := &op{id: opID{j.run, j.number.Add(1)}, msgs: []*outgoing{m}, size: len(b) + 200, reserve: true}
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

func (l *Lease) subject() string { return l.part.subject(subjectEpoch, l.hash.String()) }

func (l *Lease) key(epoch uint64) string {
	return fmt.Sprintf("%d/%s/%d", l.part.index, l.hash, epoch)
}

func (l *Lease) encode(until time.Time) ([]byte, error) {
	return json.Marshal(term{Until: until.Round(0).UTC(), Node: l.j.cfg.Node})
}

// term tells how long the lease is held by who wrote the record taken: what it
// was renewed to, or else what it was taken for.
func (l *Lease) term(ctx context.Context, taken *stored) (t term, err error) {
	data := taken.data
	v, err := l.j.State(leaseBucket).Get(ctx, l.key(taken.seq))
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
	c, err := l.j.live()
	if err != nil {
		return err
	}
	last, err := c.get(ctx, l.part.writer.stream, 0, l.subject())
	if err != nil && !errors.Is(err, errNoMessage) {
		return l.j.readError(ctx, err)
	}
	if err != nil || last.seq != l.epoch {
		l.lost.Store(true)
		return fail(ErrFenced, "lease %q was lost", l.name)
	}
	until := l.j.cfg.Now().Add(ttl)
	b, err := l.encode(until)
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
