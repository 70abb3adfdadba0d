package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"github.com/parley-hub/parley/asp"
)

// aspScenes adds an ASP agent that speaks with the hub over HTTP: it holds a session with
// a Go handler, exports it, and a Go handler asks it.
func (d *demo) aspScenes(ctx context.Context) {
	me, err := asp.GenerateIdentity("agent://bakery.example/shop/baker", "org_bakery")
	if err != nil {
		d.scene("an ASP agent starts", func() ([]string, error) { return nil, err })
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	d.leaves = append(d.leaves, work.Wait, cancel)
	client := &asp.Client{Server: d.node.Addresses().HTTP, Identity: me, HTTP: &http.Client{}}
	d.baker = client
	d.scene("an ASP agent registers: its card holds an Ed25519 and a P-256 key", func() ([]string, error) {
		card, err := me.Card().JSON()
		if err != nil {
			return nil, err
		}
		// The demo's operator adds the agent; at a hub with registration = "open" it
		// could register itself.
		_, err = d.node.ASP().Enroll(ctx, card)
		return []string{"the agent  " + me.ID()}, err
	})
	var transcript bytes.Buffer
	d.scene("the ASP agent opens a session with weather and asks: signed, linked, proved; weather's stand-in answers",
		func() ([]string, error) {
			s, m, err := d.bakerAsks(ctx, client, "weather", "the weather for the market", "forecast")
			if err != nil {
				return nil, err
			}
			if _, err := s.Export(ctx, &transcript); err != nil {
				return nil, err
			}
			return []string{string(m.Performative) + "  " + string(m.Body)},
				want(m.Performative == asp.Inform, "the answer is no INFORM")
		})
	d.scene("the exported session verifies offline; with one letter changed it does not, and the place is named",
		func() ([]string, error) {
			r, err := asp.VerifyTranscript(bytes.NewReader(transcript.Bytes()))
			if err != nil {
				return nil, err
			}
			changed := strings.Replace(transcript.String(), "thank you", "thank yoo", 1)
			bad, err := asp.VerifyTranscript(strings.NewReader(changed))
			if !errors.Is(err, asp.ErrTranscript) {
				return nil, errors.New("a changed session verifies")
			}
			return []string{fmt.Sprintf("%d messages, %s", r.Messages, r.State),
				"changed: " + bad.Faults[0].String()}, nil
		})
	work.Go(func() { d.bake(ctx, client, &work) })
	d.scene("the planner asks the ASP agent: the hub opens a session for it and keeps it", func() ([]string, error) {
		baker, err := d.agent("asp", me.ID())
		if err != nil {
			return nil, err
		}
		return d.plannerAsked(ctx, baker.Name, "bread", "three loaves?", "baked")
	})
}

// bakerAsks opens a session with an agent, asks it about Bern, and closes the session.
func (d *demo) bakerAsks(ctx context.Context, baker *asp.Client, agent, purpose, question string) (*asp.Session,
	*asp.Message, error) {
	e, err := d.agent("", agent)
	if err != nil {
		return nil, nil, err
	}
	s, err := baker.Open(ctx, asp.Invitation{To: []string{d.node.ASP().Address(e)}, Purpose: purpose})
	if err != nil {
		return nil, nil, err
	}
	for m, err := range s.Messages(ctx) {
		if err != nil {
			return nil, nil, err
		}
		if m.State == asp.Introduced {
			break
		}
	}
	m, err := s.Ask(ctx, asp.Question{QueryType: question, Parameters: map[string]string{"city": "Bern"}})
	if err != nil {
		return nil, nil, err
	}
	return s, m, s.Close(ctx, "thank you")
}

// bake is the ASP agent's work: it takes invitations and answers questions.
func (d *demo) bake(ctx context.Context, client *asp.Client, work *sync.WaitGroup) {
	for inv, err := range client.Invitations(ctx) {
		if err != nil {
			return // the scene reports the missing answer
		}
		work.Go(func() { d.attend(ctx, client, inv.SessionID) })
	}
}

// attend handles one session of the baker.
func (d *demo) attend(ctx context.Context, client *asp.Client, session string) {
	s, err := client.Join(ctx, session)
	if err != nil {
		return
	}
	for m, err := range s.Messages(ctx) {
		switch {
		case err != nil:
			return
		case m.IsInvitation():
			_, err = s.Send(ctx, asp.Accept, asp.Answer{}, asp.InReplyTo(m))
		case m.Performative == asp.Query:
			_, err = s.Send(ctx, asp.Inform, asp.Information{InformType: "result",
				Data: map[string]string{"text": "baked"}}, asp.InReplyTo(m))
		}
		if err != nil {
			return
		}
	}
}
