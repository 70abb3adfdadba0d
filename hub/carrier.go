package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/delivery"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/journal"
)

// carrier is the hub as delivery sees it.
type carrier Hub

func (c *carrier) hub() *Hub { return (*Hub)(c) }

// Carry makes one attempt: to a handler or an inbox of this process, or
// through the binding of the recipient.
func (c *carrier) Carry(ctx context.Context, a delivery.Attempt) delivery.Result {
	r := c.carry(ctx, a)
	if a.Message.Kind == parley.Notice && misfits(r.Err) {
		return noted(r.Err, r.Losses...)
	}
	return r
}

func (c *carrier) carry(ctx context.Context, a delivery.Attempt) delivery.Result {
	h := c.hub()
	if a.Message.Kind == parley.Request {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		h.mu.Lock()
		h.running[a.Message.ID] = cancel
		if h.ended {
			cancel()
		}
		h.mu.Unlock()
		defer func() {
			h.mu.Lock()
			delete(h.running, a.Message.ID)
			h.mu.Unlock()
		}()
	}
	h.mu.Lock()
	l, box := h.local[a.To], h.inboxes[a.To]
	h.mu.Unlock()
	if a.Message.Kind == parley.Notice {
		fitted, err := h.fitNotice(a.Message, a.To, l != nil)
		if err != nil {
			return noted(err)
		}
		a.Message = fitted
	}
	switch {
	case box != nil:
		return h.observed(ctx, a, "api", func(_ context.Context, a delivery.Attempt) delivery.Result {
			if !box.put(a) {
				// Its reader has just left; that is no failure of the message.
				return delivery.Result{Err: parley.Fail(parley.Unavailable, nil, "nobody reads the inbox of %q", a.To), Wait: time.Second}
			}
			return h.later(a)
		})
	case l != nil:
		return h.observed(ctx, a, "go", func(ctx context.Context, a delivery.Attempt) delivery.Result { return h.call(ctx, l, a) })
	}
	e, ok := h.c.Directory.Agent(a.To)
	if !ok {
		if r, ok := parseCallbackRecipient(a.To); ok {
			return h.callBack(ctx, r.sender, a)
		}
		return delivery.Result{Err: parley.Refuse(parley.UnknownAgent, "agent %q is not here any more", a.To)}
	}
	// What is said about a request goes back by the protocol it came in.
	protocol := a.Message.Origin.Protocol
	var request *parley.Message
	if k := a.Message.Kind; k == parley.Event || k.Terminal() || k == parley.Cancel {
		var err error
		if request = a.Request; request == nil {
			request, err = h.requestOf(ctx, a.Message)
		}
		if err != nil {
			return withoutRequest(err)
		}
		if k != parley.Cancel {
			protocol = request.Origin.Protocol
		}
	}
	b, id, ok := h.route(e, protocol)
	if !ok {
		return delivery.Result{Err: parley.Fail(parley.Unavailable, nil, "agent %q has no address in a protocol that is switched on", a.To)}
	}
	return h.observed(ctx, a, b.Protocol(), func(ctx context.Context, a delivery.Attempt) delivery.Result {
		return h.send(ctx, b, id, e, a, request)
	})
}

func (h *Hub) send(ctx context.Context, b Binding, id parley.Identity, e *directory.Entry, a delivery.Attempt, request *parley.Message) delivery.Result {
	o := b.Deliver(ctx, Outbound{Message: a.Message, Request: request, Scope: a.Scope, Recipient: e, Identity: id, Attempt: a.Number, Waits: a.Sync, Streams: h.streams(a),
		Event: func(state parley.State, parts ...parley.Part) error { return h.event(ctx, a, state, parts) }})
	switch {
	case o.Err != nil:
		return delivery.Result{Err: o.Err, Wait: o.Wait, Unknown: o.Unknown, Losses: o.Losses}
	case o.Answered && a.Message.Kind == parley.Request:
		reply := &parley.Message{}
		if o.Reply != nil {
			*reply = *o.Reply
		}
		reply.Kind, reply.Parts, reply.Error = parley.Response, o.Parts, nil
		if o.Failure != nil {
			reply.Kind, reply.Error = parley.Failure, o.Failure
		}
		h.about(a.Message, a.To, reply)
		h.fitReply(ctx, a.Message, a.To, reply)
		return delivery.Result{Reply: h.terminal(a, reply), Losses: o.Losses}
	case a.Message.Kind == parley.Notice && misfits(o.Failure):
		return delivery.Result{Err: o.Failure, Losses: o.Losses}
	}
	r := h.later(a)
	r.Losses = o.Losses
	return r
}

// streams reports whether who made the request of an attempt is told of events
// as they come: one who waits reads them, or they are brought to where the
// request came from.
func (h *Hub) streams(a delivery.Attempt) bool {
	if !a.Sync {
		b := h.bindings[a.Message.Origin.Protocol]
		return b != nil && b.can.CarriesReplies
	}
	h.mu.Lock()
	w := h.waiters[a.Message.ID]
	h.mu.Unlock()
	return w != nil && w.streams.Load()
}

// later is the result of a delivery whose reply comes later, if one is due.
func (h *Hub) later(a delivery.Attempt) delivery.Result {
	if a.Message.Kind == parley.Request {
		h.await(a.Message.ID, a.To, a.Position, a.Message.Deadline)
	}
	return delivery.Result{}
}

func (h *Hub) terminal(a delivery.Attempt, m *parley.Message) *delivery.Reply {
	r := &delivery.Reply{Message: m, Open: h.replyTo(a.Message, m, a.Sync)}
	if r.Open != nil {
		refer(m, a.Position)
	}
	r.Losses = h.lost(a.Message, m, r.Open)
	return r
}

// event records an event about the request of an attempt.
func (h *Hub) event(ctx context.Context, a delivery.Attempt, state parley.State, parts []parley.Part) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m := h.about(a.Message, a.To, &parley.Message{Kind: parley.Event, State: state, Parts: parts})
	e := journal.Entry{Scope: a.Scope, Message: m, Open: h.replyTo(a.Message, m, a.Sync)}
	e.Losses = h.lost(a.Message, m, e.Open)
	if e.Open != nil {
		refer(m, a.Position)
	}
	h.mu.Lock()
	w := h.waiters[a.Message.ID]
	h.mu.Unlock()
	if w != nil {
		if err := w.room(ctx); err != nil {
			return err
		}
	}
	m.Number = h.number(a.Message.ID)
	said := &accepted{message: m, scope: a.Scope, request: a.Message}
	h.claimAll(said, e.Open)
	at, err := h.c.Journal.Append(ctx, e)
	if err = h.written(ctx, said, at, nil, err, false); err != nil {
		return err
	}
	h.bring(said)
	return nil
}

// GivenUp tells the sender of a request that it will not be answered. Nothing
// else is answered with an error, so that errors never answer errors.
func (c *carrier) GivenUp(m *parley.Message, p journal.Position, to string, err *parley.Error) *delivery.Reply {
	h := c.hub()
	if m.Kind != parley.Request {
		return nil
	}
	reply := h.failure(m, to, err)
	h.mu.Lock()
	_, waits := h.waiters[m.ID]
	h.mu.Unlock()
	r := &delivery.Reply{Message: reply, Open: h.replyTo(m, reply, waits)}
	if r.Open != nil {
		refer(reply, p)
	}
	r.Losses = h.lost(m, reply, r.Open)
	return r
}

// Repeatable: handlers of this process see the message ID and the attempt.
func (c *carrier) Repeatable(message parley.ID, to string) bool {
	h := c.hub()
	h.mu.Lock()
	_, local := h.local[to]
	_, box := h.inboxes[to]
	h.mu.Unlock()
	if local || box {
		return true
	}
	e, ok := h.c.Directory.Agent(to)
	if !ok {
		_, ok = parseCallbackRecipient(to) // it knows the request's id, so the outcome may come twice
		return ok
	}
	b, id, ok := h.route(e, "")
	switch {
	case !ok:
		return false
	case b.can.DeduplicatesFor != nil:
		return b.can.DeduplicatesFor(e, id)
	case b.can.Resumes != nil && !message.IsZero() && b.can.Resumes(message):
		return true
	}
	return b.can.Deduplicates
}

// Paused: by an operator, or because it is an inbox that nobody reads.
func (c *carrier) Paused(to string) bool {
	h := c.hub()
	h.mu.Lock()
	box := h.inboxes[to]
	h.mu.Unlock()
	if box != nil && !box.read() {
		return true
	}
	e, ok := h.c.Directory.Agent(to)
	return ok && (e.Paused || box == nil && h.holds(e))
}

// AtOnce: handlers of this process have a bound of their own.
func (c *carrier) AtOnce(to string) int {
	h := c.hub()
	h.mu.Lock()
	defer h.mu.Unlock()
	if l := h.local[to]; l != nil {
		return cap(l.slots)
	}
	return 0
}

// local is an agent of this process.
type local struct {
	agent parley.Agent
	slots chan struct{}
}

// Handle registers an agent of this process. Its name must be free, or taken
// by an earlier Handle, which it replaces.
func (h *Hub) Handle(a parley.Agent) error {
	if len(a.Skills) == 0 {
		return fmt.Errorf("agent %q has no skills: pass parley.Skill(…) or parley.RawSkill(…)", a.Name)
	}
	seen := map[string]bool{}
	for i, s := range a.Skills {
		switch {
		case s.Handler == nil:
			return fmt.Errorf("skill %q of agent %q has no handler", s.ID, a.Name)
		case s.ID == "" || len(s.ID) > 64:
			return fmt.Errorf("skill %d of agent %q: want an id of 1 to 64 characters", i+1, a.Name)
		case seen[s.ID]:
			return fmt.Errorf("agent %q has two skills %q", a.Name, s.ID)
		}
		seen[s.ID] = true
		if _, err := compile(s.Input); err != nil {
			return fmt.Errorf("input schema of skill %q of agent %q: %w", s.ID, a.Name, err)
		}
	}
	if _, err := h.c.Directory.Put(context.Background(), a, directory.FromCode); err != nil {
		return err
	}
	h.mu.Lock()
	h.local[a.Name] = &local{agent: a, slots: make(chan struct{}, h.c.HandlerCalls)}
	h.mu.Unlock()
	return nil
}

// call runs a handler in a goroutine of its own.
func (h *Hub) call(ctx context.Context, l *local, a delivery.Attempt) delivery.Result {
	m := a.Message
	if m.Kind != parley.Request && m.Kind != parley.Notice {
		return delivery.Result{} // it has no handler for these; it has been told all it can be
	}
	skill, ok := l.agent.SkillNamed(m.Skill)
	if !ok {
		return h.answer(a, nil, parley.Refuse(parley.UnknownSkill, "agent %q has no skill %q", a.To, m.Skill))
	}
	select {
	case l.slots <- struct{}{}:
	default:
		return delivery.Result{Err: parley.Fail(parley.Unavailable, nil, "agent %q is busy", a.To)}
	}
	r := &replier{h: h, ctx: ctx, a: a, done: make(chan error, 1)}
	go func() {
		var err error
		defer func() {
			if p := recover(); p != nil {
				h.c.Logger.Error("a handler panicked", "agent", a.To, "skill", skill.ID, "message", m.ID, "panic", p, "stack", string(debug.Stack()))
				err = parley.Refuse(parley.HandlerFailed, "the agent failed").Because(fmt.Errorf("panic: %v", p))
			}
			<-l.slots // before the lane is free for the next
			r.done <- err
		}()
		err = skill.Handler(ctx, m, r)
	}()
	select {
	case err := <-r.done:
		parts, replied := r.end()
		if err == nil {
			return r.priced(h.answer(a, parts, nil))
		}
		if replied {
			h.c.Logger.Warn("a handler failed after its reply", "agent", a.To, "message", m.ID, "error", err)
			return r.priced(h.answer(a, parts, nil))
		}
		return r.priced(h.handlerError(ctx, a, err))
	case <-ctx.Done():
		if parts, replied := r.end(); replied {
			return r.priced(h.answer(a, parts, nil))
		}
		return r.priced(h.handlerError(ctx, a, ctx.Err()))
	}
}

// handlerError turns what a handler returned into the request's Failure; the
// text of errors that are not meant for strangers stays here.
func (h *Hub) handlerError(ctx context.Context, a delivery.Attempt, err error) delivery.Result {
	var e *parley.Error
	switch {
	case errors.As(err, &e):
	case ctx.Err() != nil:
		e = parley.AsError(ctx.Err())
	default:
		h.c.Logger.Error("a handler failed", "agent", a.To, "message", a.Message.ID, "error", err)
		e = parley.Refuse(parley.HandlerFailed, "the agent failed").Because(err)
	}
	if a.Message.Kind != parley.Request {
		return delivery.Result{Err: e}
	}
	return h.answer(a, nil, e)
}

func (h *Hub) answer(a delivery.Attempt, parts []parley.Part, err *parley.Error) delivery.Result {
	if a.Message.Kind != parley.Request {
		return delivery.Result{Err: err}
	}
	if err != nil {
		return delivery.Result{Reply: h.terminal(a, h.failure(a.Message, a.To, err))}
	}
	reply := h.response(a.Message, a.To, parts)
	h.fitReply(context.Background(), a.Message, a.To, reply)
	return delivery.Result{Reply: h.terminal(a, reply)}
}

// replier is what a handler speaks through; after the end of its call it is
// deaf.
type replier struct {
	h    *Hub
	ctx  context.Context
	a    delivery.Attempt
	done chan error

	mu      sync.Mutex
	ended   bool
	replied bool
	parts   []parley.Part
	tokens  int // see Spend
}

var errReplied = errors.New("the reply has been given already")

func (r *replier) Attempt() int { return r.a.Number }

func (r *replier) Progress(text string) error { return r.event(parley.Working, parley.Text(text)) }

func (r *replier) Chunk(p parley.Part) error { return r.event(parley.NoState, p) }

func (r *replier) event(s parley.State, p parley.Part) error {
	r.mu.Lock()
	over := r.ended || r.replied
	r.mu.Unlock()
	if over {
		return errReplied
	}
	if r.a.Message.Kind != parley.Request {
		return nil // nobody asked, so nobody listens
	}
	return r.h.event(r.ctx, r.a, s, []parley.Part{p})
}

func (r *replier) Reply(parts ...parley.Part) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended || r.replied {
		return errReplied
	}
	r.replied, r.parts = true, parts
	return nil
}

// Spend implements parley.Meter.
func (r *replier) Spend(tokens int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tokens += max(tokens, 0)
}

// priced notes in a reply what the work cost.
func (r *replier) priced(res delivery.Result) delivery.Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tokens > 0 && res.Reply != nil {
		res.Reply.Message.Extensions = map[string]json.RawMessage{parley.CostExtension: fmt.Appendf(nil, `{"tokens":%d}`, r.tokens)}
	}
	return res
}

func (r *replier) end() ([]parley.Part, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	return r.parts, r.replied
}

// inbox is an agent whose messages are read through the API. Messages wait
// while nobody reads.
type inbox struct {
	mu      sync.Mutex
	readers []chan delivery.Attempt
}

func (b *inbox) read() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.readers) > 0
}

// put gives a message to the first reader that takes it.
func (b *inbox) put(a delivery.Attempt) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.readers {
		select {
		case r <- a:
			return true
		default:
		}
	}
	return false
}

// Inbox makes an agent of the directory one whose messages are read with
// Read.
func (h *Hub) Inbox(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.inboxes[name] == nil {
		h.inboxes[name] = &inbox{}
	}
}

// CloseInbox ends what Inbox began; who reads it goes on reading nothing.
func (h *Hub) CloseInbox(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.inboxes, name)
}

// Read yields messages to an inbox as they are delivered, until ctx ends. A
// message that was yielded counts as delivered. Requests are answered through
// Accept, with InReplyTo.
func (h *Hub) Read(ctx context.Context, name string) (<-chan delivery.Attempt, error) {
	h.mu.Lock()
	b := h.inboxes[name]
	h.mu.Unlock()
	if b == nil {
		return nil, parley.Refuse(parley.UnknownAgent, "agent %q has no inbox here", name)
	}
	c := make(chan delivery.Attempt, 64)
	b.mu.Lock()
	b.readers = append(b.readers, c)
	b.mu.Unlock()
	context.AfterFunc(ctx, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for i, r := range b.readers {
			if r == c {
				b.readers = append(b.readers[:i], b.readers[i+1:]...)
			}
		}
		close(c)
	})
	h.deliver.Kick(name)
	return c, nil
}

// Pause holds deliveries to an agent back, or lets them go on.
func (h *Hub) Pause(ctx context.Context, name string, paused bool) error {
	return h.c.Directory.Pause(ctx, name, paused)
}

// Retry revives a dead letter: same message, same ID.
func (h *Hub) Retry(ctx context.Context, id parley.ID, to string) error {
	return h.operate(ctx, id, to, parley.Waiting)
}

// Drop gives a dead letter up for good.
func (h *Hub) Drop(ctx context.Context, id parley.ID, to string) error {
	return h.operate(ctx, id, to, parley.Dropped)
}

func (h *Hub) operate(ctx context.Context, id parley.ID, to string, s parley.DeliveryState) error {
	v, ok := h.c.Journal.Delivery(id, to)
	if !ok || v.State != parley.Dead {
		return parley.Refuse(parley.Conflict, "message %s is no dead letter to %q", id, to)
	}
	if _, err := h.c.Journal.Append(ctx, journal.Entry{Steps: []journal.Step{{Message: id, To: to, State: s, Attempt: v.Attempt}}}); err != nil {
		return recordError(err)
	}
	return nil
}

// Dead lists the dead letters.
func (h *Hub) Dead() []journal.Delivery {
	return h.c.Journal.Deliveries(journal.Filter{States: []parley.DeliveryState{parley.Dead}})
}

var _ delivery.Carrier = (*carrier)(nil)
