package hub

import (
	"context"
	"strings"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/delivery"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/journal"
)

// A callbackRecipient is the sender of a request as the recipient of its
// callback. In the journal it has a name that no agent can have: so a failing
// callback delays no other message to the sender.
type callbackRecipient struct{ sender string }

const callbackMark = " (callback)"

// String is the recorded form, which [parseCallbackRecipient] reads.
func (r callbackRecipient) String() string { return r.sender + callbackMark }

func parseCallbackRecipient(to string) (r callbackRecipient, ok bool) {
	r.sender, ok = strings.CutSuffix(to, callbackMark)
	return r, ok
}

// callback opens the delivery of a terminal reply to a sender that is called
// back; nil for other senders and replies.
func (b *bound) callback(request *parley.Message, k parley.Kind) []journal.Opening {
	if b.can.CallsBack == nil || !k.Terminal() || !b.can.CallsBack(request) {
		return nil
	}
	return []journal.Opening{{To: callbackRecipient{request.From}.String()}}
}

// callBack makes an attempt to call the sender of a request back.
func (h *Hub) callBack(ctx context.Context, sender string, a delivery.Attempt) delivery.Result {
	request, err := h.requestOf(ctx, a.Message)
	if err != nil {
		return requestUnreadable(err)
	}
	b := h.bindings[request.Origin.Protocol]
	if b == nil {
		err := parley.Fail(parley.Unavailable, nil, "protocol %q is switched off", request.Origin.Protocol)
		return delivery.Result{Err: err.With(parley.ByNetwork, parley.NoAddress, "")}
	}
	e, ok := h.c.Directory.Agent(sender)
	if !ok { // an unknown sender
		e = &directory.Entry{Agent: parley.Agent{Name: sender}}
	}
	id := parley.Identity{Protocol: b.Protocol(), ID: request.Origin.Peer}
	return h.observed(ctx, a, b.Protocol(), func(ctx context.Context, a delivery.Attempt) delivery.Result {
		return h.send(ctx, b, id, e, a, request)
	})
}
