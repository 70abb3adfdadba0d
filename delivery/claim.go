package delivery

import (
	"context"
	"errors"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// A Claim is the right to record a message with its first attempt. It must be
// ended by Release, Run or Go.
type Claim struct {
	d   *Dispatcher
	l   *lane // idle before, and held since; nil: the attempt is made when the message's turn comes
	key deliveryKey
}

// maxAhead is how many deliveries may be in a lane for another to be recorded with
// its attempt ahead of its turn. If the hub is killed before that attempt is made,
// its outcome is unknown and the next attempt repeats it: so only recipients that
// deduplicate get messages this way.
const maxAhead = 16

// Claim takes the lane of (recipient, conversation) for the message id if the lane is
// idle and the recipient can take one more. If the lane is in a turn, the message may
// still be recorded with its first attempt, provided that the attempt follows soon
// and may be repeated, and the sender does not wait for the outcome. Else Claim gives
// nil: the message is recorded as waiting, and Recorded queues it.
//
// A handler may call another one, which calls the first one: then each waits for the
// other. So a nested request, see [Transport], does not wait for room, and not behind a
// handler that itself waits for an answer: it has a lane of its own.
func (d *Dispatcher) Claim(partition int, id parley.ID, to string, conversation parley.ID, waits bool) *Claim {
	if d.c.Transport.Paused(to) {
		return nil
	}
	lane, key := laneKey{to, conversation, false}, deliveryKey{id, to}
	nested := waits && d.c.Transport.Nested(id, to)
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.recipients[to]
	switch {
	case nested && !d.closed && !d.released(partition):
		if l := d.lanes[lane]; l != nil {
			if !d.handlerWaits(l) {
				return nil
			}
			lane = laneKey{to, id, false}
		}
	case d.closed || d.released(partition) || d.active >= d.c.Active || r != nil && r.health.Failures >= suspectAfter:
		return nil
	case d.lanes[lane] != nil:
		if waits || !d.lanes[lane].healthy() {
			return nil
		}
		d.mu.Unlock()
		repeatable := d.c.Transport.Repeatable(parley.ID{}, to)
		d.mu.Lock()
		if l := d.lanes[lane]; !repeatable || d.closed || d.released(partition) || l != nil && !l.healthy() {
			return nil
		}
		d.track(key, partition)
		d.recordedAhead[key] = false
		return &Claim{d, nil, key}
	case r != nil && r.active >= r.limit:
		return nil
	}
	l := d.laneOf(lane)
	l.busy = true
	l.recipient.active++
	d.active++
	d.running.Add(1) // until Release or Run has ended: Close waits for it
	d.track(key, partition)
	return &Claim{d, l, key}
}

// To is the recipient of the message.
func (c *Claim) To() string { return c.key.to }

// Release gives the lane back untouched: err, which may be nil, says why the message was
// not recorded.
//
// If it is [journal.ErrUnknown], the record may appear after all, much later in a cluster
// that elects a leader. Then the attempt is made when its turn comes, or handed back if
// another hub owns the partition. If the sender waited for the outcome, it was told that
// the outcome is unknown, and the delivery is given up.
func (c *Claim) Release(err error) {
	d := c.d
	d.mu.Lock()
	_, ahead := d.recordedAhead[c.key]
	if c.l == nil && !ahead { // it was recorded after all, and is queued
		d.mu.Unlock()
		return
	}
	uncertain := errors.Is(err, journal.ErrUnknown)
	delete(d.recordedAhead, c.key)
	if uncertain {
		d.recordedAhead[c.key] = true
		d.boundUncertain()
	}
	d.untrack(c.key)
	d.mu.Unlock()
	if c.l != nil {
		d.release(c.l)
		defer d.running.Done()
	}
	if !uncertain {
		return
	}
	v, ok := d.c.Log.Delivery(c.key.id, c.key.to)
	if !ok || v.State != parley.Delivering || !d.confirmAhead(c.key, v.Position, v.Sync) {
		return
	}
	it := newItem(v) // its record has appeared meanwhile
	it.recordedAhead = true
	d.enqueue(v.Conversation, it)
}

// maxUncertain bounds the uncertain attempts in memory. Any beyond is forgotten: its
// sender got an error, and the attempt counts as one of unknown outcome.
const maxUncertain = 1 << 14

// forgetAhead ends the claim of a delivery that was recorded without an attempt after
// all, by a second append.
func (d *Dispatcher) forgetAhead(key deliveryKey) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.recordedAhead, key)
}

// boundUncertain forgets one uncertain attempt if there are too many; d.mu is held.
func (d *Dispatcher) boundUncertain() {
	if len(d.recordedAhead) <= maxUncertain {
		return
	}
	for key, uncertain := range d.recordedAhead {
		if uncertain {
			delete(d.recordedAhead, key)
			return
		}
	}
}

// Run makes the first attempt, which was recorded with the message, in the calling
// goroutine, and returns its result once that is recorded. The claim knows the
// recipient and the number of the attempt. If the attempt failed and will be repeated,
// later attempts go on in the background. Where the lane was not idle, Run does
// nothing: the message is queued.
func (c *Claim) Run(ctx context.Context, a Attempt) Result {
	d, l := c.d, c.l
	if l == nil {
		return Result{}
	}
	defer d.running.Done()
	it := &item{position: a.Position, id: a.Message.ID, to: c.key.to, scope: a.Scope, attempts: 1, tries: 1,
		sync: a.Sync, recorded: d.c.Now(), message: a.Message, request: a.Request, inTurn: true}
	d.mu.Lock()
	d.push(l, it, true)
	d.mu.Unlock()
	r := d.attempt(ctx, l, it)
	d.endTurn(it)
	d.release(l)
	if r.then != nil {
		r.then()
	}
	return r
}

// Go is Run in the background.
func (c *Claim) Go(a Attempt) {
	if c.l != nil {
		go c.Run(c.d.ctx, a)
	}
}

// confirmAhead ends the claim of a delivery that is recorded with an attempt ahead
// of its turn, and reports whether it is to be queued. The attempt is handed back if
// the partition is not owned any more, or if the sender waited and has gone.
func (d *Dispatcher) confirmAhead(key deliveryKey, at journal.Position, waited bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.recordedAhead[key]; !ok {
		return false
	}
	delete(d.recordedAhead, key)
	d.track(key, at.Partition) // it is not if its append was uncertain
	if waited || d.released(at.Partition) || !d.c.Log.Owned(at.Partition) {
		d.handBack(&item{id: key.id, to: key.to, position: at, attempts: 1, sync: waited})
		return false
	}
	return true
}
