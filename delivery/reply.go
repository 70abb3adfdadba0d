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
		c := d.Claim(it.position.Partition, r.Message.ID, o.To, r.Message.Conversation, false)
		if c == nil && len(r.Open) == 1 && o.To != r.Message.From && d.awaitIdle(laneKey{o.To, r.Message.Conversation}) {
			c = d.Claim(it.position.Partition, r.Message.ID, o.To, r.Message.Conversation, false)
		}
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

// replyWaits is how long a reply waits to be recorded for the one message that
// is under way to who asked, often the word that the request was taken: it could
// not be brought sooner. If the hub is stopped by force meanwhile, the outcome of
// the request's attempt is unknown.
const replyWaits = 10 * time.Millisecond

// awaitIdle waits until what is under way in a lane has ended, if that is all
// there is in it; false if it is not, or takes longer.
func (d *Dispatcher) awaitIdle(key laneKey) bool {
	d.mu.Lock()
	l := d.lanes[key]
	if d.closed || l == nil || !l.flows() || len(l.items) > 1 {
		d.mu.Unlock()
		return false
	}
	if l.idle == nil {
		l.idle = make(chan struct{})
	}
	idle := l.idle
	d.mu.Unlock()
	timer := time.NewTimer(replyWaits)
	defer timer.Stop()
	select {
	case <-idle:
		return true
	case <-timer.C:
		return false
	}
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
		v, ok := d.c.Log.Delivery(e.Message.ID, o.To)
		if !ok || v.State != parley.Delivering || d.works(v.Message, v.To) || d.c.Log.LivesElsewhere(v.Node, v.Changed) {
			continue
		}
		if d.c.Log.Owned(v.Position.Partition) {
			d.enqueue(laneKey{v.To, v.Conversation}, itemOf(v))
			continue
		}
		of := delivered{v.Message, v.To}
		d.mu.Lock()
		d.take(of, v.Position.Partition)
		d.handBack(of, itemOf(v))
		d.mu.Unlock()
	}
}

const (
	// lateness is how long it may wait for others to be recorded with that a
	// message was delivered, where nobody waits to hear so. If the hub is stopped
	// by force meanwhile, the outcome of the attempt is unknown: who recognises
	// repeats has the message once more; to others it goes once more or, at most
	// once, is a dead letter although they have it. So it is short.
	lateness = 10 * time.Millisecond
	maxLate  = 256  // outcomes in one record
	mostLate = 8192 // more are recorded one by one, by who brings them
)

// made is a delivery of which it is still to be recorded that it was made.
type made struct {
	step journal.Step
	over bool // another outcome was recorded, such as the answer
}

// late holds what is to be recorded together, by partition. One flush is under
// way, or set off, while there is any.
type late struct {
	list  map[int][]*made
	count int
	timer *time.Timer
	of    map[delivered]*made // also of those that a flush is at work on
}

// noteMade notes that a message was delivered; false if that is to be recorded
// now. An answer that is recorded first is outcome enough: then this never is.
func (d *Dispatcher) noteMade(it *item, to string, losses []parley.Loss) bool {
	if it.message.Kind == parley.Request && len(losses) > 0 && d.c.Log.Shared() {
		return false // the node to which the answer comes is to know what was lost
	}
	key := delivered{it.id, to}
	m := &made{step: journal.Step{Message: it.id, To: to, State: parley.Delivered, Attempt: it.attempts, Losses: losses}}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.late.count >= mostLate || d.closed {
		return false
	}
	if d.mine[key] {
		return true // the answer was sooner
	}
	it.late = true
	if d.late.of == nil {
		d.late.of = map[delivered]*made{}
	}
	d.late.of[key] = m
	d.keep(it.position.Partition, m)
	if d.late.timer == nil {
		d.work.Add(1)
		d.late.timer = time.AfterFunc(lateness, d.flush)
	} else if d.late.count == maxLate {
		d.hasten()
	}
	return true
}

// Made reports whether a message was delivered, with these losses, and the
// journal does not say so yet.
func (d *Dispatcher) Made(id parley.ID, to string) (losses []parley.Loss, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if m := d.late.of[delivered{id, to}]; m != nil {
		return m.step.Losses, true
	}
	return nil, false
}

// outdone takes back what was noted of deliveries, or will be, that a record
// settles; d.mu is held.
func (d *Dispatcher) outdone(steps []journal.Step) {
	for i := range steps {
		if !steps[i].State.Settled(parley.Request) {
			continue
		}
		key := delivered{steps[i].Message, steps[i].To}
		if m := d.late.of[key]; m != nil {
			m.over = true
			delete(d.late.of, key)
			d.drop(key)
		} else if _, ok := d.mine[key]; ok {
			d.mine[key] = true
		}
	}
}

func (d *Dispatcher) keep(partition int, list ...*made) {
	if d.late.list == nil {
		d.late.list = map[int][]*made{}
	}
	d.late.list[partition] = append(d.late.list[partition], list...)
	d.late.count += len(list)
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
	all := d.late.list
	d.late.list, d.late.count, d.late.timer = nil, 0, nil
	d.mu.Unlock()
	for partition, list := range all {
		for len(list) > 0 {
			n := min(len(list), maxLate)
			if err := d.recordMade(list[:n]); err != nil {
				d.c.Logger.Warn("cannot record that messages were delivered; trying again", "messages", len(list), "error", err)
				d.mu.Lock()
				d.keep(partition, list...)
				if d.late.timer == nil && !d.closed {
					d.work.Add(1)
					d.late.timer = time.AfterFunc(d.c.Retry.First, d.flush)
				}
				d.mu.Unlock()
				break
			}
			list = list[n:]
		}
	}
}

// left gives the steps that no other outcome has come before.
func (d *Dispatcher) left(list []*made) []journal.Step {
	steps := make([]journal.Step, 0, len(list))
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, m := range list {
		if !m.over {
			steps = append(steps, m.step)
		}
	}
	return steps
}

// recordMade records outcomes together, or each alone if one of them does not
// hold any more: an answer, an operator or the message's expiry came between.
func (d *Dispatcher) recordMade(list []*made) error {
	ctx := context.WithoutCancel(d.ctx)
	for tried := 0; ; {
		steps := d.left(list)
		if len(steps) == 0 {
			return nil
		}
		if len(steps) == tried {
			break // it is not known which of them it is
		}
		_, err := d.c.Log.Append(ctx, journal.Entry{Steps: steps})
		switch {
		case err == nil, errors.Is(err, journal.ErrConflict) && len(steps) == 1:
			d.recordedMade(steps)
			return nil
		case !errors.Is(err, journal.ErrConflict) && !hopeless(err):
			return err
		}
		tried = len(steps)
	}
	steps := d.left(list)
	for i := range steps {
		_, err := d.c.Log.Append(ctx, journal.Entry{Steps: steps[i : i+1]})
		switch {
		case hopeless(err):
			d.c.Logger.Error("the outcome of a delivery is not one that can be recorded", "message", steps[i].Message, "to", steps[i].To, "error", err)
		case err != nil && !errors.Is(err, journal.ErrConflict):
			return err
		}
		d.recordedMade(steps[i : i+1])
	}
	return nil
}

// recordedMade ends the work on what was delivered.
func (d *Dispatcher) recordedMade(steps []journal.Step) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range steps {
		key := delivered{s.Message, s.To}
		delete(d.late.of, key)
		d.drop(key)
	}
}
