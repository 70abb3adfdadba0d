package delivery

import (
	"context"
	"errors"
	"slices"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// settlement is the end of a delivery, which is one record.
type settlement struct {
	state  parley.DeliveryState
	err    *parley.Error // why, unless it was delivered
	reply  *Reply        // recorded with it; may be nil
	losses []parley.Loss
	late   bool // it may be recorded with the entries of the next milliseconds
}

// settle records the end of a delivery. The item keeps the entry until finish.
func (d *Dispatcher) settle(ctx context.Context, it *item, end settlement) (journal.Position, error) {
	step := journal.Step{Message: it.id, To: it.to, State: end.state, Attempt: it.attempts,
		Error:  end.err.Stated(),
		Losses: end.losses, Exchange: it.exchange}
	e := &journal.Entry{Late: end.late}
	if r := end.reply; r != nil {
		e.Message, e.Open, step.Reply = r.Message, r.Open, r.Message.ID
		step.Losses = slices.Concat(end.losses, r.Losses)
	}
	e.Steps = []journal.Step{step}
	it.outcome = e
	return d.record(ctx, e)
}

// giveUp settles without success, together with the failure that the sender of a
// request gets.
func (d *Dispatcher) giveUp(ctx context.Context, it *item, state parley.DeliveryState, why *parley.Error) error {
	m := it.message
	if m == nil {
		r, err := d.c.Log.Read(ctx, it.position)
		if err != nil {
			return err
		}
		m = r.Message
	}
	_, err := d.settle(ctx, it, settlement{state: state, err: why,
		reply: d.c.Transport.FailureReply(m, it.position, it.to, why)})
	return err
}

// fail settles a request whose caller waits: answered with a failure, or dead
// where no failure can be sent. It gives that failure.
func (d *Dispatcher) fail(ctx context.Context, it *item, why *parley.Error) (*Reply, error) {
	end := settlement{state: parley.Dead, err: why}
	if end.reply = d.c.Transport.FailureReply(it.message, it.position, it.to, why); end.reply != nil {
		end.state = parley.Answered
	}
	_, err := d.settle(ctx, it, end)
	return end.reply, err
}

// finishAnswered finishes an item after settle gave err. A reply that could not be
// recorded is not passed on; if it never can be, the sender gets a failure in its
// place.
func (d *Dispatcher) finishAnswered(l *lane, it *item, r Result, err error) Result {
	if neverRecordable(err) {
		r.Err = parley.Refuse(parley.AsError(err).Code, "the answer is not one that the hub can record").Because(err)
		if errors.Is(err, journal.ErrTooLarge) {
			r.Err = r.Err.With(parley.ByLimit, parley.PeerAnswerLarge, err.Error())
		}
		r.Reply, err = d.fail(context.WithoutCancel(d.ctx), it, r.Err)
	}
	d.finish(l, it, err)
	if err == nil {
		return r
	}
	r.Reply = nil
	if errors.Is(err, journal.ErrConflict) {
		r.Err = parley.Refuse(parley.Conflict, "the request was ended before this reply").Because(err)
	} else {
		r.Err = parley.Fail(parley.Unavailable, err, "the hub could not record the reply")
	}
	return r
}

// neverRecordable reports that no later try to record this will succeed.
func neverRecordable(err error) bool {
	return errors.Is(err, journal.ErrTooLarge) || errors.Is(err, journal.ErrInvalid) || errors.Is(err, journal.ErrScope)
}

// finish takes a settled item out of its lane. If its end could not be recorded, it
// stays at the lane's head: the attempt is not made again, and its outcome is
// recorded as soon as the journal takes it. A waiting caller got an error instead of
// the answer, so that error is recorded.
func (d *Dispatcher) finish(l *lane, it *item, err error) {
	if err != nil && !errors.Is(err, journal.ErrConflict) && d.ctx.Err() == nil {
		d.c.Logger.Error("cannot record the outcome of a delivery", "message", it.id, "to", it.to, "error", err)
		if !neverRecordable(err) {
			if it.sync && it.outcome != nil {
				step := journal.Step{Message: it.id, To: it.to, State: parley.Abandoned, Attempt: it.attempts,
					Exchange: it.exchange, Error: parley.Fail(parley.Unavailable, nil, "the hub could not record the reply")}
				it.outcome = &journal.Entry{Steps: []journal.Step{step}}
			}
			d.postpone(it, d.c.Retry.First)
			return
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	at := slices.Index(l.items, it)
	if at < 0 {
		return
	}
	l.items = slices.Delete(l.items, at, at+1)
	d.heldBytes -= it.size
	d.untrack(it.key())
	if it.revive && !d.closed {
		d.running.Go(func() { d.revive(it.id, it.to) })
	}
}
