package hub

import (
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/delivery"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/policy"
)

// submitReply takes an Event, Response or Failure about a request that was delivered
// before.
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
	// A reply is part of its request's trace, whatever brought it.
	if t := request.Trace; len(t.Parent) == 55 && (len(m.Trace.Parent) != 55 || m.Trace.Parent[3:35] != t.Parent[3:35]) {
		m.Trace.Parent, m.Trace.State = t.Parent, t.State
	}
	if err := h.policy.Load().Admit(m, nil); err != nil {
		return nil, err
	}
	m.Hops = append(slices.Clone(m.Hops), h.c.ID)
	h.fitReply(ctx, request, m.From, m)
	if s.Chain != nil {
		scope = s.Scope // a reply that is a record of a chain as well lies there; the journal refuses it where the request does not
	}
	entry := journal.Entry{Scope: scope, Message: m, Key: s.Key, Chain: s.Chain}
	if entry.Open = h.replyTo(request, m, v.Sync); entry.Open != nil {
		setRequestPosition(m, v.Position)
	}
	losses := h.replyLosses(request, m, entry.Open)
	if m.Kind == parley.Event {
		m.Number, entry.Losses = h.number(m.InReplyTo), losses
	} else {
		entry.Steps = []journal.Step{{Message: m.InReplyTo, To: m.From, State: parley.Answered, Attempt: v.Attempt, Reply: m.ID, Error: m.Error, Losses: union(v.Losses, losses)}}
	}
	for {
		a := &recordedMessage{message: m, scope: scope, request: request}
		h.claimLanes(a, entry.Open)
		err := h.write(ctx, entry, a, false)
		if err == nil {
			s.note(a.position)
			return a, nil
		}
		if !h.retargetReply(&entry, err) {
			return nil, err
		}
	}
}

// retargetReply reports whether a reply was refused only because a further
// attempt to bring its request was begun meanwhile, and makes it the answer to
// that: whichever attempt the agent answered, it has answered.
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

// openDelivery finds an open one. The caller may know of it from another hub on the
// same journal, whose record is not read here yet: so everything recorded by now
// is read before the answer is that there is none.
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

// replyTo opens the delivery of what is said about a request to its sender;
// none where the sender waits here, fetches it, or cannot be reached.
func (h *Hub) replyTo(request, reply *parley.Message, waits bool) []journal.Opening {
	if waits {
		return nil
	}
	b := h.bindings[request.Origin.Protocol]
	if b != nil && !b.can.CarriesReplies {
		return b.callback(request, reply.Kind)
	}
	if b != nil && b.can.CarriesEvent != nil && reply.Kind == parley.Event && !b.can.CarriesEvent(reply) {
		return nil
	}
	if !h.reachable(request.From, parley.Response) {
		return nil
	}
	return []journal.Opening{{To: request.From}}
}

func (h *Hub) newReply(a delivery.Attempt, m *parley.Message) *delivery.Reply {
	r := &delivery.Reply{Message: m, Open: h.replyTo(a.Message, m, a.Sync)}
	if r.Open != nil {
		setRequestPosition(m, a.Position)
	}
	r.Losses = h.replyLosses(a.Message, m, r.Open)
	return r
}

// replyLosses gives what an event or a reply loses that has no delivery of its own: an
// event's are recorded with it, and noted in the delivery of its request. A
// reply's come with all that are noted there, so that the last step of the
// delivery tells everything.
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
		losses = union(v.Losses, losses)
	}
	return losses
}

// union adds the losses of b that a has not; a itself where that is all.
func union(a, b []parley.Loss) []parley.Loss { return journal.AddLosses(a, b) }

// response and failure compose terminal replies.
func (h *Hub) response(m *parley.Message, from string, parts []parley.Part) *parley.Message {
	return h.about(m, from, &parley.Message{Kind: parley.Response, Parts: parts})
}

func (h *Hub) failure(m *parley.Message, from string, err *parley.Error) *parley.Message {
	return h.about(m, from, &parley.Message{Kind: parley.Failure, Error: err})
}

// about makes r a message of from about the request m.
func (h *Hub) about(m *parley.Message, from string, r *parley.Message) *parley.Message {
	r.From, r.To, r.Conversation, r.InReplyTo, r.Hops = from, m.From, m.Conversation, m.ID, []string{h.c.ID}
	if r.Trace.Parent == "" {
		r.Trace = m.Trace
	}
	if r.Origin.Protocol == "" {
		r.Origin = parley.Origin{Protocol: "go", Peer: from, Verdict: parley.Verdict{Assurance: parley.Session}}
	}
	if err := h.complete(r, false); err != nil {
		// Only a broken source of randomness brings this: the ID of the
		// request and its answer's kind still make one that is used once.
		sum := sha256.Sum256(append(m.ID[:], byte(r.Kind)))
		r.ID = parley.HashID(sum[:])
	}
	return r
}

// requestPosition is where, in Trace.Foreign, a reply says at which position of
// the journal its request is recorded: the way back to the sender begins there.
const requestPosition = "parley.request"

// setRequestPosition notes in r where its request is recorded.
func setRequestPosition(r *parley.Message, p journal.Position) {
	f := make(map[string]string, len(r.Trace.Foreign)+1)
	for k, v := range r.Trace.Foreign {
		f[k] = v
	}
	f[requestPosition] = p.String()
	r.Trace.Foreign = f
}

// requestOf finds the request that a message is about.
func (h *Hub) requestOf(ctx context.Context, m *parley.Message) (*parley.Message, error) {
	p, err := journal.ParsePosition(m.Trace.Foreign[requestPosition])
	if err != nil {
		return nil, err
	}
	request, _, err := h.request(ctx, m.InReplyTo, p)
	return request, err
}

// requestUnreadable is what comes of an attempt for which the request could not be
// read: it may be gone, or the journal cannot be read just now.
func requestUnreadable(err error) delivery.Result {
	if e := parley.AsError(err); e.Retryable {
		return delivery.Result{Err: parley.Fail(e.Code, err, "the request that this is about cannot be read now"), Wait: time.Second}
	}
	return delivery.Result{Err: parley.Refuse(parley.Conflict, "the request that this is about is not in the journal any more").Because(err)}
}

func (h *Hub) number(request parley.ID) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.numbers[request]++
	return h.numbers[request]
}
