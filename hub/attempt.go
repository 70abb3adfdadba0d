package hub

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/delivery"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/journal"
)

// transport is the hub's side of package delivery.
type transport Hub

func (c *transport) hub() *Hub { return (*Hub)(c) }

// Attempt makes one attempt: with a handler or an inbox of this process, or through
// the recipient's binding.
func (c *transport) Attempt(ctx context.Context, a delivery.Attempt) delivery.Result {
	r := c.attempt(ctx, a)
	if a.Message.Kind == parley.Notice && isMisfit(r.Err) {
		return misfitResult(r.Err, r.Losses...)
	}
	return r
}

func (c *transport) attempt(ctx context.Context, a delivery.Attempt) (r delivery.Result) {
	h := c.hub()
	if a.Message.Kind == parley.Request {
		var stop context.CancelCauseFunc
		ctx, stop = context.WithCancelCause(ctx)
		h.mu.Lock()
		h.running[a.Message.ID] = stop
		if h.closing {
			stop(delivery.ErrStopped)
		}
		h.mu.Unlock()
		running := ctx
		defer func() {
			h.mu.Lock()
			delete(h.running, a.Message.ID)
			h.mu.Unlock()
			if r.Err != nil && r.Reply == nil && errors.Is(context.Cause(running), errGivenUp) {
				// However the attempt failed: it must not be made again.
				losses := r.Losses
				r = h.replied(context.WithoutCancel(running), a, &parley.Message{Kind: parley.Failure,
					Error: parley.Refuse(parley.Cancelled, "cancelled")})
				r.Losses = losses
			}
			stop(nil)
		}()
	}
	if m := a.Message; m.Kind == parley.Input {
		if _, open := h.c.Journal.Delivery(m.InReplyTo, a.To); !open {
			return delivery.Result{Losses: []parley.Loss{{Field: "Kind",
				Reason: "the request ended before this could be said"}}}
		}
	}
	l, box := h.here(a.To)
	if a.Message.Kind == parley.Notice {
		fitted, err := h.fitNotice(a.Message, a.To, l != nil)
		if err != nil {
			return misfitResult(err)
		}
		a.Message = fitted
	}
	switch {
	case box != nil:
		return h.observed(ctx, a, "api", func(_ context.Context, a delivery.Attempt) delivery.Result {
			if !box.put(a) {
				// The reader has just left; that does not count as a try.
				err := parley.Fail(parley.Unavailable, nil, "nobody reads the inbox of %q", a.To)
				return delivery.Result{Err: err.With(parley.ByNetwork, parley.NotConnected, ""), Wait: time.Second}
			}
			return h.awaitLater(a)
		})
	case l != nil:
		call := func(ctx context.Context, a delivery.Attempt) delivery.Result { return h.call(ctx, l, a) }
		return h.observed(ctx, a, "go", call)
	}
	if r, ok := parseCallbackRecipient(a.To); ok {
		return h.callBack(ctx, r, a)
	}
	e, err := h.c.Directory.Find(ctx, a.To)
	switch {
	case errors.Is(err, directory.ErrUnknown):
		return delivery.Result{Err: parley.Refuse(parley.UnknownAgent, "agent %q is not here any more", a.To)}
	case err != nil:
		return delivery.Result{Err: parley.Fail(parley.Unavailable, err, "the directory cannot be read").
			With(parley.ByHub, parley.HubStorage, "")}
	}
	// Events and replies go back by the protocol of the request, inputs and cancels follow it.
	protocol := a.Message.Origin.Protocol
	var request *parley.Message
	if k := a.Message.Kind; k != parley.Request && k != parley.Notice {
		if request = a.Request; request == nil {
			if request, err = h.requestOf(ctx, a.Message); err != nil {
				return requestUnreadable(err)
			}
		}
		protocol = request.Origin.Protocol
	}
	b, id, ok := h.route(e, protocol)
	if !ok {
		return delivery.Result{Err: parley.Fail(parley.Unavailable, nil,
			"agent %q has no address in a protocol that is switched on", a.To).
			With(parley.ByNetwork, parley.NoAddress, "")}
	}
	r = h.observed(ctx, a, b.Protocol(), func(ctx context.Context, a delivery.Attempt) delivery.Result {
		return h.send(ctx, b, id, e, a, request, "")
	})
	if h.ways(e) > 1 {
		r.Via = b.Protocol()
	}
	return r
}

func (h *Hub) send(ctx context.Context, b Binding, id parley.Identity, e *directory.Entry, a delivery.Attempt,
	request *parley.Message, callback string) delivery.Result {
	var received atomic.Bool // an event proves it, even one that cannot be recorded
	o := b.Deliver(ctx, Outbound{Message: a.Message, Request: request, Scope: a.Scope, Recipient: e, Identity: id,
		Callback: callback, Attempt: a.Number, Waits: a.Sync, Streams: h.streams(a),
		Event: func(state parley.State, parts ...parley.Part) error {
			received.Store(true)
			return h.event(ctx, a, state, parts)
		}})
	switch {
	case o.Err != nil:
		return delivery.Result{Err: o.Err, Wait: o.Wait, Unknown: o.Unknown || received.Load(), Losses: o.Losses}
	case o.Answered && a.Message.Kind == parley.Request:
		reply := &parley.Message{}
		if o.Reply != nil {
			*reply = *o.Reply
		}
		reply.Kind, reply.Parts, reply.Error = parley.Response, o.Parts, nil
		if o.Failure != nil {
			reply.Kind, reply.Error = parley.Failure, o.Failure.Stated()
		}
		r := h.replied(ctx, a, reply)
		r.Losses = o.Losses
		return r
	case a.Message.Kind == parley.Notice && isMisfit(o.Failure):
		return delivery.Result{Err: o.Failure, Losses: o.Losses}
	}
	r := h.awaitLater(a)
	r.Losses = o.Losses
	return r
}

// streams reports whether the requester gets events as they come: it waits and reads
// them, its protocol carries them, or its binding says so.
func (h *Hub) streams(a delivery.Attempt) bool {
	if !a.Sync {
		b := h.bindings[a.Message.Origin.Protocol]
		return b != nil && (b.can.CarriesReplies || b.can.Streams != nil && b.can.Streams(a.Message))
	}
	w := h.waiter(a.Message.ID)
	return w != nil && !w.skipsEvents.Load()
}

// event records an event about the request of an attempt.
func (h *Hub) event(ctx context.Context, a delivery.Attempt, state parley.State, parts []parley.Part) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m := h.about(a.Message, a.To, &parley.Message{Kind: parley.Event, State: state, Parts: parts})
	r := h.newReply(a.Message, a.Position, a.Sync, m)
	e := journal.Entry{Scope: a.Scope, Message: m, Open: r.Open, Losses: r.Losses}
	if w := h.waiter(a.Message.ID); w != nil {
		if err := w.room(ctx); err != nil {
			return err
		}
	}
	m.Number = h.number(a.Message.ID, parley.Event)
	said := &recordedMessage{message: m, scope: a.Scope, request: a.Message}
	h.claimLanes(said, e.Open)
	at, err := h.c.Journal.Append(ctx, e)
	if err = h.finishWrite(ctx, said, at, nil, err); err != nil {
		return err
	}
	h.startAttempts(said)
	return nil
}

// FailureReply composes the Failure of a request without an answer. Only requests get
// one, so that errors never answer errors.
func (c *transport) FailureReply(m *parley.Message, p journal.Position, to string, err *parley.Error) *delivery.Reply {
	h := c.hub()
	if m.Kind != parley.Request {
		return nil
	}
	return h.newReply(m, p, h.waiter(m.ID) != nil, h.failure(m, to, err))
}

// Repeatable: handlers of this process see the message ID and the attempt number, so
// they can deduplicate.
func (c *transport) Repeatable(message parley.ID, to string) bool {
	h := c.hub()
	if l, box := h.here(to); l != nil || box != nil {
		return true
	}
	e, ok := h.c.Directory.Agent(to)
	if !ok {
		_, ok = parseCallbackRecipient(to) // the sender knows the request's id, so it can deduplicate
		return ok
	}
	b, id, ok := h.route(e, "")
	switch {
	case !ok:
		return false
	case b.can.Resumes != nil && !message.IsZero() && b.can.Resumes(message):
		return true
	case b.can.DeduplicatesFor != nil:
		return b.can.DeduplicatesFor(e, id)
	}
	return b.can.Deduplicates
}

// Paused: an operator paused the recipient, or it is absent.
func (c *transport) Paused(to string) bool {
	e, ok := c.hub().c.Directory.Agent(to)
	return ok && e.Paused || c.Absent(to)
}

// Absent: the recipient's inbox has no reader, or the recipient is not connected.
func (c *transport) Absent(to string) bool {
	h := c.hub()
	_, box := h.here(to)
	if box != nil {
		return !box.isRead()
	}
	e, ok := h.c.Directory.Agent(to)
	return ok && h.holds(e)
}

// Retries: those of the directory's entry.
func (c *transport) Retries(to string) parley.Retries {
	if e, ok := c.hub().c.Directory.Agent(to); ok {
		return e.Retries
	}
	return parley.Retries{}
}

// KeepsHealth: the directory bounds its agents.
func (c *transport) KeepsHealth(to string) bool {
	_, ok := c.hub().c.Directory.Agent(to)
	return ok
}

// LaneLimit: handlers of this process have a bound of their own.
func (c *transport) LaneLimit(to string) int {
	if l, _ := c.hub().here(to); l != nil {
		return cap(l.calls)
	}
	return 0
}

var _ delivery.Transport = (*transport)(nil)
