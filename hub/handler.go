package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/delivery"
	"github.com/parley-hub/parley/directory"
)

// local is an agent of this process.
type local struct {
	agent parley.Agent
	calls chan struct{}
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
	h.local[a.Name] = &local{agent: a, calls: make(chan struct{}, h.c.HandlerCalls)}
	h.mu.Unlock()
	return nil
}

// call runs a handler in a goroutine of its own.
func (h *Hub) call(ctx context.Context, l *local, a delivery.Attempt) delivery.Result {
	m := a.Message
	if m.Kind != parley.Request && m.Kind != parley.Notice {
		return delivery.Result{} // a handler takes no other kinds
	}
	skill, ok := l.agent.SkillNamed(m.Skill)
	if !ok {
		return h.answer(a, nil, parley.Refuse(parley.UnknownSkill, "agent %q has no skill %q", a.To, m.Skill))
	}
	nested := (*transport)(h).Nested(m.ID, a.To)
	if !nested {
		select {
		case l.calls <- struct{}{}:
		default:
			return delivery.Result{Err: parley.Fail(parley.Unavailable, nil, "agent %q is busy", a.To).
				With(parley.ByPeer, parley.PeerBusy, fmt.Sprintf("%d calls of its handlers are running", cap(l.calls)))}
		}
	}
	t := h.turnOf(a)
	defer t.over.Store(true)
	ctx = parley.WithCaller(ctx, &caller{h: h, agent: a.To, turn: t})
	r := &replier{h: h, ctx: ctx, a: a, done: make(chan error, 1)}
	if m.Kind == parley.Request {
		r.inputs = h.openInputs(m.ID)
	}
	go func() {
		var err error
		defer func() {
			if p := recover(); p != nil {
				h.c.Logger.Error("a handler panicked", "agent", a.To, "skill", skill.ID, "message", m.ID, "panic", p,
					"stack", string(debug.Stack()))
				err = parley.Refuse(parley.HandlerFailed, "the agent failed").Because(fmt.Errorf("panic: %v", p))
			}
			if r.inputs != nil {
				h.closeInputs(m.ID, r.inputs)
			}
			if !nested {
				<-l.calls // before the lane is free for the next
			}
			r.done <- err
		}()
		err = skill.Handler(ctx, m, r)
	}()
	var err error
	returned := true
	select {
	case err = <-r.done:
	case <-ctx.Done():
		err, returned = ctx.Err(), false
	}
	parts, replied := r.end()
	if err != nil && !replied {
		return r.addCost(h.handlerError(ctx, a, err))
	}
	if err != nil && returned {
		h.c.Logger.Warn("a handler failed after its reply", "agent", a.To, "message", m.ID, "error", err)
	}
	return r.addCost(h.answer(a, parts, nil))
}

// handlerError turns a handler's error into the request's Failure, unless the hub's stop
// ended the attempt. Only the text of a parley.Error is sent; others are logged.
func (h *Hub) handlerError(ctx context.Context, a delivery.Attempt, err error) delivery.Result {
	var e *parley.Error
	switch {
	case errors.Is(context.Cause(ctx), delivery.ErrStopped): // no answer, whatever the handler made of it
		return delivery.Result{Err: parley.Fail(parley.Unavailable, err, "the hub was stopped during the attempt").
			With(parley.ByHub, parley.HubStops, ""), Unknown: true, Wait: retryPause}
	case errors.As(err, &e):
	case ctx.Err() != nil:
		e = parley.AsError(ctx.Err())
	default:
		h.c.Logger.Error("a handler failed", "agent", a.To, "message", a.Message.ID, "error", err)
		e = parley.Refuse(parley.HandlerFailed, "the agent failed").Because(err)
	}
	e = e.FromPeer()
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
		return h.replied(context.Background(), a, &parley.Message{Kind: parley.Failure, Error: err})
	}
	return h.replied(context.Background(), a, &parley.Message{Kind: parley.Response, Parts: parts})
}

// replier is a handler's parley.Replier. It works only during the handler's call.
type replier struct {
	h      *Hub
	ctx    context.Context
	a      delivery.Attempt
	done   chan error
	inputs *inputs // nil: the message is no request

	mu      sync.Mutex
	ended   bool
	replied bool
	parts   []parley.Part
	tokens  int // see Spend
}

func (r *replier) Attempt() int { return r.a.Number }

func (r *replier) Progress(text string) error { return r.event(parley.Working, parley.Text(text)) }

func (r *replier) Chunk(p parley.Part) error { return r.event(parley.NoState, p) }

// NeedInput implements parley.Prompter.
func (r *replier) NeedInput(parts ...parley.Part) (*parley.Message, error) {
	if r.inputs == nil {
		return nil, errors.New("a notice has no requester who could be asked")
	}
	if err := r.event(parley.NeedsInput, parts...); err != nil {
		return nil, err
	}
	if !r.a.Sync { // nobody outside can answer once the hub stops; a caller of this process can
		defer context.AfterFunc(r.h.open, func() { r.h.stopAttempt(r.a.Message.ID, delivery.ErrStopped) })()
	}
	return r.inputs.next(r.ctx)
}

func (r *replier) event(s parley.State, parts ...parley.Part) error {
	r.mu.Lock()
	over := r.ended || r.replied
	r.mu.Unlock()
	if over {
		return errReplied
	}
	if r.a.Message.Kind != parley.Request {
		return nil // a notice has no requester
	}
	return r.h.event(r.ctx, r.a, s, parts)
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

// addCost adds the cost of the work to a reply.
func (r *replier) addCost(res delivery.Result) delivery.Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tokens > 0 && res.Reply != nil {
		res.Reply.Message.Extensions = map[string]json.RawMessage{parley.CostExtension: fmt.Appendf(nil,
			`{"tokens":%d}`, r.tokens)}
	}
	return res
}

func (r *replier) end() ([]parley.Part, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	return r.parts, r.replied
}

var errReplied = errors.New("the reply has been given already")
