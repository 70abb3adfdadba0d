package journal

import (
	"context"
	"encoding/base64"
	"errors"
	"strconv"
	"strings"
	"sync"
	"unique"

	"github.com/parley-hub/parley"
)

// partition is this node's view of one partition of the log: a state machine
// that is fed every record once, in order, by feed.
type partition struct {
	j       *Journal
	index   int
	writer  *writer
	prefix  string // of its subjects
	records string // the subject of records

	checkpointMu sync.Mutex // one checkpoint at a time

	mu      sync.RWMutex
	applied uint64        // sequence of the last record fed
	moved   chan struct{} // closed when applied grows; nil while nobody waits
	guard   *guard
	open    map[target]*delivery
	dead    int
	bucket  [buckets]uint64   // the last sequence of each bucket of steps; external only
	heads   map[hash16]uint64 // of chains, some of them
	since   int               // records since the last checkpoint
	erasing overlay
	replays uint64
}

// buckets is how many subjects the records with steps of one partition use.
// Nodes that share a journal compare and set on them.
const buckets = 256

// maxHeads is how many heads of chains are remembered. They only spare the
// engine a question: it compares and sets on the chain itself.
const maxHeads = 1 << 16

func newPartition(j *Journal, index int) *partition {
	prefix := j.logSubject(index)
	return &partition{j: j, index: index, prefix: prefix, records: prefix + subjectRecord, guard: newGuard(j.cfg.Window), open: make(map[target]*delivery), heads: make(map[hash16]uint64)}
}

func bucketOf(id parley.ID) int { return int(id[15]) % buckets }

func targetOf(s *Step) target { return target{s.Message, unique.Make(s.To)} }

// apply moves the view on by one record.
func (p *partition) apply(r *sealed) {
	if p.applyHere(r) {
		if !p.j.rebuilt {
			p.j.orphans = append(p.j.orphans, orphan{r.Message.InReplyTo, r.Position})
			return
		}
		p.j.repliedElsewhere(p, r.Message.InReplyTo, r.Position)
	}
}

// applyHere reports whether the record is the reply to a request that another
// partition may hold.
func (p *partition) applyHere(r *sealed) (elsewhere bool) {
	seq := r.Position.Sequence
	p.mu.Lock()
	defer p.mu.Unlock()
	if seq <= p.applied {
		return false
	}
	p.advance(seq)
	p.since++
	if r.Keyed {
		s := slot{key: r.key, seq: seq, at: nanos(r.Time), until: nanos(r.Until), refused: r.Refused != nil, sender: r.sender}
		if r.Message != nil {
			s.message, s.request = r.Message.ID, r.Message.Kind == parley.Request
		}
		p.guard.expire(nanos(p.j.cfg.Now()))
		p.guard.add(s)
	}
	if r.Chain != nil {
		if len(p.heads) >= maxHeads {
			clear(p.heads)
		}
		p.heads[nameHash("chain", r.Chain.Name)] = seq
	}
	named := r.targets()
	if m := r.Message; m != nil && r.Refused == nil {
		for i := range r.Open {
			if t := named.opens[i]; p.open[t] == nil {
				p.open[t] = opened(r.Record, &r.Open[i])
			}
		}
		if m.Kind.Terminal() && !m.InReplyTo.IsZero() {
			elsewhere = !p.guard.replied(m.InReplyTo, r.Position) && len(p.j.parts) > 1
		}
	}
	if len(r.Losses) > 0 && r.Message != nil {
		if d := p.open[target{r.Message.InReplyTo, unique.Make(r.Message.From)}]; d != nil {
			d.said(r.Losses)
		}
	}
	for i := range r.Steps {
		s, t := &r.Steps[i], named.steps[i]
		d := p.open[t]
		if d == nil || d.check(s) != "" {
			continue
		}
		wasDead := d.state == parley.Dead
		gone := d.step(s, r.Record)
		switch {
		case gone:
			delete(p.open, t)
			if wasDead {
				p.dead--
			}
		case d.state == parley.Dead && !wasDead:
			p.dead++
		case d.state != parley.Dead && wasDead:
			p.dead--
		}
	}
	if len(r.Steps) > 0 {
		p.bucket[bucketOf(r.Steps[0].Message)] = seq
	}
	return elsewhere
}

// advance moves on to seq, also over what is not a record.
func (p *partition) advance(seq uint64) {
	if seq > p.applied {
		p.applied = seq
		if p.moved != nil {
			close(p.moved)
			p.moved = nil
		}
	}
}

// beyond gives a channel that is closed when more than seq was applied; nil
// when it already was.
func (p *partition) beyond(seq uint64) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.applied > seq {
		return nil
	}
	if p.moved == nil {
		p.moved = make(chan struct{})
	}
	return p.moved
}

// seen looks a key up.
func (p *partition) seen(key hash16) *Prior {
	now := nanos(p.j.cfg.Now())
	p.mu.RLock()
	defer p.mu.RUnlock()
	if s := p.guard.find(key, now); s != nil {
		return s.prior(p.index)
	}
	return nil
}

// What a partition's subjects are, behind its prefix: records are "r", those
// of a chain "c.hash", with an external engine those with steps "d.bucket";
// beside them stand marks without content that carry a further compare-and-set
// ("m", "d.bucket"), keys that outlive the window ("k.hash", external engine
// only), and leases ("e.hash").
const (
	subjectRecord = "r"
	subjectChain  = "c."
	subjectBucket = "d."
	subjectMark   = "m"
	subjectGap    = "m.gap" // where a journal that was restored had nothing
	subjectKey    = "k."
	subjectEpoch  = "e."
)

func (h hash16) String() string { return base64.RawURLEncoding.EncodeToString(h[:]) }

func (p *partition) subject(kind, name string) string {
	return p.prefix + kind + name
}

// op makes what is published for a record.
func (p *partition) op(r *sealed, e *Entry) (*op, error) {
	data := encode(r)
	if len(data) > p.j.cfg.MaxPayload {
		return nil, fail(ErrTooLarge, "the record has %d bytes, the limit is %d (MaxPayload)", len(data), p.j.cfg.MaxPayload)
	}
	o := &op{rec: r, id: opID{r.run, r.number}, reserve: len(r.Steps) > 0}
	main := o.only(outgoing{subject: p.records, data: data})
	if c := r.Chain; c != nil {
		main.subject = p.chainSubject(c.Name)
		main.expect = &expectation{ofChain, main.subject, c.After}
	}
	if p.j.external() {
		p.externalOp(o, main)
	}
	if e.Fence != nil {
		x := &expectation{ofFence, p.subject(subjectEpoch, e.Fence.hash.String()), e.Fence.epoch}
		if main.expect == nil {
			main.expect = x
		} else {
			o.msgs = append(o.msgs, &outgoing{subject: p.subject(subjectMark, ""), expect: x})
		}
	}
	for _, m := range o.msgs {
		o.size += len(m.data) + len(m.subject) + 100
	}
	return o, nil
}

func (p *partition) chainSubject(name string) string {
	return p.subject(subjectChain, nameHash("chain", name).String())
}

// admit checks an entry against the state, as the last thing before it is
// published: nothing else is published for this partition meanwhile.
func (p *partition) admit(o *op, g *group) verdict {
	r := o.rec
	if r == nil {
		return publish
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	cfg := &p.j.cfg
	refuse := func(err error) verdict {
		o.finish(err)
		return finished
	}
	if r.Keyed {
		now := nanos(cfg.Now())
		p.guard.expire(now)
		if s := p.guard.find(r.key, now); s != nil {
			prior := s.prior(p.index)
			p.mu.Unlock()
			p.replayed(o, prior)
			p.mu.Lock()
			return finished
		}
		switch {
		case !r.Until.IsZero():
			if n := p.guard.senders[r.sender] + g.long[r.sender]; n >= cfg.MaxLongKeys {
				return refuse(fail(ErrBusy, "the sender has %d keys that outlive the window, the limit (MaxLongKeys)", n))
			}
		case p.guard.count+len(g.keys) >= cfg.MaxKeys:
			return refuse(fail(ErrBusy, "%d replay keys are held in partition %d, the limit (MaxKeys)", p.guard.count, p.index))
		}
	}
	if n := len(r.Open); n > 0 {
		if len(p.open)+g.opens+n > cfg.MaxOpen {
			return refuse(fail(ErrBusy, "%d deliveries are not settled in partition %d, the limit is %d (MaxOpen); see to the dead letters", len(p.open), p.index, cfg.MaxOpen))
		}
		for i, t := range r.targets().opens {
			if p.open[t] != nil {
				return refuse(fail(ErrConflict, "a delivery of %s to %s is open", r.Message.ID, r.Open[i].To))
			}
		}
	}
	for i := range r.Steps {
		s := &r.Steps[i]
		d := p.open[r.targets().steps[i]]
		if d == nil {
			return refuse(fail(ErrConflict, "%s: there is no such delivery, or it is settled", s))
		}
		if why := d.check(s); why != "" {
			return refuse(fail(ErrConflict, "%s: %s", s, why))
		}
	}
	if c := r.Chain; c != nil && !p.j.external() {
		if head, ok := p.heads[nameHash("chain", c.Name)]; ok && head != c.After {
			return refuse(&ConflictError{Chain: c.Name, After: c.After, Head: head})
		}
	}
	for _, m := range o.msgs {
		if m.expect != nil && m.expect.what == ofBucket {
			m.expect.seq = p.bucket[p.bucketFrom(m.subject)]
		}
	}
	if r.Keyed {
		g.keys[r.key] = true
		if !r.Until.IsZero() {
			g.long[r.sender]++
		}
	}
	g.opens += len(r.Open)
	if named := r.targets(); named != nil {
		for _, t := range named.opens {
			g.targets[t] = true
		}
		for _, t := range named.steps {
			g.targets[t] = true
		}
	}
	return publish
}

// fed applies what this node stored.
func (p *partition) fed(o *op) {
	end := o.seq + uint64(len(o.msgs)) - 1
	if o.rec != nil {
		o.rec.Position.Sequence = o.seq
		p.apply(o.rec)
		p.j.tell(o.rec.Record)
	}
	p.moveTo(end)
}

// replay applies what the log holds.
func (p *partition) replay(s *stored) (opID, error) {
	r, err := p.read(s)
	if err != nil {
		return opID{}, err
	}
	if r == nil {
		p.mu.Lock()
		if b := p.bucketFrom(s.subject); b >= 0 {
			p.bucket[b] = max(p.bucket[b], s.seq)
		}
		p.advance(s.seq)
		p.mu.Unlock()
		return opID{}, nil
	}
	p.apply(r)
	p.j.tell(r.Record)
	return opID{r.run, r.number}, nil
}

// read decodes a record of this partition; nil for what is none.
func (p *partition) read(s *stored) (*sealed, error) {
	if len(s.data) == 0 {
		return nil, nil
	}
	s = p.current(s)
	kind, ok := strings.CutPrefix(s.subject, p.prefix)
	if !ok || kind != subjectRecord && !strings.HasPrefix(kind, subjectChain) && !strings.HasPrefix(kind, subjectBucket) {
		return nil, nil
	}
	at := Position{Partition: p.index, Sequence: s.seq}
	r, err := decode(s.data)
	if err != nil {
		if errors.Is(err, errRecordVersion) {
			return nil, failBy(ErrFormat, err, "record %s; use the release that wrote it, or a later one", at)
		}
		return nil, failBy(ErrCorrupt, err, "record %s", at)
	}
	r.Position = at
	return r, nil
}

// bucketFrom tells the bucket of a subject, -1 for others.
func (p *partition) bucketFrom(subject string) int {
	s, ok := strings.CutPrefix(subject, p.prefix)
	if ok {
		s, ok = strings.CutPrefix(s, subjectBucket)
	}
	if !ok {
		return -1
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || n >= buckets {
		return -1
	}
	return n
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

// refused explains a compare-and-set that failed: it finds out which it was.
func (p *partition) refused(ctx context.Context, l *link, o *op) error {
	for _, m := range o.msgs {
		x := m.expect
		if x == nil {
			continue
		}
		var head uint64
		last, err := l.get(ctx, p.writer.stream, 0, x.subject)
		switch {
		case err == nil:
			head = last.seq
		case !errors.Is(err, errNoMessage):
			return failBy(ErrBusy, err, "the engine refused a compare-and-set and does not say why")
		}
		if head == x.seq {
			continue
		}
		switch x.what {
		case ofChain:
			return &ConflictError{Chain: o.rec.Chain.Name, After: x.seq, Head: head}
		case ofFence:
			return fail(ErrFenced, "it was taken over")
		case ofLease:
			return fail(ErrConflict, "another was sooner")
		}
		p.refusedExternal(x, head)
	}
	if !o.retry() {
		return fail(ErrBusy, "other nodes were sooner %d times", o.tries)
	}
	return nil
}

// head is the last record of a chain that is known here, 0 for none.
func (p *partition) head(chain string) uint64 {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.heads[nameHash("chain", chain)]
}

func (p *partition) has(t target) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.open[t] != nil
}

func (p *partition) find(message parley.ID, to string) (Delivery, bool) {
	t := target{message, unique.Make(to)}
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
