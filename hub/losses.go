package hub

import (
	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// lost gives what an event or a reply loses that has no delivery of its own: an
// event's are recorded with it, and noted in the delivery of its request. A
// reply's come with all that are noted there, so that the last step of the
// delivery tells everything.
func (h *Hub) lost(request, reply *parley.Message, open []journal.Opening) []parley.Loss {
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
