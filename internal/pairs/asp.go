package pairs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/node"
)

// aspPeer is an ASP agent at the hub's ASP server. It keeps one session with each agent
// that it asks, and joins the sessions that others open with it.
type aspPeer struct {
	common
	id       *asp.Identity
	client   *asp.Client     // nil: not connected; it and life are guarded by common.mu
	life     context.Context // of the client
	sessions sync.Map        // *aspTalk by the name of the responder
}

// aspTalk is a session that this peer opened.
type aspTalk struct {
	mu   sync.Mutex // one question at a time
	read *aspReader // nil: none is open
}

// aspReader reads a session for all its questions, one after the other. A question
// skips messages about earlier ones.
type aspReader struct {
	s    *asp.Session
	said chan *asp.Message // closed at the end of the session; err is why
	over atomic.Bool       // said is closed, or is about to be
	err  error             // nil: the session is over
}

func newASP(name string) (Peer, error) {
	id, err := asp.GenerateIdentity("agent://"+name+".example/pairs/agent", "org_"+strings.ReplaceAll(name, "-", "_"))
	return &aspPeer{common: newCommon("asp", name), id: id}, err
}

func (p *aspPeer) Agent(dir string) (node.Agent, error) {
	card, err := p.id.Card().JSON()
	if err != nil {
		return node.Agent{}, err
	}
	path := filepath.Join(dir, p.name+".card.json")
	return node.Agent{ASP: &node.ASPAgent{Card: path}}, os.WriteFile(path, card, 0o600)
}

func (p *aspPeer) Join(_ context.Context, at Place, away bool) error {
	p.Leave()
	life := p.begin(at)
	_, web := p.place()
	c := &asp.Client{Server: at.HTTP, Identity: p.id, HTTP: web, Now: p.now}
	p.mu.Lock()
	p.client, p.life = c, life
	p.sessions.Clear()
	p.mu.Unlock()
	if !away {
		p.work.Go(func() { p.serve(life, c) })
	}
	return nil
}

func (p *aspPeer) Leave() { p.end() }

// serve joins the sessions to which the peer is invited.
func (p *aspPeer) serve(life context.Context, c *asp.Client) {
	for inv, err := range c.Invitations(life) {
		if err != nil {
			return
		}
		p.work.Go(func() {
			var s *asp.Session
			err := persist(life, func() (err error) {
				s, err = c.Join(life, inv.SessionID)
				return err
			})
			if err == nil {
				p.attend(life, s)
			}
		})
	}
}

func (p *aspPeer) attend(life context.Context, s *asp.Session) {
	working := map[string]context.CancelCauseFunc{}
	var mu sync.Mutex
	for m, err := range s.Messages(life) {
		if err != nil {
			return
		}
		switch {
		case m.IsInvitation():
			_ = persist(life, func() error { // on failure the inviting agent sees no one join
				_, err := s.Send(life, asp.Accept, asp.Answer{}, asp.InReplyTo(m))
				return err
			})
		case m.Performative == asp.Query:
			var q struct {
				QueryID    string          `json:"queryId"`
				Subject    string          `json:"subject"`
				Parameters json.RawMessage `json:"parameters"`
			}
			if json.Unmarshal(m.Body, &q) != nil {
				continue
			}
			text, err := textOf(q.Parameters)
			if err != nil {
				text = q.Subject
			}
			h := Heard{ID: cmp.Or(q.QueryID, m.MessageID), Text: text, Provenance: evidenceOf(m), Raw: m.Raw(),
				Trace: m.SessionID}
			if sent, ok := asp.ParseTimestamp(m.Timestamp); ok && m.Constraints != nil &&
				m.Constraints.MaxResponseTimeMs > 0 {
				h.Deadline = sent.Add(time.Duration(m.Constraints.MaxResponseTimeMs) * time.Millisecond)
			}
			p.hear(h)
			ctx, stop := context.WithCancelCause(life)
			mu.Lock()
			for _, id := range []string{q.QueryID, m.MessageID} {
				working[id] = stop
			}
			mu.Unlock()
			p.work.Go(func() {
				defer stop(nil)
				p.answer(ctx, s, m, text)
			})
		case m.Performative == asp.Withdraw:
			mu.Lock()
			stop := working[m.Reference()]
			mu.Unlock()
			p.hear(Heard{ID: m.MessageID, Cancel: true, Provenance: evidenceOf(m), Raw: m.Raw(), Trace: m.SessionID})
			if stop != nil {
				stop(errCancelled)
			}
		case m.Performative == asp.Inform:
			var i struct {
				InformType string          `json:"informType"`
				Topic      string          `json:"topic"`
				Data       json.RawMessage `json:"data"`
			}
			if json.Unmarshal(m.Body, &i) != nil || i.InformType == "introduction" {
				continue
			}
			text, err := textOf(i.Data)
			if err != nil {
				text = i.Topic
			}
			p.hear(Heard{ID: m.MessageID, Text: text, Provenance: evidenceOf(m), Raw: m.Raw(), Trace: m.SessionID})
		}
	}
}

// persist tries again while the server is away.
func persist(ctx context.Context, f func() error) error {
	for {
		err := f()
		var e *asp.Error
		if err == nil || ctx.Err() != nil || errors.As(err, &e) && !e.Retryable {
			return err
		}
		pause(ctx)
	}
}

func evidenceOf(m *asp.Message) string {
	for _, o := range m.Content.Context {
		if o.Type == "trust-evidence" {
			return string(o.Data)
		}
	}
	return ""
}

func (p *aspPeer) answer(ctx context.Context, s *asp.Session, m *asp.Message, text string) {
	inform := func(kind string, v asp.Information) error {
		v.InformType = kind
		return persist(ctx, func() error {
			_, err := s.Send(ctx, asp.Inform, v, asp.InReplyTo(m))
			return err
		})
	}
	_ = p.respond(ctx, text, responder{ // on failure the requester gets no answer
		piece:    func(text string) error { return inform("chunk", asp.Information{Data: objectOf(text)}) },
		fail:     func(text string) error { return inform("error", asp.Information{Topic: text}) },
		complete: func(text string) error { return inform("result", asp.Information{Data: objectOf(text)}) },
	})
}

// address of an agent: its own, or that of its stand-in at the hub.
func (p *aspPeer) address(to Peer) string {
	if native, ok := to.(*aspPeer); ok {
		return native.id.ID()
	}
	return "agent://" + Domain + "/agents/" + to.Name()
}

// session gives the session with an agent, opened at first use and when the session
// before has ended. t.mu is held.
func (p *aspPeer) session(ctx context.Context, t *aspTalk, to Peer) (*aspReader, error) {
	if r := t.read; r != nil && !r.s.State().Terminal() && !r.over.Load() {
		return r, nil
	}
	p.mu.Lock()
	c, life := p.client, p.life
	p.mu.Unlock()
	if c == nil {
		return nil, errors.New("pairs: the ASP agent is not connected")
	}
	s, err := c.Open(ctx, asp.Invitation{To: []string{p.address(to)}, Purpose: "to talk"})
	if err != nil {
		return nil, aspFailure(err)
	}
	for m, err := range s.Messages(ctx) {
		switch {
		case err != nil:
			return nil, aspFailure(err)
		case m.State == asp.Introduced:
			r := &aspReader{s: s, said: make(chan *asp.Message, maxSaid)}
			p.mu.Lock() // after the end of life no reader is started
			defer p.mu.Unlock()
			if life.Err() != nil {
				return nil, context.Cause(life)
			}
			p.work.Go(func() { r.run(life) })
			t.read = r
			return r, nil
		case m.State.Terminal():
			return nil, &Failure{Text: string(m.Body), Refused: true}
		}
	}
	return nil, fmt.Errorf("pairs: the session with %s ended before it began", to.Name())
}

// talk is this peer's session with another agent.
func (p *aspPeer) talk(to Peer) *aspTalk {
	t, _ := p.sessions.LoadOrStore(to.Name(), &aspTalk{})
	return t.(*aspTalk)
}

// maxSaid is how many messages of a session wait for the next question.
const maxSaid = 256

func (r *aspReader) run(ctx context.Context) {
	defer close(r.said)
	defer r.over.Store(true)
	for m, err := range r.s.Messages(ctx) {
		if err != nil {
			r.err = err
			return
		}
		select {
		case r.said <- m:
		case <-ctx.Done():
		}
	}
}

func (p *aspPeer) Ask(ctx context.Context, q Question) (Answer, error) {
	t := p.talk(q.To)
	t.mu.Lock()
	defer t.mu.Unlock()
	r, err := p.session(ctx, t, q.To)
	if err != nil {
		return Answer{}, err
	}
	// The id tells apart the questions of one session.
	id, err := asp.NewSessionID()
	if err != nil {
		return Answer{}, err
	}
	// A request is sent even if ctx ends, so that it can be withdrawn.
	sending, sent := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer sent()
	var wishes []asp.SendOption
	if q.Patience > 0 {
		wishes = append(wishes, asp.WithConstraints(asp.Constraints{MaxResponseTimeMs: q.Patience.Milliseconds()}))
	}
	e, err := r.s.Send(sending, asp.Query, asp.Question{QueryID: id,
		QueryType: "message", Parameters: objectOf(q.Text)}, wishes...)
	if err != nil {
		return Answer{}, aspFailure(err)
	}
	q.taken()
	for {
		m, err := r.next(ctx)
		switch {
		case m == nil && ctx.Err() != nil:
			end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
			defer cancel()
			if _, err := r.s.Send(end, asp.Withdraw, asp.Answer{ReferenceID: id, Reason: "no longer wanted"}); err != nil {
				return Answer{}, fmt.Errorf("pairs: withdraw the question: %w", err)
			}
			return Answer{}, context.Cause(ctx)
		case err != nil:
			return Answer{}, aspFailure(err)
		}
		if ref := m.Reference(); ref != id && ref != e.MessageID {
			continue
		}
		if a, over, err := aspAnswer(m, q); over {
			return a, err
		}
	}
}

// next waits for the next message.
func (r *aspReader) next(ctx context.Context) (*asp.Message, error) {
	select {
	case m, ok := <-r.said:
		if !ok {
			return nil, cmp.Or(r.err, errors.New("pairs: the session ended before the answer"))
		}
		return m, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// aspAnswer reads a message about a question; over: nothing more follows.
func aspAnswer(m *asp.Message, q Question) (a Answer, over bool, err error) {
	var b struct {
		InformType string          `json:"informType"`
		Topic      string          `json:"topic"`
		Reason     string          `json:"reason"`
		Code       string          `json:"code"`
		Data       json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(m.Body, &b); err != nil {
		return Answer{}, true, err
	}
	a.From = m.Sender.AgentID
	text, terr := textOf(b.Data)
	switch {
	case m.Performative == asp.Reject:
		return a, true, &Failure{Text: b.Code + ": " + b.Reason, Refused: true}
	case m.Performative != asp.Inform:
	case b.InformType == "error":
		return a, true, &Failure{Text: cmp.Or(b.Topic, b.Code)}
	case b.InformType == "result":
		a.Text = text
		return a, true, terr
	case terr == nil && q.Events != nil:
		q.Events(text)
	}
	return a, false, nil
}

func aspFailure(err error) error {
	var e *asp.Error
	if errors.As(err, &e) && !e.Retryable {
		return &Failure{Text: e.Code + ": " + e.Text, Refused: true}
	}
	return err
}

func (p *aspPeer) Tell(ctx context.Context, to Peer, text string) error {
	t := p.talk(to)
	t.mu.Lock()
	defer t.mu.Unlock()
	r, err := p.session(ctx, t, to)
	if err != nil {
		return err
	}
	_, err = r.s.Send(ctx, asp.Inform, asp.Information{InformType: "message", Topic: "note", Data: objectOf(text)})
	return aspFailure(err)
}
