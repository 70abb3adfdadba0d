package parleytest

import (
	"context"
	"slices"
	"sync"

	"github.com/parley-hub/parley"
)

// An Agent is an agent of a [Hub] that follows a script, and keeps what it received.
type Agent struct {
	hub      *Hub
	life     context.Context // ends with the test
	received log

	mu     sync.Mutex
	script []parley.Handler
}

// Agent adds an agent, exposed in every protocol unless a.Exposed says otherwise. Each
// skill of a without a handler follows the script; without skills it has one, "any". A
// step of the script handles one message, and the last step all that follow. Without a
// script the agent answers nothing with success. See [Reply], [Refuse], [Stream] and
// [Hang]; any [parley.Handler] can be a step.
func (h *Hub) Agent(a parley.Agent, script ...parley.Handler) *Agent {
	h.t.Helper()
	life, end := context.WithCancel(context.Background())
	h.t.Cleanup(end) // before the hub ends, which waits for its handlers
	s := &Agent{hub: h, life: life, script: script}
	if a.Exposed == nil {
		a.Exposed = parley.Everywhere
	}
	a.Skills = slices.Clone(a.Skills)
	if len(a.Skills) == 0 {
		a.Skills = []parley.SkillSpec{{ID: "any"}}
	}
	for i := range a.Skills {
		if a.Skills[i].Handler == nil {
			a.Skills[i].Handler = s.handle
		}
	}
	if err := h.Handle(a); err != nil {
		h.t.Fatal(err)
	}
	return s
}

func (a *Agent) handle(ctx context.Context, m *parley.Message, r parley.Replier) error {
	a.received.add(m)
	a.mu.Lock()
	var step parley.Handler
	if len(a.script) > 0 {
		step = a.script[0]
	}
	if len(a.script) > 1 {
		a.script = a.script[1:]
	}
	a.mu.Unlock()
	if step == nil {
		return nil
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(a.life, stop)()
	return step(ctx, m, r)
}

// Received gives the messages so far, in the order of their arrival.
func (a *Agent) Received() []*parley.Message { return a.received.all() }

// Expect waits for a message to the agent that is as wanted, and gives the first. It
// fails the test if there is none within 30 seconds.
func (a *Agent) Expect(w Want) *parley.Message {
	a.hub.t.Helper()
	return expect(a.hub.t, "the agent received", &a.received, w)
}

// Reply is a step that answers with content, which is as in [Hub.Ask].
func Reply(content any) parley.Handler { return Stream(content) }

// Stream is a step that sends chunks ahead of its answer.
func Stream(content any, chunks ...any) parley.Handler {
	return func(_ context.Context, _ *parley.Message, r parley.Replier) error {
		for _, c := range chunks {
			p, err := part(c)
			if err == nil {
				err = r.Chunk(p)
			}
			if err != nil {
				return err
			}
		}
		p, err := part(content)
		if err != nil {
			return err
		}
		return r.Reply(p)
	}
}

// Refuse is a step that fails with a code and a text, which reach the requester.
func Refuse(code parley.Code, text string) parley.Handler {
	return func(context.Context, *parley.Message, parley.Replier) error { return parley.Refuse(code, "%s", text) }
}

// Hang is a step that answers nothing, until the request is cancelled, its time is over,
// or the test is.
func Hang() parley.Handler {
	return func(ctx context.Context, _ *parley.Message, _ parley.Replier) error {
		<-ctx.Done()
		return context.Cause(ctx)
	}
}
