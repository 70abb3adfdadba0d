package hub

import (
	"context"
	"slices"
	"sync"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/policy"
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
		return nil, errNoInput
	}
	request, scope, err := h.request(ctx, m.InReplyTo, v.Position)
	if err != nil {
		return nil, recordError(err)
	}
	m.Conversation, m.Skill = v.Conversation, request.Skill
	if t := request.Trace; len(m.Trace.Parent) != 55 {
		m.Trace.Parent, m.Trace.State = t.Parent, t.State
	}
	e, ok := h.c.Directory.Agent(m.To)
	if !ok {
		return nil, parley.Refuse(parley.UnknownAgent, "no agent %q here", m.To).
			With(parley.ByPolicy, parley.NoSuchAgent, "")
	}
	if err := h.policy.Load().Admit(m, []policy.Recipient{{Agent: &e.Agent, Native: e.Native(),
		Began: slices.Contains(s.Began, m.To)}}); err != nil {
		return nil, err
	}
	var in *inputs
	if l, _ := h.here(m.To); l != nil {
		if in = h.openInputs(m.InReplyTo); !in.reserve(m) {
			return nil, errUnread
		}
	}
	a, err := h.recordInput(ctx, s, v, request, scope)
	if err == nil {
		return a, nil
	}
	if in != nil {
		in.release(m)
	}
	// If it ended before openInputs, nothing else drops the queue.
	if _, open := h.c.Journal.Delivery(m.InReplyTo, m.To); !open {
		h.dropTimers(m.InReplyTo)
	}
	return nil, err
}

var errNoInput = parley.Refuse(parley.Conflict, "no open request of yours that takes more input")

// recordInput records an admitted input.
func (h *Hub) recordInput(ctx context.Context, s Submission, v journal.Delivery, request *parley.Message,
	scope string) (*recordedMessage, error) {
	m := s.Message
	if err := h.charge(ctx, &s, false); err != nil {
		return nil, err
	}
	m.Hops = append(slices.Clone(m.Hops), h.c.ID)
	m.Number = h.number(m.InReplyTo, parley.Input)
	if _, open := h.c.Journal.Delivery(m.InReplyTo, m.To); !open {
		return nil, errNoInput // it ended meanwhile
	}
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

	mu     sync.Mutex
	queue  []*parley.Message
	coming map[parley.ID]int // bytes of the content of each input that this hub is about to record
	size   int               // bytes of the content of all inputs in queue and coming
}

// The bounds of the inputs that a handler has not read. The queue may exceed the second
// by one input.
const (
	maxInputs     = 256
	maxInputBytes = 1 << 20
)

var errUnread = parley.Fail(parley.Unavailable, nil, "the agent has not read what was added to the request before").
	With(parley.ByLimit, parley.OpenRequests, "")

func (in *inputs) fullLocked() bool {
	return len(in.queue)+len(in.coming) >= maxInputs || in.size >= maxInputBytes
}

// reserve keeps room for an input that is about to be recorded; false: there is none.
func (in *inputs) reserve(m *parley.Message) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.fullLocked() {
		return false
	}
	in.size += m.ContentSize() - in.coming[m.ID] // a duplicate may arrive at the same time
	in.coming[m.ID] = m.ContentSize()
	return true
}

// release frees the room of an input that is not recorded.
func (in *inputs) release(m *parley.Message) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.releaseLocked(m)
}

func (in *inputs) releaseLocked(m *parley.Message) (reserved bool) {
	size, reserved := in.coming[m.ID]
	in.size -= size
	delete(in.coming, m.ID)
	return reserved
}

// put queues a recorded input; false: there is no room for it.
func (in *inputs) put(m *parley.Message) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.releaseLocked(m) && in.fullLocked() {
		return false
	}
	in.queue, in.size = append(in.queue, m), in.size+m.ContentSize()
	return true
}

// inputsOf gives the queue of a request on which a handler works in this process, or nil.
func (h *Hub) inputsOf(request parley.ID) *inputs {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.inputs[request]
}

// openInputs gives the queue of a request, with what was added before its handler began.
func (h *Hub) openInputs(request parley.ID) *inputs {
	h.mu.Lock()
	defer h.mu.Unlock()
	in := h.inputs[request]
	if in == nil {
		in = &inputs{ready: make(chan struct{}, 1), coming: map[parley.ID]int{}}
		h.inputs[request] = in
	}
	return in
}

func (h *Hub) closeInputs(request parley.ID, in *inputs) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.inputs[request] == in { // else a later attempt has one of its own
		delete(h.inputs, request)
	}
}

// takeInput gives a recorded input to the handler of this process that works on its
// request, or will.
func (h *Hub) takeInput(m *parley.Message) {
	if l, _ := h.here(m.To); l == nil {
		return
	}
	in := h.inputsOf(m.InReplyTo)
	if in == nil {
		in = h.openInputs(m.InReplyTo)
		go func() { // the journal must not be called from here
			if _, open := h.c.Journal.Delivery(m.InReplyTo, m.To); !open { // it ended meanwhile
				h.closeInputs(m.InReplyTo, in)
			}
		}()
	}
	if !in.put(m) { // another hub recorded it, which does not know the queue
		h.c.Logger.Warn("a handler does not read what is added to its request", "request", m.InReplyTo, "agent", m.To)
	}
	token(in.ready)
}

// next waits for the next input, until the handler's time is up.
func (in *inputs) next(ctx context.Context) (*parley.Message, error) {
	for {
		in.mu.Lock()
		if len(in.queue) > 0 {
			m := in.queue[0]
			in.queue, in.size = in.queue[1:], in.size-m.ContentSize()
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
