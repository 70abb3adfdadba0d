package pairs

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/parley-hub/parley/a2e"
	"github.com/parley-hub/parley/node"
)

// a2ePeer is an agent at the hub's A2E host: it calls the agents of the directory as
// tools and waits at parley_inbox for messages.
type a2ePeer struct {
	common
	token  string
	client *a2e.Client // nil: not connected; guarded by common.mu
}

func newA2E(name string) Peer {
	return &a2ePeer{common: newCommon("a2e", name), token: rand.Text()}
}

func (p *a2ePeer) Agent(dir string) (node.Agent, error) {
	path := filepath.Join(dir, p.name+".token")
	return node.Agent{A2E: &node.A2EAgent{TokenFile: path}}, os.WriteFile(path, []byte(p.token), 0o600)
}

func (p *a2ePeer) Join(ctx context.Context, at Place, away bool) error {
	p.Leave()
	life := p.begin(at)
	_, web := p.place()
	c := &a2e.Client{URL: at.HTTP + "/a2e", AgentID: p.name, Token: p.token, HTTP: web, Now: p.now}
	if err := c.Connect(ctx); err != nil {
		return err
	}
	p.mu.Lock()
	p.client = c
	p.mu.Unlock()
	if !away {
		p.work.Go(func() { p.serve(life, c) })
	}
	return nil
}

func (p *a2ePeer) Leave() {
	p.mu.Lock()
	c := p.client
	p.client = nil
	p.stop()
	p.mu.Unlock()
	if c != nil {
		_ = c.Close() // the session stays at the host, as when a process ends
	}
	p.end()
}

func (p *a2ePeer) conn() (*a2e.Client, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.client == nil {
		return nil, errors.New("pairs: the A2E agent is not connected")
	}
	return p.client, nil
}

// arrival is a message from parley_inbox.
type arrival struct {
	ID           string          `json:"id"`
	Kind         string          `json:"kind"`
	Conversation string          `json:"conversation"`
	InReplyTo    string          `json:"in_reply_to"`
	Content      json.RawMessage `json:"content"`
	Attempt      int             `json:"attempt"`
	Deadline     float64         `json:"deadline"`
	Metadata     json.RawMessage `json:"metadata"`
}

// serve waits for messages and answers requests, repeated attempts too.
func (p *a2ePeer) serve(life context.Context, c *a2e.Client) {
	for life.Err() == nil {
		ctx, cancel := context.WithTimeout(life, 30*time.Second)
		_, err := c.CallTool(ctx, "parley_inbox", map[string]any{"wait": 20, "max": 1000}, func(e a2e.Event) {
			var m arrival
			if json.Unmarshal(e.Data, &m) != nil || m.ID == "" {
				return
			}
			text, err := textOf(m.Content)
			if err != nil {
				text = string(m.Content)
			}
			p.hear(Heard{ID: m.ID, Text: text, Cancel: m.Kind == "cancel", Provenance: string(m.Metadata),
				Trace: m.Conversation, Attempt: m.Attempt, Raw: e.Raw(),
				Deadline: time.UnixMilli(int64(m.Deadline * 1000))})
			if m.Kind == "request" {
				p.work.Go(func() { p.answer(life, c, m.ID, text) })
			}
		})
		cancel()
		if err != nil && life.Err() == nil {
			// The hub is away: the peer tries again, after a pause.
			pause(life)
		}
	}
}

func (p *a2ePeer) answer(life context.Context, c *a2e.Client, id, text string) {
	reply := func(arguments map[string]any) error {
		arguments["id"] = id
		ctx, cancel := context.WithTimeout(life, 30*time.Second)
		defer cancel()
		r, err := c.CallTool(ctx, "parley_reply", arguments, nil)
		if err == nil && !r.Success {
			err = errors.New(r.Error)
		}
		return err
	}
	_ = p.respond(life, text, responder{ // on failure the requester gets no answer
		piece:    func(text string) error { return reply(map[string]any{"state": "working", "content": text}) },
		fail:     func(text string) error { return reply(map[string]any{"error": text}) },
		complete: func(text string) error { return reply(map[string]any{"content": text}) },
	})
}

func (p *a2ePeer) Ask(ctx context.Context, q Question) (Answer, error) {
	c, err := p.conn()
	if err != nil {
		return Answer{}, err
	}
	var events func(a2e.Event)
	if q.Events != nil {
		events = func(e a2e.Event) {
			var d struct {
				Message string `json:"message"` // of a status
				Chunk   []byte `json:"chunk"`   // of an artifact
			}
			switch s, err := textOf(e.Data); {
			case err == nil:
				q.Events(s)
			case json.Unmarshal(e.Data, &d) == nil:
				q.Events(d.Message + string(d.Chunk))
			}
		}
	}
	r, err := c.CallTool(ctx, "parley_ask", map[string]any{"agent": q.To.Name(), "content": q.Text}, events)
	if err != nil {
		return Answer{}, a2eFailure(err)
	}
	if !r.Success {
		return Answer{}, &Failure{Text: r.ErrorCode + ": " + r.Error}
	}
	b, err := json.Marshal(r.Data)
	if err != nil {
		return Answer{}, err
	}
	text, err := textOf(b)
	return Answer{Text: text}, err
}

func a2eFailure(err error) error {
	var e *a2e.Error
	if errors.As(err, &e) && e.Step != "transport" {
		return &Failure{Text: string(e.Code) + " " + e.Reason + ": " + e.Text}
	}
	return err
}

func (p *a2ePeer) Tell(ctx context.Context, to Peer, text string) error {
	c, err := p.conn()
	if err != nil {
		return err
	}
	r, err := c.CallTool(ctx, "parley_send", map[string]any{"agent": to.Name(), "content": text}, nil)
	if err == nil && !r.Success {
		err = &Failure{Text: r.Error}
	}
	return a2eFailure(err)
}
