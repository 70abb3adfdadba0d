package hub

import (
	"context"
	"strings"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/delivery"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/journal"
)

// A CallbackBinding brings some senders the outcome of their requests although
// it carries no replies: a SAMVAD sender may ask to be called back. The
// terminal reply of such a request is delivered, through Deliver, with the
// attempts, pauses and dead letters of any other message.
type CallbackBinding interface {
	Binding
	CallsBack(request *parley.Message) bool
}

// callbackMark ends the name to which a call back is delivered: the sender's,
// made one that no agent can have. So what calls back fails by itself, and
// holds nothing up that the sender is to get as an agent.
const callbackMark = " (callback)"

// callback opens the delivery of a terminal reply to a sender that is called
// back.
func callback(b Binding, request *parley.Message, k parley.Kind) []journal.Opening {
	if c, ok := b.(CallbackBinding); ok && k.Terminal() && c.CallsBack(request) {
		return []journal.Opening{{To: request.From + callbackMark}}
	}
	return nil
}

// callBack makes an attempt to call the sender of a request back.
func (h *Hub) callBack(ctx context.Context, name string, a delivery.Attempt) delivery.Result {
	request, err := h.requestOf(ctx, a.Message)
	if err != nil {
		return withoutRequest(err)
	}
	b := h.bindings[request.Origin.Protocol]
	if b == nil {
		return delivery.Result{Err: parley.Fail(parley.Unavailable, nil, "protocol %q is switched off", request.Origin.Protocol)}
	}
	e, ok := h.c.Directory.Agent(name)
	if !ok { // a sender that nobody added
		e = &directory.Entry{Agent: parley.Agent{Name: name}}
	}
	id := parley.Identity{Protocol: b.Protocol(), ID: request.Origin.Peer}
	return h.observed(ctx, a, b.Protocol(), func(ctx context.Context, a delivery.Attempt) delivery.Result {
		return h.send(ctx, b, id, e, a, request)
	})
}

// calledBack gives the sender to whom a call back is delivered.
func calledBack(to string) (name string, ok bool) { return strings.CutSuffix(to, callbackMark) }
