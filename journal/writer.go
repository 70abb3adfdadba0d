package journal

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parley-hub/parley/journal/store"
)

// An op is one append on its way: from the caller into a writer's queue, in a
// group to the store, and back.
type op struct {
	rec  *logRecord // nil: a lease
	data payload    // as encoded
	tag  string
	id   opID
	size int

	about store.About
	after uint64 // of a chain or lease: the last record with its tag
	fence *Lease

	// reserve says that the op finishes what was begun, and may use half of
	// the space that is kept free.
	reserve bool
	late    bool // see Entry

	phase atomic.Int32
	done  chan struct{}

	seq   uint64
	prior *Prior
	err   error
	tries int // after conflicts with other nodes

	checked bool // against all that was recorded when it seemed to conflict
}

// opID tells which append made a record, so that one of unknown outcome can be
// recognised in the log.
type opID struct{ run, number uint64 }

const (
	opQueued = iota
	opTaken
	opAbandoned // its caller left before it was taken
)

func (o *op) finish(err error) {
	o.err = err
	close(o.done)
}

// pending is what a writer has checked and the view does not hold yet: it lies in
// the store, or is the next group. What it bears on waits until its end is known,
// so that the next group holds whatever becomes of the one before.
type pending struct {
	opens   int
	keys    map[hash16]bool
	targets map[target]*pendingDelivery
	tags    map[string]bool
	long    map[hash16]int
}

// pendingDelivery is a delivery as pending steps leave it.
type pendingDelivery struct {
	delivery
	blocked bool // settled, or about to be opened: nothing can follow yet
	steps   int
}

// allows reports whether nothing pending changes what o is checked against, or o
// can follow it.
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

// add adds what p has admitted.
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

// group is what the store gets at once.
type group struct {
	ops     []*op
	rows    []store.Record
	after   uint64 // the record that it follows
	bytes   int
	unknown bool // the store could not say whether it recorded it
	err     error
}

func (g *group) reset(after uint64) {
	clear(g.rows)
	*g = group{ops: g.ops[:0], rows: g.rows[:0], after: after}
}

// A writer appends to one partition; of this process it is the only one.
//
// It checks a group of entries against everything up to the last record it
// knows, and has the store append the group behind that record. While the store
// does so, the writer checks and seals the next group; it is appended as soon as
// the one before has been recorded. If another process was sooner, the writer
// reads what is new and checks again.
type writer struct {
	j *Journal
	p *partition

	mu         sync.Mutex
	queue      []*op
	bytes      int
	taken      int         // taken from the queue, and not in a group
	lateQueued int         // of queue, those that nobody waits for
	lateTimer  *time.Timer // ends the time that they may wait where there are no others
	lateDue    bool        // it has
	busy       bool
	closed     bool
	wake       chan struct{}

	// Of the goroutine that runs:
	waiting    []*op // taken from the queue, and not in a group
	pending    pending
	next       *group
	inFlight   *group // nil: the store has none
	spareGroup *group
	toStore    chan *group // to the store
	fromStore  chan *group // and back

	appended atomic.Uint64
	groups   atomic.Uint64
}

func newWriter(j *Journal, p *partition) *writer {
	return &writer{
		j: j, p: p, wake: make(chan struct{}, 1), next: new(group), spareGroup: new(group),
		toStore: make(chan *group, 1), fromStore: make(chan *group, 1),
		pending: pending{
			keys: map[hash16]bool{}, targets: map[target]*pendingDelivery{}, tags: map[string]bool{}, long: map[hash16]int{},
		},
	}
}

// pipelineFrom is how many must wait for the writer to check them while the store has a
// group. A smaller group is not worth a sync of its own: it waits for the callers
// of the one before.
const pipelineFrom = 64

// Bounds of a group, and of the bytes that wait in a queue.
const (
	maxGroup       = 512
	maxGroupBytes  = 8 << 20
	maxQueuedBytes = 64 << 20
)

// maxLateWait is how long what is late waits for others.
const maxLateWait = 5 * time.Millisecond

// submit queues o and waits for its end.
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

// flushLate has what was late recorded, with others or not.
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

// yield lets the callers of the group before run first: those that append
// again at once are then in the next group, and share its sync. Where there are
// many they make two groups in turn.
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

// prepare adds to the next group what may be in it.
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
			if o.reserve {
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
		if prior == nil && err == nil {
			err = w.add(g, o)
		}
		if prior != nil || err != nil {
			o.prior = prior
			o.finish(err)
		}
	}
	clear(w.waiting[len(rest):])
	w.waiting = rest
	return closed
}

// admit checks an op. What seems to conflict here may have been made possible by
// another node a moment ago.
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

// add makes o the last of a group.
func (w *writer) add(g *group, o *op) error {
	row, err := w.p.storeRecord(o, g.after+1+uint64(len(g.ops)))
	if err != nil {
		return err
	}
	g.ops, g.rows = append(g.ops, o), append(g.rows, row)
	g.bytes += o.size
	w.pending.add(w.p, o)
	return nil
}

// send gives the next group to the store, if there is one.
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
		// Nobody else writes to an exclusive store: it has failed for good.
		if w.j.store.Exclusive() || !sleep(ctx, pause) {
			g.err = failBy(ErrUnknown, g.err, "")
			return
		}
	}
}

// complete ends a group that the store has given back, and sends the next one. The
// callers of the one run while the store has the other.
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
	if g.err != nil || w.next.after != w.p.position() { // it was made to follow this one
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

// requeueNext takes the next group apart.
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

// maxTries is how often an op is tried that other nodes have in the way, with a
// pause that grows by a millisecond: 3 seconds in all.
const maxTries = 80

// resolveConflict reads what others have appended. Of ops whose outcome is unknown, it
// finds those that were recorded; the others are checked and tried again.
func (w *writer) resolveConflict(ops []*op, unknown bool) {
	ctx, cancel := context.WithTimeout(w.j.ctx, w.j.cfg.Timeout)
	defer cancel()
	if err := w.p.catchUp(ctx); err != nil {
		if err = storeError(w.j.ctx, err); unknown {
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
			o.finish(fail(ErrBusy, "other hubs were sooner %d times", o.tries))
		default:
			o.tries++
			again = append(again, o)
		}
	}
	if len(again) == 0 {
		return
	}
	if tries := again[0].tries; tries > 1 {
		sleep(ctx, time.Duration(tries)*time.Millisecond)
	}
	w.waiting = append(again, w.waiting...)
}

// sleep waits for a time, or gives false when ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
