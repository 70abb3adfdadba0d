package asp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"

	"github.com/parley-hub/parley/asp"
)

// Two agents agree through a server; the transcript proves it afterwards.
func Example() {
	ctx := context.Background()
	hub := httptest.NewServer(&asp.Server{Registration: asp.RegistrationOpen})
	defer hub.Close()
	dir, err := os.MkdirTemp("", "asp")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()

	agent := func(id, org string) *asp.Client {
		me, err := asp.GenerateIdentity(id, org)
		if err != nil {
			log.Fatal(err)
		}
		// the head survives restarts
		c := &asp.Client{Server: hub.URL, Identity: me, Store: asp.Dir(filepath.Join(dir, org))}
		if err := c.Register(ctx, me.Card(), nil); err != nil {
			log.Fatal(err)
		}
		return c
	}
	buyer := agent("agent://acme.example/procurement/buyer", "org_acme")
	seller := agent("agent://widgets.example/sales/bot", "org_widgets")

	done := make(chan error)
	go func() { done <- sell(ctx, seller) }()

	s, err := buyer.Open(ctx, asp.Invitation{To: []string{seller.Identity.ID()}, Purpose: "buy 10 widgets"})
	if err != nil {
		log.Fatal(err)
	}
	offer := asp.Proposal{Type: "service-agreement", Subject: "widgets",
		Terms: map[string]any{"quantity": 10, "price": 12.5}}
	for m, err := range s.Messages(ctx) { // verified, in the order of the chain; resumes
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("seller:", m.Performative)
		switch {
		case m.Performative == asp.Accept && m.State == asp.Introduced:
			_, err = s.Send(ctx, asp.Propose, offer) // signs, links, proves; links anew when it lost a race
		case m.Performative == asp.Counter:
			_, err = s.Send(ctx, asp.Accept, asp.Answer{}, asp.InReplyTo(m))
		case m.Performative == asp.Commit:
			_, err = s.Send(ctx, asp.Accept, asp.Answer{}, asp.InReplyTo(m))
		}
		if err != nil {
			log.Fatal(err)
		}
	}
	if err := <-done; err != nil {
		log.Fatal(err)
	}
	var file bytes.Buffer
	if _, err := s.Export(ctx, &file); err != nil {
		log.Fatal(err)
	}
	report, err := asp.VerifyTranscript(&file) // needs no server
	fmt.Println(report.State, report.Messages, err)
	// Output:
	// seller: ACCEPT
	// seller: COUNTER
	// seller: COMMIT
	// seller: CLOSE
	// CLOSED 8 <nil>
}

func sell(ctx context.Context, c *asp.Client) error {
	for inv, err := range c.Invitations(ctx) {
		if err != nil {
			return err
		}
		s, err := c.Join(ctx, inv.SessionID)
		if err != nil {
			return err
		}
		for m, err := range s.Messages(ctx) {
			if err != nil {
				return err
			}
			switch {
			case m.IsInvitation():
				_, err = s.Send(ctx, asp.Accept, asp.Answer{}, asp.InReplyTo(m))
			case m.Performative == asp.Propose:
				_, err = s.Send(ctx, asp.Counter, asp.Proposal{Terms: map[string]any{"quantity": 10, "price": 13}},
					asp.InReplyTo(m))
			case m.Performative == asp.Accept && m.State == asp.Conversing:
				_, err = s.Send(ctx, asp.Commit, asp.Promise{Terms: asp.Terms{Obligations: []asp.Obligation{
					{Party: c.Identity.ID(), Action: "deliver 10 widgets"}}}})
			case m.Performative == asp.Accept:
				return s.Close(ctx, "done")
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// Verify a transcript with nothing but its text. A changed word is found.
func ExampleVerifyTranscript() {
	text := transcript()
	report, err := asp.VerifyTranscript(bytes.NewReader(text))
	fmt.Println(report.State, report.Messages, err)
	forged := bytes.Replace(text, []byte("buy 10 widgets"), []byte("buy 99 widgets"), 1)
	_, err = asp.VerifyTranscript(bytes.NewReader(forged))
	fmt.Println(errors.Is(err, asp.ErrTranscript))
	// Output:
	// CLOSED 2 <nil>
	// true
}

// transcript is that of a session which its initiator closed.
func transcript() []byte {
	ctx := context.Background()
	hub := httptest.NewServer(&asp.Server{Registration: asp.RegistrationOpen})
	defer hub.Close()
	var clients []*asp.Client
	for _, id := range []string{"agent://acme.example/procurement/buyer", "agent://widgets.example/sales/bot"} {
		me, err := asp.GenerateIdentity(id, "org_example")
		if err != nil {
			log.Fatal(err)
		}
		c := &asp.Client{Server: hub.URL, Identity: me}
		if err := c.Register(ctx, me.Card(), nil); err != nil {
			log.Fatal(err)
		}
		clients = append(clients, c)
	}
	s, err := clients[0].Open(ctx, asp.Invitation{To: []string{clients[1].Identity.ID()}, Purpose: "buy 10 widgets"})
	if err != nil {
		log.Fatal(err)
	}
	if err := s.Close(ctx, "found cheaper ones"); err != nil {
		log.Fatal(err)
	}
	var text bytes.Buffer
	if _, err := s.Export(ctx, &text); err != nil {
		log.Fatal(err)
	}
	return text.Bytes()
}

// One message, checked in any program that knows the sender's keys.
func ExampleVerifier() {
	me, err := asp.GenerateIdentity("agent://acme.example/ops/monitor", "org_acme")
	if err != nil {
		log.Fatal(err)
	}
	session, err := asp.NewSessionID()
	if err != nil {
		log.Fatal(err)
	}
	e, err := asp.Draft{SessionID: session, Performative: asp.Inform, Body: asp.Information{Topic: "status"}}.Sign(me)
	if err != nil {
		log.Fatal(err)
	}
	v := &asp.Verifier{Keys: asp.StaticKeys{me.ID(): {me.Public()}}}
	got, err := v.Verify(context.Background(), e.Raw(), asp.Transport{})
	fmt.Println(got.Performative, got.Verdict.Assurance, err)
	_, err = v.Verify(context.Background(), e.Raw(), asp.Transport{})
	fmt.Println(err)
	// Output:
	// INFORM signed <nil>
	// asp: dpop_jti_replayed at sender.dpopProof: the proof was used before
}
