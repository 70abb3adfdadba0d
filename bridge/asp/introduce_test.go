package asp_test

import (
	"context"
	"testing"

	"github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/node"
)

// shown gives the card in a message, or nil.
func shown(t *testing.T, e *asp.Envelope) *asp.Card {
	t.Helper()
	for _, o := range e.Content.Context {
		if o.Type == asp.AgentCardContext {
			card, err := asp.ParseCard(o.Data)
			if err != nil {
				t.Fatal(err)
			}
			return card
		}
	}
	return nil
}

// showsKeys checks that a message has the card of its sender with the registered keys.
func showsKeys(ctx context.Context, t *testing.T, c *asp.Client, e *asp.Envelope) {
	t.Helper()
	card := shown(t, e)
	registered, err := c.Card(ctx, e.Sender.AgentID)
	if err != nil {
		t.Fatal(err)
	}
	if card == nil || card.AgentID != e.Sender.AgentID || !card.SigningKey.Equal(registered.SigningKey) ||
		!card.ProofKey.Equal(registered.ProofKey) {
		t.Errorf("%s without the sender's card: %s", e.Performative, e.Raw())
	}
}

// reconcile does all of the hub's work in a session that is due now.
func (w *world) reconcile(session string) {
	w.t.Helper()
	if err := w.ASP().Reconcile(w.ctx(), session); err != nil {
		w.t.Fatal(err)
	}
}

// notRefused checks that the hub refused no message.
func (w *world) notRefused() {
	w.t.Helper()
	for _, r := range w.Hub().Refused(100) {
		w.t.Errorf("the hub refused a message of %s: %s (%s)", r.Claim, r.Text, r.Cause)
	}
}

// TestAcceptShowsCard: a stand-in shows its card in its ACCEPT. The inviter can speak next: the hub adds no message
// that takes the head of the session.
func TestAcceptShowsCard(t *testing.T) {
	w := newWorld(t, node.Config{})
	alice, ctx := w.client("alice"), w.ctx()
	s, err := alice.Open(ctx, asp.Invitation{To: []string{w.echoID()}})
	if err != nil {
		t.Fatal(err)
	}
	for m, err := range s.Messages(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if m.Performative != asp.Accept {
			t.Fatalf("%s", m.Raw())
		}
		showsKeys(ctx, t, alice, m.Envelope)
		break
	}
	w.reconcile(s.ID())
	if m, err := s.Ask(ctx, asp.Question{QueryType: "echo", Parameters: map[string]any{"text": "hi"}}); err != nil ||
		m.Performative != asp.Inform {
		t.Errorf("%+v %v", m, err)
	}
	w.notRefused()
}

// TestInvitationShowsCard: a stand-in that opens a session shows its card in the invitation. After the ACCEPT, its next
// message is the one that the session is for.
func TestInvitationShowsCard(t *testing.T) {
	w := newWorld(t, node.Config{})
	bob, ctx := w.client("bob"), w.ctx()
	got := make(chan *asp.Envelope, 8)
	answer(ctx, t, bob, func(s *asp.Session, m *asp.Message) (err error) {
		got <- m.Envelope
		switch m.Performative {
		case asp.Propose:
			if _, err = s.Send(ctx, asp.Accept, asp.Answer{}, asp.InReplyTo(m)); err == nil {
				err = w.ASP().Reconcile(ctx, s.ID())
			}
		case asp.Query:
			_, err = s.Send(ctx, asp.Inform, asp.Information{InformType: "result", Data: map[string]any{"text": "yes"}},
				asp.InReplyTo(m))
		}
		return err
	})
	m, err := w.Hub().Ask(ctx, hub.Submission{Scope: "go", Message: question(nameOf(t, w, bob.Identity.ID()), "well?")})
	if err != nil || m.Text() != "yes" {
		t.Fatalf("%+v %v", m, err)
	}
	showsKeys(ctx, t, bob, <-got)
	if e := <-got; e.Performative != asp.Query {
		t.Errorf("after the ACCEPT: %s", e.Raw())
	}
	w.notRefused()
}

// TestIntroductionIsReturned: a stand-in returns the introduction of an agent that sends one, once.
func TestIntroductionIsReturned(t *testing.T) {
	w := newWorld(t, node.Config{})
	alice, ctx := w.client("alice"), w.ctx()
	s, err := alice.Open(ctx, asp.Invitation{To: []string{w.echoID()}})
	if err != nil {
		t.Fatal(err)
	}
	wait(t, s, asp.Introduced)
	card, err := alice.Identity.Card().JSON()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Send(ctx, asp.Inform, asp.Information{InformType: "introduction", Topic: "introduction"},
		asp.WithContext(asp.ContextObject{Type: asp.AgentCardContext, ID: "alice", Version: 1, Data: card})); err != nil {
		t.Fatal(err)
	}
	for m, err := range s.Messages(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if m.BodyText("informType") == "introduction" {
			showsKeys(ctx, t, alice, m.Envelope)
			break
		}
	}
	w.reconcile(s.ID())
	if head := w.head(s.ID()); head.Count != 4 {
		t.Errorf("%d messages, want PROPOSE, ACCEPT and two introductions", head.Count)
	}
	if _, err := s.Ask(ctx, asp.Question{QueryType: "echo", Parameters: map[string]any{"text": "hi"}}); err != nil {
		t.Error(err)
	}
	w.notRefused()
}
