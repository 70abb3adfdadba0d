package journal

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parley-hub/parley/internal/sleep"
	"github.com/parley-hub/parley/journal/store"
)

// An op is one append: its caller queues it, a group carries it to the store, and
// the caller gets the result.
type op struct {
	rec  *logRecord // nil: a lease
	data payload    // encoded
	tag  string
	id   opID
	size int

	about store.About
	after uint64 // of a chain or lease: the expected last record with its tag
	fence *Lease

	late bool // Entry.Late

	phase atomic.Int32
	done  chan struct{}

	seq   uint64
	prior *Prior
	err   error
	tries int // after conflicts with other nodes

	checked bool // a second time, after catching up, because it seemed to conflict
}

// opID identifies an append, so that one of unknown outcome can be recognised in
// the log.
type opID struct{ run, number uint64 }

const (
	opQueued = iota
	opTaken
	opAbandoned // the caller gave up before the writer took the op
)

func (o *op) finish(err error) {
	o.err = err
	close(o.done)
}

// pending is the effect of ops that were checked and are not in the view yet: ops in
// flight, and ops of the next group. An op that depends on one of them waits until
// the outcome is known. So the next group stays valid even if the group in flight
// fails.
type pending struct {
	opens   int
	keys    map[hash16]bool
	targets map[target]*pendingDelivery
	tags    map[string]bool
	long    map[hash16]int
}

// pendingDelivery is a delivery after the pending steps.
type pendingDelivery struct {
	delivery
	blocked bool // settled, or about to be opened: no step can follow yet
	steps   int
}

// allows reports whether o can be checked now: nothing pending concerns it, or its
// steps can follow the pending ones.
func (g *pending) allows(o *op) bool {
	if o.tag != "" && g.tags[o.tag] || o.fence != nil && g.tags[o.fence.tag] {
		return false
	}
	if o.rec == nil {
		return true
	}
	if o.rec.Keyed && g.keys[o.rec.key] {
		return false
	}
	if len(g.targets) == 0 {
		return true
	}
	named := o.rec.targets()
	for _, t := range named.opens {
		if g.targets[t] != nil {
			return false
		}
	}
	for i, t := range named.steps {
		if d := g.targets[t]; d != nil && (d.blocked || d.check(&o.rec.Steps[i]) != "") {
			return false
		}
	}
	return true
}

// add adds an op that p has admitted.
func (g *pending) add(p *partition, o *op) {
	if o.tag != "" {
		g.tags[o.tag] = true
	}
	r := o.rec
	if r == nil {
		return
	}
	if r.Keyed {
		g.keys[r.key] = true
		if r.sender != (hash16{}) {
			g.long[r.sender]++
		}
	}
	g.opens += len(r.Open)
	named := r.targets()
	for _, t := range named.opens {
		g.targets[t] = &pendingDelivery{blocked: true, steps: 1}
	}
	for i, t := range named.steps {
		d := g.targets[t]
		if d == nil {
			d = p.copyDelivery(t)
			g.targets[t] = d
		}
		d.blocked = d.advance(&r.Steps[i], r.Record) || d.blocked
		d.steps++
	}
}

func (g *pending) remove(o *op) {
	delete(g.tags, o.tag)
	r := o.rec
	if r == nil {
		return
	}
	if r.Keyed {
		delete(g.keys, r.key)
		if g.long[r.sender]--; g.long[r.sender] <= 0 {
			delete(g.long, r.sender)
		}
	}
	g.opens -= len(r.Open)
	named := r.targets()
	for _, list := range [][]target{named.opens, named.steps} {
		for _, t := range list {
			if g.targets[t].steps--; g.targets[t].steps == 0 {
				delete(g.targets, t)
			}
		}
	}
}

// group is a list of ops that the store appends together.
type group struct {
	ops     []*op
	rows    []store.Record
	after   uint64 // the record that it follows
	bytes   int
	unknown bool // an attempt had no answer: the store may have recorded it
	err     error
}

func (g *group) reset(after uint64) {
	clear(g.rows)
	*g = group{ops: g.ops[:0], rows: g.rows[:0], after: after}
}

// A writer appends to one partition; this process has one writer for each.
//
// It checks a group of entries against all records up to the last one it knows, and
// has the store append the group behind that record. Meanwhile it checks and seals
// the next group, which is appended as soon as the one in flight is recorded. If
// another process appended first, the writer reads the new records and checks
// again.
type writer struct {
	j *Journal
	p *partition

	mu         sync.Mutex
	queue      []*op
	bytes      int
	taken      int         // number of ops in waiting
	lateQueued int         // late ops in queue
	lateTimer  *time.Timer // ends the wait of late ops
	lateDue    bool        // lateTimer has fired
	busy       bool
	closed     bool
	wake       chan struct{}

	// Used by run only:
	waiting    []*op // taken from the queue, and in no group
	pending    pending
	next       *group
	inFlight   *group // nil: the store has none
	spareGroup *group
	toStore    chan *group
	fromStore  chan *group // from the store, with the result

	appended atomic.Uint64
	groups   atomic.Uint64
}

func newWriter(j *Journal, p *partition) *writer {
	return &writer{
		j: j, p: p, wake: make(chan struct{}, 1), next: new(group), spareGroup: new(group),
		toStore: make(chan *group, 1), fromStore: make(chan *group, 1),
		pending: pending{
			keys: map[hash16]bool{}, targets: map[target]*pendingDelivery{}, tags: map[string]bool{},
			long: map[hash16]int{},
		},
	}
}

// pipelineFrom is how many ops must wait before the writer prepares a group while
// another is in flight. A smaller group does not deserve a sync of its own: it
// waits to be joined by ops from the callers of the group in flight.
const pipelineFrom = 64

// Bounds of a group, and of the bytes that wait in a queue.
const (
	maxGroup       = 512
	maxGroupBytes  = 8 << 20
	maxQueuedBytes = 64 << 20
)

// maxLateWait is how long a late op waits for others.
const maxLateWait = 5 * time.Millisecond

// submit queues o and waits for its outcome.
func (w *writer) submit(ctx context.Context, o *op) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	o.done = make(chan struct{})
	w.mu.Lock()
	switch n := len(w.queue) + w.taken; {
	case w.closed:
		w.mu.Unlock()
		return fail(ErrClosed, "")
	case n >= w.j.cfg.maxQueued || w.bytes+o.size > maxQueuedBytes && len(w.queue) > 0:
		w.mu.Unlock()
		return fail(ErrBusy, "%d appends wait for the disk; slow the senders down", n)
	}
	w.queue = append(w.queue, o)
	w.bytes += o.size
	if o.late {
		if w.lateQueued++; w.lateQueued == 1 {
			w.lateTimer = time.AfterFunc(maxLateWait, w.flushLate)
		}
	}
	n, busy := len(w.queue), w.busy
	first := !o.late && n-w.lateQueued == 1
	w.mu.Unlock()
	if !busy && first || busy && n == pipelineFrom {
		w.signal()
	}
	select {
	case <-o.done:
		return o.err
	case <-ctx.Done():
	}
	if o.phase.CompareAndSwap(opQueued, opAbandoned) {
		return ctx.Err()
	}
	select {
	case <-o.done:
		return o.err
	default:
		return failBy(ErrUnknown, ctx.Err(), "the caller left while the append was under way")
	}
}

// flushLate has late ops recorded although no other op arrived.
func (w *writer) flushLate() {
	w.mu.Lock()
	w.lateDue = true
	w.mu.Unlock()
	w.signal()
}

func (w *writer) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// run writes until the writer is closed and its queue is empty.
func (w *writer) run() {
	var storing sync.WaitGroup
	storing.Go(func() {
		for g := range w.toStore {
			w.append(g)
			w.fromStore <- g
		}
	})
	defer storing.Wait()
	defer close(w.toStore)
	for {
		if w.inFlight == nil {
			w.yield()
		}
		closed := w.prepare()
		switch {
		case w.inFlight != nil:
			select {
			case <-w.wake:
			case g := <-w.fromStore:
				w.complete(g)
			}
		case len(w.next.ops) > 0:
			w.send()
		case closed:
			return
		default:
			<-w.wake
		}
	}
}

// yield lets the callers of the last group run. If they append again at once, their
// ops are in the next group and share its sync. Many callers form two groups that
// take turns.
func (w *writer) yield() {
	for before := -1; ; {
		w.mu.Lock()
		n := len(w.queue)
		w.mu.Unlock()
		if n == before || n >= 2*pipelineFrom {
			return
		}
		before = n
		runtime.Gosched()
	}
}

func (w *writer) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.signal()
}

// prepare moves queued ops into the next group.
func (w *writer) prepare() (closed bool) {
	w.mu.Lock()
	if len(w.queue) > w.lateQueued || w.lateDue || w.closed || len(w.waiting) > 0 {
		w.waiting = append(w.waiting, w.queue...)
		clear(w.queue)
		w.queue, w.bytes, w.taken = w.queue[:0], 0, len(w.waiting)
		if w.lateQueued > 0 {
			w.lateTimer.Stop()
			w.lateQueued, w.lateDue = 0, false
		}
	}
	closed = w.closed
	w.mu.Unlock()
	if len(w.waiting) == 0 {
		return closed
	}
	g := w.next
	switch {
	case len(g.ops) > 0:
	case w.inFlight != nil:
		g.reset(w.inFlight.after + uint64(len(w.inFlight.ops)))
	default:
		g.reset(w.p.position())
	}
	refusal, reserveRefusal := w.j.admission()
	rest := w.waiting[:0]
	for i, o := range w.waiting {
		if len(g.ops) > 0 && (len(g.ops) >= maxGroup || g.bytes+o.size > maxGroupBytes) {
			rest = append(rest, w.waiting[i:]...)
			break
		}
		if o.phase.Load() != opTaken && !o.phase.CompareAndSwap(opQueued, opTaken) {
			continue
		}
		if err := refusal; err != nil {
			if o.rec == nil || len(o.rec.Steps) > 0 { // the op may use half of the space that is kept free
				err = reserveRefusal
			}
			if err != nil {
				o.finish(err)
				continue
			}
		}
		if !w.pending.allows(o) {
			o.phase.Store(opQueued)
			rest = append(rest, o)
			continue
		}
		prior, err := w.admit(o)
		if prior != nil || err != nil {
			o.prior = prior
			o.finish(err)
			continue
		}
		w.add(g, o)
	}
	clear(w.waiting[len(rest):])
	w.waiting = rest
	return closed
}

// admit checks an op. An op that conflicts is checked once more after catching up:
// another hub may have made it possible a moment ago.
func (w *writer) admit(o *op) (*Prior, error) {
	prior, err := w.p.admit(o, &w.pending)
	if !o.checked && !w.j.store.Exclusive() && (errors.Is(err, ErrConflict) || errors.Is(err, ErrFenced)) {
		o.checked = true
		if err := w.p.catchUp(w.j.ctx); err != nil {
			return nil, storeError(w.j.ctx, err)
		}
		return w.p.admit(o, &w.pending)
	}
	return prior, err
}

// add appends o to a group.
func (w *writer) add(g *group, o *op) {
	row := w.p.storeRecord(o, g.after+1+uint64(len(g.ops)))
	g.ops, g.rows = append(g.ops, o), append(g.rows, row)
	g.bytes += o.size
	w.pending.add(w.p, o)
}

// send gives the next group to the store, unless it is empty.
func (w *writer) send() {
	if len(w.next.ops) == 0 {
		return
	}
	w.j.gate.RLock() // a backup stops all writers at one point
	w.inFlight, w.next = w.next, w.spareGroup
	w.p.expect(w.inFlight.ops)
	w.groups.Add(1)
	w.setBusy(true)
	w.toStore <- w.inFlight
}

func (w *writer) setBusy(busy bool) {
	w.mu.Lock()
	w.busy = busy
	w.mu.Unlock()
}

// append has the store append a group.
func (w *writer) append(g *group) {
	ctx, cancel := context.WithTimeout(w.j.ctx, w.j.cfg.Timeout)
	defer cancel()
	defer func() {
		if g.unknown {
			g.rows = nil // the store may still read them
		}
	}()
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		g.err = w.j.store.Append(ctx, w.p.index, g.after, g.rows)
		switch {
		case g.err == nil || errors.Is(g.err, store.ErrConflict):
			return
		case errors.Is(g.err, store.ErrUnknown):
			g.unknown = true
		case !g.unknown:
			g.err = storeError(w.j.ctx, g.err)
			return
		}
		// An exclusive store that gives no answer has failed for good.
		if w.j.store.Exclusive() || sleep.For(ctx, pause) != nil {
			g.err = failBy(ErrUnknown, g.err, "")
			return
		}
	}
}

// complete handles a group that the store has answered, and sends the next one.
// While the store has the next group, the callers of the completed group run.
func (w *writer) complete(g *group) {
	ops := g.ops
	g.ops, w.spareGroup = nil, g
	for i, o := range ops {
		w.pending.remove(o)
		if g.err == nil {
			o.seq = g.after + 1 + uint64(i)
		}
	}
	if g.err == nil {
		w.appended.Add(uint64(len(ops)))
		w.p.feed(ops...)
	}
	w.inFlight = nil
	w.setBusy(false)
	w.j.gate.RUnlock()
	if g.err != nil || w.next.after != w.p.position() { // the next group would follow another record
		w.requeueNext()
	}
	switch {
	case g.err == nil:
		w.prepare()
		if len(w.next.ops) >= pipelineFrom {
			w.send()
		}
		w.finish(ops, nil)
	case errors.Is(g.err, store.ErrConflict):
		w.resolveConflict(ops, g.unknown)
	default:
		w.finish(ops, g.err)
	}
}

// requeueNext dissolves the next group; its ops wait again.
func (w *writer) requeueNext() {
	for _, o := range w.next.ops {
		w.pending.remove(o)
		o.phase.Store(opQueued)
	}
	w.waiting = append(slices.Clone(w.next.ops), w.waiting...)
	w.next.reset(0)
}

func (w *writer) finish(ops []*op, err error) {
	for _, o := range ops {
		o.finish(err)
	}
}

// maxTries bounds the attempts of an op when other hubs append first. The pause
// between them grows by a millisecond: 3 seconds in all.
const maxTries = 80

// resolveConflict reads the records of other hubs. It finishes ops of unknown outcome
// that were recorded; the others are checked and tried again.
func (w *writer) resolveConflict(ops []*op, unknown bool) {
	ctx, cancel := context.WithTimeout(w.j.ctx, w.j.cfg.Timeout)
	defer cancel()
	if err := w.p.catchUp(ctx); err != nil {
		err = storeError(w.j.ctx, err)
		if unknown {
			err = failBy(ErrUnknown, err, "")
		}
		w.finish(ops, err)
		return
	}
	var again []*op
	for _, o := range ops {
		switch at := w.p.outcome(o); {
		case at != 0:
			w.appended.Add(1)
			o.seq = at
			o.finish(nil)
		case o.tries >= maxTries:
			o.finish(fail(ErrBusy, "other hubs appended first, %d times", o.tries))
		default:
			o.tries++
			again = append(again, o)
		}
	}
	if len(again) == 0 {
		return
	}
	if tries := again[0].tries; tries > 1 {
		_ = sleep.For(ctx, time.Duration(tries)*time.Millisecond) // the next try sees its end
	}
	w.waiting = append(again, w.waiting...)
}
