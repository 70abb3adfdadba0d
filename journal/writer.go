package journal

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// An op is one append on its way: from the caller into a writer's queue, in a
// group to the engine, and back.
type op struct {
	msgs []*outgoing // stored together; the first one is what the position tells
	size int
	rec  *sealed // of the log
	kv   *change // of the state
	id   opID

	// reserve says that the op finishes what was begun, and may use half of
	// the space that is kept free.
	reserve bool

	phase atomic.Int32
	done  chan struct{}

	seq   uint64
	prior *Prior
	err   error
	tries int // after conflicts with other nodes

	arrived uint64 // where the stream has it, as followed; see writer.flying
	resent  bool   // it was sent to a leader before, which is gone

	main outgoing // of most ops the only message
	one  [1]*outgoing
}

// only makes o an op of one message, to which others may be added.
func (o *op) only(m outgoing) *outgoing {
	o.main = m
	o.one[0] = &o.main
	o.msgs = o.one[:]
	return &o.main
}

// opID tells which append made a message, so that one of unknown outcome can
// be recognised in the log.
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

// A machine is what a writer writes for: a partition of the log or the state.
type machine interface {
	// admit decides about an op just before it is published: true to publish
	// it. It finishes the op itself to refuse it, and leaves it alone to have
	// it in the next group.
	admit(o *op, g *group) verdict
	// fed applies an op that was stored, embedded engine only.
	fed(o *op)
	// replay applies a message of the stream and tells which op made it.
	replay(s *stored) (opID, error)
	// moveTo tells that the stream holds nothing more up to seq.
	moveTo(seq uint64)
	// position is the last sequence applied.
	position() uint64
	// beyond gives a channel that is closed when more than seq was applied,
	// nil when it was.
	beyond(seq uint64) <-chan struct{}
	// refused explains a compare-and-set that failed; nil to try it again.
	refused(ctx context.Context, l *link, o *op) error
}

type verdict int

const (
	publish verdict = iota
	later
	finished
)

// group is what a writer is about to commit, and what in it excludes others.
type group struct {
	ops     []*op
	msgs    int
	bytes   int
	several bool // an op has several messages: only a batch can hold it
	keys    map[hash16]bool
	targets map[target]bool
	written map[string]bool
	opens   int
	long    map[hash16]int
}

func (g *group) reset() {
	g.ops, g.msgs, g.bytes, g.opens, g.several = g.ops[:0], 0, 0, 0, false
	clear(g.keys)
	clear(g.targets)
	clear(g.written)
	clear(g.long)
}

// writer is the only one to publish for its machine.
type writer struct {
	j      *Journal
	m      machine
	stream string
	sides  bool // the stream lies in the engine's other part

	syncer *syncer // of the log's streams on disk

	mu     sync.Mutex
	queue  []*op
	bytes  int
	wake   chan struct{}
	closed bool

	group    group
	deferred []*op
	stored   []*op // by the engine, in order; not finished yet
	plain    []*outgoing
	pub      *publisher

	flyMu    sync.Mutex
	flying   map[opID]*op  // external engine: published and not yet finished
	leader   string        // of the stream in a cluster, and since when, as it was last heard of
	before   string        // leader, when the group at hand was published
	followed atomic.Uint64 // up to where it is known what has landed

	appended atomic.Uint64
	groups   atomic.Uint64
}

func newWriter(j *Journal, m machine, stream string, sides bool) *writer {
	return &writer{
		j: j, m: m, stream: stream, sides: sides, wake: make(chan struct{}, 1),
		flying: make(map[opID]*op),
		group:  group{keys: map[hash16]bool{}, targets: map[target]bool{}, written: map[string]bool{}, long: map[hash16]int{}},
	}
}

// plainUpTo is how many waiting appends are published one by one; more become
// an atomic batch. A batch saves only where the engine syncs by itself: there a
// plain publish costs one sync each, and a batch some ten of them however much
// it holds. Elsewhere it only costs more than its messages.
func (w *writer) plainUpTo() int {
	if w.sides && w.j.cfg.Durability == Disk && !w.j.external() {
		return 10
	}
	return w.j.cfg.MaxBatch
}

// submit queues o and waits for its end.
func (w *writer) submit(ctx context.Context, o *op) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	o.done = make(chan struct{})
	w.mu.Lock()
	l := w.j.link.Load()
	switch {
	case w.closed:
		w.mu.Unlock()
		return fail(ErrClosed, "")
	case l == nil || l.failed():
		w.mu.Unlock()
		return w.j.downError()
	case len(w.queue) >= w.j.cfg.MaxQueued || w.bytes+o.size > w.j.cfg.MaxQueuedBytes && len(w.queue) > 0:
		n := len(w.queue)
		w.mu.Unlock()
		return fail(ErrBusy, "%d appends wait for the disk; raise MaxQueued or slow the senders down", n)
	}
	w.queue = append(w.queue, o)
	w.bytes += o.size
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
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
		return failBy(ErrUnknown, ctx.Err(), "the caller left while the engine had it")
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
			ops = w.gather(ops)
			if len(w.group.ops) > 0 {
				w.commit(w.group.ops)
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
	if w.syncer == nil {
		return
	}
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
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// gather makes a group of what may be committed at once, and gives the rest.
func (w *writer) gather(ops []*op) (rest []*op) {
	g := &w.group
	g.reset()
	refusal, reserveRefusal := w.j.admission()
	w.deferred = w.deferred[:0]
	for i, o := range ops {
		n := len(o.msgs)
		if len(g.ops) > 0 && (g.msgs+n > w.j.cfg.MaxBatch || g.bytes+o.size > w.j.cfg.MaxBatchBytes) {
			return append(w.deferred, ops[i:]...)
		}
		if o.phase.Load() != opTaken && !o.phase.CompareAndSwap(opQueued, opTaken) {
			continue
		}
		if o.resent {
			if at := w.landed(o); at != 0 { // what was sent first
				o.seq = at
				w.drop(o, nil)
				continue
			}
		}
		if err := refusal; err != nil {
			if o.reserve {
				err = reserveRefusal
			}
			if err != nil {
				w.drop(o, err)
				continue
			}
		}
		v := later
		if g.free(o) {
			v = w.m.admit(o, g)
		}
		switch v {
		case publish:
			for _, m := range o.msgs {
				g.written[m.subject] = true
			}
			if len(o.msgs) > 1 {
				g.several = true
			}
			g.ops = append(g.ops, o)
			g.msgs += n
			g.bytes += o.size
		case later:
			o.phase.Store(opQueued)
			w.deferred = append(w.deferred, o)
		case finished:
			if o.resent {
				w.land([]*op{o})
			}
		}
	}
	return w.deferred
}

// drop finishes an op that is not to be published, or not again.
func (w *writer) drop(o *op, err error) {
	o.finish(err)
	if o.resent {
		w.land([]*op{o})
	}
}

// free reports whether nothing in the group writes what o compares.
func (g *group) free(o *op) bool {
	for _, m := range o.msgs {
		if m.expect != nil && g.written[m.expect.subject] {
			return false
		}
	}
	if o.rec != nil {
		if o.rec.Keyed && g.keys[o.rec.key] {
			return false
		}
		if len(g.targets) == 0 {
			return true
		}
		if named := o.rec.targets(); named != nil {
			for _, t := range named.steps {
				if g.targets[t] {
					return false
				}
			}
			for _, t := range named.opens {
				if g.targets[t] {
					return false
				}
			}
		}
	}
	return true
}

// commit has the engine store ops, and finishes each of them.
func (w *writer) commit(ops []*op) {
	w.j.gate.RLock() // a backup stops all writers at one point
	defer w.j.gate.RUnlock()
	w.groups.Add(1)
	l := w.j.link.Load()
	if l == nil || l.failed() {
		w.refuseDown(ops)
		return
	}
	if w.pub == nil || w.pub.whole != l {
		pub, err := newPublisher(l, w.sides)
		if err != nil {
			w.j.engineFailed(l, err)
			w.refuseDown(ops)
			return
		}
		if w.pub = pub; w.j.external() {
			pub.deposed = w.deposed
		}
	}
	w.stored = w.stored[:0]
	if w.j.external() {
		w.fly(ops)
		defer w.land(ops)
	}
	var unknown []*op
	if w.group.several || w.group.msgs > w.plainUpTo() {
		unknown = w.commitBatch(l, ops)
	} else {
		unknown = w.commitPlain(l, ops)
	}
	if len(w.stored) > 0 && w.syncer != nil {
		if err := w.syncer.sync(); err != nil {
			w.j.syncFailed(l, err)
			unknown = append(w.stored, unknown...)
			w.stored = nil
		}
	}
	for _, o := range w.stored {
		w.appended.Add(1)
		if w.j.external() {
			w.await(o)
			continue
		}
		w.m.fed(o)
		o.finish(nil)
	}
	if len(unknown) > 0 {
		w.resolve(l, unknown)
	}
}

// stillThere takes those ops whose callers did not leave.
func (w *writer) stillThere(ops []*op) (out []*op) {
	for _, o := range ops {
		if o.phase.Load() == opTaken || o.phase.CompareAndSwap(opQueued, opTaken) {
			out = append(out, o)
		}
	}
	return out
}

func (w *writer) refuseDown(ops []*op) {
	err := w.j.downError()
	for _, o := range ops {
		o.finish(err)
	}
}

// commitPlain publishes one by one. It gives those whose outcome is unknown.
func (w *writer) commitPlain(l *link, ops []*op) (unknown []*op) {
	w.plain = w.plain[:0]
	for _, o := range ops {
		w.plain = append(w.plain, o.msgs[0])
	}
	acks := w.pub.plain(w.plain, w.j.cfg.Timeout)
	var again []*op
	for i, o := range ops {
		switch a := acks[i]; {
		case !a.arrived:
			unknown = append(unknown, o)
		case a.err == nil && !a.duplicate:
			w.store(o, a.seq)
		case a.err == nil:
			w.duplicate(l, o, a.seq)
		case a.err.conflict():
			if w.explain(l, o) {
				again = append(again, o)
			}
		case w.passing(a) && o.retry():
			again = append(again, o)
		default:
			o.finish(w.j.engineError(a))
		}
	}
	w.again(again)
	return unknown
}

// commitBatch publishes ops as one batch, and splits it when the engine
// refuses it for one of them.
func (w *writer) commitBatch(l *link, ops []*op) (unknown []*op) {
	var msgs []*outgoing
	for _, o := range ops {
		msgs = append(msgs, o.msgs...)
	}
	a := w.pub.batch(msgs, w.j.cfg.Timeout)
	switch {
	case !a.arrived:
		return ops
	case a.err == nil:
		seq := a.seq - uint64(len(msgs)) + 1
		for _, o := range ops {
			w.store(o, seq)
			seq += uint64(len(o.msgs))
		}
		return nil
	case w.passing(a):
		var again []*op
		for _, o := range ops {
			if o.retry() {
				again = append(again, o)
			} else {
				o.finish(w.j.engineError(a))
			}
		}
		w.again(again)
		return nil
	case a.nobody:
		for _, o := range ops {
			o.finish(w.j.engineError(a))
		}
		return nil
	case len(ops) == 1:
		o := ops[0]
		switch {
		case a.err.conflict():
			if w.explain(l, o) {
				w.again(ops)
			}
		case a.err.ErrCode == codeDuplicate && len(o.msgs) == 1:
			return w.commitPlain(l, ops)
		case a.err.ErrCode == codeDuplicate:
			w.duplicate(l, o, 0)
		default:
			o.finish(w.j.engineError(a))
		}
		return nil
	}
	// One of them is guilty. Those that compare or may be duplicates go alone,
	// the rest together; where all are alike, halves find it.
	var alone, rest []*op
	for _, o := range ops {
		if o.conditional() {
			alone = append(alone, o)
		} else {
			rest = append(rest, o)
		}
	}
	if len(alone) == 0 {
		half := len(ops) / 2
		unknown = w.commitBatch(l, ops[:half])
		if len(unknown) > 0 {
			return append(unknown, ops[half:]...)
		}
		return w.commitBatch(l, ops[half:])
	}
	if len(rest) > 0 {
		if unknown = w.commitBatch(l, rest); len(unknown) > 0 {
			return append(unknown, alone...)
		}
	}
	for i, o := range alone {
		one := alone[i : i+1]
		if len(o.msgs) > 1 {
			unknown = w.commitBatch(l, one)
		} else {
			unknown = w.commitPlain(l, one)
		}
		if len(unknown) > 0 {
			return alone[i:]
		}
	}
	return nil
}

// passing reports whether a refusal, of which nothing was stored, will pass: the
// stream has no leader just now, or other nodes have something in flight.
func (w *writer) passing(a ack) bool {
	return w.j.external() && w.j.link.Load().nc.IsConnected() &&
		(a.nobody || a.err.ErrCode == codeInFlight || a.err.ErrCode == codeTooManyFlying)
}

func (o *op) conditional() bool {
	for _, m := range o.msgs {
		if m.expect != nil || m.msgID != "" {
			return true
		}
	}
	return false
}

// store notes that the engine has an op.
func (w *writer) store(o *op, seq uint64) {
	o.seq = seq
	w.stored = append(w.stored, o)
}

// explain finishes an op whose compare-and-set failed, or reports that it may
// succeed after all.
func (w *writer) explain(l *link, o *op) (again bool) {
	ctx, cancel := context.WithTimeout(w.j.ctx, w.j.cfg.Timeout)
	defer cancel()
	if o.resent {
		// Perhaps it was sooner itself.
		last, _, err := l.tail(ctx, w.stream)
		if err == nil && w.followedTo(ctx, last) {
			if at := w.landed(o); at != 0 {
				w.store(o, at)
				return false
			}
		}
	}
	if err := w.m.refused(ctx, l, o); err != nil {
		o.finish(err)
		return false
	}
	return true
}

// maxTries is how often an op is tried that other nodes or a change of leader
// have in the way, with a pause that grows by a millisecond: 3 seconds in all.
const maxTries = 80

// retry counts another try.
func (o *op) retry() bool {
	o.tries++
	return o.tries <= maxTries
}

// again puts ops back at the head of the queue, after a pause.
func (w *writer) again(ops []*op) {
	if len(ops) == 0 {
		return
	}
	timer := time.NewTimer(time.Duration(ops[0].tries) * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.j.ctx.Done():
	}
	w.mu.Lock()
	w.queue = append(append(make([]*op, 0, len(ops)+len(w.queue)), ops...), w.queue...)
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// resolve finds out what became of ops that the engine did not answer.
func (w *writer) resolve(l *link, ops []*op) {
	if w.j.external() {
		w.resolveExternal(ops, w.pub.lost)
		return
	}
	w.j.engineFailed(l, errors.New("it does not answer"))
	waiting, _ := w.take()
	w.refuseDown(w.stillThere(waiting))
	byID := make(map[opID]*op, len(ops))
	for _, o := range ops {
		byID[o.id] = o
	}
	timer := time.NewTimer(w.j.cfg.Timeout)
	defer timer.Stop()
	for {
		next, changed := w.j.awaitLink(l)
		if next == nil {
			select {
			case <-changed:
				continue
			case <-timer.C:
				// The writer goes on waiting, its callers do not.
				for _, o := range ops {
					o.finish(failBy(ErrUnknown, w.j.downError(), "the engine failed while it had it"))
				}
				ops, byID = nil, nil
				continue
			case <-w.j.ctx.Done():
				for _, o := range ops {
					o.finish(failBy(ErrUnknown, ErrClosed, "the engine failed while it had it"))
				}
				return
			}
		}
		err := w.catchUp(next, func(id opID, seq uint64) {
			if o := byID[id]; o != nil {
				o.seq = seq
				o.finish(nil)
				delete(byID, id)
			}
		})
		if err != nil {
			w.j.engineFailed(next, err)
			l = next
			continue
		}
		for _, o := range byID {
			o.finish(fail(ErrBusy, "the engine failed before it was recorded, and was reopened; try again"))
		}
		return
	}
}

// catchUp applies what the stream holds and the machine has not seen.
func (w *writer) catchUp(l *link, found func(opID, uint64)) error {
	if w.sides {
		l = l.side
	}
	if w.syncer != nil {
		if err := w.syncer.sync(); err != nil {
			w.j.syncFailed(l, err)
			return err
		}
	}
	state, err := l.last(w.j.ctx, w.stream)
	if err != nil {
		return err
	}
	var bad error
	err = l.pages(w.j.ctx, w.stream, w.m.position()+1, state.LastSeq, func(s *stored) bool {
		id, err := w.m.replay(s)
		if err != nil {
			bad = err
			return false
		}
		found(id, s.seq)
		return true
	})
	if err := errors.Join(err, bad); err != nil {
		return err
	}
	w.m.moveTo(state.LastSeq)
	return nil
}
