package pairs

import (
	"context"
	"encoding/json"
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

	clientMu sync.Mutex
	client   *agh.Client
	conn     *nats.Conn
	waiting  map[string]chan *agh.Envelope      // what this peer asked, by work
	tasks    map[string]context.CancelCauseFunc // what it is asked, by work
	met      map[string]bool                    // peers that it has found
}

func newAGH(name string) Peer {
	return &aghPeer{common: newCommon("agh", name), waiting: map[string]chan *agh.Envelope{},
		tasks: map[string]context.CancelCauseFunc{}}
}

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
		DisplayName: p.name, Router: &agh.Router{Verifier: agh.Verifier{Now: p.now}},
		Handler: func(_ context.Context, r *agh.Request) { p.handle(life, r) }}
	p.clientMu.Lock()
	p.client, p.conn, p.met = c, nc, map[string]bool{}
	p.clientMu.Unlock()
	if err := c.Join(life); err != nil {
		nc.Close()
		return err
	}
	flush, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	return nc.FlushWithContext(flush)
}

func (p *aghPeer) Leave() {
	p.clientMu.Lock()
	nc := p.conn
	p.client, p.conn = nil, nil
	p.clientMu.Unlock()
	if nc != nil {
		nc.Close()
	}
	p.end()
}

func (p *aghPeer) peer() (*agh.Client, error) {
	p.clientMu.Lock()
	defer p.clientMu.Unlock()
	if p.client == nil {
		return nil, errors.New("pairs: the AGH peer is not connected")
	}
	return p.client, nil
}

// handle takes everything in the order of arrival; work is done elsewhere.
func (p *aghPeer) handle(life context.Context, r *agh.Request) {
	e := r.Envelope
	p.clientMu.Lock()
	mine, cancel := p.waiting[e.WorkID], p.tasks[e.WorkID]
	p.clientMu.Unlock()
	if mine != nil {
		select {
		case mine <- e:
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
		if c.Status == agh.StatusCanceled && cancel != nil {
			h.Cancel = true
			p.hear(h)
			cancel(errCancelled)
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
	p.clientMu.Lock()
	p.tasks[e.WorkID] = stop
	p.clientMu.Unlock()
	if r.Receipt(ctx, agh.StatusAccepted, "", "") != nil {
		return // who asked sees that nothing came
	}
	p.work.Go(func() {
		defer func() {
			p.clientMu.Lock()
			delete(p.tasks, e.WorkID)
			p.clientMu.Unlock()
			stop(nil)
		}()
		answer, err := p.act(ctx, h.Text, func(piece string) error {
			return r.Trace(ctx, &agh.Trace{State: agh.StateWorking, Message: piece})
		})
		var f *Failure
		switch {
		case errors.As(err, &f):
			err = r.Trace(ctx, &agh.Trace{State: agh.StateFailed, Message: f.Text})
		case err == nil:
			var b []byte
			if b, err = json.Marshal(map[string]string{"text": answer}); err == nil {
				err = r.Trace(ctx, &agh.Trace{State: agh.StateCompleted, Message: answer, Result: b})
			}
		}
		_ = err // who asked sees that nothing came
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
	p.clientMu.Lock()
	p.waiting[work] = said
	p.clientMu.Unlock()
	defer func() {
		p.clientMu.Lock()
		defer p.clientMu.Unlock()
		delete(p.waiting, work)
	}()
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
			return Answer{}, errors.Join(context.Cause(ctx), err)
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

// meet looks for a peer of which this one has not heard since it came.
func (p *aghPeer) meet(ctx context.Context, c *agh.Client, to string) error {
	p.clientMu.Lock()
	met := p.met[to]
	p.clientMu.Unlock()
	if met {
		return nil
	}
	for v, err := range c.Whois(ctx, to, "", false) {
		if err != nil {
			return err
		}
		if v.Envelope.From == to {
			p.clientMu.Lock()
			defer p.clientMu.Unlock()
			p.met[to] = true
			return nil
		}
	}
	return fmt.Errorf("pairs: nobody in %s/%s is %s", Workspace, Channel, to)
}
