package hub

import (
	"context"
	"slices"
	"sync"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// submitInput records more from the sender of an open request about it. A handler of
// this process that works on the request reads it from the record; other recipients get
// it delivered.
func (h *Hub) submitInput(ctx context.Context, s Submission) (*recordedMessage, error) {
	m := s.Message
	v, ok, err := h.openDelivery(ctx, m.InReplyTo, m.To)
	if err != nil {
		return nil, recordError(err)
	}
	if !ok || v.From != m.From || v.Kind != parley.Request || v.State == parley.Dead {
		return nil, parley.Refuse(parley.Conflict, "no open request of yours that takes more input")
	}
	request, scope, err := h.request(ctx, m.InReplyTo, v.Position)
	if err != nil {
		return nil, recordError(err)
	}
	m.Conversation, m.Skill = v.Conversation, request.Skill
	if t := request.Trace; len(m.Trace.Parent) != 55 {
		m.Trace.Parent, m.Trace.State = t.Parent, t.State
	}
	if err := h.policy.Load().Admit(m, nil); err != nil {
		return nil, err
	}
	if h.isGuest(&s) {
		if err := h.chargeGuest(ctx, m, false); err != nil {
			return nil, err
		}
	}
	m.Hops = append(slices.Clone(m.Hops), h.c.ID)
	m.Number = h.number(m.InReplyTo, parley.Input)
	entry := journal.Entry{Scope: scope, Message: m, Key: s.Key, Chain: s.Chain}
	a := &recordedMessage{message: m, scope: scope, request: request}
	if h.reachable(m.To, m.Kind) {
		entry.Open = []journal.Opening{{To: m.To}}
		setRequestPosition(m, v.Position)
		h.claimLanes(a, entry.Open)
	}
	if err := h.write(ctx, entry, a); err != nil {
		return nil, err
	}
	s.note(a.position)
	return a, nil
}

// inputs queues what the requester adds to a request while a handler works on it.
type inputs struct {
	ready chan struct{} // has a token while an input can be read

	mu    sync.Mutex
	queue []*parley.Message
}

// maxInputs bounds the inputs that a handler has not read.
const maxInputs = 256

func (h *Hub) openInputs(request parley.ID) *inputs {
	in := &inputs{ready: make(chan struct{}, 1)}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.inputs[request] = in
	return in
}

func (h *Hub) closeInputs(request parley.ID, in *inputs) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.inputs[request] == in { // else a later attempt has one of its own
		delete(h.inputs, request)
	}
}

// takeInput gives a recorded input to the handler that works on its request, if it does
// so in this process.
func (h *Hub) takeInput(m *parley.Message) {
	h.mu.Lock()
	in := h.inputs[m.InReplyTo]
	h.mu.Unlock()
	if in == nil {
		return
	}
	in.mu.Lock()
	if len(in.queue) < maxInputs {
		in.queue = append(in.queue, m)
	} else {
		h.c.Logger.Warn("a handler does not read what is added to its request", "request", m.InReplyTo, "agent", m.To)
	}
	in.mu.Unlock()
	token(in.ready)
}

// next waits for the next input, until the handler's time is up.
func (in *inputs) next(ctx context.Context) (*parley.Message, error) {
	for {
		in.mu.Lock()
		if len(in.queue) > 0 {
			m := in.queue[0]
			in.queue = in.queue[1:]
			in.mu.Unlock()
			return m, nil
		}
		in.mu.Unlock()
		select {
		case <-in.ready:
		case <-ctx.Done():
			return nil, parley.AsError(ctx.Err())
		}
	}
}
