package hub

import (
	"context"
	"strings"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/delivery"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/journal"
)

// A callbackRecipient is the sender of a request as the recipient of a callback. In the
// journal it has a name that no agent can have: so a failing callback delays no other
// message to the sender, and no other callback.
type callbackRecipient struct {
	sender string
	name   string // of the callback, where a request has several; may be empty
}

const callbackMark = " (callback"

// String is the recorded form, which [parseCallbackRecipient] reads.
func (r callbackRecipient) String() string {
	if r.name == "" {
		return r.sender + callbackMark + ")"
	}
	return r.sender + callbackMark + " " + r.name + ")"
}

func parseCallbackRecipient(to string) (r callbackRecipient, ok bool) {
	sender, rest, ok := strings.Cut(to, callbackMark)
	name, closed := strings.CutSuffix(rest, ")")
	if !ok || !closed || name != "" && name[0] != ' ' {
		return r, false
	}
	return callbackRecipient{sender, strings.TrimPrefix(name, " ")}, true
}

// callbacks opens the deliveries of an event or a reply to a sender that is called back.
func (b *bound) callbacks(request, reply *parley.Message) (open []journal.Opening) {
	if b.can.CallsBack == nil {
		return nil
	}
	for _, name := range b.can.CallsBack(request, reply) {
		open = append(open, journal.Opening{To: callbackRecipient{request.From, name}.String()})
	}
	return open
}

// callBack makes an attempt to call the sender of a request back.
func (h *Hub) callBack(ctx context.Context, r callbackRecipient, a delivery.Attempt) delivery.Result {
	request, err := h.requestOf(ctx, a.Message)
	if err != nil {
		return requestUnreadable(err)
	}
	b := h.bindings[request.Origin.Protocol]
	if b == nil {
		err := parley.Fail(parley.Unavailable, nil, "protocol %q is switched off", request.Origin.Protocol)
		return delivery.Result{Err: err.With(parley.ByNetwork, parley.NoAddress, "")}
	}
	e, ok := h.c.Directory.Agent(r.sender)
	if !ok { // an unknown sender
		e = &directory.Entry{Agent: parley.Agent{Name: r.sender}}
	}
	id := parley.Identity{Protocol: b.Protocol(), ID: request.Origin.Peer}
	return h.observed(ctx, a, b.Protocol(), func(ctx context.Context, a delivery.Attempt) delivery.Result {
		return h.send(ctx, b, id, e, a, request, r.name)
	})
}
