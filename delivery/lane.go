package delivery

import (
	"cmp"
	"slices"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/recorder"
	"github.com/parley-hub/parley/journal"
)

type laneKey struct {
	to           string
	conversation parley.ID
	retries      bool // of dead letters
}

// lane is one (recipient, conversation). It exists while it has work. Dead letters that an operator
// retries have lanes of their own: each is tried once, whether or not the recipient is paused or earlier
// messages wait.
type lane struct {
	key       laneKey
	recipient *recipient
	busy      bool // claimed, in a turn, or queued for one
	items     []*item
	timer     *time.Timer
	firstEnd  time.Time // no item ends before this; zero: no item has an end
}

// recipient is the state of a recipient that has lanes.
type recipient struct {
	lanes  int
	active int
	limit  int // of active
	health Health
	ways   map[string]Health // by [Result.Via]; not those by which it was reached, or never tried
	ready  []*lane
}

// deliveryKey is one message to one recipient.
type deliveryKey struct {
	id parley.ID
	to string
}

// item is one delivery that is not settled.
type item struct {
	position  journal.Position
	id        parley.ID
	to        string
	scope     string
	attempts  int // recorded so far
	tries     int // the attempts that count as tries
	sync      bool
	recorded  time.Time
	notBefore time.Time
	ends      time.Time       // when the message expires, or the deadline of a request passes; zero: never
	message   *parley.Message // nil: read it from the journal
	request   *parley.Message // the request that message answers, if in memory
	size      int64
	recorder  *recorder.Recorder // of the last attempt; under Dispatcher.mu
	exchange  *parley.Exchange   // of an attempt that ended, until its outcome is recorded

	inTurn        bool           // its attempt is being made, or it is being settled
	recordedAhead bool           // its next attempt is recorded already
	outcome       *journal.Entry // the entry that ends it, until it is recorded
	revive        bool           // an operator retried it meanwhile: read its state once more when it is finished
	deadRetry     bool           // an operator retried it as a dead letter; never changed
	elsewhere     bool           // another hub made the last attempt, which may be in flight

	failureUnrecorded bool           // the failure of the last attempt is not recorded
	attemptUncertain  bool           // the journal could not say whether it recorded the next attempt
	uncertainOwner    *journal.Lease // the fence of that attempt
	elsewhereUntil    time.Time      // with elsewhere: when that hub must have recorded its outcome
}

func newItem(v journal.Delivery) *item {
	return &item{position: v.Position, id: v.Message, to: v.To, attempts: v.Attempt, tries: v.Tries(), sync: v.Sync,
		deadRetry: v.Retried,
		recorded:  v.Message.Time(), notBefore: v.Next, ends: endOf(v.Kind, v.Expires, v.Deadline)}
}

func (it *item) key() deliveryKey { return deliveryKey{it.id, it.to} }

// endOf is when an undelivered message is given up.
func endOf(k parley.Kind, expires, deadline time.Time) time.Time {
	if k == parley.Request && !deadline.IsZero() && (expires.IsZero() || deadline.Before(expires)) {
		return deadline
	}
	return expires
}

// suspectAfter failures in a row leave a recipient one active lane at a time.
const suspectAfter = 5

// healthy reports whether a lane is in a turn, and nothing in it has failed; d.mu is
// held.
func (l *lane) healthy() bool {
	return l.busy && !l.recipient.health.Failing() && len(l.items) < maxAhead &&
		(len(l.items) == 0 || l.items[0].notBefore.IsZero())
}

// laneOf finds or makes a lane; d.mu is held.
func (d *Dispatcher) laneOf(key laneKey) *lane {
	l := d.lanes[key]
	if l != nil {
		return l
	}
	r := d.recipients[key.to]
	if r == nil {
		r = &recipient{}
		d.recipients[key.to] = r
	}
	if r.lanes == 0 {
		r.limit = cmp.Or(d.c.Transport.LaneLimit(key.to), d.c.PerRecipient)
	}
	r.lanes++
	l = &lane{key: key, recipient: r}
	d.lanes[key] = l
	return l
}

// lanesOf gives the lanes in which a delivery may be: an item that others overtook, and a nested
// request, have lanes of their own; see setAside and Claim.
func lanesOf(to string, message, conversation parley.ID) []laneKey {
	return []laneKey{{to, message, false}, {to, conversation, false}, {to, message, true}, {to, conversation, true}}
}

func (d *Dispatcher) enqueue(conversation parley.ID, it *item) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || d.released(it.position.Partition) {
		return
	}
	for _, key := range lanesOf(it.to, it.id, conversation) {
		if l := d.lanes[key]; l != nil {
			for _, v := range l.items {
				if v.id == it.id {
					d.track(v.key(), v.position.Partition)
					v.revive = true // it may be about to be finished
					return
				}
			}
		}
	}
	l := d.laneOf(laneKey{it.to, conversation, it.deadRetry})
	d.push(l, it, false)
	if it.attempts > 0 && !it.elsewhere && !it.deadRetry {
		d.noteNext(l.recipient, it.notBefore)
	}
	d.kick(l)
}

// setAside moves the head of a lane, which waits for its next attempt, to a lane of its
// own, so that the items behind it overtake it. d.mu is held.
func (d *Dispatcher) setAside(l *lane) {
	it := l.items[0]
	l.items = slices.Delete(l.items, 0, 1)
	own := d.laneOf(laneKey{it.to, it.id, l.key.retries})
	own.items = append(own.items, it)
	own.noteEnd(it.ends)
	if d.elsewhere[it.key()] == l {
		d.elsewhere[it.key()] = own
	}
	d.kick(own)
}

// push adds an item at a lane's end, or at its head; d.mu is held.
func (d *Dispatcher) push(l *lane, it *item, first bool) {
	if m := it.message; m != nil {
		it.ends = endOf(m.Kind, m.Expires, m.Deadline)
		it.size = int64(m.ContentSize()+len(m.Origin.Raw)) + 512
		if !first && d.heldBytes+it.size > d.c.HeldBytes {
			it.message, it.size = nil, 0
		}
		d.heldBytes += it.size
	}
	d.track(it.key(), it.position.Partition)
	if it.elsewhere {
		d.elsewhere[it.key()] = l
	}
	l.noteEnd(it.ends)
	if first {
		l.items = slices.Insert(l.items, 0, it)
	} else {
		l.items = append(l.items, it)
	}
}

// handlerWaits reports whether a handler has its turn in the lane and itself waits for an
// answer; d.mu is held.
func (d *Dispatcher) handlerWaits(l *lane) bool {
	return slices.ContainsFunc(l.items, func(it *item) bool {
		return it.inTurn && d.c.Transport.Waits(it.id, it.to)
	})
}

// noteEnd keeps firstEnd up to date; d.mu is held.
func (l *lane) noteEnd(end time.Time) {
	if !end.IsZero() && (l.firstEnd.IsZero() || end.Before(l.firstEnd)) {
		l.firstEnd = end
	}
}

// firstEnded finds an item past its end, nil if there is none; d.mu is held.
func (l *lane) firstEnded(now time.Time) *item {
	if l.firstEnd.IsZero() || now.Before(l.firstEnd) {
		return nil
	}
	l.firstEnd = time.Time{}
	for _, it := range l.items {
		l.noteEnd(it.ends)
		if !it.ends.IsZero() && !now.Before(it.ends) {
			return it
		}
	}
	return nil
}

// kick begins a lane's turn if it can. While the recipient is paused or left alone
// after a failure, only items past their end get one; d.mu is held.
func (d *Dispatcher) kick(l *lane) {
	if d.closed || l.busy || len(l.items) == 0 {
		return
	}
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	now := d.c.Now()
	for len(l.items) > 1 && l.items[0].notBefore.After(now) && l.items[0].id != l.key.conversation &&
		d.c.Transport.Retries(l.key.to).Unordered {
		d.setAside(l)
	}
	next := l.items[0].notBefore
	later := next.After(now)
	held := d.c.Transport.Paused
	if l.key.retries {
		held = d.c.Transport.Absent
	}
	paused := !later && held(l.key.to)
	if (later || paused) && l.firstEnded(now) == nil {
		if paused || !l.firstEnd.IsZero() && l.firstEnd.Before(next) {
			next = l.firstEnd
		}
		if !next.IsZero() { // else Kick comes when the recipient is resumed
			l.timer = time.AfterFunc(next.Sub(now), func() {
				d.mu.Lock()
				defer d.mu.Unlock()
				d.kick(l)
			})
		}
		return
	}
	limit := l.recipient.limit
	if l.recipient.health.Failures >= suspectAfter {
		limit = 1
	}
	l.busy = true
	switch head := l.items[0]; {
	case head.sync && d.c.Transport.Nested(head.id, head.to):
		d.start(l)
	case l.recipient.active >= limit:
		l.recipient.ready = append(l.recipient.ready, l)
	case d.active >= d.c.Active:
		d.waiting = append(d.waiting, l)
	default:
		d.start(l)
	}
}

// start begins a lane's turn in the background; d.mu is held.
func (d *Dispatcher) start(l *lane) {
	l.recipient.active++
	d.active++
	d.running.Go(func() {
		then := d.tryHead(l)
		d.release(l)
		if then != nil {
			then()
		}
	})
}

// release ends a lane's turn and lets the next begin. The recipient's other lanes
// come first, in the order in which they were queued.
func (d *Dispatcher) release(l *lane) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l.busy = false
	l.recipient.active--
	d.active--
	d.dropReleased(l)
	d.removeIdle(l)
	if d.closed {
		return
	}
	if r := l.recipient; len(r.ready) > 0 && (r.health.Failures < suspectAfter || r.active == 0) {
		d.kickFirst(&r.ready)
	}
	if len(d.waiting) > 0 && d.active < d.c.Active {
		d.kickFirst(&d.waiting)
	}
	d.kick(l)
}

// kickFirst takes the first lane out of a queue, to whose end kick may add it
// again; d.mu is held.
func (d *Dispatcher) kickFirst(queue *[]*lane) {
	next := (*queue)[0]
	*queue = (*queue)[1:]
	next.busy = false
	d.kick(next)
	d.removeIdle(next)
}

// removeIdle removes a lane without work; d.mu is held.
func (d *Dispatcher) removeIdle(l *lane) {
	if len(l.items) > 0 || l.busy || d.lanes[l.key] != l {
		return
	}
	if l.timer != nil {
		l.timer.Stop()
	}
	delete(d.lanes, l.key)
	l.recipient.lanes--
	d.removeIdleRecipient(l.key.to, l.recipient)
}

func (d *Dispatcher) postpone(it *item, pause time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	it.notBefore = d.c.Now().Add(pause)
	if !it.ends.IsZero() && it.ends.Before(it.notBefore) {
		it.ends = it.notBefore
	}
}

func (d *Dispatcher) endTurn(it *item) {
	d.mu.Lock()
	defer d.mu.Unlock()
	it.inTurn = false
}
