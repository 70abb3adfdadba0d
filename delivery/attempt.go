package delivery

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// tryHead makes the next attempt of a lane's head. An item that is past its end is
// given up first, wherever it stands. The caller calls then once the lane is
// released.
func (d *Dispatcher) tryHead(l *lane) (then func()) {
	d.mu.Lock()
	if len(l.items) == 0 { // it was handed over
		d.mu.Unlock()
		return nil
	}
	it := l.items[0]
	if ended := l.firstEnded(d.c.Now()); ended != nil {
		it = ended
	}
	it.inTurn = true
	d.mu.Unlock()
	defer d.endTurn(it)
	if it.elsewhere && it.outcome == nil && !d.resumeElsewhere(l, it) {
		return nil
	}
	if it.outcome != nil {
		_, err := d.c.Log.Append(d.ctx, *it.outcome)
		d.finish(l, it, err)
		return nil
	}
	if !d.load(it) {
		return nil
	}
	if !d.c.Log.Owned(it.position.Partition) {
		d.dropNotOwned(l, it)
		return nil
	}
	if why := d.overdue(it.message); why != nil {
		// Why it was not delivered before.
		if v, ok := d.c.Log.Delivery(it.id, it.to); ok && v.Error != nil {
			why = why.With(v.Error.Source, v.Error.Reason, v.Error.Detail)
		} else if d.c.Transport.Paused(it.to) {
			why = why.With(parley.ByNetwork, parley.NotConnected, "it is paused or not connected, and its messages wait")
		}
		d.finish(l, it, d.giveUp(d.ctx, it, parley.Expired, why))
		return nil
	}
	if it.recordedAhead {
		it.recordedAhead = false
		if v, ok := d.c.Log.Delivery(it.id, it.to); ok && v.State == parley.Delivering && v.Attempt == it.attempts {
			return d.attempt(d.ctx, l, it).then
		}
	}
	if !d.recordAttempt(l, it) {
		return nil
	}
	return d.attempt(d.ctx, l, it).then
}

// load reads the message of an item, if it is not in memory.
func (d *Dispatcher) load(it *item) bool {
	if it.message != nil {
		return true
	}
	r, err := d.c.Log.Read(d.ctx, it.position)
	if err == nil {
		it.message, it.scope = r.Message, r.Scope
		return true
	}
	if d.ctx.Err() == nil {
		d.c.Logger.Error("cannot read a message to deliver; trying again", "message", it.id, "to", it.to, "error", err)
		d.postpone(it, d.c.Retry.First)
	}
	return false
}

// overdue says why a message must not be delivered any more; nil if it may be.
func (d *Dispatcher) overdue(m *parley.Message) *parley.Error {
	now := d.c.Now()
	switch {
	case !m.Expires.IsZero() && !now.Before(m.Expires):
		return parley.Refuse(parley.Stale, "the message expired at %s before it could be delivered",
			m.Expires.UTC().Format(time.RFC3339))
	case m.Kind == parley.Request && !m.Deadline.IsZero() && !now.Before(m.Deadline):
		return parley.Refuse(parley.TimedOut, "no answer before the deadline")
	}
	return nil
}

// recordAttempt records the next attempt before it is made, and reports whether it
// is to be made here and now.
func (d *Dispatcher) recordAttempt(l *lane, it *item) bool {
	step := journal.Step{Message: it.id, To: it.to, State: parley.Delivering, Attempt: it.attempts + 1}
	owner := d.c.Log.Owner(it.position.Partition)
	_, err := d.c.Log.Append(d.ctx, journal.Entry{Steps: []journal.Step{step}, Fence: owner})
	switch {
	case err == nil, d.alreadyRecorded(it, step, owner, err):
		it.attempts++
		it.tries++
		it.failureUnrecorded, it.attemptUncertain, it.uncertainOwner = false, false, nil
		return true
	case errors.Is(err, journal.ErrConflict), errors.Is(err, journal.ErrFenced):
		it.revive = true     // if it waits again, in another state
		d.finish(l, it, nil) // settled elsewhere: answered, dropped, or handed over
		return false
	case errors.Is(err, journal.ErrUnknown):
		it.attemptUncertain, it.uncertainOwner = true, owner
	}
	d.postpone(it, d.c.Retry.First)
	if d.ctx.Err() == nil {
		d.c.Logger.Warn("cannot record an attempt; trying again", "message", it.id, "to", it.to, "error", err)
	}
	return false
}

// alreadyRecorded reports whether a conflict is with this process's own record: the
// journal recorded the attempt, but could not say so. A delivery whose caller waits does
// not name the hub of its last attempt. But only the owner of the partition records
// attempts, so it is this process if it has owned the partition all the time.
func (d *Dispatcher) alreadyRecorded(it *item, step journal.Step, owner *journal.Lease, err error) bool {
	if !it.attemptUncertain || !errors.Is(err, journal.ErrConflict) {
		return false
	}
	v, ok := d.c.Log.Delivery(step.Message, step.To)
	ours := !v.Sync && v.Node == d.c.Log.Node() || it.uncertainOwner == owner
	return ok && ours && v.State == parley.Delivering && v.Attempt == step.Attempt
}

// attempt makes an attempt that is recorded already, and records its outcome.
func (d *Dispatcher) attempt(ctx context.Context, l *lane, it *item) Result {
	r, cut := d.attemptWithin(ctx, it)
	// The outcome is recorded even if the caller has gone meanwhile.
	ctx = context.WithoutCancel(ctx)

	d.mu.Lock()
	d.noteHealth(l, it, r, cut)
	d.mu.Unlock()

	switch {
	case r.Err == nil && r.Reply != nil:
		return d.replied(ctx, l, it, r)
	case r.Err == nil:
		err := d.settleDelivered(ctx, l, it, r.Losses)
		return d.finishAnswered(l, it, r, err)
	case d.ctx.Err() != nil && !it.sync:
		d.interrupted(ctx, l, it, r)
	case it.sync:
		// The caller waits and gets the failure at once. It decides about another
		// try, which would be another message to the recipient.
		if r.Unknown {
			code := parley.OutcomeUnknown
			if r.Err.Code == parley.TimedOut { // means that the outcome is unknown, and says more
				code = parley.TimedOut
			}
			r.Err = parley.Refuse(code, "%s; %q may have had the message all the same", r.Err.Text,
				it.to).Because(r.Err)
		}
		var err error
		r.Reply, err = d.fail(ctx, it, r.Err)
		return d.finishAnswered(l, it, r, err)
	default:
		d.failed(ctx, l, it, r)
	}
	return r
}

// attemptWithin hands an attempt to the transport, with a bound on its time. cut: it was
// ended before [fairTime].
func (d *Dispatcher) attemptWithin(ctx context.Context, it *item) (r Result, cut bool) {
	begun := d.c.Now()
	limit := d.c.Attempt
	if dl := it.message.Deadline; it.message.Kind == parley.Request && !dl.IsZero() {
		limit = dl.Sub(d.c.Now())
	}
	// A caller whose own time ends about then has a context that ends with it.
	if dl, ok := ctx.Deadline(); !ok || limit < time.Until(dl)-time.Second {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	ctx, rec := d.observe(ctx, it)
	r = d.c.Transport.Attempt(ctx, Attempt{Message: it.message, Position: it.position, Scope: it.scope, To: it.to,
		Number: it.attempts, Sync: it.sync, Request: it.request})
	it.exchange = observed(rec, &r)
	return r, ctx.Err() != nil && d.c.Now().Sub(begun) < fairTime
}

// replied records the reply of a request, with the first attempts to deliver it.
func (d *Dispatcher) replied(ctx context.Context, l *lane, it *item, r Result) Result {
	end := settlement{state: parley.Answered, err: r.Reply.Message.Error, reply: r.Reply, losses: r.Losses}
	if it.sync && d.c.Relaxed {
		d.running.Go(func() {
			if _, err := d.settle(ctx, it, end); err != nil {
				d.c.Logger.Error("a reply was sent and could not be recorded", "message", it.id, "to", it.to,
					"error", err)
			}
		})
		d.finish(l, it, nil)
		return r
	}
	claims := d.claimReply(it, r.Reply)
	at, err := d.settle(ctx, it, end)
	first := Attempt{Message: r.Reply.Message, Position: at, Scope: it.scope, Request: it.message}
	r = d.finishAnswered(l, it, r, err)
	if err != nil {
		d.releaseClaims(claims, it.outcome, err)
	} else if len(claims) > 0 {
		r.then = func() { d.deliverReply(claims, first) }
	}
	return r
}

// settleDelivered records that the recipient has the message. If no item of the lane
// waits for that record, it is written with the entries of the next milliseconds.
func (d *Dispatcher) settleDelivered(ctx context.Context, l *lane, it *item, losses []parley.Loss) error {
	d.mu.Lock()
	alone := len(l.items) == 1 && !d.closed
	d.mu.Unlock()
	_, err := d.settle(ctx, it, settlement{state: parley.Delivered, losses: losses, late: alone})
	if errors.Is(err, journal.ErrConflict) {
		return nil // the answer was recorded before, and settled the delivery
	}
	return err
}

// failed decides about a retry: another attempt after a pause, or a dead letter.
func (d *Dispatcher) failed(ctx context.Context, l *lane, it *item, r Result) {
	if r.Wait > 0 {
		it.tries--
	}
	err, policy := r.Err, d.Schedule(d.c.Transport.Retries(it.to))
	switch {
	case r.Unknown && !d.repeatable(it):
		err = parley.Refuse(parley.OutcomeUnknown, "%q may have had the message and does not deduplicate", it.to).
			Because(r.Err)
	case !err.Retryable && r.Wait == 0:
	case it.deadRetry && (r.Wait == 0 || err.Reason != parley.NotConnected): // one attempt; that was none
	case it.tries >= policy.Tries, d.c.Now().Sub(it.recorded) >= policy.For:
	default:
		d.retry(ctx, l, it, r)
		return
	}
	d.finish(l, it, d.giveUp(ctx, it, parley.Dead, err))
}

// Schedule is how failed attempts are repeated for a recipient with retries of its own.
func (d *Dispatcher) Schedule(own parley.Retries) Retry {
	p := d.c.Retry
	p.Tries, p.For = cmp.Or(own.Tries, p.Tries), cmp.Or(own.Patience, p.For)
	return p
}

// repeatable reports whether an attempt of unknown outcome may be made again.
func (d *Dispatcher) repeatable(it *item) bool {
	return d.c.AtLeastOnce || d.c.Transport.Repeatable(it.id, it.to)
}

// retry records a failed attempt and the time of the next one. Items behind it whose
// attempts are recorded ahead of their turn wait too, unless they may overtake it.
func (d *Dispatcher) retry(ctx context.Context, l *lane, it *item, r Result) {
	pause := max(r.Wait, r.Err.After)
	if pause == 0 {
		pause = d.pause(it.tries)
	}
	next := d.c.Now().Add(pause)
	steps := []journal.Step{{Message: it.id, To: it.to, State: parley.Waiting, Attempt: it.attempts, Next: next,
		Postponed: r.Wait > 0, Error: r.Err.Stated(), Losses: r.Losses, Exchange: it.exchange}}
	it.exchange = nil
	var behind []*item
	if !d.c.Transport.Retries(it.to).Unordered {
		behind = d.recordedBehind(l, it)
	}
	for _, v := range behind {
		steps = append(steps, journal.Step{Message: v.id, To: v.to, State: parley.Waiting, Attempt: v.attempts,
			Postponed: true})
	}
	_, err := d.c.Log.Append(ctx, journal.Entry{Steps: steps})
	if err != nil && len(behind) > 0 {
		behind = nil
		_, err = d.c.Log.Append(ctx, journal.Entry{Steps: steps[:1]})
	}
	if err != nil {
		d.c.Logger.Warn("cannot record a failed attempt", "message", it.id, "to", it.to, "error", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.noteNext(l.recipient, next)
	it.notBefore, it.failureUnrecorded = next, err != nil && !errors.Is(err, journal.ErrConflict)
	for _, v := range behind {
		v.recordedAhead = false
		v.tries--
	}
}

// recordedBehind gives the items of a lane whose attempts are recorded ahead of
// their turn, but for the one that failed.
func (d *Dispatcher) recordedBehind(l *lane, failed *item) (out []*item) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, v := range l.items {
		if v != failed && v.recordedAhead {
			out = append(out, v)
		}
	}
	return out
}

// pause grows by doubling, half of it at random, so that a recipient that comes
// back does not get everything at once.
func (d *Dispatcher) pause(tries int) time.Duration {
	p := d.c.Retry.First << min(max(tries-1, 0), 20)
	if p <= 0 || p > d.c.Retry.Longest {
		p = d.c.Retry.Longest
	}
	return p/2 + time.Duration(d.c.Jitter()*float64(p/2))
}

// interrupted records an attempt that the end of this hub cut short.
func (d *Dispatcher) interrupted(ctx context.Context, l *lane, it *item, r Result) {
	d.mu.Lock()
	moved := d.released(it.position.Partition)
	d.mu.Unlock()
	text := "the hub was stopped during the attempt"
	if moved {
		text += "; moved to another hub"
	}
	if r.Unknown && !d.repeatable(it) {
		err := parley.Refuse(parley.OutcomeUnknown, "%s; %q may have had the message and does not deduplicate", text,
			it.to)
		d.finish(l, it, d.giveUp(ctx, it, parley.Dead, err.Because(r.Err)))
		return
	}
	step := journal.Step{Message: it.id, To: it.to, State: parley.Waiting, Attempt: it.attempts, Postponed: true,
		Error: parley.Refuse(parley.Unavailable, "%s", text).
			With(parley.ByHub, parley.HubStops, "").Because(r.Err), Losses: r.Losses, Exchange: it.exchange}
	_, err := d.c.Log.Append(ctx, journal.Entry{Steps: []journal.Step{step}})
	if err != nil && !errors.Is(err, journal.ErrConflict) {
		d.c.Logger.Warn("cannot record that an attempt was cut short", "message", it.id, "to", it.to, "error", err)
	}
	d.finish(l, it, nil)
}
