package hub

import (
	"context"
	"iter"
	"slices"
	"sync/atomic"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/delivery"
	"github.com/parley-hub/parley/policy"
)

// caller lets an agent of this process call others. It is a parley.Caller.
//
// A handler that waits for an answer keeps its turn in its lane. So that handlers which
// call each other never wait for each other, a request of a handler to a handler
//   - takes none of the room of Config.HandlerCalls: the message that began it all did;
//   - waits for its turn in its lane like any other, but not behind a handler that itself
//     waits for an answer. It is then made at once.
//
// Of handlers that would wait in a circle, the last one to call closes the circle, and
// its call finds a handler that waits. See delivery.Dispatcher.Claim.
type caller struct {
	h     *Hub
	agent string
	turn  *turn // the handler's call; nil outside one
}

// turn is one call of a handler.
type turn struct {
	message *parley.Message
	agent   string
	scope   string
	guest   string // the source of the guest for whom the handler works; "": it is no guest
	over    atomic.Bool
}

// A turnKey names the calls of a handler for one message: at most one is in flight.
type turnKey struct {
	message parley.ID
	agent   string
}

func (t *turn) key() turnKey { return turnKey{t.message.ID, t.agent} }

// turnOf begins the turn of a handler.
func (h *Hub) turnOf(a delivery.Attempt) *turn {
	t := &turn{message: a.Message, agent: a.To, scope: a.Scope}
	if h.isGuest(&Submission{Message: a.Message}) {
		t.guest = policy.Source(a.Message.Origin.Address)
	} else if w := h.waiter(a.Message.ID); w != nil && w.asker != nil {
		t.guest = w.asker.guest
	}
	return t
}

// As gives a context in which [parley.Ask], [parley.Tell] and [parley.Stream] speak for
// an agent of this process: one of [Hub.Handle], or one of the configuration that has no
// identity in a protocol. In a handler's context what it sends still belongs to the
// message that the handler works on.
func (h *Hub) As(ctx context.Context, agent string) context.Context {
	c := &caller{h: h, agent: agent}
	if outer, ok := parley.CallerOf(ctx).(*caller); ok && outer.h == h {
		c.turn = outer.turn
	}
	return parley.WithCaller(ctx, c)
}

// Ask implements parley.Caller.
func (c *caller) Ask(ctx context.Context, m *parley.Message) (*parley.Message, error) {
	s, err := c.submission(ctx, m)
	if err != nil {
		return nil, err
	}
	return c.h.Ask(ctx, s)
}

// Stream implements parley.Caller.
func (c *caller) Stream(ctx context.Context, m *parley.Message) iter.Seq2[*parley.Message, error] {
	return func(yield func(*parley.Message, error) bool) {
		s, err := c.submission(ctx, m)
		if err != nil {
			yield(nil, err)
			return
		}
		call, err := c.h.Begin(ctx, s)
		if err != nil {
			yield(nil, err)
			return
		}
		call.Stream(ctx)(yield)
	}
}

// Tell implements parley.Caller.
func (c *caller) Tell(ctx context.Context, m *parley.Message) error {
	s, err := c.submission(ctx, m)
	if err != nil {
		return err
	}
	_, err = c.h.Accept(ctx, s)
	return err
}

// submission makes a message of the caller. The hub sets its sender, conversation, trace
// and hops; the handler cannot.
func (c *caller) submission(ctx context.Context, in *parley.Message) (s Submission, err error) {
	if err := ctx.Err(); err != nil {
		return s, parley.AsError(err)
	}
	if err := c.check(); err != nil {
		return s, err
	}
	m := &parley.Message{Kind: in.Kind, From: c.agent, To: in.To, Skill: in.Skill, Parts: in.Parts,
		Origin: originOfCode(c.agent)}
	s = Submission{Message: m, Scope: "go " + c.agent, inside: true}
	switch m.Kind {
	case parley.Request:
		m.Deadline = c.deadline(ctx)
	case parley.Input:
		m.InReplyTo = in.InReplyTo
	}
	if t := c.turn; t != nil {
		s.asker = t
		// One scope, so one partition: this hub owns it, and has the other handlers too.
		s.Scope, m.Conversation, m.Trace, m.Hops = t.scope, t.message.Conversation, t.message.Trace,
			slices.Clone(t.message.Hops)
		if t.guest != "" {
			c.h.c.Guests.Wrote(t.guest, recordCost(m))
		}
	}
	return s, nil
}

// check reports whether the caller may speak for its agent now.
func (c *caller) check() *parley.Error {
	if c.turn != nil && c.turn.over.Load() {
		return parley.Refuse(parley.Conflict, "the handler has returned: only during its call may it call agents")
	}
	if l, _ := c.h.here(c.agent); l != nil {
		return nil
	}
	e, ok := c.h.c.Directory.Agent(c.agent)
	if ok && len(e.Native()) == 0 && !c.h.Guest(c.agent) {
		return nil
	}
	return parley.Refuse(parley.Forbidden, "agent %q is not of this program: register it with Handle, or name it in the "+
		"configuration without an identity in a protocol", c.agent)
}

// deadline is when the caller stops waiting: the end of ctx, at most the deadline of the
// request that the handler works on; zero where neither is set.
func (c *caller) deadline(ctx context.Context) (d time.Time) {
	if c.turn != nil && c.turn.message.Kind == parley.Request {
		d = c.turn.message.Deadline
	}
	if end, ok := ctx.Deadline(); ok {
		// A handler's context ends at the deadline of its request, but is measured by a timer.
		if t := c.h.c.Now().Add(time.Until(end)); d.IsZero() || t.Before(d.Add(-10*time.Millisecond)) {
			d = t
		}
	}
	return d
}

// originOfCode is the origin of what an agent of this process says.
func originOfCode(agent string) parley.Origin {
	return parley.Origin{Protocol: "go", Peer: agent, Verdict: parley.Verdict{Assurance: parley.Session}}
}

// Nested reports whether a handler of this process waits for the answer of another one
// to a request.
func (c *transport) Nested(request parley.ID, to string) bool {
	h := c.hub()
	h.mu.Lock()
	defer h.mu.Unlock()
	w := h.waiters[request]
	return w != nil && w.asker != nil && h.local[to] != nil
}

// Waits reports whether the handler of an agent that works on a message waits for an
// answer to a request of its own.
func (c *transport) Waits(message parley.ID, agent string) bool {
	h := c.hub()
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.asking[turnKey{message, agent}] > 0
}
