package hub

import (
	"context"
	"errors"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/delivery"
	"github.com/parley-hub/parley/journal"
)

// awaitReply sees to it that a delivered request whose answer comes later is
// answered by its deadline.
func (h *Hub) awaitReply(id parley.ID, to string, p journal.Position, deadline time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.timers[id] != nil {
		return
	}
	h.timers[id] = time.AfterFunc(max(0, deadline.Sub(h.c.Now())), func() { h.endOverdue(id, to, p) })
}

// awaitReplyOf is await for what another hub delivered, whose partition is this one's.
func (h *Hub) awaitReplyOf(id parley.ID, to string) {
	if v, ok := h.c.Journal.Delivery(id, to); ok && v.State == parley.Delivered && v.Kind == parley.Request {
		h.awaitReply(v.Message, v.To, v.Position, v.Deadline)
	}
}

// awaitLater is the result of a delivery whose reply comes later, if one is due.
func (h *Hub) awaitLater(a delivery.Attempt) delivery.Result {
	if a.Message.Kind == parley.Request {
		h.awaitReply(a.Message.ID, a.To, a.Position, a.Message.Deadline)
	}
	return delivery.Result{}
}

// retryPause is the pause before it is tried again to end a request, or to take
// up a partition.
const retryPause = time.Second

// endOverdue ends a request whose deadline has passed. What the journal cannot
// read or record just now is tried again: nobody else would end it.
func (h *Hub) endOverdue(id parley.ID, to string, p journal.Position) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r, err := h.c.Journal.Read(ctx, p)
	if err == nil {
		_, err = h.timeout(ctx, &recordedMessage{message: r.Message, position: p, scope: r.Scope, claims: nil}, context.DeadlineExceeded)
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
	if t := h.timers[id]; t != nil { // it is not settled, and the hub does not stop
		t.Reset(retryPause)
	}
}

// timeout records the Failure of a request that nobody answered, unless its
// delivery is settled meanwhile; then it gives nil.
func (h *Hub) timeout(ctx context.Context, a *recordedMessage, cause error) (*parley.Message, error) {
	to := a.message.To
	v, ok := h.c.Journal.Delivery(a.message.ID, to)
	if !ok {
		return nil, nil
	}
	reply := h.failure(a.message, to, parley.AsError(cause))
	entry := journal.Entry{Scope: a.scope, Message: reply,
		Steps: []journal.Step{{Message: a.message.ID, To: to, State: parley.Answered, Attempt: v.Attempt, Reply: reply.ID, Error: reply.Error}}}
	if entry.Open = h.replyTo(a.message, reply, v.Sync); entry.Open != nil {
		setRequestPosition(reply, a.position)
	}
	entry.Steps[0].Losses = union(v.Losses, h.replyLosses(a.message, reply, entry.Open))
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

// endUnanswered is timeout for a caller who goes, or is gone.
func (h *Hub) endUnanswered(ctx context.Context, a *recordedMessage, cause error) *parley.Message {
	reply, err := h.timeout(ctx, a, cause)
	if err != nil {
		h.c.Logger.Error("cannot record that a request was not answered", "message", a.message.ID, "error", err)
	}
	return reply
}

func (h *Hub) dropTimers(id parley.ID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.numbers, id)
	if t := h.timers[id]; t != nil {
		t.Stop()
		delete(h.timers, id)
	}
}
