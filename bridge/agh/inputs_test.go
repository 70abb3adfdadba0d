package agh_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/asp"
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

// The question of an AGH peer crosses to the ASP agent that asked it, and the agent's
// CLARIFY crosses back into the peer's work.
func TestInputFromASP(t *testing.T) {
	w := newWorld(t, func(c *node.Config) {
		c.Listen.HTTP, c.ASP.Registration = "127.0.0.1:0", "open"
		c.Agents = map[string]node.Agent{"bob": {AGH: &node.AGHAgent{Workspace: "acme", Peer: "bob"},
			Expose: []string{"asp"}}}
	})
	bob := w.join("tb", "acme", "bob")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	id, err := asp.GenerateIdentity("agent://alice.example/test/alice", "org_alice")
	if err != nil {
		t.Fatal(err)
	}
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	alice := &asp.Client{Server: w.Addresses().Local, Identity: id, HTTP: &http.Client{Transport: tr}}
	if err := alice.Register(ctx, id.Card(), nil); err != nil {
		t.Fatal(err)
	}
	s, err := alice.Open(ctx, asp.Invitation{To: []string{w.AgentAddresses("bob")["asp"]}})
	if err != nil {
		t.Fatal(err)
	}
	asked := false
	for m, err := range s.Messages(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		kind, data := m.BodyText("informType"), string(m.BodyMember("data"))
		switch {
		case m.State == asp.Introduced && !asked:
			asked = true
			if _, err := s.Send(ctx, asp.Query, asp.Question{QueryType: "message", Subject: "a trip"}); err != nil {
				t.Fatal(err)
			}
			q := <-bob.got
			if err := q.Trace(ctx, &agh.Trace{State: agh.StateNeedsInput, Message: "where to?"}); err != nil {
				t.Fatal(err)
			}
		case kind == "input-required":
			if data != `{"text":"where to?"}` {
				t.Errorf("the question: %s", data)
			}
			if _, err := s.Send(ctx, asp.Clarify, asp.Clarification{Answer: "Bern"}, asp.InReplyTo(m)); err != nil {
				t.Fatal(err)
			}
			r := <-bob.got
			if text(t, r.Envelope) != "Bern" {
				t.Errorf("%s", r.Envelope.Raw())
			}
			if err := r.Trace(ctx, &agh.Trace{State: agh.StateCompleted, Message: "booked"}); err != nil {
				t.Fatal(err)
			}
		case kind == "result":
			if !strings.Contains(data, "booked") {
				t.Errorf("the answer: %s", data)
			}
			inputs := w.messages(parley.Input)
			if len(inputs) != 1 || inputs[0].To != "bob" || inputs[0].Origin.Verdict.Assurance != parley.Signed {
				t.Errorf("%+v", inputs)
			}
			return
		}
	}
	t.Error("the session ended")
}

// A handler at one hub gets an input that another hub on the journal recorded.
func TestInputAtAnotherHub(t *testing.T) {
	t.Parallel()
	one, two := twoHubs(t)
	asks := make(chan *world, 1)
	for _, w := range []*world{one, two} {
		if err := w.Handle(parley.Agent{Name: "booker"}, parley.RawSkill("book",
			func(_ context.Context, _ *parley.Message, r parley.Replier) error {
				asks <- w
				where, err := r.(parley.Prompter).NeedInput(parley.Text("where to?"))
				if err != nil {
					return err
				}
				return r.Reply(where.Parts...)
			}, parley.AsDefault())); err != nil {
			t.Fatal(err)
		}
	}
	origin := parley.Origin{Protocol: "api", Peer: "listener"}
	request, err := one.Hub().Accept(t.Context(), hub.Submission{Scope: "api listener", Message: &parley.Message{
		Kind: parley.Request, From: "listener", To: "booker", Parts: []parley.Part{parley.Text("a trip")}, Origin: origin}})
	if err != nil {
		t.Fatal(err)
	}
	other := two
	if <-asks == two {
		other = one
	}
	if _, err := other.Hub().Accept(t.Context(), hub.Submission{Message: &parley.Message{Kind: parley.Input,
		From: "listener", To: "booker", InReplyTo: request.ID, Parts: []parley.Part{parley.Text("Bern")},
		Origin: origin}}); err != nil {
		t.Fatal(err)
	}
	other.until("the answer is recorded", func() bool {
		list := other.messages(parley.Response)
		return len(list) == 1 && list[0].Text() == "Bern"
	})
}
