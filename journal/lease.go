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

// A Lease has one holder at a time. It is lost if it is not renewed in time and
// another hub takes it; the journal then refuses entries fenced with it.
//
// Taking a lease appends a record to the partition, on condition that the lease has
// no newer record than the one that was read. The new record's sequence is the
// epoch. A fenced entry is recorded only while that record is the lease's last. The
// expiry is in the state, under a key that contains the epoch, so that a former
// holder can neither extend nor end the lease of its successor. Clocks decide when
// a lease may be taken over; only the epoch decides which hub may write.
type Lease struct {
	j     *Journal
	part  *partition
	name  string
	tag   string // of the records that take the lease
	ttl   time.Duration
	epoch uint64
	mu    sync.Mutex // one renewal at a time
	until atomic.Int64
	lost  atomic.Bool

	lapsed atomic.Bool // expired before it was renewed, and watchers do not know yet
}

// term is the expiry and the holder of a lease.
type term struct {
	Until  time.Time `json:"until"`
	Node   string    `json:"node"`
	Run    uint64    `json:"run,omitempty"` // with Number: the append that took the lease
	Number uint64    `json:"number,omitempty"`
}

const leaseBucket = "parley-leases"

// Lease takes the named lease for ttl. ErrExists: another hub holds it; the text
// names the hub. The scope selects the partition: only entries of the same
// partition can be fenced with the lease.
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
		// A lease that this hub took before a restart does not block it. On an
		// exclusive store the same holds for all leases of earlier processes.
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
	o := &op{id: id, data: payload{data: b}, tag: x.tag, after: last.Sequence, size: len(b) + 200}
	err = p.writer.submit(ctx, o)
	if errors.Is(err, ErrConflict) {
		return nil, failBy(ErrExists, err, "lease %q was just taken by another hub", name)
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

// term reads the expiry and the holder: from the last renewal, or else from the
// record that took the lease.
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

// Epoch grows each time the lease is taken.
func (l *Lease) Epoch() uint64 { return l.epoch }

// Until is when the lease expires unless it is renewed.
func (l *Lease) Until() time.Time { return time.Unix(0, l.until.Load()).UTC() }

// Renew extends the lease by its ttl from now. ErrFenced: it was lost.
func (l *Lease) Renew(ctx context.Context) error { return l.extend(ctx, l.ttl) }

// Release ends the lease now, so that another hub need not wait. Entries fenced
// with it may still be recorded until another hub takes it.
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
	// The value is kept at least until the ttl of the lease has passed.
	if _, err := l.j.State(leaseBucket).Put(ctx, l.key(l.epoch), b, until.Add(l.ttl)); err != nil {
		return err
	}
	l.prolong(until)
	if ttl == 0 {
		l.lost.Store(true)
	}
	return nil
}

// prolong sets the expiry, and notes if the lease had expired before.
func (l *Lease) prolong(until time.Time) {
	before := l.Until()
	l.until.Store(until.UnixNano())
	if !before.After(l.j.cfg.Now()) {
		l.lapsed.Store(true)
	}
}
