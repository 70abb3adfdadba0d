package pairs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/agh/aghnats"
	"github.com/parley-hub/parley/node"
)

// aghToken is the NATS token of all AGH peers.
const aghToken = "pairs-peers-token"

// aghPeer is a peer of one channel, on a NATS connection of its own.
type aghPeer struct {
	common
	client  *agh.Client // nil: not connected; it and conn are guarded by common.mu
	conn    *nats.Conn
	waiting sync.Map // chan *agh.Envelope of this peer's requests, by work
	tasks   sync.Map // context.CancelCauseFunc of the requests to it, by work
	met     sync.Map // peers that it has found
}

func newAGH(name string) Peer { return &aghPeer{common: newCommon("agh", name)} }

func (p *aghPeer) Agent(string) (node.Agent, error) {
	return node.Agent{AGH: &node.AGHAgent{Workspace: Workspace, Peer: p.name}}, nil
}

func (p *aghPeer) Join(ctx context.Context, at Place, away bool) error {
	p.Leave()
	life := p.begin(at)
	if away {
		return nil
	}
	nc, err := nats.Connect(at.AGH, nats.Token(aghToken), nats.Name(p.name), nats.MaxReconnects(-1),
		nats.ReconnectWait(100*time.Millisecond))
	if err != nil {
		return err
	}
	c := &agh.Client{Transport: &aghnats.Transport{Conn: nc}, WorkspaceID: Workspace, Channel: Channel, PeerID: p.name,
		DisplayName: cmp.Or(p.title, p.name), Router: &agh.Router{Verifier: agh.Verifier{Now: p.now}},
		Handler: func(_ context.Context, r *agh.Request) { p.handle(life, r) }}
	p.mu.Lock()
	p.client, p.conn = c, nc
	p.met.Clear()
	p.mu.Unlock()
	if err := c.Join(life); err != nil {
		nc.Close()
		return err
	}
	flush, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	return nc.FlushWithContext(flush)
}

func (p *aghPeer) Leave() {
	p.mu.Lock()
	nc := p.conn
	p.client, p.conn = nil, nil
	p.mu.Unlock()
	if nc != nil {
		nc.Close()
	}
	p.end()
}

func (p *aghPeer) peer() (*agh.Client, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.client == nil {
		return nil, errors.New("pairs: the AGH peer is not connected")
	}
	return p.client, nil
}

// handle takes messages in the order of arrival; work runs elsewhere.
func (p *aghPeer) handle(life context.Context, r *agh.Request) {
	e := r.Envelope
	if mine, ok := p.waiting.Load(e.WorkID); ok {
		select {
		case mine.(chan *agh.Envelope) <- e:
		case <-life.Done():
		}
		return
	}
	h := Heard{ID: e.ID, Provenance: string(e.ExtValue("parley")), Raw: e.Raw(), Trace: e.TraceID}
	if e.ExpiresAt > 0 {
		h.Deadline = time.Unix(e.ExpiresAt, 0)
	}
	switch c := e.Content().(type) {
	case *agh.Receipt:
		if cancel, ok := p.tasks.Load(e.WorkID); ok && c.Status == agh.StatusCanceled {
			h.Cancel = true
			p.hear(h)
			cancel.(context.CancelCauseFunc)(errCancelled)
		}
		return
	case *agh.Say:
		h.Text = c.Text
	default:
		return
	}
	p.hear(h)
	if e.WorkID == "" {
		return
	}
	ctx, stop := context.WithCancelCause(life)
	p.tasks.Store(e.WorkID, stop)
	if r.Receipt(ctx, agh.StatusAccepted, "", "") != nil {
		return // the requester gets no answer
	}
	p.work.Go(func() {
		defer stop(nil)
		defer p.tasks.Delete(e.WorkID)
		trace := func(state agh.WorkState) func(text string) error {
			return func(text string) error { return r.Trace(ctx, &agh.Trace{State: state, Message: text}) }
		}
		_ = p.respond(ctx, h.Text, responder{ // on failure the requester gets no answer
			piece: trace(agh.StateWorking),
			fail:  trace(agh.StateFailed),
			complete: func(text string) error {
				return r.Trace(ctx, &agh.Trace{State: agh.StateCompleted, Message: text, Result: objectOf(text)})
			},
		})
	})
}

var errCancelled = errors.New("it was cancelled")

func (p *aghPeer) Ask(ctx context.Context, q Question) (Answer, error) {
	c, err := p.peer()
	if err != nil {
		return Answer{}, err
	}
	work := agh.NewWorkID()
	said := make(chan *agh.Envelope, 256)
	p.waiting.Store(work, said)
	defer p.waiting.Delete(work)
	if err := p.meet(ctx, c, q.To.Name()); err != nil {
		return Answer{}, err
	}
	e := &agh.Envelope{Surface: agh.SurfaceDirect, To: q.To.Name(), WorkID: work}
	if err := e.SetContent(&agh.Say{Text: q.Text}); err != nil {
		return Answer{}, err
	}
	if d, ok := p.until(ctx, q); ok {
		e.ExpiresAt = d.Unix()
	}
	if e, err = c.Send(ctx, e); err != nil {
		return Answer{}, aghFailure(err)
	}
	q.taken()
	for {
		select {
		case got := <-said:
			switch body := got.Content().(type) {
			case *agh.Receipt:
				if body.Status != agh.StatusAccepted {
					return Answer{From: got.From}, &Failure{Text: string(body.Reason) + ": " + body.Detail,
						Refused: true}
				}
			case *agh.Trace:
				switch {
				case body.State == agh.StateCompleted:
					text, err := textOf(body.Result)
					if err != nil {
						text, err = body.Message, nil
					}
					return Answer{Text: text, From: got.From}, err
				case body.State.Terminal():
					return Answer{From: got.From}, &Failure{Text: body.Message}
				case q.Events != nil:
					if text, err := textOf(body.Result); err == nil {
						q.Events(text)
					} else {
						q.Events(body.Message)
					}
				}
			}
		case <-ctx.Done():
			back := &agh.Envelope{Surface: agh.SurfaceDirect, To: e.To, WorkID: work, ReplyTo: e.ID, CausationID: e.ID}
			err := back.SetContent(&agh.Receipt{ForID: e.ID, Status: agh.StatusCanceled, Detail: "no longer wanted"})
			if err == nil {
				end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
				defer cancel()
				_, err = c.Send(end, back)
			}
			if err != nil {
				return Answer{}, fmt.Errorf("pairs: withdraw the work: %w", err)
			}
			return Answer{}, context.Cause(ctx)
		}
	}
}

func aghFailure(err error) error {
	var e *agh.Error
	if errors.As(err, &e) && !e.Retryable {
		return &Failure{Text: e.Error(), Refused: true}
	}
	return err
}

func (p *aghPeer) Tell(ctx context.Context, to Peer, text string) error {
	c, err := p.peer()
	if err == nil {
		err = p.meet(ctx, c, to.Name())
	}
	if err == nil {
		_, err = c.Direct(ctx, to.Name(), &agh.Say{Text: text})
	}
	return aghFailure(err)
}

// meet looks for a peer of which this one has not heard since it joined.
func (p *aghPeer) meet(ctx context.Context, c *agh.Client, to string) error {
	if _, met := p.met.Load(to); met {
		return nil
	}
	for v, err := range c.Whois(ctx, to, "", false) {
		if err != nil {
			return err
		}
		if v.Envelope.From == to {
			p.met.Store(to, true)
			return nil
		}
	}
	return fmt.Errorf("pairs: nobody in %s/%s is %s", Workspace, Channel, to)
}
