package pairs

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/samvad"
)

// samvadPeer has one skill, "talk", which it offers as a plain answer and as a
// stream.
type samvadPeer struct {
	common
	id   *samvad.Identity
	door *door
	card *samvad.Card

	speaks *samvad.Client // at the joined hub, guarded by common.mu
}

func newSamvad(name string) (Peer, error) {
	d, err := newDoor()
	if err != nil {
		return nil, err
	}
	id, err := samvad.NewIdentity("agent://"+name+".example", "key-current")
	if err != nil {
		return nil, err
	}
	text := []byte(`{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]}`)
	p := &samvadPeer{common: newCommon("samvad", name), id: id, door: d}
	p.card = (&samvad.Card{ID: id.ID(), Name: name, Version: "1.0.0", Description: "Does what it is told.",
		URL:        "http://" + d.addr,
		PublicKeys: []samvad.CardKey{samvad.CardKeyOf(id, true)},
		Skills: []samvad.Skill{{ID: "talk", Name: "Talk", Description: "Does what the text says.", InputSchema: text,
			OutputSchema: text,
			Modes:        []samvad.Mode{samvad.ModeSync, samvad.ModeStream, samvad.ModeAsync},
			Trust:        samvad.TrustPublic}},
		RateLimit: &samvad.RateLimit{RequestsPerMinute: 1_000_000_000, RequestsPerSender: 1_000_000_000},
	}).Complete()
	return p, nil
}

func (p *samvadPeer) Agent(string) (node.Agent, error) {
	return node.Agent{SAMVAD: &node.SAMVADAgent{ID: p.id.ID(), URL: "http://" + p.door.addr,
		Key: base64.StdEncoding.EncodeToString(p.id.Public())}}, nil
}

func (p *samvadPeer) Join(ctx context.Context, at Place, away bool) error {
	p.Leave()
	life := p.begin(at)
	p.mu.Lock()
	p.speaks = &samvad.Client{Identity: p.id, HTTP: p.web, Now: p.now}
	p.mu.Unlock()
	if away {
		return nil
	}
	if p.title != "" {
		title := string([]rune(p.title)[:min(len([]rune(p.title)), 60)]) // the card's schema bounds names
		p.card.Name, p.card.Description = title, title
		p.card.Skills[0].Name, p.card.Skills[0].Description = title, title
	}
	// Its operator trusts the hub's key, as in the hub's own card.
	hub, err := p.client().Card(ctx, at.HTTP)
	if err != nil {
		return err
	}
	keys := samvad.StaticKeys{}
	for _, k := range hub.PublicKeys {
		key, err := samvad.ParseKey(k.Key)
		if err != nil {
			return err
		}
		keys[hub.ID] = append(keys[hub.ID], key)
	}
	return p.door.open(&samvad.Server{Verifier: &samvad.Verifier{Keys: keys, Now: p.now},
		Agent: &samvad.Agent{Card: p.card, Identity: p.id,
			Handler: func(ctx context.Context, r *samvad.Request) (samvad.Response, error) {
				return p.handle(ctx, life, r)
			}}})
}

func (p *samvadPeer) Leave() {
	p.door.shut()
	p.end()
}

func (p *samvadPeer) handle(ctx, life context.Context, r *samvad.Request) (samvad.Response, error) {
	var q struct{ Text string }
	if err := json.Unmarshal(r.Payload, &q); err != nil {
		return samvad.Response{}, samvad.ErrPayload
	}
	p.hear(Heard{ID: r.SpanID, Text: q.Text, Provenance: r.Header.Get("Parley-Provenance"), Raw: r.Raw(),
		Trace: r.TraceID})
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(life, stop)()
	answer, err := p.act(ctx, p.begins(), q.Text, func(piece string) error {
		if r.Endpoint != samvad.ModeStream {
			return nil
		}
		return r.Chunk(objectOf(piece))
	})
	var f *Failure
	switch {
	case err != nil && r.Endpoint == samvad.ModeStream && life.Err() == nil && ctx.Err() != nil:
		p.hear(Heard{ID: r.SpanID, Cancel: true, Trace: r.TraceID})
		return samvad.Response{}, err
	case errors.As(err, &f):
		return samvad.Response{}, &samvad.Error{Code: samvad.CodeAgentUnavailable, Text: f.Text,
			Status: http.StatusInternalServerError}
	case err != nil:
		return samvad.Response{}, err
	}
	return samvad.Response{Result: objectOf(answer)}, nil
}

func (p *samvadPeer) client() *samvad.Client {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.speaks
}

func (p *samvadPeer) call(to Peer, text string) samvad.Call {
	at, _ := p.place()
	return samvad.Call{URL: at.HTTP + "/agents/" + to.Name(), Skill: "talk", Payload: objectOf(text)}
}

func (p *samvadPeer) Ask(ctx context.Context, q Question) (Answer, error) {
	call := p.call(q.To, q.Text)
	if q.Events == nil {
		r, err := p.client().Ask(ctx, call)
		if err != nil {
			return Answer{}, samvadFailure(err)
		}
		text, err := textOf(r.Result)
		return Answer{Text: text}, err
	}
	for e, err := range p.client().Stream(ctx, call) {
		switch {
		case err != nil:
			return Answer{}, samvadFailure(err)
		case e.Done:
			text, err := textOf(e.Result)
			return Answer{Text: text}, err
		case len(e.Chunk) > 0:
			text, err := textOf(e.Chunk)
			if err != nil {
				return Answer{}, err
			}
			q.Events(text)
		}
	}
	return Answer{}, samvad.ErrResponse
}

func samvadFailure(err error) error {
	var e *samvad.Error
	if errors.As(err, &e) && e.Status > 0 {
		return &Failure{Text: string(e.Code) + ": " + e.Text}
	}
	return err
}

// Tell leaves a task and does not fetch its result: SAMVAD has no notices.
func (p *samvadPeer) Tell(ctx context.Context, to Peer, text string) error {
	_, err := p.client().Send(ctx, p.call(to, text))
	return err
}

// objectOf makes a JSON object that holds a text.
func objectOf(text string) json.RawMessage {
	b, err := json.Marshal(map[string]string{"text": text})
	if err != nil { // every string can be encoded
		panic(err)
	}
	return b
}

// textOf reads a JSON text, or the only text of an object.
func textOf(b []byte) (string, error) {
	var s string
	if json.Unmarshal(b, &s) == nil {
		return s, nil
	}
	var o struct {
		Text  *string         `json:"text"`
		Value json.RawMessage `json:"value"`
	}
	if err := json.Unmarshal(b, &o); err != nil {
		return "", fmt.Errorf("%.200q is no text: %w", b, err)
	}
	switch {
	case o.Text != nil:
		return *o.Text, nil
	case o.Value != nil:
		return textOf(o.Value)
	}
	return "", fmt.Errorf("%.200q holds no text", b)
}
