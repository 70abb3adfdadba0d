package delivery

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// claimReply takes the lanes of those to whom a reply is to be brought, if all
// are idle: then the first attempt is recorded with the reply, and needs no
// record of its own.
func (d *Dispatcher) claimReply(it *item, r *Reply) []*Claim {
	if len(r.Open) == 0 || !d.c.Log.Owned(it.position.Partition) {
		return nil
	}
	claims := make([]*Claim, 0, len(r.Open))
	for _, o := range r.Open {
		c := d.Claim(r.Message.ID, o.To, r.Message.Conversation)
		if c == nil {
			for _, c := range claims {
				c.Release()
			}
			return nil
		}
		claims = append(claims, c)
	}
	for i := range r.Open {
		r.Open[i].Attempt = 1
	}
	return claims
}

// unclaim gives the lanes back when a reply could not be recorded. What is
// recorded in its place opens deliveries that wait.
func (d *Dispatcher) unclaim(claims []*Claim, outcome *journal.Entry) {
	for _, c := range claims {
		c.Release()
	}
	outcome.Open = slices.Clone(outcome.Open) // the journal may still have the other
	for i := range outcome.Open {
		outcome.Open[i].Attempt = 0
	}
}

// carryReply makes the attempts that were recorded with a reply: the last one
// here, others beside it.
func (d *Dispatcher) carryReply(claims []*Claim, r *Reply, a Attempt) {
	for i, c := range claims {
		a.To = r.Open[i].To
		if i < len(claims)-1 {
			c.Go(a)
			continue
		}
		c.Run(d.ctx, a)
	}
}

// adopt takes up the attempts that were recorded with a reply of which it was
// not known that it was recorded.
func (d *Dispatcher) adopt(e *journal.Entry) {
	if e.Message == nil {
		return
	}
	for _, o := range e.Open {
		if v, ok := d.c.Log.Delivery(e.Message.ID, o.To); ok && v.State == parley.Delivering && d.c.Log.Owned(v.Position.Partition) {
			d.enqueue(laneKey{v.To, v.Conversation}, itemOf(v))
		}
	}
}

const (
	// lateness is how long the outcome of a message that was sent may wait for
	// others to be recorded with. If the hub is stopped by force meanwhile, the
	// message is sent once more, to who recognises it.
	lateness = 25 * time.Millisecond
	maxLate  = 256  // outcomes in one record
	mostLate = 8192 // more are recorded one by one, by who brings them
)

// late holds the outcomes that are to be recorded together, by partition. One
// flush is under way, or set off, while there are any.
type late struct {
	steps map[int][]journal.Step
	count int
	timer *time.Timer
}

// noteSent notes that a message was sent; false if too many wait already.
func (d *Dispatcher) noteSent(it *item, to string, losses []parley.Loss) bool {
	step := journal.Step{Message: it.id, To: to, State: parley.Delivered, Attempt: it.attempts, Losses: losses}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.late.count >= mostLate || d.closed {
		return false
	}
	it.late = true
	d.keep(it.position.Partition, step)
	if d.late.timer == nil {
		d.work.Add(1)
		d.late.timer = time.AfterFunc(lateness, d.flush)
	} else if d.late.count == maxLate {
		d.hasten()
	}
	return true
}

func (d *Dispatcher) keep(partition int, steps ...journal.Step) {
	if d.late.steps == nil {
		d.late.steps = map[int][]journal.Step{}
	}
	d.late.steps[partition] = append(d.late.steps[partition], steps...)
	d.late.count += len(steps)
}

// hasten lets a flush that is set off begin now; d.mu is held.
func (d *Dispatcher) hasten() {
	if d.late.timer != nil && d.late.timer.Stop() {
		d.late.timer.Reset(0)
	}
}

// flush records what was noted.
func (d *Dispatcher) flush() {
	defer d.work.Done()
	d.mu.Lock()
	all := d.late.steps
	d.late = late{}
	d.mu.Unlock()
	for partition, steps := range all {
		for len(steps) > 0 {
			n := min(len(steps), maxLate)
			if err := d.recordSent(steps[:n]); err != nil {
				d.c.Logger.Warn("cannot record that messages were sent; trying again", "messages", len(steps), "error", err)
				d.mu.Lock()
				d.keep(partition, steps...)
				if d.late.timer == nil && !d.closed {
					d.work.Add(1)
					d.late.timer = time.AfterFunc(d.c.Retry.First, d.flush)
				}
				d.mu.Unlock()
				break
			}
			steps = steps[n:]
		}
	}
}

// recordSent records outcomes together, or each alone if one of them does not
// hold any more: an operator or the message's expiry came between.
func (d *Dispatcher) recordSent(steps []journal.Step) error {
	ctx := context.WithoutCancel(d.ctx)
	_, err := d.c.Log.Append(ctx, journal.Entry{Steps: steps})
	switch {
	case err == nil:
		d.recordedSent(steps)
		return nil
	case !errors.Is(err, journal.ErrConflict) && !hopeless(err):
		return err
	}
	for i := range steps {
		_, err := d.c.Log.Append(ctx, journal.Entry{Steps: steps[i : i+1]})
		switch {
		case hopeless(err):
			d.c.Logger.Error("the outcome of a delivery is not one that can be recorded", "message", steps[i].Message, "to", steps[i].To, "error", err)
		case err != nil && !errors.Is(err, journal.ErrConflict):
			return err
		}
		d.recordedSent(steps[i : i+1])
	}
	return nil
}

// recordedSent ends the work on what was sent.
func (d *Dispatcher) recordedSent(steps []journal.Step) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range steps {
		delete(d.mine, delivered{s.Message, s.To})
	}
}
