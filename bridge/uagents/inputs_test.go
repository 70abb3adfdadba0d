package uagents_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/uagents"
)

// booker asks where to, and answers with it.
func booker(ctx context.Context, _ *parley.Message, q text) (text, error) {
	where, err := parley.NeedInput(ctx, "where to?")
	if err != nil {
		return text{}, err
	}
	return text{q.Text + " to " + where.Text()}, nil
}

// A question reaches a uAgent as a chat message in the session of its request, and its
// next chat message there is an input. Before and after, a chat message is a request.
func TestInputInAChat(t *testing.T) {
	w := newWorld(t, node.Config{})
	if err := w.Handle(parley.Agent{Name: "booker", Exposed: parley.Everywhere},
		parley.Skill("book", booker, parley.AsDefault())); err != nil {
		t.Fatal(err)
	}
	alice, to := w.newPeer(nil), w.address("booker")
	session := uagents.NewSession()
	say := func(s string) *uagents.Envelope {
		t.Helper()
		e := w.envelope(alice.Identity, to, session, uagents.NewChat(time.Now(), uagents.Text(s)).Message())
		if status, body, _ := w.post(e, false); status != 200 || body != "{}" {
			t.Fatal(status, body)
		}
		return e
	}
	// heard gives the next chat message that is no acknowledgement.
	heard := func() *uagents.ChatMessage {
		t.Helper()
		for {
			r := alice.next(t)
			if r.Session != session {
				t.Fatalf("another session: %s", r.Raw())
			}
			if r.SchemaDigest != uagents.ChatAcknowledgementDigest {
				return chatText(t, r)
			}
		}
	}
	say("a trip")
	if q := heard(); q.Text() != "where to?" || q.Ends() {
		t.Fatalf("the question: %+v", q)
	}
	answer := say("Bern")
	if a := heard(); a.Text() != "a trip to Bern" || !a.Ends() {
		t.Fatalf("the answer: %+v", a)
	}
	if status, body, _ := w.post(answer, false); status != 200 || body != "{}" { // a duplicate
		t.Fatal(status, body)
	}
	say("another trip")
	if q := heard(); q.Text() != "where to?" {
		t.Fatalf("the question to the next request: %+v", q)
	}
	say("Chur")
	if a := heard(); a.Text() != "another trip to Chur" {
		t.Fatalf("the answer to the next request: %+v", a)
	}
	var kinds []parley.Kind
	for p := range w.Hub().Journal().Partitions() {
		for r, err := range w.Hub().Journal().Records(t.Context(), p, journal.From{}) {
			if err != nil {
				t.Fatal(err)
			}
			if m := r.Message; m != nil && m.To == "booker" {
				kinds = append(kinds, m.Kind)
				if m.Kind == parley.Input && (m.Number != 1 || m.InReplyTo.IsZero() || m.From != w.nameOf(alice.Identity)) {
					t.Errorf("the input: %+v", m)
				}
			}
		}
	}
	want := []parley.Kind{parley.Request, parley.Input, parley.Request, parley.Input}
	if !slices.Equal(kinds, want) {
		t.Errorf("the booker was sent %v, want %v", kinds, want)
	}
	asked := func() (n int) {
		for _, err := range w.Hub().Journal().State("uagents-questions").Range(t.Context(), "") {
			if err != nil {
				t.Fatal(err)
			}
			n++
		}
		return n
	}
	if asked() == 0 {
		t.Fatal("no question is kept")
	}
	if _, err := w.UAgents().Forget(t.Context(), hub.Forgetting{Agent: "booker",
		Message: func(parley.ID) bool { return true }}); err != nil {
		t.Fatal(err)
	}
	if n := asked(); n != 0 {
		t.Errorf("%d questions are left", n)
	}
}

// A request that is a dead letter takes no input: its sender was told that it failed, and goes
// on in the same session.
func TestChatAfterADeadLetter(t *testing.T) {
	w := newWorld(t, node.Config{Agents: map[string]node.Agent{"clerk": {Expose: []string{"uagents"}}}})
	alice, to, session := w.newPeer(nil), w.address("clerk"), uagents.NewSession()
	say := func(s string) {
		t.Helper()
		e := w.envelope(alice.Identity, to, session, uagents.NewChat(time.Now(), uagents.Text(s)).Message())
		if status, body, _ := w.post(e, false); status != 200 || body != "{}" {
			t.Fatal(status, body)
		}
	}
	say("a trip")
	j := w.Hub().Journal()
	asked := j.Deliveries(journal.Filter{To: "clerk"})
	if len(asked) != 1 {
		t.Fatalf("%+v", asked)
	}
	if _, err := w.Hub().Accept(t.Context(), hub.Submission{Message: &parley.Message{Kind: parley.Event, From: "clerk",
		State: parley.NeedsInput, InReplyTo: asked[0].Message, Parts: []parley.Part{parley.Text("where to?")},
		Origin: parley.Origin{Protocol: "go", Peer: "clerk"}}}); err != nil {
		t.Fatal(err)
	}
	for alice.next(t).SchemaDigest == uagents.ChatAcknowledgementDigest {
	}
	if _, err := j.Append(t.Context(), journal.Entry{Steps: []journal.Step{{Message: asked[0].Message, To: "clerk",
		State: parley.Dead, Attempt: asked[0].Attempt, Error: parley.Refuse(parley.OutcomeUnknown, "the hub was stopped")}},
	}); err != nil {
		t.Fatal(err)
	}
	say("another trip")
	open := j.Deliveries(journal.Filter{To: "clerk", States: []parley.DeliveryState{parley.Waiting}})
	if len(open) != 1 || open[0].Kind != parley.Request || open[0].Message == asked[0].Message {
		t.Errorf("%+v", open)
	}
}

// An input of another agent goes to a uAgent as a chat message in the session of its
// request, as long as the uAgent has not answered.
func TestInputToAUAgent(t *testing.T) {
	w := newWorld(t, node.Config{})
	bob := w.newPeer(nil)
	name := w.nameOf(bob.Identity)
	request := w.send("crew/echo", name, parley.Text("a trip"))
	q := bob.next(t)
	more := func(s string) (*parley.Message, error) {
		return w.Hub().Accept(t.Context(), hub.Submission{Scope: "go crew/echo", Message: &parley.Message{
			Kind: parley.Input, From: "crew/echo", To: name, InReplyTo: request, Parts: []parley.Part{parley.Text(s)},
			Origin: parley.Origin{Protocol: "go", Peer: "crew/echo"}}})
	}
	if _, err := more("to Bern"); err != nil {
		t.Fatal(err)
	}
	got := bob.next(t)
	if c := chatText(t, got); c.Text() != "to Bern" || c.Ends() || got.Session != q.Session || got.Sender != q.Sender ||
		got.Header.Get("Parley-Provenance") == "" {
		t.Fatalf("%s %s", got.Raw(), got.Header)
	}
	if status, body, _ := w.post(w.envelope(bob.Identity, q.Sender, q.Session,
		uagents.NewChat(time.Now(), uagents.Text("booked")).Message()), false); status != 200 {
		t.Fatal(status, body)
	}
	if _, err := more("too late"); parley.CodeOf(err) != parley.Conflict {
		t.Errorf("after the answer: %v", err)
	}
}

// A request in a model has no place for more: the delivery of the input says so, and the uAgent
// gets nothing.
func TestInputToAModel(t *testing.T) {
	w := newWorld(t, node.Config{})
	bob := w.newPeer(nil)
	name := w.nameOf(bob.Identity)
	tell := func(m *parley.Message) parley.ID {
		t.Helper()
		m.From, m.To, m.Origin = "crew/echo", name, parley.Origin{Protocol: "go", Peer: "crew/echo"}
		sent, err := w.Hub().Accept(t.Context(), hub.Submission{Scope: "go crew/echo", Message: m})
		if err != nil {
			t.Fatal(err)
		}
		return sent.ID
	}
	request := tell(&parley.Message{Kind: parley.Request, Schema: echoModel().Digest(),
		Parts: []parley.Part{{MediaType: "application/json", Data: []byte(`{"text":"a trip"}`)}}})
	if q := bob.next(t); q.SchemaDigest != echoModel().Digest() {
		t.Fatalf("%s", q.Raw())
	}
	input := tell(&parley.Message{Kind: parley.Input, InReplyTo: request, Parts: []parley.Part{parley.Text("to Bern")}})
	ctx, stop := context.WithTimeout(t.Context(), wait)
	defer stop()
	j := w.Hub().Journal()
	for r, err := range j.Records(ctx, j.Partition("go crew/echo"), journal.From{Follow: true}) {
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range r.Steps {
			if s.Message != input || s.State == parley.Delivering {
				continue
			}
			if s.State != parley.Delivered || len(s.Losses) != 1 || s.Losses[0].Field != "Kind" {
				t.Errorf("%+v", s)
			}
			if n := len(bob.got); n > 0 {
				t.Errorf("bob got %d more", n)
			}
			return
		}
	}
}
