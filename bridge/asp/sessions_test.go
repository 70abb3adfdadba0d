package asp_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/node"
)

// TestDelegateBringsStandInIn is ASP-072 and ASP-073 through the hub: DELEGATE adds a
// third participant, all participants see every message, and the hub's record names
// them all.
func TestDelegateBringsStandInIn(t *testing.T) {
	w := newWorld(t, node.Config{})
	var records []*journal.Record
	recorded := make(chan *journal.Record, 256)
	defer w.Hub().Journal().Watch(func(r *journal.Record) { recorded <- r })()
	alice, bob := w.client("alice"), w.client("bob")
	ctx := w.ctx()
	s, bs := introduced(t, ctx, alice, bob)
	if _, err := s.Send(ctx, asp.Inform, asp.Information{Topic: "let us ask a third"}); err != nil {
		t.Fatal(err)
	}
	sent, err := s.Send(ctx, asp.Delegate, asp.Delegation{TargetAgent: w.echoID(),
		Scope: "pieces", DelegationID: "d-1"})
	if err != nil {
		t.Fatal(err)
	}
	var acts []string
	for m, err := range bs.Messages(ctx) { // bob reads, too
		if err != nil {
			t.Fatal(err)
		}
		if m.Sender.AgentID != w.echoID() {
			continue
		}
		acts = append(acts, string(m.Performative))
		if strings.Contains(string(m.Body), `"done"`) {
			break
		}
	}
	if !slices.Contains(acts, "ACCEPT") || acts[len(acts)-1] != "INFORM" {
		t.Errorf("messages of the stand-in: %v", acts)
	}
	for len(recorded) > 0 {
		records = append(records, <-recorded)
	}
	at := slices.IndexFunc(records, func(r *journal.Record) bool {
		return r.Message != nil && string(r.Message.Origin.Raw) == string(sent.Raw())
	})
	if at < 0 {
		t.Fatal("ASP-024: the message is not recorded as it was sent")
	}
	m := records[at].Message
	if m.Kind != parley.Request || m.To != "crew/echo" || len(m.Audience) != 2 ||
		m.Origin.Verdict.Assurance != parley.Signed {
		t.Errorf("%+v", m)
	}
}

// TestDeadPeer: a peer that never answers an invitation delays no other peer, and the
// request to it ends with its deadline.
func TestDeadPeer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, node.Config{})
	w.client("dead")
	var name string
	for _, e := range w.Hub().Directory().All() {
		if strings.HasPrefix(e.Name, "guest/asp/") {
			name = e.Name
		}
	}
	ctx := w.ctx()
	ask := func(to string, wait time.Duration) (*parley.Message, error) {
		return w.Hub().Ask(ctx, hub.Submission{Scope: "go", Message: &parley.Message{Kind: parley.Request,
			From: "crew/echo", To: to, Skill: "echo",
			Parts:    []parley.Part{{MediaType: "application/json", Data: []byte(`{"text":"hi"}`)}},
			Deadline: time.Now().Add(wait), Origin: parley.Origin{Protocol: "go"}}})
	}
	done := make(chan error, 1)
	go func() {
		m, err := ask(name, time.Second)
		if err == nil && m.Kind != parley.Failure {
			err = errors.New("a dead agent answered")
		}
		done <- err
	}()
	if m, err := ask("crew/echo", responseTime); err != nil || m.Kind != parley.Response {
		t.Errorf("another: %+v %v", m, err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestTrustIsVouchedFor: if inviters need a score, it comes from the operator's
// configuration, also for an agent that registers later. An agent's own claims do not
// count, and the hub's own invitations need no score (ASP-061).
func TestTrustIsVouchedFor(t *testing.T) {
	id, err := asp.GenerateIdentity("agent://alice.example/test/alice", "org_alice")
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, node.Config{ASP: node.ASP{MinTrust: 20}, Agents: map[string]node.Agent{
		"alice": {ASP: &node.ASPAgent{ID: id.ID(), Trust: &node.ASPTrust{Identity: 75, Peers: 100}}}}})
	alice, bob := w.as(id), w.client("bob")
	ctx := w.ctx()
	if _, err := alice.Open(ctx, asp.Invitation{To: []string{w.echoID()}}); err != nil {
		t.Errorf("an inviter with the score: %v", err)
	}
	if _, err := bob.Open(ctx, asp.Invitation{To: []string{w.echoID()}}); err == nil ||
		!strings.Contains(err.Error(), "insufficient_trust_score") {
		t.Errorf("an inviter without a score: %v", err)
	}
	session, err := asp.NewSessionID()
	if err != nil {
		t.Fatal(err)
	}
	e, err := asp.Draft{SessionID: session, Performative: asp.Propose, TrustScore: 100,
		Recipient: &asp.Party{AgentID: w.echoID(), OrgID: "org_parley"},
		Body: asp.Proposal{ProposalID: "p", Type: "session-invitation", Subject: "s",
			Terms: map[string]any{}}}.Sign(bob.Identity)
	if err != nil {
		t.Fatal(err)
	}
	var refusal *asp.Error
	if _, err := w.ASP().Server().Ingest(ctx, e.Raw(), asp.Transport{Agent: bob.Identity.ID()},
		session); !errors.As(err, &refusal) || refusal.Code != "insufficient_trust_score" {
		t.Errorf("an inviter that claims a score: %v", err)
	} else if r, ok := w.Hub().Explain(refusal.Reference); !ok || r.Step != "admit" {
		t.Errorf("%+v", r)
	}
	card, err := bob.Card(ctx, id.ID())
	if err != nil {
		t.Fatal(err)
	}
	if b, err := card.JSON(); err != nil || !strings.Contains(string(b), `"trustScore":20}`) {
		t.Errorf("%s, %v", b, err)
	}
	answer(ctx, t, bob, func(s *asp.Session, m *asp.Message) (err error) {
		switch {
		case m.IsInvitation():
			_, err = s.Send(ctx, asp.Accept, asp.Answer{}, asp.InReplyTo(m))
		case m.Performative == asp.Query:
			_, err = s.Send(ctx, asp.Inform, asp.Information{InformType: "result", Data: map[string]any{"text": "yes"}},
				asp.InReplyTo(m))
		}
		return err
	})
	m, err := w.Hub().Ask(ctx, hub.Submission{Scope: "go", Message: question(nameOf(t, w, bob.Identity.ID()), "well?")})
	if err != nil || m.Kind != parley.Response {
		t.Errorf("the hub invites: %+v %v", m, err)
	}
}

// TestForged: the hub records no message with an invalid signature, and can explain the
// refusal.
func TestForged(t *testing.T) {
	w := newWorld(t, node.Config{})
	alice := w.client("alice")
	ctx := w.ctx()
	session, err := asp.NewSessionID()
	if err != nil {
		t.Fatal(err)
	}
	e, err := asp.Draft{SessionID: session, Performative: asp.Propose,
		Recipient: &asp.Party{AgentID: w.echoID(), OrgID: "org_parley"},
		Body: asp.Proposal{ProposalID: "p", Type: "session-invitation", Subject: "s",
			Terms: map[string]any{}}}.Sign(alice.Identity)
	if err != nil {
		t.Fatal(err)
	}
	server := w.ASP().Server()
	sig := strings.LastIndex(string(e.Raw()), "ed25519:") + 10
	forged := []byte(string(e.Raw()))
	forged[sig] ^= 1
	var bad *asp.Error
	if _, err := server.Ingest(ctx, forged, asp.Transport{Agent: alice.Identity.ID()}, session); !errors.As(err,
		&bad) || bad.Step > 9 {
		t.Fatal(err)
	}
	if r, ok := w.Hub().Explain(bad.Reference); !ok || r.Step == "admit" {
		t.Errorf("%+v", r)
	}
	if _, err := server.Session(ctx, session, ""); !errors.Is(err, asp.ErrSessionNotFound) {
		t.Errorf("a forged invitation made a session: %v", err)
	}
	// ASP-040: the proof was not used up.
	if _, err := server.Ingest(ctx, e.Raw(), asp.Transport{Agent: alice.Identity.ID()}, session); err != nil {
		t.Error(err)
	}
	// ASP-026: a retransmission has no second effect.
	if r, err := server.Ingest(context.WithoutCancel(ctx), e.Raw(), asp.Transport{Agent: alice.Identity.ID()},
		session); err != nil || !r.Duplicate {
		t.Errorf("%+v %v", r, err)
	}
}

// TestAnswerAfterRestart: the answer to a request from before a restart of the hub
// reaches the requester once.
func TestAnswerAfterRestart(t *testing.T) {
	c := node.Config{Data: t.TempDir() + "/data", Durability: "disk"}
	w := newWorld(t, c)
	bob := w.client("bob")
	ctx := w.ctx()
	name := func(id string) string {
		e, ok := w.Hub().Directory().Lookup("asp", id)
		if !ok {
			t.Fatal(id, "is not in the directory")
		}
		return e.Name
	}
	asked := make(chan *asp.Message, 1)
	var bs *asp.Session
	listening, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for inv, err := range bob.Invitations(listening) {
			if err != nil {
				return
			}
			if bs, err = bob.Join(listening, inv.SessionID); err != nil {
				t.Error(err)
				return
			}
			for m, err := range bs.Messages(listening) {
				if err != nil {
					return
				}
				if m.IsInvitation() {
					if _, err := bs.Send(listening, asp.Accept, asp.Answer{}, asp.InReplyTo(m)); err != nil {
						t.Error(err)
					}
				}
				if m.Performative == asp.Query {
					asked <- m
					return
				}
			}
		}
	}()
	defer stop()
	request, err := w.Hub().Accept(ctx, hub.Submission{Scope: "go",
		Message: question(name(bob.Identity.ID()), "well?")})
	if err != nil {
		t.Fatal(err)
	}
	q := wasAsked(ctx, t, asked)
	<-done
	before := w.base
	w.close()
	c.Listen.HTTP = strings.TrimPrefix(before, "http://")
	w.open(c)
	answers := make(chan *parley.Message, 16)
	defer w.Hub().Journal().Watch(func(r *journal.Record) {
		if r.Message != nil && r.Message.InReplyTo == request.ID {
			answers <- r.Message
		}
	})()
	if _, err := bs.Send(ctx, asp.Inform, asp.Information{InformType: "result",
		Data: map[string]string{"text": "very well"}}, asp.InReplyTo(q)); err != nil {
		t.Fatal(err)
	}
	select {
	case m := <-answers:
		if m.Kind != parley.Response || m.Text() != "very well" || m.Origin.Peer != bob.Identity.ID() {
			t.Errorf("%+v", m)
		}
	case <-ctx.Done():
		t.Fatal("no answer")
	}
}
