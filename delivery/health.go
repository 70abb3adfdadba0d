package delivery

import (
	"context"
	"errors"
	"math/bits"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// Health is what the attempts to deliver to a recipient showed, in this process or, by
// [Dispatcher.SetHealth], in another one. The zero value is that of a recipient that
// was reached, or never tried.
type Health struct {
	Since    time.Time     // first failed attempt since the recipient was reached; or, with Until, when it first asked
	Failures int           // failed attempts since then, at least
	Err      *parley.Error // of the last of them; or, with Until, what the recipient said
	Until    time.Time     // the recipient asked for no attempt before
	Next     time.Time     // earliest next attempt; zero or past: none is planned, or it is being made
	Here     bool          // one of the failed attempts was made by this process
}

// Failing reports whether the last attempt to reach the recipient failed.
func (h *Health) Failing() bool { return h.Failures > 0 }

// Health says what the attempts to deliver to a recipient showed.
func (d *Dispatcher) Health(to string) Health {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r := d.recipients[to]; r != nil {
		return r.health
	}
	return Health{}
}

// HealthBy says what the attempts by one of several ways to a recipient showed; see [Result.Via]. Only this process's
// attempts count.
func (d *Dispatcher) HealthBy(to, via string) Health {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r := d.recipients[to]; r != nil {
		return r.ways[via]
	}
	return Health{}
}

// Failing gives the health of all recipients whose last attempt failed.
func (d *Dispatcher) Failing() map[string]Health {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := map[string]Health{}
	for to, r := range d.recipients {
		if r.health.Failing() {
			out[to] = r.health
		}
	}
	return out
}

// SetHealth takes up what another process found, or an earlier one: a failure, or the
// zero value where it reached the recipient. It does not call [Config.HealthChanged].
func (d *Dispatcher) SetHealth(to string, h Health) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.recipients[to]
	switch {
	case r == nil && h.Failing():
		d.recipients[to] = &recipient{health: h}
	case r == nil:
	case !h.Failing():
		r.health, r.ways = Health{}, nil
		d.removeIdleRecipient(to, r)
	default:
		if old := r.health; old.Failing() {
			if old.Since.Before(h.Since) {
				h.Since = old.Since
			}
			if old.Failures > h.Failures {
				h.Failures, h.Err = old.Failures, old.Err
			}
			h.Next, h.Here = old.Next, old.Here
		}
		r.health = h
	}
}

// ForgetTexts removes the texts of errors that may quote a message.
func (d *Dispatcher) ForgetTexts() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range d.recipients {
		r.health.forgetText()
		for via, h := range r.ways {
			h.forgetText()
			r.ways[via] = h
		}
	}
}

func (h *Health) forgetText() {
	if e := h.Err; e != nil && e.Source != parley.ByNetwork {
		e = e.Because(nil)
		e.Text, e.Detail = "", ""
		h.Err = e
	}
}

// removeIdleRecipient forgets a recipient without lanes, unless its health is kept;
// d.mu is held.
func (d *Dispatcher) removeIdleRecipient(to string, r *recipient) {
	if r.lanes == 0 && (!r.failing() || !d.c.Transport.KeepsHealth(to)) {
		delete(d.recipients, to)
	}
}

// evidence is what an attempt shows of its recipient, as opposed to its message.
type evidence uint8

const (
	nothing   evidence = iota
	reached            // it took the message, or refused this one
	postponed          // it asked to come back later
	broken             // it was not reached, or does not work
)

// fairTime is how long a recipient has to answer: an attempt that its sender or the hub
// ended sooner shows nothing.
const fairTime = 10 * time.Second

// shows judges the result of an attempt. cut: it was ended before fairTime.
func (r *Result) shows(cut bool) evidence {
	e := r.Err
	switch {
	case e == nil:
		return reached
	case cut, errors.Is(e, context.Canceled): // the latter: the caller or the hub ended the attempt
		return nothing
	case e.Source == parley.ByPolicy || e.Source == parley.ByLimit || e.Source == parley.ByHub:
		return nothing
	case r.Wait > 0 && e.Reason == parley.NotConnected:
		return nothing
	case r.Wait > 0, e.Source == parley.ByPeer && (e.Reason == parley.PeerBusy || e.Reason == parley.PeerRate):
		return postponed
	case e.Retryable:
		return broken
	case e.Source == parley.ByPeer:
		switch e.Reason {
		case parley.KeyUnknown, parley.WrongToken, parley.PeerAnswer:
			return broken // so would every other message
		}
		return reached
	case e.Source == parley.ByNetwork, e.Code == parley.Unavailable, e.Code == parley.TimedOut,
		e.Code == parley.OutcomeUnknown:
		return broken
	}
	return nothing
}

// failing reports whether the last attempt failed, or the last one by some way.
func (r *recipient) failing() bool {
	failing := r.health.Failing()
	for _, h := range r.ways {
		failing = failing || h.Failing()
	}
	return failing
}

// noteHealth notes what an attempt showed; see [Result.shows]. A failed retry of a dead
// letter shows nothing: an operator may try many old ones. d.mu is held.
func (d *Dispatcher) noteHealth(l *lane, it *item, res Result, cut bool) {
	r, shown, now := l.recipient, res.shows(cut), d.c.Now()
	before := r.health
	if shown == broken && it.deadRetry {
		return
	}
	r.health.note(shown, &res, now)
	if res.Via != "" && shown != nothing {
		way := r.ways[res.Via]
		way.note(shown, &res, now)
		switch {
		case way == Health{}:
			delete(r.ways, res.Via)
		case r.ways == nil:
			r.ways = map[string]Health{res.Via: way}
		default:
			r.ways[res.Via] = way
		}
	}
	if f := d.c.HealthChanged; f != nil && tellsNews(&before, &r.health) {
		f(l.key.to)
	}
}

// note takes in what an attempt showed.
func (h *Health) note(shown evidence, res *Result, now time.Time) {
	switch shown {
	case reached:
		*h = Health{}
	case postponed:
		asked := now
		if !h.Failing() && !h.Since.IsZero() {
			asked = h.Since // it asked before, and was not reached since
		}
		if res.Err.Source == parley.ByPeer {
			*h = Health{}
		}
		if !h.Failing() {
			h.Since, h.Until, h.Err = asked, now.Add(max(res.Wait, res.Err.After)), res.Err
		}
	case broken:
		if !h.Failing() {
			h.Since = now
		}
		h.Failures++
		h.Err, h.Until, h.Here = res.Err.Stated(), time.Time{}, true
	}
}

// tellsNews reports whether other processes should hear of a change. Counts are told
// at 1, 2, 4, 8 …, so that a recipient that fails for long causes few reports.
func tellsNews(before, h *Health) bool {
	switch {
	case before.Failing() != h.Failing():
		return true
	case !h.Failing() || before.Failures == h.Failures:
		return false
	}
	return before.Err.Code != h.Err.Code || before.Err.Reason != h.Err.Reason || bits.OnesCount(uint(h.Failures)) == 1
}

// notePostponed notes, after a start, that a recipient asked for no attempt before next.
func (d *Dispatcher) notePostponed(v journal.Delivery) {
	if e := v.Error; v.Postponed == 0 || e == nil || e.Source != parley.ByPeer || !v.Next.After(d.c.Now()) {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if r := d.recipients[v.To]; r != nil && !r.health.Failing() && r.health.Until.Before(v.Next) {
		r.health.Since, r.health.Until, r.health.Err = v.Changed, v.Next, v.Error
	}
}

// noteNext notes a planned attempt; d.mu is held.
func (d *Dispatcher) noteNext(r *recipient, at time.Time) {
	h := &r.health
	if h.Next.Before(d.c.Now()) || at.Before(h.Next) {
		h.Next = at
	}
	if !h.Failing() && h.Err != nil && h.Until.Before(at) {
		h.Until = at // it was postponed, and did not say until when
	}
}
