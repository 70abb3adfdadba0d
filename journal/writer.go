package journal

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parley-hub/parley/journal/store"
)

// An op is one append on its way: from the caller into a writer's queue, in a
// group to the store, and back.
type op struct {
	rec  *sealed // nil: a lease
	data []byte  // as encoded
	tag  string
	id   opID
	size int

	after uint64 // of a chain or lease: the last record with its tag
	fence *Lease

	// reserve says that the op finishes what was begun, and may use half of
	// the space that is kept free.
	reserve bool

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
	opGone // its caller left before it was taken
)

func (o *op) finish(err error) {
	o.err = err
	close(o.done)
}

// group is what a writer is about to commit, and what in it excludes others.
type group struct {
	ops     []*op
	bytes   int
	opens   int
	keys    map[hash16]bool
	targets map[target]bool
	tags    map[string]bool
	long    map[hash16]int
}

func newGroup() group {
	return group{keys: map[hash16]bool{}, targets: map[target]bool{}, tags: map[string]bool{}, long: map[hash16]int{}}
}

func (g *group) reset() {
	g.ops, g.bytes, g.opens = g.ops[:0], 0, 0
	clear(g.keys)
	clear(g.targets)
	clear(g.tags)
	clear(g.long)
}

// free reports whether nothing in the group changes what o is checked against.
func (g *group) free(o *op) bool {
	if o.tag != "" && g.tags[o.tag] || o.fence != nil && g.tags[o.fence.tag] {
		return false
	}
	if o.rec == nil {
		return true
	}
	if o.rec.Keyed && g.keys[o.rec.key] {
		return false
	}
	if named := o.rec.targets(); named != nil && len(g.targets) > 0 {
		for _, list := range [][]target{named.steps, named.opens} {
			for _, t := range list {
				if g.targets[t] {
					return false
				}
			}
		}
	}
	return true
}

func (g *group) add(o *op) {
	g.ops = append(g.ops, o)
	g.bytes += o.size
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
	if named := r.targets(); named != nil {
		for _, list := range [][]target{named.steps, named.opens} {
			for _, t := range list {
				g.targets[t] = true
			}
		}
	}
}

// writer appends to one partition; of this process it is the only one.
//
// It checks a group of entries against everything up to the last record it
// knows, and has the store append the group behind that record. If another
// process was sooner, it reads what is new and checks again.
type writer struct {
	j *Journal
	p *partition

	mu     sync.Mutex
	queue  []*op
	bytes  int
	wake   chan struct{}
	closed bool

	group    group
	deferred []*op
	rows     []store.Record

	appended atomic.Uint64
	groups   atomic.Uint64
}

func newWriter(j *Journal, p *partition) *writer {
	return &writer{j: j, p: p, wake: make(chan struct{}, 1), group: newGroup()}
}

// submit queues o and waits for its end.
func (w *writer) submit(ctx context.Context, o *op) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	o.done = make(chan struct{})
	w.mu.Lock()
	switch {
	case w.closed:
		w.mu.Unlock()
		return fail(ErrClosed, "")
	case len(w.queue) >= w.j.cfg.MaxQueued || w.bytes+o.size > w.j.cfg.MaxQueuedBytes && len(w.queue) > 0:
		n := len(w.queue)
		w.mu.Unlock()
		return fail(ErrBusy, "%d appends wait for the disk; raise MaxQueued or slow the senders down", n)
	}
	w.queue = append(w.queue, o)
	w.bytes += o.size
	w.mu.Unlock()
	w.rouse()
	select {
	case <-o.done:
		return o.err
	case <-ctx.Done():
	}
	if o.phase.CompareAndSwap(opQueued, opGone) {
		return ctx.Err()
	}
	select {
	case <-o.done:
		return o.err
	default:
		return failBy(ErrUnknown, ctx.Err(), "the caller left while the append was under way")
	}
}

func (w *writer) rouse() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// run writes until the writer is closed and its queue is empty.
func (w *writer) run() {
	for {
		w.giveWay()
		ops, closed := w.take()
		if len(ops) == 0 {
			if closed {
				return
			}
			<-w.wake
			continue
		}
		for len(ops) > 0 {
			after := w.p.position()
			ops = w.gather(ops)
			if len(w.group.ops) > 0 {
				w.commit(w.group.ops, after)
			}
			if len(ops) > 0 {
				more, _ := w.take()
				ops = append(ops, more...)
			}
		}
	}
}

// giveWay lets the callers of the group before run first: those that append
// again at once are then in the next group, and share its sync.
func (w *writer) giveWay() {
	for before := -1; ; {
		w.mu.Lock()
		n := len(w.queue)
		w.mu.Unlock()
		if n == before || n >= w.j.cfg.MaxBatch {
			return
		}
		before = n
		runtime.Gosched()
	}
}

func (w *writer) take() (ops []*op, closed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	ops, w.queue = w.queue, nil
	w.bytes = 0
	return ops, w.closed
}

func (w *writer) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.rouse()
}

// gather makes a group of what may be committed at once, and gives the rest.
func (w *writer) gather(ops []*op) (rest []*op) {
	g := &w.group
	g.reset()
	refusal, reserveRefusal := w.j.admission()
	w.deferred = w.deferred[:0]
	for i, o := range ops {
		if len(g.ops) > 0 && (len(g.ops) >= w.j.cfg.MaxBatch || g.bytes+o.size > w.j.cfg.MaxBatchBytes) {
			return append(w.deferred, ops[i:]...)
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
		if !g.free(o) {
			o.phase.Store(opQueued)
			w.deferred = append(w.deferred, o)
			continue
		}
		switch prior, err := w.admit(o); {
		case err != nil:
			o.finish(err)
		case prior != nil:
			o.prior = prior
			o.finish(nil)
		default:
			g.add(o)
		}
	}
	return w.deferred
}

// admit checks an op. What seems to conflict here may have been made possible by
// another node a moment ago.
func (w *writer) admit(o *op) (*Prior, error) {
	prior, err := w.p.admit(o, &w.group)
	if !o.checked && !w.j.store.Exclusive() && (errors.Is(err, ErrConflict) || errors.Is(err, ErrFenced)) {
		o.checked = true
		if err := w.p.catchUp(w.j.ctx); err != nil {
			return nil, storeError(w.j.ctx, err)
		}
		return w.p.admit(o, &w.group)
	}
	return prior, err
}

// commit appends ops behind a record, and finishes each of them.
func (w *writer) commit(ops []*op, after uint64) {
	w.j.gate.RLock() // a backup stops all writers at one point
	defer w.j.gate.RUnlock()
	w.groups.Add(1)
	w.rows = w.rows[:0]
	for i, o := range ops {
		row, err := w.p.row(o, after+1+uint64(i))
		if err != nil {
			w.refuse(ops, err)
			return
		}
		w.rows = append(w.rows, row)
	}
	w.p.expect(ops)
	defer w.p.expect(nil)
	ctx, cancel := context.WithTimeout(w.j.ctx, w.j.cfg.Timeout)
	defer cancel()
	unknown := false
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		err := w.j.store.Append(ctx, w.p.index, after, w.rows)
		switch {
		case err == nil:
			for i, o := range ops {
				w.appended.Add(1)
				o.seq = after + 1 + uint64(i)
				w.p.feed(o.seq, o.tag, o.rec)
				o.finish(nil)
			}
			return
		case errors.Is(err, store.ErrConflict):
			w.overtaken(ctx, ops, unknown)
			return
		case errors.Is(err, store.ErrUnknown):
			unknown = true
			defer func() { w.rows = nil }() // the store may still read them
		case !unknown:
			w.refuse(ops, storeError(ctx, err))
			return
		}
		// Nobody else writes to an exclusive store: it has failed for good.
		if w.j.store.Exclusive() || !await(ctx, pause) {
			w.refuse(ops, failBy(ErrUnknown, err, ""))
			return
		}
	}
}

func (w *writer) refuse(ops []*op, err error) {
	for _, o := range ops {
		o.finish(err)
	}
}

// maxTries is how often an op is tried that other nodes have in the way, with a
// pause that grows by a millisecond: 3 seconds in all.
const maxTries = 80

// overtaken reads what others have appended. Of ops whose outcome is unknown, it
// finds those that were recorded; the others are checked and tried again.
func (w *writer) overtaken(ctx context.Context, ops []*op, unknown bool) {
	if err := w.p.catchUp(ctx); err != nil {
		if err = storeError(ctx, err); unknown {
			err = failBy(ErrUnknown, err, "")
		}
		w.refuse(ops, err)
		return
	}
	var again []*op
	for _, o := range ops {
		switch at := w.p.found(o); {
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
		await(ctx, time.Duration(tries)*time.Millisecond)
	}
	w.mu.Lock()
	w.queue = append(again, w.queue...)
	w.mu.Unlock()
	w.rouse()
}

// await waits for a time, or gives false when ctx ends first.
func await(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
