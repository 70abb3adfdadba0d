package pairs

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/uagents"
)

// uagentsPeer speaks the chat protocol and registers with the hub as with Agentverse.
// All its messages go to the hub's endpoint, for any recipient.
type uagentsPeer struct {
	common
	id   *uagents.Identity
	door *door

	known   sync.Map // addresses by name, of the joined hub
	waiting sync.Map // chan uagentsSaid by session
}

// uagentsSaid is one message in a session that this peer began.
type uagentsSaid struct {
	ack    bool
	text   string
	failed bool
	from   string
}

func newUAgents(name string) (Peer, error) {
	d, err := newDoor()
	if err != nil {
		return nil, err
	}
	id, err := uagents.NewIdentity()
	return &uagentsPeer{common: newCommon("uagents", name), id: id, door: d}, err
}

func (p *uagentsPeer) endpoint() string { return "http://" + p.door.addr + "/submit" }

func (p *uagentsPeer) Agent(string) (node.Agent, error) {
	return node.Agent{UAgents: &node.UAgent{Address: p.id.Address(), Endpoint: p.endpoint()}}, nil
}

func (p *uagentsPeer) Join(ctx context.Context, at Place, away bool) error {
	p.Leave()
	p.known.Clear()
	life := p.begin(at)
	_, web := p.place()
	r := &uagents.Registrar{Identity: p.id, URL: at.HTTP, HTTP: web, Timeout: 20 * time.Second, Now: p.now,
		Endpoints: []uagents.Endpoint{{URL: p.endpoint(), Weight: 1}}, Protocols: []string{uagents.ChatProtocolDigest}}
	if err := r.Register(ctx); err != nil || away {
		return err
	}
	return p.door.open(&uagents.Server{Client: p.client(), Log: at.Log, Now: p.now,
		Verifier: &uagents.Verifier{Now: p.now}, Resolve: uagents.Serve(&uagents.Agent{Address: p.id.Address(),
			Identity: p.id,
			Handler: func(ctx context.Context, r *uagents.Request) (uagents.Response, error) {
				return p.handle(ctx, life, r)
			}})})
}

func (p *uagentsPeer) Leave() {
	p.door.shut()
	p.end()
}

// hubOnly resolves names by the hub's registry, each once, and sends to the hub.
type hubOnly struct {
	registry uagents.Resolver
	submit   string
	known    *sync.Map // addresses by name
}

func (h hubOnly) Resolve(ctx context.Context, to string) (string, []uagents.Endpoint, error) {
	address := to
	if !uagents.IsAddress(to) {
		if known, ok := h.known.Load(to); ok {
			address = known.(string)
		} else {
			var err error
			if address, _, err = h.registry.Resolve(ctx, to); err != nil {
				return "", nil, err
			}
			h.known.Store(to, address)
		}
	}
	return address, []uagents.Endpoint{{URL: h.submit, Weight: 1}}, nil
}

func (p *uagentsPeer) client() *uagents.Client {
	at, web := p.place()
	return &uagents.Client{Identity: p.id, HTTP: web, Timeout: time.Minute, Now: p.now,
		Resolver: hubOnly{&uagents.AlmanacResolver{URL: at.HTTP, HTTP: web, Now: p.now}, at.HTTP + "/submit", &p.known}}
}

func (p *uagentsPeer) handle(ctx, life context.Context, r *uagents.Request) (uagents.Response, error) {
	var said uagentsSaid
	var chat *uagents.ChatMessage
	switch text, bad := r.Content.IsError(); {
	case bad:
		said = uagentsSaid{text: text, failed: true}
	case r.SchemaDigest == uagents.ChatAcknowledgementDigest:
		said.ack = true
	case r.SchemaDigest == uagents.ChatMessageDigest:
		var err error
		if chat, err = uagents.DecodeChatMessage(r.Content.Payload); err != nil {
			return uagents.Response{}, err
		}
		said.text = chat.Text()
	default:
		return uagents.Response{}, nil
	}
	said.from = r.Sender
	if mine, ok := p.waiting.Load(r.Session); ok {
		select {
		case mine.(chan uagentsSaid) <- said:
		case <-life.Done():
		}
		if chat == nil {
			return uagents.Response{}, nil
		}
		return uagents.Response{}, r.Send(ctx, chat.Acknowledge(p.now()).Message())
	}
	if chat == nil || said.text == "" {
		return uagents.Response{}, nil
	}
	// The question is heard and answered even if the hub goes away before the
	// acknowledgement: the handler never sees the hub's repeat.
	p.hear(Heard{ID: r.Session, Text: said.text, Provenance: r.Header.Get("Parley-Provenance"), Raw: r.Raw(),
		Trace: r.Session})
	if err := r.Send(ctx, chat.Acknowledge(p.now()).Message()); strings.HasPrefix(said.text, "note") {
		return uagents.Response{}, err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(life, stop)()
	return uagents.Response{}, p.respond(ctx, said.text, responder{
		piece: func(string) error { return nil }, // the protocol has none
		fail:  func(text string) error { return r.Send(ctx, uagents.NewErrorMessage(text)) },
		complete: func(text string) error {
			return r.Send(ctx, uagents.NewChat(p.now(), uagents.Text(text), uagents.EndSession()).Message())
		},
	})
}

func (p *uagentsPeer) Ask(ctx context.Context, q Question) (Answer, error) {
	session := uagents.NewSession()
	said := make(chan uagentsSaid, 16)
	p.waiting.Store(session, said)
	defer p.waiting.Delete(session)
	c := p.client()
	if d, ok := p.until(ctx, q); ok {
		c.Timeout = d.Sub(p.now())
	}
	sending := ctx
	if q.Patience > 0 {
		sending = context.WithoutCancel(ctx) // the envelope would expire with it
	}
	_, err := c.SendIn(sending, session, p.address(q.To), uagents.NewChat(p.now(), uagents.Text(q.Text)).Message())
	if err != nil {
		return Answer{}, uagentsFailure(err)
	}
	q.taken()
	for {
		select {
		case s := <-said:
			switch {
			case s.ack:
				continue
			case s.failed:
				return Answer{From: s.from}, &Failure{Text: s.text}
			}
			return Answer{Text: s.text, From: s.from}, nil
		case <-ctx.Done():
			return Answer{}, context.Cause(ctx)
		}
	}
}

// address: the hub's registry knows agents by their directory names, a uAgent by its
// own address.
func (p *uagentsPeer) address(to Peer) string {
	if native, ok := to.(*uagentsPeer); ok {
		return native.id.Address()
	}
	return to.Name()
}

func (p *uagentsPeer) Tell(ctx context.Context, to Peer, text string) error {
	// Only the end of a session expects no answer.
	_, err := p.client().Send(ctx, p.address(to), uagents.NewChat(p.now(), uagents.Text(text),
		uagents.EndSession()).Message())
	return uagentsFailure(err)
}

func uagentsFailure(err error) error {
	var status *uagents.StatusError
	if errors.As(err, &status) && status.Status < http.StatusInternalServerError {
		return &Failure{Text: err.Error(), Refused: true}
	}
	return err
}
