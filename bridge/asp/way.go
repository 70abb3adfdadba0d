package asp

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
)

// heard notes the agents that call this hub: the calls at work, streams of events among them, and when the last one
// ended. It remembers up to maxHeard agents.
type heard struct {
	mu sync.Mutex
	by map[string]*agentCalls
}

type agentCalls struct {
	open int
	last time.Time
}

const maxHeard = 1 << 16

// callKey is the context key of a call: the agent is known only once the call is authenticated.
type callKey struct{}

// agentCall is one HTTP request; by is nil until its agent has authenticated.
type agentCall struct{ by *agentCalls }

// begin gives a request a context for [heard.authenticated]. The caller calls end when the request has ended.
func (h *heard) begin(r *http.Request, now func() time.Time) (_ *http.Request, end func()) {
	c := &agentCall{}
	return r.WithContext(context.WithValue(r.Context(), callKey{}, c)), func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if c.by != nil {
			c.by.open--
			c.by.last = now()
		}
	}
}

// authenticated notes the agent of a request.
func (h *heard) authenticated(ctx context.Context, agent string, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	of := h.by[agent]
	if of == nil {
		if h.by == nil || len(h.by) >= maxHeard {
			h.by = map[string]*agentCalls{}
		}
		of = &agentCalls{}
		h.by[agent] = of
	}
	of.last = now
	if c, ok := ctx.Value(callKey{}).(*agentCall); ok && c.by == nil {
		c.by = of
		of.open++
	}
}

// of gives an agent's calls.
func (h *heard) of(agent string) agentCalls {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c := h.by[agent]; c != nil {
		return *c
	}
	return agentCalls{}
}

// callIdle is the time after which an agent without a call at work counts as away: agents read their sessions by
// streams, or poll.
const callIdle = 2 * time.Minute

// way says what the hub sees of the way to an agent, for `parley doctor`: its card, and when it last called.
func (b *Binding) way(ctx context.Context, e *directory.Entry, id parley.Identity) hub.Way {
	w := hub.Way{How: "it holds its sessions at this hub"}
	a, err := b.store.Agent(ctx, id.ID)
	add := "agents." + e.Name + ".asp.card, or remove the agent and `parley agents add " + e.Name + " --asp CARD`"
	switch {
	case errors.Is(err, protocol.ErrNotFound):
		if b.c.Open {
			add += ", or let it register itself"
		}
		w.Fail("card", add, "this hub has no card of %s, so it can neither get a token nor be sent messages", id.ID)
		return w
	case err != nil:
		w.Skip("card", "the registry cannot be read: %v", err)
		return w
	case a.Removed:
		w.Fail("card", add, "%s was removed from the registry", id.ID)
		return w
	}
	by := "it registered itself"
	if a.Enrolled {
		by = "an operator registered it"
	}
	if card, err := a.Card(); err != nil {
		w.Fail("card", add, "the registered card cannot be used: %v", err)
	} else {
		w.OK("card", "key %s; %s", card.Key().ID(), by)
	}
	if c := b.heard.of(id.ID); c.open > 0 {
		w.OK("connection", "%d of its calls or streams are open at this hub", c.open)
	} else {
		w.Heard("connection", "start the agent with the server "+b.public.String(), "called this hub", c.last,
			b.c.Now(), callIdle)
	}
	return w
}
