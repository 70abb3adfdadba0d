package pairs

import (
	"context"
	"errors"
	"fmt"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"

	"github.com/parley-hub/parley/a2e"
	"github.com/parley-hub/parley/samvad"
)

// A Worker is a peer that can leave long work to others.
type Worker interface {
	Peer
	// Commission asks in the form in which the protocol fetches a much later answer,
	// and goes on after the hub was away.
	Commission(ctx context.Context, q Question) (Answer, error)
	// Release lets the peer do now the work that it was asked to do later.
	Release()
}

// Release lets the peer do now the work that it was asked to do later.
func (c *common) Release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.gate)
	c.gate = make(chan struct{})
}

// Commission leaves a task and polls it.
func (p *samvadPeer) Commission(ctx context.Context, q Question) (Answer, error) {
	call, c := p.call(q.To, q.Text), *p.client()
	c.PollEvery = 50 * time.Millisecond
	id, err := c.Send(ctx, call)
	if err != nil {
		return Answer{}, samvadFailure(err)
	}
	q.taken()
	t, err := c.Wait(ctx, call.URL, id)
	switch {
	case t != nil && t.Status == samvad.TaskFailed:
		return Answer{}, &Failure{Text: err.Error()}
	case err != nil:
		return Answer{}, samvadFailure(err)
	}
	text, err := textOf(t.Result)
	return Answer{Text: text}, err
}

// Commission is Ask: every question of this protocol may take long.
func (p *uagentsPeer) Commission(ctx context.Context, q Question) (Answer, error) {
	return p.Ask(ctx, q)
}

// Delegated gives work to another agent by the capability multi_agent, and waits for
// the result. When ctx ends, the work is terminated.
func (p *a2ePeer) Delegated(ctx context.Context, q Question) (Answer, error) {
	c, err := p.conn()
	if err != nil {
		return Answer{}, err
	}
	say := func(ctx context.Context, kind string, body map[string]any) (*a2e.Envelope, error) {
		m, err := c.Ask(ctx, a2e.Message{Type: "multi_agent/" + kind, Body: body})
		return m, a2eFailure(err)
	}
	// A request is sent even if ctx ends, so that it can be terminated.
	begin, begun := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer begun()
	m, err := say(begin, "spawn", map[string]any{"name": q.To.Name(), "role": q.To.Name()})
	if err != nil {
		return Answer{}, err
	}
	id := m.Str("subagent_id")
	if m, err = say(begin, "delegate", map[string]any{"subagent_id": id,
		"task_name": "talk", "instruction": q.Text}); err != nil {
		return Answer{}, err
	}
	if !m.Bool("accepted") {
		return Answer{}, fmt.Errorf("the work was not accepted: %s", m.Raw())
	}
	q.taken()
	for {
		m, err := say(ctx, "await", map[string]any{"subagent_id": id})
		if ctx.Err() != nil {
			// a stream that broke may pause for 30 s
			end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 80*time.Second)
			defer cancel()
			if _, err := say(end, "terminate", map[string]any{"subagent_id": id}); err != nil {
				return Answer{}, err
			}
			return Answer{}, context.Cause(ctx)
		}
		var f *Failure
		switch {
		case errors.As(err, &f):
			return Answer{}, err
		case err != nil: // the hub is away: the peer tries again
			pause(ctx)
			continue
		}
		switch m.Str("status") {
		case a2e.StatusCompleted:
			text, err := textOf(m.Get("result"))
			return Answer{Text: text}, err
		case a2e.StatusFailed:
			return Answer{}, &Failure{Text: m.Str("error")}
		}
	}
}

// Commission is Delegated.
func (p *a2ePeer) Commission(ctx context.Context, q Question) (Answer, error) {
	return p.Delegated(ctx, q)
}

// Commission looks for the other peer until it finds it: the hub may have come back
// just now.
func (p *aghPeer) Commission(ctx context.Context, q Question) (Answer, error) {
	c, err := p.peer()
	if err != nil {
		return Answer{}, err
	}
	p.met.Delete(q.To.Name())
	for {
		err := p.meet(ctx, c, q.To.Name())
		if err == nil {
			return p.Ask(ctx, q)
		}
		if pause(ctx); ctx.Err() != nil {
			return Answer{}, errors.Join(context.Cause(ctx), err)
		}
	}
}

// Commission is Ask: every question of this protocol may take long.
func (p *aspPeer) Commission(ctx context.Context, q Question) (Answer, error) { return p.Ask(ctx, q) }

// Commission leaves a task at the hub, and subscribes to it as often as it must.
func (p *a2aPeer) Commission(ctx context.Context, q Question) (Answer, error) {
	return p.ask(ctx, q, func(ctx context.Context, c *a2aclient.Client, r *protocol.SendMessageRequest, t *a2aTask) error {
		r.Config = &protocol.SendMessageConfig{ReturnImmediately: true}
		v, err := c.SendMessage(ctx, r)
		if err != nil {
			return err
		}
		q.taken()
		t.take(v)
		return t.persist(ctx, c)
	})
}

// Commission is Ask: the call gets a handle, by which parley_result fetches the answer.
func (p *mcpPeer) Commission(ctx context.Context, q Question) (Answer, error) {
	q.Events = nil // with them, the hub would wait longer before it gives the handle
	return p.Ask(ctx, q)
}
