package hub

import (
	"context"
	"slices"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// submitCancel records that a sender no longer wants the answer of To. A request that To does
// not have yet, or about which it cannot be told, ends as cancelled at once; so does an attempt in
// flight. Else To decides when it ends.
func (h *Hub) submitCancel(ctx context.Context, s Submission) (*recordedMessage, error) {
	m := s.Message
	v, ok, err := h.openDelivery(ctx, m.InReplyTo, m.To)
	if err != nil {
		return nil, recordError(err)
	}
	if !ok || v.From != m.From || v.Kind != parley.Request {
		return nil, parley.Refuse(parley.Conflict, "no open request of yours that could be cancelled")
	}
	request, scope, err := h.request(ctx, m.InReplyTo, v.Position)
	if err != nil {
		return nil, recordError(err)
	}
	if err := h.policy.Load().Admit(m, nil); err != nil {
		return nil, err
	}
	if err := h.charge(ctx, &s, false); err != nil {
		return nil, err
	}
	m.Conversation = v.Conversation
	m.Hops = append(slices.Clone(m.Hops), h.c.ID)
	entry := journal.Entry{Scope: scope, Message: m, Key: s.Key, Chain: s.Chain}
	never := v.State == parley.Waiting && v.Attempt == 0
	told := !never && h.reachable(m.To, m.Kind)
	if told {
		entry.Open = []journal.Opening{{To: m.To}}
		setRequestPosition(m, v.Position)
	}
	position, prior, err := h.append(ctx, entry)
	if err != nil {
		return nil, recordError(err)
	}
	if prior != nil {
		return nil, h.prior(ctx, prior)
	}
	s.note(position)
	stopped := h.stopAttempt(m.InReplyTo, errGivenUp)
	// A first attempt that began meanwhile may succeed even if it was stopped.
	if (never || !stopped) && !told && v.State != parley.Dead {
		h.endUnanswered(context.WithoutCancel(ctx), &recordedMessage{message: request, position: v.Position, scope: scope},
			context.Canceled)
	}
	return &recordedMessage{message: m, position: position, scope: scope}, nil
}

// sendCancel tells the recipient of a request that its answer is not needed any more:
// the deadline has passed, or the caller has gone. Some recipients cannot be told.
func (h *Hub) sendCancel(ctx context.Context, a *recordedMessage, to string, why *parley.Error) {
	if !h.reachable(to, parley.Cancel) {
		return
	}
	m := h.about(a.message, a.message.From, &parley.Message{Kind: parley.Cancel,
		Parts: []parley.Part{parley.Text(why.Text)}})
	m.To = to
	setRequestPosition(m, a.position)
	if _, err := h.c.Journal.Append(ctx, journal.Entry{Scope: a.scope, Message: m,
		Open: []journal.Opening{{To: to}}}); err != nil {
		h.c.Logger.Warn("cannot cancel a request that nobody waits for", "message", a.message.ID, "to", to,
			"error", err)
	}
}
