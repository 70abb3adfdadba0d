package hub

import (
	"context"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/delivery"
	"github.com/parley-hub/parley/internal/recorder"
	"github.com/parley-hub/parley/journal"
)

// verified notes how long a binding took to check a message that it hands over. A message without
// a time of receipt is the hub's own.
func (h *Hub) verified(m *parley.Message) {
	if o := &m.Origin; o.Verified == 0 && !o.Received.IsZero() {
		o.Verified = max(h.c.Now().Sub(o.Received), 0)
	}
}

// kept says which content of an attempt is recorded: none of an agent that records less than all.
func (h *Hub) kept(a delivery.Attempt) recorder.Content {
	names := [...]string{a.Message.From, a.Message.To, a.To}
	if r, ok := parseCallbackRecipient(a.To); ok {
		names[2] = r.sender
	}
	for _, name := range names {
		if e, ok := h.c.Directory.Agent(name); ok && e.Record != "" && e.Record != parley.RecordFull {
			return recorder.None
		}
	}
	if h.c.Sent != nil && h.c.Sent() {
		return recorder.All
	}
	return recorder.Answers
}

// exchangeOf is the exchange of an attempt whose request is answered before its outcome is recorded.
func (h *Hub) exchangeOf(request *parley.Message, v *journal.Delivery) *parley.Exchange {
	if v.State != parley.Delivering {
		return nil
	}
	return h.deliver.Exchange(request, v.To)
}

// lossesOf adds the losses of an answer to those of its request. They include those of an attempt whose outcome is not
// recorded yet: after the answer it cannot be.
func (h *Hub) lossesOf(request *parley.Message, v *journal.Delivery, answer []parley.Loss) []parley.Loss {
	all := v.Losses
	if v.State == parley.Delivering {
		all = journal.AddLosses(all, h.deliver.Losses(request, v.To))
	}
	return journal.AddLosses(all, answer)
}

// Loses says what the translation loses, before the message leaves. A binding calls it whose agents may answer by
// another way than in the attempt: the answer may be recorded before the outcome of Deliver.
func (o *Outbound) Loses(ctx context.Context, losses []parley.Loss) {
	list := make([]recorder.Loss, len(losses))
	for i, l := range losses {
		list[i] = recorder.Loss(l)
	}
	recorder.Lost(ctx, list...)
}
