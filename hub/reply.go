package hub

import (
	"context"
	"crypto/sha256"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/delivery"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/policy"
)

// submitReply records an Event, Response or Failure about a delivered request.
func (h *Hub) submitReply(ctx context.Context, s Submission) (*recordedMessage, error) {
	m := s.Message
	v, ok, err := h.openDelivery(ctx, m.InReplyTo, m.From)
	if err != nil {
		return nil, recordError(err)
	}
	if !ok || v.Kind != parley.Request {
		return nil, parley.Refuse(parley.Conflict, "no open request that this could be a reply to")
	}
	request, scope, err := h.request(ctx, m.InReplyTo, v.Position)
	if err != nil {
		return nil, recordError(err)
	}
	if !request.Origin.Received.IsZero() && h.isGuest(&Submission{Message: request}) {
		h.c.Guests.Wrote(policy.Source(request.Origin.Address), recordCost(m))
	}
	m.Conversation, m.To = v.Conversation, request.From
	// A reply belongs to its request's trace, even if its transport names another.
	if t := request.Trace; len(t.Parent) == 55 && (len(m.Trace.Parent) != 55 ||
		m.Trace.Parent[3:35] != t.Parent[3:35]) {
		m.Trace.Parent, m.Trace.State = t.Parent, t.State
	}
	if err := h.policy.Load().Admit(m, nil); err != nil {
		return nil, err
	}
	m.Hops = append(slices.Clone(m.Hops), h.c.ID)
	m.Error = m.Error.FromPeer()
	h.fitReply(ctx, request, m.From, m)
	r := h.newReply(request, v.Position, v.Sync, m)
	entry := journal.Entry{Scope: scope, Message: m, Key: s.Key, Open: r.Open}
	if m.Kind == parley.Event {
		m.Number, entry.Losses = h.number(m.InReplyTo, parley.Event), r.Losses
	} else {
		entry.Steps = []journal.Step{{Message: m.InReplyTo, To: m.From, State: parley.Answered, Attempt: v.Attempt,
			Reply: m.ID, Error: m.Error, Losses: h.lossesOf(request, &v, r.Losses),
			Exchange: h.exchangeOf(request, &v)}}
	}
	for {
		a := &recordedMessage{message: m, scope: scope, request: request}
		h.claimLanes(a, entry.Open)
		err := h.write(ctx, entry, a)
		if err == nil {
			return a, nil
		}
		if !h.retargetReply(&entry, err) {
			return nil, err
		}
	}
}

// retargetReply reports whether a reply was refused only because another attempt of
// its request began meanwhile, and if so makes it the answer to that attempt: it does
// not matter which attempt reached the agent.
func (h *Hub) retargetReply(e *journal.Entry, refused error) bool {
	if len(e.Steps) == 0 || !errors.Is(refused, journal.ErrConflict) {
		return false
	}
	s := &e.Steps[0]
	v, open := h.c.Journal.Delivery(s.Message, s.To)
	if !open || v.Attempt <= s.Attempt {
		return false
	}
	s.Attempt = v.Attempt
	for i := range e.Open {
		e.Open[i].Attempt = 0
	}
	return true
}

// openDelivery finds an open delivery. The caller may know of it from another hub on
// the same journal, whose record is not read here yet: so openDelivery reads everything
// recorded by now before it reports that there is none.
func (h *Hub) openDelivery(ctx context.Context, message parley.ID, to string) (v journal.Delivery, ok bool, err error) {
	j := h.c.Journal
	if v, ok = j.Delivery(message, to); ok {
		return v, ok, nil
	}
	if err = j.CatchUp(ctx); err == nil {
		v, ok = j.Delivery(message, to)
	}
	return v, ok, err
}

// replyTo opens the delivery of an event or reply to the requester; none where the
// requester waits here, fetches it, or cannot be reached.
func (h *Hub) replyTo(request, reply *parley.Message, waits bool) []journal.Opening {
	if waits {
		return nil
	}
	b := h.bindings[request.Origin.Protocol]
	if b != nil && !b.can.CarriesReplies {
		return b.callbacks(request, reply)
	}
	if b != nil && b.can.CarriesEvent != nil && reply.Kind == parley.Event && !b.can.CarriesEvent(reply) {
		return nil
	}
	if !h.reachable(request.From, parley.Response) {
		return nil
	}
	return []journal.Opening{{To: request.From}}
}

// newReply makes an event or reply to the request at a position ready to be recorded.
func (h *Hub) newReply(request *parley.Message, at journal.Position, waits bool, m *parley.Message) *delivery.Reply {
	r := &delivery.Reply{Message: m, Open: h.replyTo(request, m, waits)}
	if r.Open != nil {
		setRequestPosition(m, at)
	}
	r.Losses = h.replyLosses(request, m, r.Open)
	return r
}

// replied is the result of an attempt whose recipient answered the request with m.
func (h *Hub) replied(ctx context.Context, a delivery.Attempt, m *parley.Message) delivery.Result {
	h.about(a.Message, a.To, m)
	h.fitReply(ctx, a.Message, a.To, m)
	return delivery.Result{Reply: h.newReply(a.Message, a.Position, a.Sync, m)}
}

// replyLosses gives the losses of an event or reply without a delivery of its own.
// The losses of an event are recorded with it, and added to the delivery of its
// request. The losses of a reply include them all, so that the last step of the
// delivery is complete.
func (h *Hub) replyLosses(request, reply *parley.Message, open []journal.Opening) []parley.Loss {
	var losses []parley.Loss
	if open == nil {
		if b := h.bindings[request.Origin.Protocol]; b != nil && b.can.ReplyLosses != nil {
			losses = b.can.ReplyLosses(reply, request)
		}
	}
	if reply.Kind == parley.Event {
		return losses
	}
	if v, ok := h.c.Journal.Delivery(request.ID, reply.From); ok && len(v.Losses) > 0 {
		losses = journal.AddLosses(v.Losses, losses)
	}
	return losses
}

func (h *Hub) failure(m *parley.Message, from string, err *parley.Error) *parley.Message {
	return h.about(m, from, &parley.Message{Kind: parley.Failure, Error: err.Stated()})
}

// about makes r a message from an agent about the request m.
func (h *Hub) about(m *parley.Message, from string, r *parley.Message) *parley.Message {
	r.From, r.To, r.Conversation, r.InReplyTo, r.Hops = from, m.From, m.Conversation, m.ID, []string{h.c.ID}
	if r.Trace.Parent == "" {
		r.Trace = m.Trace
	}
	if r.Origin.Protocol == "" {
		r.Origin = originOfCode(from)
	}
	if err := h.complete(r, false); err != nil {
		// Only a broken source of randomness fails. The ID of the request and the
		// kind of its answer still make an ID that is used once.
		sum := sha256.Sum256(append(m.ID[:], byte(r.Kind)))
		r.ID = parley.HashID(sum[:])
	}
	return r
}

// requestPosition is the key in Trace.Foreign of the journal position of a reply's
// request, from which the way back to the requester is found.
const requestPosition = "parley.request"

// setRequestPosition sets the position of the request in its reply r.
func setRequestPosition(r *parley.Message, p journal.Position) {
	f := make(map[string]string, len(r.Trace.Foreign)+1)
	maps.Copy(f, r.Trace.Foreign)
	f[requestPosition] = p.String()
	r.Trace.Foreign = f
}

// requestOf reads the request that a message is about.
func (h *Hub) requestOf(ctx context.Context, m *parley.Message) (*parley.Message, error) {
	p, err := journal.ParsePosition(m.Trace.Foreign[requestPosition])
	if err != nil {
		return nil, err
	}
	request, _, err := h.request(ctx, m.InReplyTo, p)
	return request, err
}

// requestUnreadable is the result of an attempt whose request cannot be read: now, or
// never again.
func requestUnreadable(err error) delivery.Result {
	if e := parley.AsError(err); e.Retryable {
		return delivery.Result{Err: parley.Fail(e.Code, err, "the request of this message cannot be read now").
			With(parley.ByHub, parley.HubStorage, ""), Wait: time.Second}
	}
	return delivery.Result{Err: parley.Refuse(parley.Conflict,
		"the request of this message is not in the journal any more").Because(err)}
}

// numbered names a row of numbers: of the events of a request, or of its inputs.
type numbered struct {
	request parley.ID
	kind    parley.Kind
}

func (h *Hub) number(request parley.ID, k parley.Kind) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.numbers[numbered{request, k}]++
	return h.numbers[numbered{request, k}]
}
