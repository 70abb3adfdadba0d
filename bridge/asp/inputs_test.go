package asp_test

import (
	"context"
	"encoding/json"
	"slices"
	"testing"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/node"
)

// An ASP agent answers the questions about its QUERY in the session: by a CLARIFY about the
// question, and by an INFORM about the QUERY. After the answer both are notices.
func TestInputInASession(t *testing.T) {
	type trip struct {
		To   string `json:"to"`
		Days int    `json:"days"`
	}
	w := newWorld(t, node.Config{}, func(n *node.Node) error {
		book := func(_ context.Context, _ *parley.Message, r parley.Replier) error {
			where, err := r.(parley.Prompter).NeedInput(parley.Text("where to?"))
			if err != nil {
				return err
			}
			long, err := r.(parley.Prompter).NeedInput(parley.Text("how long?"))
			if err != nil {
				return err
			}
			got := trip{To: where.Text()}
			if err := json.Unmarshal(long.Parts[0].Data, &got); err != nil {
				return err
			}
			b, err := json.Marshal(got)
			if err != nil {
				return err
			}
			return r.Reply(parley.Part{MediaType: "application/json", Data: b})
		}
		return n.Handle(parley.Agent{Name: "booker", Exposed: []string{"asp"}},
			parley.RawSkill("book", book, parley.AsDefault()))
	})
	alice, ctx := w.client("alice"), w.ctx()
	s, err := alice.Open(ctx, asp.Invitation{To: []string{w.AgentAddresses("booker")["asp"]}, Purpose: "to test"})
	if err != nil {
		t.Fatal(err)
	}
	wait(t, s, asp.Introduced)
	query, err := s.Send(ctx, asp.Query, asp.Question{QueryID: "trip-1", QueryType: "book"})
	if err != nil {
		t.Fatal(err)
	}
	clarify := func(about, text string) {
		t.Helper()
		if _, err := s.Send(ctx, asp.Clarify, asp.Clarification{ReferenceID: about, Answer: text}); err != nil {
			t.Fatal(err)
		}
	}
	for m, err := range s.Messages(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		switch kind, data := m.BodyText("informType"), string(m.BodyMember("data")); {
		case kind == "input-required" && data == `{"text":"where to?"}`:
			clarify(m.MessageID, "Bern")
		case kind == "input-required":
			if _, err := s.Send(ctx, asp.Inform, asp.Information{ReferenceID: "trip-1",
				Data: map[string]int{"days": 3}}); err != nil {
				t.Fatal(err)
			}
		case kind == "result":
			if data != `{"days":3,"to":"Bern"}` && data != `{"to":"Bern","days":3}` {
				t.Fatal(data)
			}
			clarify(query.MessageID, "too late")
			goto answered
		}
	}
answered:
	kinds := map[parley.Kind]int{}
	var request parley.ID
	j := w.Hub().Journal()
	for p := range j.Partitions() {
		for r, err := range j.Records(ctx, p, journal.From{}) {
			if err != nil {
				t.Fatal(err)
			}
			m := r.Message
			if m == nil || m.From != nameOf(t, w, alice.Identity.ID()) {
				continue
			}
			kinds[m.Kind]++
			switch {
			case m.Kind == parley.Request:
				request = m.ID
			case m.Kind == parley.Input && (m.To != "booker" || m.InReplyTo != request || m.Number != kinds[m.Kind]):
				t.Errorf("%+v", m)
			}
		}
	}
	if kinds[parley.Request] != 1 || kinds[parley.Input] != 2 {
		t.Errorf("recorded: %v", kinds)
	}
}

// What an ASP agent says about its QUERY to a third participant is no input: it names that one
// as the recipient that should act.
func TestClarifyToAnother(t *testing.T) {
	w := newWorld(t, node.Config{Agents: map[string]node.Agent{"clerk": {Expose: []string{"asp"}},
		"porter": {Expose: []string{"asp"}}}})
	alice, ctx, j := w.client("alice"), w.ctx(), w.Hub().Journal()
	clerk, porter := w.AgentAddresses("clerk")["asp"], w.AgentAddresses("porter")["asp"]
	s, err := alice.Open(ctx, asp.Invitation{To: []string{clerk, porter}})
	if err != nil {
		t.Fatal(err)
	}
	wait(t, s, asp.Introduced)
	if _, err := s.Send(ctx, asp.Query, asp.Question{QueryID: "trip-1", QueryType: "message", Subject: "a trip"},
		asp.To(clerk)); err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{porter, clerk} {
		if _, err := s.Send(ctx, asp.Clarify, asp.Clarification{ReferenceID: "trip-1", Answer: "for " + to},
			asp.To(to)); err != nil {
			t.Fatal(err)
		}
	}
	var inputs []string
	for p := range j.Partitions() {
		for r, err := range j.Records(ctx, p, journal.From{}) {
			if err != nil {
				t.Fatal(err)
			}
			if m := r.Message; m != nil && m.Kind == parley.Input {
				inputs = append(inputs, m.To+": "+m.Text())
			}
		}
	}
	if len(inputs) != 1 || inputs[0] != "clerk: for "+clerk {
		t.Errorf("inputs: %q", inputs)
	}
}

// What an ASP agent says about a QUERY that became a dead letter is a notice: its participants
// read it, and nothing refuses it.
func TestClarifyAfterADeadLetter(t *testing.T) {
	w := newWorld(t, node.Config{Agents: map[string]node.Agent{"clerk": {Expose: []string{"asp"}}}})
	alice, ctx, j := w.client("alice"), w.ctx(), w.Hub().Journal()
	s, err := alice.Open(ctx, asp.Invitation{To: []string{w.AgentAddresses("clerk")["asp"]}})
	if err != nil {
		t.Fatal(err)
	}
	wait(t, s, asp.Introduced)
	if _, err := s.Send(ctx, asp.Query, asp.Question{QueryID: "trip-1", QueryType: "message",
		Subject: "a trip"}); err != nil {
		t.Fatal(err)
	}
	asked := j.Deliveries(journal.Filter{To: "clerk"})
	if len(asked) != 1 || asked[0].Kind != parley.Request {
		t.Fatalf("%+v", asked)
	}
	if _, err := j.Append(ctx, journal.Entry{Steps: []journal.Step{{Message: asked[0].Message, To: "clerk",
		State: parley.Dead, Attempt: asked[0].Attempt, Error: parley.Refuse(parley.OutcomeUnknown, "the hub was stopped")}},
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Send(ctx, asp.Clarify, asp.Clarification{ReferenceID: "trip-1", Answer: "Bern"}); err != nil {
		t.Error(err)
	}
}

// An input of another agent goes out as a CLARIFY that answers; what is more than text, as
// an INFORM.
func TestInputToAnASPAgent(t *testing.T) {
	w := newWorld(t, node.Config{})
	bob, ctx := w.client("bob"), w.ctx()
	got := make(chan *asp.Message, 8)
	sessions := make(chan *asp.Session, 1)
	answer(ctx, t, bob, func(s *asp.Session, m *asp.Message) error {
		switch m.Performative {
		case asp.Query:
			sessions <- s
			_, err := s.Send(ctx, asp.Clarify, asp.Clarification{Question: "where to?"}, asp.InReplyTo(m))
			got <- m
			return err
		case asp.Clarify, asp.Inform:
			if m.BodyText("informType") != "introduction" {
				got <- m
			}
		case asp.Propose:
			_, err := s.Send(ctx, asp.Accept, asp.Answer{}, asp.InReplyTo(m))
			return err
		}
		return nil
	})
	to, log := nameOf(t, w, bob.Identity.ID()), w.watch()
	request, err := w.Hub().Accept(ctx, hub.Submission{Scope: "go", Message: question(to, "a trip")})
	if err != nil {
		t.Fatal(err)
	}
	query, s := wasAsked(ctx, t, got), <-sessions
	add := func(p parley.Part) (*parley.Message, error) {
		return w.Hub().Accept(ctx, hub.Submission{Message: &parley.Message{Kind: parley.Input, From: "crew/echo", To: to,
			InReplyTo: request.ID, Parts: []parley.Part{p}, Origin: parley.Origin{Protocol: "go"}}})
	}
	for _, x := range []struct {
		part   parley.Part
		act    asp.Performative
		member string
		want   string
	}{
		{parley.Text("Bern"), asp.Clarify, "answer", `"Bern"`},
		{parley.Part{MediaType: "application/json", Data: []byte(`{"days":3}`)}, asp.Inform, "data", `{"days":3}`},
	} {
		if _, err := add(x.part); err != nil {
			t.Fatal(err)
		}
		m := wasAsked(ctx, t, got)
		if m.Performative != x.act || string(m.BodyMember(x.member)) != x.want || m.SessionID != query.SessionID ||
			m.Reference() != query.BodyText("queryId") {
			t.Errorf("%s", m.Raw())
		}
	}
	if _, err := s.Send(ctx, asp.Inform, asp.Information{InformType: "result", Data: map[string]string{"text": "booked"}},
		asp.InReplyTo(query)); err != nil {
		t.Fatal(err)
	}
	log.until(ctx, t, "answer", func(list []*journal.Record) bool {
		return slices.ContainsFunc(list, func(r *journal.Record) bool {
			return r.Message != nil && r.Message.InReplyTo == request.ID && r.Message.Kind == parley.Response &&
				r.Message.Text() == "booked"
		})
	})
	if _, err := add(parley.Text("too late")); parley.CodeOf(err) != parley.Conflict {
		t.Errorf("after the answer: %v", err)
	}
}
