package hub

import (
	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// A LossBinding tells what events and replies lose that reach who asked
// without a delivery: with the response to its call, or because it fetches
// them, or is not told of them. The hub notes it in the delivery of the request.
type LossBinding interface {
	Binding
	ReplyLosses(reply, request *parley.Message) []parley.Loss
}

// An EventBinding carries replies to who asked, but may have no words for an event
// that comes before the reply, or have said it itself: such events are recorded,
// and opened for nobody. What they lose, a LossBinding tells.
type EventBinding interface {
	Binding
	CarriesEvent(event *parley.Message) bool
}

// lost gives what an event or a reply loses that has no delivery of its own: an
// event's are recorded with it, and noted in the delivery of its request. A
// reply's come with all that are noted there, so that the last step of the
// delivery tells everything.
func (h *Hub) lost(request, reply *parley.Message, open []journal.Opening) []parley.Loss {
	var losses []parley.Loss
	if open == nil {
		if b, ok := h.bindings[request.Origin.Protocol].(LossBinding); ok {
			losses = b.ReplyLosses(reply, request)
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
