package delivery

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/sleep"
	"github.com/parley-hub/parley/journal"
)

// A partition goes to another hub in two steps. First this hub starts no more
// attempts there and drops its waiting items, which the next owner queues. Then it
// waits a while for the attempts in flight. An attempt that takes longer goes on
// here: the next owner leaves it alone while this hub lives and the attempt is in
// time.

type partitionState struct {
	tracked  int           // of Dispatcher.tracked
	released bool          // no attempt starts here until Resume
	idle     chan struct{} // closed when tracked is 0; nil while HandOver does not wait
}

// released reports whether a partition is not dispatched here any more; d.mu is held.
func (d *Dispatcher) released(partition int) bool {
	p := d.partitions[partition]
	return p != nil && p.released
}

func (d *Dispatcher) partition(partition int) *partitionState {
	p := d.partitions[partition]
	if p == nil {
		p = &partitionState{}
		d.partitions[partition] = p
	}
	return p
}

// track notes that this process has a delivery in hand; d.mu is held.
func (d *Dispatcher) track(key deliveryKey, partition int) {
	if _, ok := d.tracked[key]; !ok {
		d.partition(partition).tracked++
		d.tracked[key] = partition
	}
}

// tracks reports whether this process has a delivery in hand, or will when Recorded
// gets its record.
func (d *Dispatcher) tracks(key deliveryKey) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.tracked[key]
	_, ahead := d.recordedAhead[key]
	return ok || ahead
}

// untrack ends track; d.mu is held.
func (d *Dispatcher) untrack(key deliveryKey) {
	partition, ok := d.tracked[key]
	if !ok {
		return
	}
	delete(d.tracked, key)
	delete(d.elsewhere, key)
	p := d.partitions[partition]
	p.tracked--
	if p.tracked == 0 && p.idle != nil {
		close(p.idle)
		p.idle = nil
	}
	d.prunePartition(partition)
}

func (d *Dispatcher) prunePartition(partition int) {
	if p := d.partitions[partition]; p.tracked == 0 && !p.released && p.idle == nil {
		delete(d.partitions, partition)
	}
}

// Lose ends the dispatching of a partition that another hub owns now. Attempts in
// flight go on, recorded attempts that were not made are handed back, and waiting
// deliveries are for the next owner. Lose does not block.
func (d *Dispatcher) Lose(partition int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.partition(partition).released = true
	for _, l := range d.lanes {
		d.dropReleased(l)
		d.removeIdle(l)
	}
}

// HandOver is Lose, and waits until nothing of the partition is in flight here
// and all outcomes are recorded, for [Config.HandOver] at most.
func (d *Dispatcher) HandOver(ctx context.Context, partition int) {
	d.Lose(partition)
	d.mu.Lock()
	p := d.partition(partition)
	if p.tracked == 0 {
		d.mu.Unlock()
		return
	}
	if p.idle == nil {
		p.idle = make(chan struct{})
	}
	idle := p.idle
	d.mu.Unlock()
	limit := time.NewTimer(d.c.HandOver)
	defer limit.Stop()
	select {
	case <-idle:
	case <-limit.C:
		d.mu.Lock()
		n := p.tracked
		d.mu.Unlock()
		d.c.Logger.Info("a partition is handed over while attempts are in flight; they go on here", "partition",
			partition, "attempts", n)
	case <-ctx.Done():
	}
}

// dropReleased removes the items of released partitions from a lane, but for those
// in flight and those whose outcome is to be recorded; d.mu is held.
func (d *Dispatcher) dropReleased(l *lane) {
	l.items = slices.DeleteFunc(l.items, func(it *item) bool {
		if it.inTurn || it.outcome != nil || !d.released(it.position.Partition) {
			return false
		}
		d.dropItem(it)
		return true
	})
}

// dropItem ends the work on an item that was removed from its lane; d.mu is held.
func (d *Dispatcher) dropItem(it *item) {
	d.heldBytes -= it.size
	if it.recordedAhead || it.attemptUncertain || it.failureUnrecorded {
		d.handBack(it)
	} else {
		d.untrack(it.key())
	}
}

// dropNotOwned removes an item whose turn came after its partition was lost.
func (d *Dispatcher) dropNotOwned(l *lane, it *item) {
	d.mu.Lock()
	l.items = slices.DeleteFunc(l.items, func(v *item) bool { return v == it })
	d.dropItem(it)
	d.mu.Unlock()
	if d.c.Log.Owned(it.position.Partition) { // again, and Resume passed over the tracked item
		d.revive(it.id, it.to)
	}
}

// handBack records that an attempt which is recorded, or may be, is not made here. A
// delivery whose sender waited and has gone is given up. The item stays tracked until
// then, and is queued again if this hub owns the partition; d.mu is held.
func (d *Dispatcher) handBack(it *item) {
	step := journal.Step{Message: it.id, To: it.to, State: parley.Waiting, Attempt: it.attempts, Postponed: true,
		Error: parley.Refuse(parley.Unavailable, "the attempt was not made; moved to another hub")}
	if it.attemptUncertain {
		step.Attempt++
	}
	if it.sync {
		step.State, step.Error = parley.Abandoned, parley.Refuse(parley.Cancelled,
			"the caller was told that the outcome is unknown before the message was recorded")
	}
	e := journal.Entry{Steps: []journal.Step{step}}
	d.running.Go(func() {
		for {
			_, err := d.c.Log.Append(context.WithoutCancel(d.ctx), e)
			if err == nil || errors.Is(err, journal.ErrConflict) || neverRecordable(err) || d.ctx.Err() != nil {
				break
			}
			d.c.Logger.Warn("cannot hand back an attempt; trying again", "message", it.id, "to", it.to, "error", err)
			_ = sleep.For(d.ctx, d.c.Retry.First) // cut short by Close, it leaves one more try
		}
		d.mu.Lock()
		d.untrack(it.key())
		d.mu.Unlock()
		d.revive(it.id, it.to) // Resume passed over it if the partition came back meanwhile
	})
}

// unknownAfterStop is the error of an attempt whose hub is gone, or cannot record.
func unknownAfterStop(to string) *parley.Error {
	return parley.Refuse(parley.OutcomeUnknown,
		"the hub stopped during an attempt, or could not record its outcome, and %q does not deduplicate", to)
}

// abandon ends a request whose caller waited at a hub that is gone. A caller that
// repeats it gets the error that its outcome is unknown.
func (d *Dispatcher) abandon(ctx context.Context, it *item) error {
	_, err := d.settle(ctx, it, settlement{state: parley.Abandoned,
		err: parley.Refuse(parley.Cancelled, "the hub where the caller waited is gone")})
	return err
}

// recheckEvery is how often this hub checks whether another hub, which makes an
// attempt of this hub's partition, still lives. A record of that hub is noticed at
// once.
const recheckEvery = 2 * time.Second

// attemptGrace is how long another hub has to record the outcome of its attempt: from
// the limit of the attempt, or from when this hub could have read it, if that is later.
const attemptGrace = 5 * time.Second

// leaveElsewhere has an item wait for another hub, which began an attempt at a time.
func (d *Dispatcher) leaveElsewhere(it *item, k parley.Kind, deadline, begun time.Time) {
	now, until := d.c.Now(), begun.Add(d.c.Attempt)
	if k == parley.Request && !deadline.IsZero() {
		until = deadline
	}
	if until.Before(now) {
		until = now
	}
	it.elsewhere, it.notBefore, it.elsewhereUntil = true, now.Add(recheckEvery), until.Add(attemptGrace)
}

// attemptedElsewhere reports whether another hub that lives began the last attempt, and
// has recorded no outcome.
func (d *Dispatcher) attemptedElsewhere(v journal.Delivery) bool {
	return v.State == parley.Delivering && d.c.Log.LivesElsewhere(v.Node, v.Changed)
}

// recheckElsewhere gives a turn at once to the items of steps that other hubs
// recorded, if those hubs made their attempts; d.mu is held.
func (d *Dispatcher) recheckElsewhere(steps []journal.Step) {
	if len(d.elsewhere) == 0 {
		return
	}
	for i := range steps {
		l := d.elsewhere[deliveryKey{steps[i].Message, steps[i].To}]
		if l == nil {
			continue
		}
		for _, it := range l.items {
			if it.id == steps[i].Message && it.elsewhere {
				it.notBefore = time.Time{}
			}
		}
		d.kick(l)
	}
}

// resumeElsewhere reads the outcome of an attempt that another hub made, and
// reports whether the delivery is this hub's now.
func (d *Dispatcher) resumeElsewhere(l *lane, it *item) bool {
	v, ok := d.c.Log.Delivery(it.id, it.to)
	switch {
	case !ok || v.State != parley.Waiting && v.State != parley.Delivering:
		d.finish(l, it, nil)
		return false
	case d.attemptedElsewhere(v) && d.c.Now().Before(it.elsewhereUntil):
		d.postpone(it, recheckEvery)
		return false
	}
	d.mu.Lock()
	it.elsewhere, it.attempts, it.tries, it.notBefore = false, v.Attempt, v.Tries(), v.Next
	delete(d.elsewhere, it.key())
	d.mu.Unlock()
	switch {
	case v.State == parley.Waiting:
		return !v.Next.After(d.c.Now())
	case it.sync:
		d.finish(l, it, d.abandon(d.ctx, it))
		return false
	case d.repeatable(it):
		return true
	}
	d.finish(l, it, d.giveUp(d.ctx, it, parley.Dead, unknownAfterStop(it.to)))
	return false
}
