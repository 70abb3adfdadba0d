package hub

import (
	"slices"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// A LossBinding tells what events and replies lose that reach who asked
// without a delivery: with the response to its call, or because it fetches
// them. The hub notes it in the delivery of the request.
type LossBinding interface {
	Binding
	ReplyLosses(reply, request *parley.Message) []parley.Loss
}

// maxUnsaid is how many different losses of events one request has noted.
const maxUnsaid = 16

// lost gives what a reply loses that has no delivery of its own, with what the
// events before it lost. Those of an event are kept until then.
func (h *Hub) lost(request, reply *parley.Message, open []journal.Opening) []parley.Loss {
	var losses []parley.Loss
	if open == nil {
		if b, ok := h.bindings[request.Origin.Protocol].(LossBinding); ok {
			losses = b.ReplyLosses(reply, request)
		}
	}
	event := reply.Kind == parley.Event
	if event && losses == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	before, ok := h.unsaid[request.ID]
	if !event {
		if ok {
			losses = union(before, losses)
		}
		return losses
	}
	if all := union(before, losses); len(all) <= maxUnsaid {
		h.unsaid[request.ID] = all
	}
	return nil
}

// union adds the losses of b that a has not; a itself where that is all.
func union(a, b []parley.Loss) []parley.Loss {
	out := a
	for _, l := range b {
		if !slices.Contains(out, l) {
			out = append(slices.Clip(out), l)
		}
	}
	return out
}
