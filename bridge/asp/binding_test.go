package asp_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/testcluster"
	"github.com/parley-hub/parley/node"
)

// responseTime bounds the time that a test waits for an event. It suffices on a busy
// machine, too.
const responseTime = 2 * time.Minute

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testcluster.Leaks()...) }

type world struct {
	*node.Node
	t        *testing.T
	register []func(*node.Node) error // agents of every node that it opens
	base     string
	calls    atomic.Int64
	started  chan string
	ended    chan error
	notices  chan *parley.Message
}

// newWorld starts a node. register adds agents before the start: peers find them from then on.
func newWorld(t *testing.T, c node.Config, register ...func(*node.Node) error) *world {
	t.Helper()
	w := &world{t: t, register: register, started: make(chan string, 16), ended: make(chan error, 16),
		notices: make(chan *parley.Message, 64)}
	w.open(c)
	t.Cleanup(w.close)
	return w
}

func (w *world) open(c node.Config) {
	w.t.Helper()
	if c.Durability == "" {
		c.Durability = "memory"
	}
	if c.Listen.HTTP == "" {
		c.Listen = node.Listen{HTTP: "127.0.0.1:0"}
	}
	c.ASP.Registration = "open"
	n, err := node.Open(context.Background(), c)
	if err != nil {
		w.t.Fatal(err)
	}
	w.Node = n
	type text struct {
		Text string `json:"text"`
	}
	err = n.Handle(parley.Agent{Name: "crew/echo", Exposed: parley.Everywhere},
		parley.Skill("echo", func(_ context.Context, _ *parley.Message, q text) (text,
			error) {
			w.calls.Add(1)
			return q, nil
		}),
		parley.RawSkill("fail", func(context.Context, *parley.Message,
			parley.Replier) error {
			return fmt.Errorf("secret: /etc/passwd")
		}),
		parley.RawSkill("refuse", func(context.Context, *parley.Message, parley.Replier) error {
			return parley.Refuse(parley.Rejected, "not today")
		}),
		parley.RawSkill("pieces", func(_ context.Context, _ *parley.Message, r parley.Replier) error {
			if err := r.Progress("half"); err != nil {
				return err
			}
			if err := r.Chunk(parley.Text("one")); err != nil {
				return err
			}
			return r.Reply(parley.Text("done"))
		}),
		parley.RawSkill("slow", func(ctx context.Context, m *parley.Message, _ parley.Replier) error {
			w.started <- m.ID.String()
			<-ctx.Done()
			w.ended <- ctx.Err()
			return ctx.Err()
		}),
		parley.RawSkill("talk", func(_ context.Context, m *parley.Message, _ parley.Replier) error {
			w.notices <- m
			return nil
		}, parley.AsDefault()),
	)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := n.Handle(parley.Agent{Name: "hidden"}, parley.RawSkill("x",
		func(context.Context, *parley.Message, parley.Replier) error { return nil })); err != nil {
		w.t.Fatal(err)
	}
	for _, register := range w.register {
		if err := register(n); err != nil {
			w.t.Fatal(err)
		}
	}
	if err := n.Start(context.Background()); err != nil {
		w.t.Fatal(err)
	}
	w.base = n.Addresses().Local
}

func (w *world) close() {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	if err := w.Close(ctx); err != nil {
		w.t.Error(err)
	}
}

// client registers an agent and gives its client.
func (w *world) client(name string) *asp.Client {
	w.t.Helper()
	id, err := asp.GenerateIdentity("agent://"+name+".example/test/"+name, "org_"+name)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.as(id)
}

func (w *world) as(id *asp.Identity) *asp.Client {
	w.t.Helper()
	c := w.plain(id)
	card := id.Card()
	card.Name = id.ID()
	if err := c.Register(w.t.Context(), card, nil); err != nil {
		w.t.Fatal(err)
	}
	return c
}

// plain gives the client of an agent that need not be registered.
func (w *world) plain(id *asp.Identity) *asp.Client {
	tr := &http.Transport{}
	w.t.Cleanup(tr.CloseIdleConnections)
	return &asp.Client{Server: w.base, Identity: id, HTTP: &http.Client{Transport: tr}}
}

func (w *world) ctx() context.Context {
	ctx, stop := context.WithTimeout(w.t.Context(), time.Minute)
	w.t.Cleanup(stop)
	return ctx
}

func (w *world) echoID() string {
	return w.AgentAddresses("crew/echo")["asp"]
}

func TestQueryToGoHandler(t *testing.T) {
	w := newWorld(t, node.Config{})
	alice := w.client("alice")
	ctx := w.ctx()
	s, err := alice.Open(ctx, asp.Invitation{To: []string{w.echoID()}, Purpose: "to test"})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(skill string, parameters any) *asp.Message {
		t.Helper()
		m, err := s.Ask(ctx, asp.Question{QueryType: skill, Parameters: parameters})
		if err != nil {
			t.Fatal(skill, err)
		}
		return m
	}
	wait(t, s, asp.Introduced)
	m := ask("echo", map[string]any{"text": "hi"})
	var b struct {
		InformType string
		Data       struct{ Text string }
	}
	if err := json.Unmarshal(m.Body, &b); err != nil || m.Performative != asp.Inform || b.InformType != "result" ||
		b.Data.Text != "hi" {
		t.Fatalf("%s %s", m.Performative, m.Body)
	}
	if len(m.Content.Context) != 1 || m.Content.Context[0].Type != "trust-evidence" ||
		!strings.Contains(string(m.Content.Context[0].Data), `"sender":"crew/echo"`) {
		t.Errorf("provenance: %+v", m.Content.Context)
	}
	if m := ask("fail", nil); m.Performative != asp.Inform ||
		!strings.Contains(string(m.Body), `"informType":"error"`) || strings.Contains(string(m.Body), "secret") {
		t.Errorf("a failure: %s %s", m.Performative, m.Body)
	}
	if m := ask("refuse", nil); m.Performative != asp.Reject || !strings.Contains(string(m.Body), "not today") ||
		!strings.Contains(string(m.Body), "policy_violation") {
		t.Errorf("a refusal: %s %s", m.Performative, m.Body)
	}
	if m := ask("pieces", nil); !strings.Contains(string(m.Body), `"result"`) {
		t.Errorf("the answer, not how far it got: %s", m.Body)
	}
	// Content that violates the schema is refused at once and leaves no trace.
	_, err = s.Send(ctx, asp.Query, asp.Question{QueryType: "echo", Parameters: map[string]any{"text": 1}})
	var e *asp.Error
	if !errors.As(err, &e) || e.Code != "schema_unsupported" || e.Reference == "" {
		t.Errorf("content that does not fit: %v", err)
	} else if r, ok := w.Hub().Explain(e.Reference); !ok || r.Protocol != "asp" {
		t.Errorf("reference %q: %+v", e.Reference, r)
	}
	_, err = s.Send(ctx, asp.Query, asp.Question{QueryType: "dance"})
	if !errors.As(err, &e) || e.Code != "schema_unsupported" ||
		!strings.Contains(e.Text, `no skill "dance"; it has "echo", "fail"`) {
		t.Errorf("a queryType that no skill has: %v", err)
	}
	var transcript strings.Builder
	if r, err := s.Export(ctx, &transcript); err != nil || !r.Signed {
		t.Errorf("export: %+v %v", r, err)
	}
	if !strings.Contains(transcript.String(), "progress") {
		t.Error("no event was sent")
	}
	if err := s.Close(ctx, "done"); err != nil {
		t.Error(err)
	}
	if _, err := alice.Open(ctx, asp.Invitation{To: []string{"agent://parley.local/agents/hidden"}}); err == nil {
		t.Error("an agent that is not exposed was invited")
	}
}

// wait waits until the session is in a state.
func wait(t *testing.T, s *asp.Session, want asp.State) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	for m, err := range s.Messages(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if m.State == want {
			return
		}
	}
	t.Fatalf("never %s", want)
}

// introduced opens a session of alice with bob; bob joins and accepts.
func introduced(t *testing.T, ctx context.Context, alice, bob *asp.Client) (s, bs *asp.Session) {
	t.Helper()
	s, err := alice.Open(ctx, asp.Invitation{To: []string{bob.Identity.ID()}})
	if err != nil {
		t.Fatal(err)
	}
	bs, err = bob.Join(ctx, s.ID())
	if err != nil {
		t.Fatal(err)
	}
	for m, err := range bs.Messages(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if _, err := bs.Send(ctx, asp.Accept, asp.Answer{}, asp.InReplyTo(m)); err != nil {
			t.Fatal(err)
		}
		break
	}
	wait(t, s, asp.Introduced)
	return s, bs
}

func TestNegotiationAndWithdraw(t *testing.T) {
	w := newWorld(t, node.Config{})
	alice := w.client("alice")
	ctx := w.ctx()
	s, err := alice.Open(ctx, asp.Invitation{To: []string{w.echoID()}})
	if err != nil {
		t.Fatal(err)
	}
	wait(t, s, asp.Introduced)
	if _, err := s.Send(ctx, asp.Propose, asp.Proposal{Type: "service-agreement", Subject: "bread",
		Terms: map[string]any{"loaves": 3}}); err != nil {
		t.Fatal(err)
	}
	select {
	case m := <-w.notices:
		if m.Act != "PROPOSE" || m.Kind != parley.Notice || !strings.Contains(string(m.Parts[0].Data), `"loaves":3`) {
			t.Errorf("%+v", m)
		}
		// The handler's agent accepts, in the same conversation.
		var p struct {
			ProposalID string `json:"proposalId"`
		}
		if err := m.Bind(&p); err != nil {
			t.Fatal(err)
		}
		part, err := parley.JSON(map[string]string{"referenceId": p.ProposalID})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Hub().Accept(ctx, hub.Submission{Scope: "go",
			Message: &parley.Message{Kind: parley.Notice, From: "crew/echo", To: m.From, Act: "ACCEPT",
				Conversation: m.Conversation, Parts: []parley.Part{part},
				Origin: parley.Origin{Protocol: "go"}}}); err != nil {
			t.Fatal(err)
		}
	case <-ctx.Done():
		t.Fatal("no notice")
	}
	for m, err := range s.Messages(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if m.Performative == asp.Accept {
			break
		}
	}
	q, err := s.Send(ctx, asp.Query, asp.Question{QueryID: "q-1", QueryType: "slow"})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-w.started:
	case <-ctx.Done():
		t.Fatal("not started")
	}
	if _, err := s.Send(ctx, asp.Withdraw, asp.Answer{ReferenceID: "q-1", Reason: "no more"}); err != nil {
		t.Fatal(q, err)
	}
	select {
	case err := <-w.ended:
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	case <-ctx.Done():
		t.Fatal("WITHDRAW did not cancel")
	}
}

// answer runs a native agent that answers questions until ctx ends.
func answer(ctx context.Context, t *testing.T, c *asp.Client, how func(*asp.Session, *asp.Message) error) {
	t.Helper()
	done := make(chan struct{})
	ctx, stop := context.WithCancel(ctx)
	t.Cleanup(func() { stop(); <-done })
	go func() {
		defer close(done)
		for inv, err := range c.Invitations(ctx) {
			if err != nil {
				return
			}
			s, err := c.Join(ctx, inv.SessionID)
			if err != nil {
				t.Error(err)
				return
			}
			for m, err := range s.Messages(ctx) {
				if err != nil {
					break
				}
				if err := how(s, m); err != nil && ctx.Err() == nil {
					t.Error(err)
				}
				if m.Performative == asp.Close {
					break
				}
			}
		}
	}()
}

func TestAskNativeAgent(t *testing.T) {
	w := newWorld(t, node.Config{})
	bob := w.client("bob")
	ctx := w.ctx()
	answer(ctx, t, bob, func(s *asp.Session, m *asp.Message) error {
		var err error
		switch {
		case m.IsInvitation():
			_, err = s.Send(ctx, asp.Accept, asp.Answer{}, asp.InReplyTo(m))
		case m.Performative == asp.Query && strings.Contains(string(m.Body), "bad"):
			_, err = s.Send(ctx, asp.Reject, asp.Answer{Code: "budget_exceeded", Reason: "too dear"}, asp.InReplyTo(m))
		case m.Performative == asp.Query:
			if _, err = s.Send(ctx, asp.Inform, asp.Information{InformType: "progress", Topic: "thinking"},
				asp.InReplyTo(m)); err == nil {
				_, err = s.Send(ctx, asp.Inform, asp.Information{InformType: "result", Data: map[string]any{"n": 42}},
					asp.InReplyTo(m))
			}
		}
		return err
	})
	name := "guest/asp/"
	for _, e := range w.Hub().Directory().All() {
		if strings.HasPrefix(e.Name, name) {
			name = e.Name
		}
	}
	ask := func(skill string) (*parley.Message, []*parley.Message, error) {
		part, err := parley.JSON(map[string]string{"q": "what"})
		if err != nil {
			t.Fatal(err)
		}
		c, err := w.Hub().Begin(ctx, hub.Submission{Scope: "go", Foreign: "one",
			Message: &parley.Message{Kind: parley.Request, From: "crew/echo", To: name,
				Skill: skill, Parts: []parley.Part{part}, Origin: parley.Origin{Protocol: "go"}}})
		if err != nil {
			return nil, nil, err
		}
		var events []*parley.Message
		for m, err := range c.Stream(ctx) {
			if err != nil {
				return nil, events, err
			}
			if m.Kind.Terminal() {
				return m, events, nil
			}
			events = append(events, m)
		}
		return nil, events, nil
	}
	for range 2 { // the second request uses the same session
		m, events, err := ask("think")
		if err != nil {
			t.Fatal(err)
		}
		if m.Kind == parley.Failure {
			t.Fatal(m.Error)
		}
		if len(m.Parts) == 0 {
			t.Fatalf("%+v %s", m, m.Origin.Raw)
		}
		if m.Kind != parley.Response || string(m.Parts[0].Data) != `{"n":42}` || m.Origin.Protocol != "asp" ||
			m.Origin.Verdict.Assurance != parley.Signed {
			t.Errorf("%+v", m)
		}
		if len(events) != 1 || events[0].State != parley.Working {
			t.Errorf("events: %+v", events)
		}
	}
	m, _, err := ask("bad")
	if err != nil || m.Kind != parley.Failure || m.Error.Code != parley.RateLimited || m.Error.Text != "too dear" ||
		m.Error.Source != parley.ByPeer || m.Error.Reason != parley.PeerRate ||
		m.Error.Detail != "it answered budget_exceeded: too dear" {
		t.Errorf("%+v %v", m, err)
	}
}

// TestRestart is ASP-079: acknowledged messages, heads, counters, proofs and keys
// survive a restart.
func TestRestart(t *testing.T) {
	t.Parallel()
	c := node.Config{Data: t.TempDir() + "/data", Durability: "disk"}
	w := newWorld(t, c)
	alice, bob := w.client("alice"), w.client("bob")
	ctx := w.ctx()
	s, _ := introduced(t, ctx, alice, bob)
	var last *asp.Envelope
	for i := range 300 { // past a checkpoint
		var err error
		if last, err = s.Send(ctx, asp.Inform, asp.Information{Topic: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	before := w.base
	w.close()
	c.Listen.HTTP = strings.TrimPrefix(before, "http://")
	w.open(c)
	b, err := w.ASP().Server().Ingest(ctx, last.Raw(), asp.Transport{Agent: alice.Identity.ID()}, s.ID())
	if err != nil || !b.Duplicate || b.Position != 301 {
		t.Errorf("ASP-026 retransmission after a restart: %+v %v", b, err)
	}
	if _, err := s.Send(ctx, asp.Inform, asp.Information{Topic: "after"}); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	r, err := s.Export(ctx, &out)
	if err != nil || r.Messages != 303 {
		t.Fatalf("%+v %v", r, err)
	}
	// A second hub signs with the same key.
	if r, err := asp.VerifyTranscript(strings.NewReader(out.String())); err != nil || !r.Signed {
		t.Errorf("%+v %v", r, err)
	}
}
