package hub

import (
	"context"
	"errors"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/delivery"
	"github.com/parley-hub/parley/journal"
)

// awaitReply ends a delivered request at its deadline if no answer has come by then.
func (h *Hub) awaitReply(id parley.ID, to string, p journal.Position, deadline time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.timers[id] != nil {
		return
	}
	h.timers[id] = time.AfterFunc(max(0, deadline.Sub(h.c.Now())), func() { h.endOverdue(id, to, p) })
}

// awaitReplyOf is awaitReply for a request of this hub's partition that another hub
// delivered.
func (h *Hub) awaitReplyOf(id parley.ID, to string) {
	if v, ok := h.c.Journal.Delivery(id, to); ok && v.State == parley.Delivered && v.Kind == parley.Request {
		h.awaitReply(v.Message, v.To, v.Position, v.Deadline)
	}
}

// awaitLater is the result of an attempt whose reply, if one is due, comes later.
func (h *Hub) awaitLater(a delivery.Attempt) delivery.Result {
	if a.Message.Kind == parley.Request {
		h.awaitReply(a.Message.ID, a.To, a.Position, a.Message.Deadline)
	}
	return delivery.Result{}
}

// retryPause is the pause before the hub tries again to end a request, or to resume a
// partition.
const retryPause = time.Second

// endOverdue ends a request whose deadline has passed. It tries again while the
// journal cannot read or record, because nothing else would end the request.
func (h *Hub) endOverdue(id parley.ID, to string, p journal.Position) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r, err := h.c.Journal.Read(ctx, p)
	if err == nil {
		_, err = h.timeout(ctx, &recordedMessage{message: r.Message, position: p, scope: r.Scope},
			context.DeadlineExceeded)
	}
	if err == nil || errors.Is(err, journal.ErrClosed) {
		return
	}
	if !parley.AsError(err).Retryable {
		h.c.Logger.Error("cannot end a request whose deadline passed", "message", id, "to", to, "error", err)
		return
	}
	h.c.Logger.Warn("cannot end a request whose deadline passed; trying again", "message", id, "to", to, "error", err)
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.timers[id]; t != nil { // the request is not settled, and the hub is not closing
		t.Reset(retryPause)
	}
}

// timeout records the Failure of a request without an answer. It returns nil if the
// delivery was settled meanwhile.
func (h *Hub) timeout(ctx context.Context, a *recordedMessage, cause error) (*parley.Message, error) {
	to := a.message.To
	v, ok := h.c.Journal.Delivery(a.message.ID, to)
	if !ok {
		return nil, nil
	}
	reply := h.failure(a.message, to, h.unanswered(v, parley.AsError(cause)))
	r := h.newReply(a.message, a.position, v.Sync, reply)
	entry := journal.Entry{Scope: a.scope, Message: reply, Open: r.Open,
		Steps: []journal.Step{{Message: a.message.ID, To: to, State: parley.Answered, Attempt: v.Attempt,
			Reply: reply.ID, Error: reply.Error, Losses: h.lossesOf(a.message, &v, r.Losses),
			Exchange: h.exchangeOf(a.message, &v)}}}
	if _, err := h.c.Journal.Append(ctx, entry); errors.Is(err, journal.ErrConflict) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	if v.State == parley.Delivered {
		h.sendCancel(ctx, a, to, reply.Error)
	}
	return reply, nil
}

// unanswered adds to the error of a request without an answer why there is none: the
// recipient took it and is silent, or the last attempt failed.
func (h *Hub) unanswered(v journal.Delivery, e *parley.Error) *parley.Error {
	switch {
	case e.Code != parley.TimedOut:
	case v.State == parley.Delivered:
		return e.With(parley.ByPeer, parley.PeerSilent, "it took the message at "+
			v.Changed.UTC().Format(time.TimeOnly)+" UTC, and did not answer")
	case v.Error != nil:
		return e.With(v.Error.Source, v.Error.Reason, v.Error.Detail)
	case (*transport)(h).Paused(v.To):
		return e.With(parley.ByNetwork, parley.NotConnected, "it is paused or not connected, and its messages wait")
	}
	return e
}

// endUnanswered is timeout for a caller that does not wait any longer.
func (h *Hub) endUnanswered(ctx context.Context, a *recordedMessage, cause error) *parley.Message {
	reply, err := h.timeout(ctx, a, cause)
	if err != nil {
		h.c.Logger.Error("cannot record the failure of a request without an answer", "message", a.message.ID,
			"error", err)
	}
	return reply
}

func (h *Hub) dropTimers(id parley.ID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.numbers, numbered{id, parley.Event})
	delete(h.numbers, numbered{id, parley.Input})
	delete(h.inputs, id)
	if t := h.timers[id]; t != nil {
		t.Stop()
		delete(h.timers, id)
	}
}
