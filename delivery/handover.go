package delivery

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// A partition goes to another hub in two steps: this one begins nothing there any
// more and forgets what waits, which the next owner takes up; then it lets end
// what is in flight, for a while. What takes longer goes on here all the same:
// as long as this hub lives and the attempt is in time, the next owner leaves it.

// part is a partition.
type part struct {
	open  int           // of mine
	given bool          // nothing is begun here any more, until Resume
	idle  chan struct{} // closed when open is 0; nil while nobody waits
}

// given reports whether a partition is not dispatched here any more; d.mu is held.
func (d *Dispatcher) given(partition int) bool {
	p := d.parts[partition]
	return p != nil && p.given
}

func (d *Dispatcher) part(partition int) *part {
	p := d.parts[partition]
	if p == nil {
		p = &part{}
		d.parts[partition] = p
	}
	return p
}

// take notes that this process is at work on a delivery; d.mu is held.
func (d *Dispatcher) take(of delivered, partition int) {
	if _, ok := d.mine[of]; !ok {
		d.part(partition).open++
		d.in[of] = partition
	}
	d.mine[of] = struct{}{}
}

// drop ends that; d.mu is held.
func (d *Dispatcher) drop(of delivered) {
	if _, ok := d.mine[of]; !ok {
		return
	}
	partition := d.in[of]
	delete(d.mine, of)
	delete(d.in, of)
	delete(d.others, of)
	p := d.parts[partition]
	if p.open--; p.open == 0 && p.idle != nil {
		close(p.idle)
		p.idle = nil
	}
	d.forgetPart(partition)
}

func (d *Dispatcher) forgetPart(partition int) {
	if p := d.parts[partition]; p.open == 0 && !p.given && p.idle == nil {
		delete(d.parts, partition)
	}
}

// Lose ends the dispatching of a partition that is not this hub's any more.
// Attempts in flight go on, those that were not made are handed back, and what
// waits is for the next owner. It waits for nothing.
func (d *Dispatcher) Lose(partition int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.part(partition).given = true
	for _, l := range d.lanes {
		d.shed(l)
		d.leave(l)
	}
}

// HandOver is Lose, and waits until nothing of the partition is in flight here
// and all outcomes are recorded, for [Config.HandOver] at most.
func (d *Dispatcher) HandOver(ctx context.Context, partition int) {
	d.Lose(partition)
	d.mu.Lock()
	p := d.part(partition)
	if p.open == 0 {
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
		n := p.open
		d.mu.Unlock()
		d.c.Logger.Info("a partition is handed over while attempts are in flight; they go on here", "partition", partition, "attempts", n)
	case <-ctx.Done():
	}
}

// shed takes out of a lane what is of partitions that are not dispatched here any
// more, but for what is in flight or has an outcome to be recorded; d.mu is held.
func (d *Dispatcher) shed(l *lane) {
	l.items = slices.DeleteFunc(l.items, func(it *item) bool {
		if it.turn || it.outcome != nil || !d.given(it.position.Partition) {
			return false
		}
		d.letGo(l, it)
		return true
	})
}

// letGo ends the work on an item that is out of its lane; d.mu is held.
func (d *Dispatcher) letGo(l *lane, it *item) {
	d.held -= it.size
	of := delivered{it.id, l.key.to}
	if it.begun || it.unsure || it.owed {
		d.handBack(of, it)
	} else {
		d.drop(of)
	}
}

// notOwned lets an item go whose turn came after its partition was lost.
func (d *Dispatcher) notOwned(l *lane, it *item) {
	d.mu.Lock()
	l.items = slices.DeleteFunc(l.items, func(v *item) bool { return v == it })
	d.letGo(l, it)
	d.mu.Unlock()
	if d.c.Log.Owned(it.position.Partition) { // again, and what is here was passed over
		d.revive(it.id, l.key.to)
	}
}

// ended notes that the turn of an item is over.
func (d *Dispatcher) ended(it *item) {
	d.mu.Lock()
	defer d.mu.Unlock()
	it.turn = false
}

const movedBefore = "the attempt was not made; moved to another hub"

// handBack records that an attempt which is recorded, or may be, is not made
// here; d.mu is held. of stays mine until then.
func (d *Dispatcher) handBack(of delivered, it *item) {
	attempt := it.attempts
	if it.unsure {
		attempt++
	}
	e := journal.Entry{Steps: []journal.Step{{Message: of.id, To: of.to, State: parley.Waiting, Attempt: attempt,
		Postponed: true, Error: parley.Refuse(parley.Unavailable, movedBefore)}}}
	d.work.Add(1)
	go func() {
		defer d.work.Done()
		for {
			_, err := d.c.Log.Append(context.WithoutCancel(d.ctx), e)
			if err == nil || errors.Is(err, journal.ErrConflict) || hopeless(err) || d.ctx.Err() != nil {
				break
			}
			d.c.Logger.Warn("cannot hand back an attempt; trying again", "message", of.id, "to", of.to, "error", err)
			pause := time.NewTimer(d.c.Retry.First)
			select {
			case <-pause.C:
			case <-d.ctx.Done():
				pause.Stop()
			}
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.drop(of)
	}()
}

// interrupted records what became of an attempt that the end of this hub cut
// short.
func (d *Dispatcher) interrupted(ctx context.Context, l *lane, it *item, r Result) {
	d.mu.Lock()
	moved := d.given(it.position.Partition)
	d.mu.Unlock()
	text := "the hub was stopped during the attempt"
	if moved {
		text += "; moved to another hub"
	}
	if r.Unknown && !d.c.AtLeastOnce && !d.c.Carrier.Repeatable(it.id, l.key.to) {
		err := parley.Refuse(parley.OutcomeUnknown, "%s; %q may have had the message and does not recognise repeats", text, l.key.to)
		d.finish(l, it, d.giveUp(ctx, it, l.key.to, parley.Dead, err.Because(r.Err)))
		return
	}
	step := journal.Step{Message: it.id, To: l.key.to, State: parley.Waiting, Attempt: it.attempts, Postponed: true,
		Error: parley.Refuse(parley.Unavailable, "%s", text).Because(r.Err), Losses: r.Losses}
	_, err := d.c.Log.Append(ctx, journal.Entry{Steps: []journal.Step{step}})
	if err != nil && !errors.Is(err, journal.ErrConflict) {
		d.c.Logger.Warn("cannot record that an attempt was cut short", "message", it.id, "to", l.key.to, "error", err)
	}
	d.finish(l, it, nil)
}

// stopped is what became of an attempt whose hub is gone.
func stopped(to string) *parley.Error {
	return parley.Refuse(parley.OutcomeUnknown, "the hub was stopped during an attempt, and %q does not recognise repeats", to)
}

// abandon ends a request whose caller waited at a hub that is gone. Whoever comes
// with it again is told that its outcome is unknown.
func (d *Dispatcher) abandon(ctx context.Context, it *item, to string) error {
	return d.settle(ctx, it, to, parley.Abandoned, parley.Refuse(parley.Cancelled, "the hub where the caller waited is gone"), nil)
}

// lookAgain is how often it is looked whether a hub is alive that is at work on a
// delivery of this one's partition. What it records is noticed at once.
const lookAgain = 2 * time.Second

// attemptGrace is how much longer than it may take an attempt is waited for: its
// outcome is to be recorded.
const attemptGrace = 5 * time.Second

// atWorkElsewhere reports whether another hub is making the attempt that is
// recorded last.
func (d *Dispatcher) atWorkElsewhere(v journal.Delivery) bool {
	if v.State != parley.Delivering || !d.c.Log.LivesElsewhere(v.Node, v.Changed) {
		return false
	}
	until := v.Changed.Add(d.c.Attempt)
	if v.Kind == parley.Request && !v.Deadline.IsZero() {
		until = v.Deadline
	}
	return d.c.Now().Before(until.Add(attemptGrace))
}

// heard looks at once at what other hubs were at work on; d.mu is held.
func (d *Dispatcher) heard(steps []journal.Step) {
	if len(d.others) == 0 {
		return
	}
	for i := range steps {
		l := d.others[delivered{steps[i].Message, steps[i].To}]
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

// comesBack sees what became of an attempt that another hub made, and reports
// whether the delivery is for this one now.
func (d *Dispatcher) comesBack(l *lane, it *item) bool {
	v, ok := d.c.Log.Delivery(it.id, l.key.to)
	switch {
	case !ok || v.State != parley.Waiting && v.State != parley.Delivering:
		d.finish(l, it, nil)
		return false
	case d.atWorkElsewhere(v):
		d.later(it, lookAgain)
		return false
	}
	d.mu.Lock()
	it.elsewhere, it.attempts, it.tries, it.notBefore = false, v.Attempt, v.Tries(), v.Next
	delete(d.others, delivered{it.id, l.key.to})
	d.mu.Unlock()
	if v.State == parley.Waiting {
		return !v.Next.After(d.c.Now())
	}
	if it.sync {
		d.finish(l, it, d.abandon(d.ctx, it, l.key.to))
		return false
	}
	if d.c.AtLeastOnce || d.c.Carrier.Repeatable(v.Message, v.To) {
		return true
	}
	d.finish(l, it, d.giveUp(d.ctx, it, l.key.to, parley.Dead, stopped(l.key.to)))
	return false
}
