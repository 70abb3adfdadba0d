package agh_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/node"
)

// more says something in the work of an envelope.
func (p *peer) more(t *testing.T, about *agh.Envelope, text string) {
	t.Helper()
	e := about.Answer()
	e.ID = agh.NewID()
	if err := e.SetContent(&agh.Say{Text: text, Intent: "answer"}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Send(t.Context(), e); err != nil {
		t.Fatal(err)
	}
}

// What a peer says in the work of its request is an input, whether it was asked or not
// (AGH-077).
func TestInputIn(t *testing.T) {
	w := newWorld(t, nil)
	if err := w.Handle(parley.Agent{Name: "booker", Exposed: []string{"agh"}},
		parley.RawSkill("book", func(_ context.Context, m *parley.Message, r parley.Replier) error {
			where, err := r.(parley.Prompter).NeedInput(parley.Text("where to?"))
			if err != nil {
				return err
			}
			return r.Reply(parley.Text(m.Text() + " to " + where.Text()))
		}, parley.AsDefault())); err != nil {
		t.Fatal(err)
	}
	alice := w.join("ta", "acme", "alice").meets(t, "booker")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var last *agh.Envelope
	asked := false
	for ev, err := range alice.Stream(ctx, "booker", &agh.Say{Text: "a trip"}) {
		if err != nil {
			t.Fatal(err)
		}
		last = ev.Envelope
		if c, ok := last.Content().(*agh.Trace); ok && c.State == agh.StateNeedsInput {
			if asked = true; c.Message != "where to?" {
				t.Errorf("%s", last.Raw())
			}
			alice.more(t, last, "Bern")
		}
	}
	if c, ok := last.Content().(*agh.Trace); !ok || !asked || c.State != agh.StateCompleted ||
		c.Message != "a trip to Bern" {
		t.Fatalf("%s", last.Raw())
	}
	request, inputs := w.messages(parley.Request)[0], w.messages(parley.Input)
	if len(inputs) != 1 || inputs[0].InReplyTo != request.ID || inputs[0].Number != 1 || inputs[0].From != request.From ||
		inputs[0].Conversation != request.Conversation || inputs[0].Act != "answer" {
		t.Errorf("%+v", inputs)
	}
	if n := len(w.messages(parley.Notice)); n > 0 {
		t.Errorf("%d notices", n)
	}
}

// An input goes to a peer as a say in the work of its request, which goes on by it. After
// the end of the work the delivery says that it came too late.
func TestInputOut(t *testing.T) {
	w := newWorld(t, nil)
	bob := w.join("tb", "acme", "bob")
	to := "guest/agh/acme/bob"
	request, err := w.Hub().Accept(t.Context(), hub.Submission{Scope: "go test", Message: &parley.Message{
		Kind: parley.Request, From: "listener", To: to, Parts: []parley.Part{parley.Text("a trip")},
		Origin: parley.Origin{Protocol: "go", Peer: "listener"}}})
	if err != nil {
		t.Fatal(err)
	}
	q := <-bob.got
	if err := q.Trace(t.Context(), &agh.Trace{State: agh.StateNeedsInput, Message: "where to?"}); err != nil {
		t.Fatal(err)
	}
	w.until("the question is recorded", func() bool { return len(w.messages(parley.Event)) == 1 })
	add := func(text string) (*parley.Message, error) {
		return w.Hub().Accept(t.Context(), hub.Submission{Message: &parley.Message{Kind: parley.Input, From: "listener",
			To: to, InReplyTo: request.ID, Parts: []parley.Part{parley.Text(text)},
			Origin: parley.Origin{Protocol: "api", Peer: "listener"}}})
	}
	if _, err := add("Bern"); err != nil {
		t.Fatal(err)
	}
	r := <-bob.got
	say, ok := r.Envelope.Content().(*agh.Say)
	if !ok || say.Text != "Bern" || say.Intent != "answer" || r.Envelope.WorkID != q.Envelope.WorkID ||
		r.Envelope.ReplyTo != q.Envelope.ID || r.Envelope.Container() != q.Envelope.Container() {
		t.Fatalf("%s", r.Envelope.Raw())
	}
	if err := r.Trace(t.Context(), &agh.Trace{State: agh.StateCompleted, Message: "booked"}); err != nil {
		t.Fatal(err)
	}
	w.until("the answer is recorded", func() bool { return len(w.messages(parley.Response)) == 1 })
	if _, err := add("too late"); parley.CodeOf(err) != parley.Conflict {
		t.Errorf("after the answer: %v", err)
	}
}

// A refused input does not end the work: its receipt is "unsupported".
func TestRefusedInput(t *testing.T) {
	w := newWorld(t, func(c *node.Config) { c.Limits.Body = "1KiB" })
	begun := make(chan parley.ID, 1)
	if err := w.Handle(parley.Agent{Name: "booker", Exposed: []string{"agh"}},
		parley.RawSkill("book", func(ctx context.Context, m *parley.Message, r parley.Replier) error {
			begun <- m.ID
			select {
			case <-w.block:
			case <-ctx.Done():
			}
			return r.Reply(parley.Text("booked"))
		}, parley.AsDefault())); err != nil {
		t.Fatal(err)
	}
	alice := w.join("ta", "acme", "alice").meets(t, "booker")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for ev, err := range alice.Stream(ctx, "booker", &agh.Say{Text: "a trip"}) {
		if err != nil {
			t.Fatal(err)
		}
		switch c := ev.Envelope.Content().(type) {
		case *agh.Receipt:
			if c.Status == agh.StatusUnsupported {
				if c.Reason != agh.ReasonMalformed {
					t.Errorf("%s", ev.Envelope.Raw())
				}
				close(w.block)
				continue
			}
			<-begun
			alice.more(t, ev.Envelope, strings.Repeat("x", 2<<10))
		case *agh.Trace:
			if c.State != agh.StateCompleted {
				t.Errorf("%s", ev.Envelope.Raw())
			}
		}
	}
	if n := len(w.messages(parley.Input)); n > 0 {
		t.Errorf("%d inputs", n)
	}
}
