package journal

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"hash/maphash"
	"strings"
	"sync"
	"unique"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal/store"
)

// partition is this hub's view of one partition: a state machine that is fed every
// record of the log once, in order.
type partition struct {
	j      *Journal
	index  int
	writer *writer

	checkpointMu sync.Mutex // one checkpoint at a time
	feedMu       sync.Mutex // one record at a time is applied and passed to watchers

	mu              sync.RWMutex
	applied         uint64        // sequence of the last record fed
	advanced        chan struct{} // closed when applied grows; nil: no goroutine waits
	keys            *keyTable
	longKeys        allowance
	open            map[target]*delivery
	dead            int
	heads           map[string]uint64 // sequence of the last record of some tags
	headsCleared    uint64            // how often heads was cleared
	expected        map[opID]*op      // being appended; the store has not answered
	outcomes        map[opID]uint64   // sequences of expected ops that were read from the log meanwhile
	sinceCheckpoint int               // records since the last checkpoint
	facts           []keyFact         // not in a checkpoint yet, by sequence
	replays         uint64
}

// maxHeads bounds the heads that are remembered. They only save requests to the
// store.
const maxHeads = 1 << 16

func newPartition(j *Journal, index int) *partition {
	p := &partition{
		j: j, index: index, open: make(map[target]*delivery), heads: make(map[string]uint64),
		outcomes: make(map[opID]uint64), keys: newKeyTable(maphash.MakeSeed()),
		longKeys: allowance{},
	}
	p.writer = newWriter(j, p)
	return p
}

// Prefixes of record tags: of a chain, and of a lease.
const (
	tagOfChain = "c."
	tagOfLease = "e."
)

func chainTag(name string) string { return tagOfChain + nameHash("chain", name).String() }

func (h hash16) String() string { return base64.RawURLEncoding.EncodeToString(h[:]) }

func targetOf(s *Step) target { return target{s.Message, unique.Make(s.To)} }

// feed applies ops that were appended, and passes new records to the watchers.
// Records fed before are skipped.
func (p *partition) feed(ops ...*op) {
	p.feedMu.Lock()
	defer p.feedMu.Unlock()
	var fresh []*Record
	p.mu.Lock()
	for _, o := range ops {
		if o.rec != nil {
			o.rec.Position = Position{Partition: p.index, Sequence: o.seq}
		}
		if p.apply(o.seq, o.tag, o.rec) && o.rec != nil {
			fresh = append(fresh, o.rec.Record)
		}
	}
	p.mu.Unlock()
	for _, r := range fresh {
		p.j.notify(r)
	}
}

// apply reports whether the record is new; r is nil for a lease.
func (p *partition) apply(seq uint64, tag string, r *logRecord) (fresh bool) {
	if seq <= p.applied {
		return false
	}
	p.advance(seq)
	p.sinceCheckpoint++
	p.expire()
	if tag != "" {
		p.setHead(tag, seq)
	}
	if r == nil {
		return true
	}
	if len(p.expected) > 0 {
		if id := (opID{r.run, r.number}); p.expected[id] != nil {
			p.outcomes[id] = seq
		}
	}
	if r.Keyed {
		p.addKey(r)
	}
	named := r.targets()
	if m := r.Message; m != nil && r.Refused == nil {
		for i := range r.Open {
			if t := named.opens[i]; p.open[t] == nil {
				d := opened(r.Record, &r.Open[i])
				d.key = r.key
				p.open[t] = d
			}
		}
	}
	if len(r.Losses) > 0 && r.Message != nil {
		if d := p.open[target{r.Message.InReplyTo, unique.Make(r.Message.From)}]; d != nil {
			d.addEventLosses(r.Losses)
		}
	}
	for i := range r.Steps {
		s, t := &r.Steps[i], named.steps[i]
		d := p.open[t]
		if d == nil || d.check(s) != "" {
			continue
		}
		if m := r.Message; m != nil && m.Kind.Terminal() && m.InReplyTo == s.Message && d.key != (hash16{}) {
			p.addReply(d, seq)
		}
		if d.state == parley.Dead {
			p.dead--
		}
		if d.advance(s, r.Record) {
			delete(p.open, t)
		} else if d.state == parley.Dead {
			p.dead++
		}
	}
	return true
}

// advance moves the position to seq, which need not have a record.
func (p *partition) advance(seq uint64) {
	if seq > p.applied {
		p.applied = seq
		if p.advanced != nil {
			close(p.advanced)
			p.advanced = nil
		}
	}
}

func (p *partition) setHead(tag string, seq uint64) {
	if len(p.heads) >= maxHeads {
		clear(p.heads)
		p.headsCleared++
	}
	p.heads[tag] = seq
}

// head returns the sequence of the last record with a tag, at the view's position
// or later; 0: there is none. It asks the store if the tag is not in heads, or if
// ask is set.
func (p *partition) head(ctx context.Context, tag string, ask bool) (uint64, error) {
	for {
		p.mu.RLock()
		seq, known := p.heads[tag]
		cleared := p.headsCleared
		p.mu.RUnlock()
		if known && !ask {
			return seq, nil
		}
		x, err := p.j.store.Tagged(ctx, p.index, tag)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return 0, storeError(ctx, err)
		}
		p.mu.Lock()
		if cleared == p.headsCleared {
			seq = max(x.Sequence, p.heads[tag])
			p.setHead(tag, seq)
			p.mu.Unlock()
			return seq, nil
		}
		p.mu.Unlock() // heads was cleared meanwhile: a newer one may be lost
	}
}

// op makes the append of a record.
func (p *partition) op(r *logRecord, e *Entry) (*op, error) {
	data := encode(r)
	if len(data) > p.j.cfg.MaxPayload {
		return nil, fail(ErrTooLarge, "the record has %d bytes, the limit is %d (MaxPayload)", len(data),
			p.j.cfg.MaxPayload)
	}
	o := &op{rec: r, data: compress(data), id: opID{r.run, r.number}, size: len(data) + 100, late: e.Late,
		fence: e.Fence}
	if p.j.sealer.aead == nil {
		o.about = about(r.Record)
	}
	if c := r.Chain; c != nil {
		o.tag, o.after = chainTag(c.Name), c.After
	}
	return o, nil
}

// admit checks an op against the view, immediately before the append, and returns
// the record that has its key already. The view may be older than the log: then the
// append fails, because it expects the view's position.
func (p *partition) admit(o *op, g *pending) (*Prior, error) {
	if o.tag != "" {
		switch head, err := p.head(p.j.ctx, o.tag, false); {
		case err != nil:
			return nil, err
		case head == o.after:
		case o.rec == nil:
			return nil, fail(ErrConflict, "another hub took it first")
		default:
			return nil, &ConflictError{Chain: o.rec.Chain.Name, After: o.after, Head: head}
		}
	}
	if o.fence != nil {
		switch head, err := p.head(p.j.ctx, o.fence.tag, false); {
		case err != nil:
			return nil, err
		case head != o.fence.epoch:
			return nil, fail(ErrFenced, "another hub has taken it over")
		}
	}
	r := o.rec
	if r == nil {
		return nil, nil
	}
	if r.Keyed {
		prior, err := p.seen(p.j.ctx, r.key)
		if prior != nil {
			p.mu.Lock()
			p.replays++
			p.mu.Unlock()
		}
		if prior != nil || err != nil {
			return prior, err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	cfg := &p.j.cfg
	if r.Keyed {
		p.expire()
		if r.sender != (hash16{}) && len(p.longKeys[r.sender])+g.long[r.sender] >= cfg.MaxLongKeys {
			if n := p.longKeys.of(r.sender, nanos(cfg.Now())) + g.long[r.sender]; n >= cfg.MaxLongKeys {
				return nil, fail(ErrBusy, "the sender has %d keys that outlive the window, the limit (MaxLongKeys)", n)
			}
		}
		if n := p.keys.held; n+len(g.keys) >= cfg.MaxKeys {
			return nil, fail(ErrBusy, "%d replay keys are held in partition %d, the limit (MaxKeys)", n, p.index)
		}
	}
	if n := len(r.Open); n > 0 {
		if len(p.open)+g.opens+n > cfg.MaxOpen {
			return nil, fail(ErrBusy,
				"%d deliveries are not settled in partition %d, the limit is %d (MaxOpen); see to the dead letters",
				len(p.open), p.index, cfg.MaxOpen)
		}
		for i, t := range r.targets().opens {
			if p.open[t] != nil {
				return nil, fail(ErrConflict, "a delivery of %s to %s is open", r.Message.ID, r.Open[i].To)
			}
		}
	}
	for i := range r.Steps {
		s := &r.Steps[i]
		t := r.targets().steps[i]
		d := p.open[t]
		if ahead := g.targets[t]; ahead != nil {
			d = &ahead.delivery
		}
		if d == nil {
			return nil, fail(ErrConflict, "%s: there is no such delivery, or it is settled", s)
		}
		if why := d.check(s); why != "" {
			return nil, fail(ErrConflict, "%s: %s", s, why)
		}
	}
	return nil, nil
}

// copyDelivery copies a delivery, so that steps in flight can be applied to it.
func (p *partition) copyDelivery(t target) *pendingDelivery {
	p.mu.RLock()
	defer p.mu.RUnlock()
	d := p.open[t]
	if d == nil {
		return &pendingDelivery{blocked: true}
	}
	return &pendingDelivery{delivery: *d}
}

// expect notes ops that are being appended, so that the partition recognises them
// if it reads them from the log before the store answers.
func (p *partition) expect(ops []*op) {
	if p.j.store.Exclusive() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.outcomes)
	p.expected = make(map[opID]*op, len(ops))
	for _, o := range ops {
		p.expected[o.id] = o
	}
}

// outcome returns the sequence of an expected op in the log; 0: the op is not there.
func (p *partition) outcome(o *op) uint64 {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.outcomes[o.id]
}

// parse opens and decodes a record; the result is nil for a lease. With keep the
// result shares no memory with x.
func (p *partition) parse(x store.Record, keep bool) (*logRecord, error) {
	at := Position{Partition: p.index, Sequence: x.Sequence}
	data, err := p.j.sealer.open(recordAAD(p.index, x.Sequence), x.Data)
	if err != nil {
		return nil, damaged(err, "record %s", at)
	}
	if strings.HasPrefix(x.Tag, tagOfLease) {
		return nil, nil
	}
	if keep && p.j.sealer.aead == nil {
		data = bytes.Clone(data)
	}
	r, err := decode(data)
	switch {
	case errors.Is(err, errRecordVersion):
		return nil, failBy(ErrFormat, err, "record %s; "+useLater, at)
	case err != nil:
		return nil, damaged(err, "record %s", at)
	}
	r.Position = at
	return r, nil
}

// read reads records of the log until fn returns false; r is nil for a lease.
func (p *partition) read(
	ctx context.Context, first, last uint64, keep bool, fn func(x store.Record, r *logRecord) bool,
) error {
	var bad error
	err := p.j.store.Read(ctx, p.index, first, last, func(x store.Record) bool {
		var r *logRecord
		r, bad = p.parse(x, keep)
		return bad == nil && fn(x, r)
	})
	return errors.Join(bad, storeError(ctx, err))
}

// record reads one record; nil: there is none, or it is a lease.
func (p *partition) record(ctx context.Context, seq uint64) (r *logRecord, err error) {
	err = p.read(ctx, seq, seq, true, func(_ store.Record, x *logRecord) bool { r = x; return false })
	return r, err
}

// replay feeds a record that the store holds.
func (p *partition) replay(x store.Record, r *logRecord) bool {
	if r == nil {
		p.noteLease(x)
	}
	p.feed(&op{seq: x.Sequence, tag: x.Tag, rec: r})
	return true
}

// noteLease recognises a lease that this hub took, by its term.
func (p *partition) noteLease(x store.Record) {
	var t term
	if data, err := p.j.sealer.open(recordAAD(p.index, x.Sequence), x.Data); err != nil ||
		json.Unmarshal(data, &t) != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if id := (opID{t.Run, t.Number}); p.expected[id] != nil {
		p.outcomes[id] = x.Sequence
	}
}

// catchUp feeds the records that the view does not hold yet.
func (p *partition) catchUp(ctx context.Context) error {
	span, err := p.j.store.Span(ctx, p.index)
	if err == nil {
		err = p.read(ctx, p.position()+1, span.Last, true, p.replay)
	}
	if err == nil {
		p.moveTo(span.Last)
	}
	return err
}

// follow feeds the records of other hubs, until the journal is closed.
func (p *partition) follow() {
	p.j.retry("a partition of the journal", func(ctx context.Context) error {
		var bad error
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		err := p.j.store.Follow(ctx, p.index, p.position(), func(x store.Record) {
			var r *logRecord
			if bad != nil {
				return
			}
			if r, bad = p.parse(x, true); bad != nil {
				cancel()
				return
			}
			p.replay(x, r)
		})
		return cmp.Or(bad, err)
	})
}

// waitFor waits until the view holds seq.
func (p *partition) waitFor(ctx context.Context, seq uint64) error {
	for {
		p.mu.Lock()
		if p.applied >= seq {
			p.mu.Unlock()
			return nil
		}
		if p.advanced == nil {
			p.advanced = make(chan struct{})
		}
		moved := p.advanced
		p.mu.Unlock()
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		case <-p.j.ctx.Done():
			return fail(ErrClosed, "")
		}
	}
}

func (p *partition) moveTo(seq uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.advance(seq)
}

func (p *partition) position() uint64 {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.applied
}

func (p *partition) has(t target) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.open[t] != nil
}

func (p *partition) find(t target) (Delivery, bool) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if d := p.open[t]; d != nil {
		return d.export(p.index, t), true
	}
	return Delivery{}, false
}

func (p *partition) list(f *Filter, out []Delivery) []Delivery {
	p.mu.RLock()
	defer p.mu.RUnlock()
	for t, d := range p.open {
		if f.matches(t, d) {
			out = append(out, d.export(p.index, t))
		}
	}
	return out
}
