package asp_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/node"
)

// fakeClock is a clock that only the test moves.
type fakeClock struct {
	mu  sync.Mutex
	now time.Time
}

func newFakeClock() *fakeClock { return &fakeClock{now: time.Now().UTC().Truncate(time.Millisecond)} }

func (h *fakeClock) Now() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now
}

func (h *fakeClock) move(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now = h.now.Add(d)
}

// records gives the journal's records from now on.
func (w *world) records() <-chan *journal.Record {
	w.t.Helper()
	out := make(chan *journal.Record, 1024)
	w.t.Cleanup(w.Hub().Journal().Watch(func(r *journal.Record) {
		if r.Message != nil {
			out <- r
		}
	}))
	return out
}

// until waits for the record of a message.
func until(ctx context.Context, t *testing.T, records <-chan *journal.Record, what string,
	is func(*parley.Message) bool) *parley.Message {
	t.Helper()
	for {
		select {
		case r := <-records:
			if is(r.Message) {
				return r.Message
			}
		case <-ctx.Done():
			t.Fatal("there was no ", what)
		}
	}
}

// at gives the client of a registered agent, with the clock of the hub.
func (w *world) at(h *fakeClock, name string) *asp.Client {
	w.t.Helper()
	id, err := asp.GenerateIdentity("agent://"+name+".example/test/"+name, "org_"+name)
	if err != nil {
		w.t.Fatal(err)
	}
	card, err := id.Card().JSON()
	if err == nil {
		_, err = w.ASP().Enroll(w.t.Context(), card)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	c := w.plain(id)
	c.Now = h.Now
	return c
}

func nameOf(t *testing.T, w *world, id string) string {
	t.Helper()
	e, ok := w.Hub().Directory().Lookup("asp", id)
	if !ok {
		t.Fatal(id, "is not in the directory")
	}
	return e.Name
}

// question is a request of crew/echo, the agent in the hub's process.
func question(to, text string) *parley.Message {
	return &parley.Message{Kind: parley.Request, From: "crew/echo", To: to,
		Skill: "x", Parts: []parley.Part{parley.Text(text)}, Origin: parley.Origin{Protocol: "go"}}
}

// wasAsked waits for a question to a native agent.
func wasAsked(ctx context.Context, t *testing.T, queries <-chan *asp.Message) *asp.Message {
	t.Helper()
	select {
	case q := <-queries:
		return q
	case <-ctx.Done():
		t.Fatal("the agent was not asked")
		return nil
	}
}

// timedOut waits until a session times out by the hub's clock alone.
func (w *world) timedOut(ctx context.Context, records <-chan *journal.Record, session string, to asp.State,
	reason string) *asp.Ledger {
	w.t.Helper()
	until(ctx, w.t, records, "timeout of the session: "+reason, func(m *parley.Message) bool {
		return m.Trace.Foreign["asp.sessionId"] == session && strings.Contains(string(m.Extensions["asp"]), `"timeout"`)
	})
	l, err := w.ASP().Server().Session(ctx, session, "")
	if err != nil || l.State != to || to == asp.Failed && l.Reason != reason {
		w.t.Fatalf("%s: %+v %v", reason, l, err)
	}
	return l
}

// TestSessionsTimeOut is ASP-055 through the hub: unused sessions end by the hub's clock
// alone.
func TestSessionsTimeOut(t *testing.T) {
	t.Parallel()
	h := newFakeClock()
	w := newWorld(t, node.Config{Now: h.Now, ASP: node.ASP{Conversing: node.Duration{Duration: 20 * time.Minute}}})
	alice, bob := w.at(h, "alice"), w.at(h, "bob")
	ctx := w.ctx()
	records := w.records()
	// The invitation gets no answer.
	s, err := alice.Open(ctx, asp.Invitation{To: []string{bob.Identity.ID()}})
	if err != nil {
		t.Fatal(err)
	}
	h.move(31 * time.Second)
	w.timedOut(ctx, records, s.ID(), asp.Failed, "timeout in INVITED")
	// Both participants joined and are silent.
	s, _ = introduced(t, ctx, alice, bob)
	if _, err := s.Send(ctx, asp.Inform, asp.Information{Topic: "hello"}); err != nil {
		t.Fatal(err)
	}
	h.move(19 * time.Minute)
	if _, err := s.Send(ctx, asp.Inform, asp.Information{Topic: "still here"}); err != nil {
		t.Fatal(err) // the message restarts the timeout
	}
	h.move(19 * time.Minute)
	if l, err := w.ASP().Server().Session(ctx, s.ID(), ""); err != nil || l.State != asp.Conversing {
		t.Errorf("%+v %v", l, err)
	}
	h.move(2 * time.Minute)
	w.timedOut(ctx, records, s.ID(), asp.Failed, "timeout in CONVERSING")
}

// TestOtherStatesTimeOut: the timeouts of the other states, through the hub:
// INTRODUCED and ESCALATED fail, AGREEING goes back to CONVERSING, EXECUTING
// fails at the deadline of its commitment, which is breached.
func TestOtherStatesTimeOut(t *testing.T) {
	t.Parallel()
	h := newFakeClock()
	w := newWorld(t, node.Config{Now: h.Now})
	alice, bob := w.at(h, "alice"), w.at(h, "bob")
	ctx := w.ctx()
	records := w.records()
	// open brings a session to CONVERSING and sends more messages: answers by bob, others
	// by alice.
	open := func(state asp.State, say ...any) string {
		t.Helper()
		s, bs := introduced(t, ctx, alice, bob)
		for _, body := range say {
			var err error
			switch body := body.(type) {
			case asp.Promise:
				_, err = s.Send(ctx, asp.Commit, body)
			case asp.Answer:
				_, err = bs.Send(ctx, asp.Accept, body)
			case asp.Information:
				_, err = s.Send(ctx, asp.Inform, body)
			default:
				_, err = s.Send(ctx, asp.Escalate, body)
			}
			if err != nil {
				t.Fatal(state, err)
			}
		}
		if l, err := w.ASP().Server().Session(ctx, s.ID(), ""); err != nil || l.State != state {
			t.Fatalf("%s: %+v %v", state, l, err)
		}
		return s.ID()
	}
	hello := asp.Information{Topic: "hello"}
	promise := asp.Promise{CommitmentID: "c-1",
		Terms:    asp.Terms{Obligations: []asp.Obligation{{Party: alice.Identity.ID(), Action: "bake"}}},
		Deadline: asp.Timestamp(h.Now().Add(10 * time.Minute))}
	quiet := open(asp.Introduced)
	agreeing := open(asp.Agreeing, hello, promise)
	executing := open(asp.Executing, hello, promise, asp.Answer{ReferenceID: "c-1"})
	escalated := open(asp.Escalated, hello, map[string]string{"reason": "stuck"})

	h.move(300 * time.Second)
	w.timedOut(ctx, records, quiet, asp.Failed, "timeout in INTRODUCED")
	l, err := w.ASP().Server().Session(ctx, agreeing, "")
	if err != nil || l.State != asp.Conversing || len(l.Commitments) != 1 || l.Commitments[0].Status != asp.Rejected {
		t.Errorf("timeout in AGREEING: %+v %v", l, err)
	}
	h.move(299 * time.Second)
	if l, err := w.ASP().Server().Session(ctx, executing, ""); err != nil || l.State != asp.Executing {
		t.Errorf("before the deadline: %+v %v", l, err)
	}
	h.move(time.Second)
	if l := w.timedOut(ctx, records, executing, asp.Failed,
		"timeout in EXECUTING"); l.Commitments[0].Status != asp.Breached {
		t.Errorf("%+v", l.Commitments)
	}
	h.move(24 * time.Hour)
	w.timedOut(ctx, records, escalated, asp.Failed, "timeout in ESCALATED")
}

// TestIdleSessionIsClosed: the hub closes a session that it opened with a signed CLOSE
// when the session was unused for asp.idle, and not earlier. The next request opens
// another session.
func TestIdleSessionIsClosed(t *testing.T) {
	h := newFakeClock()
	w := newWorld(t, node.Config{Now: h.Now, ASP: node.ASP{Idle: node.Duration{Duration: 5 * time.Minute}}})
	bob := w.at(h, "bob")
	ctx := w.ctx()
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
	ask := func() (session string) {
		t.Helper()
		m, err := w.Hub().Ask(ctx, hub.Submission{Scope: "go", Foreign: "one",
			Message: question(nameOf(t, w, bob.Identity.ID()), "well?")})
		if err != nil || m.Kind != parley.Response {
			t.Fatalf("%+v %v", m, err)
		}
		return m.Trace.Foreign["asp.sessionId"]
	}
	closeIdle := func() {
		t.Helper()
		if err := w.ASP().CloseIdle(ctx); err != nil {
			t.Fatal(err)
		}
	}
	first := ask()
	h.move(4 * time.Minute)
	closeIdle()
	if again := ask(); again != first {
		t.Error("a session in use was not kept")
	}
	records := w.records()
	h.move(4 * time.Minute)
	closeIdle()
	if l, err := w.ASP().Server().Session(ctx, first, ""); err != nil || l.State.Terminal() {
		t.Errorf("closed too soon: %+v %v", l, err)
	}
	h.move(2 * time.Minute)
	// the call is settled a little after the answer
	for look := time.NewTicker(10 * time.Millisecond); ; <-look.C {
		closeIdle()
		if l, err := w.ASP().Server().Session(ctx, first, ""); err != nil || l.State.Terminal() {
			break
		}
	}
	m := until(ctx, t, records, "CLOSE", func(m *parley.Message) bool { return m.Act == "CLOSE" })
	if m.From != "crew/echo" || m.Origin.Verdict.Assurance != parley.Signed ||
		m.Trace.Foreign["asp.sessionId"] != first {
		t.Errorf("%+v", m)
	}
	if l, err := w.ASP().Server().Session(ctx, first, ""); err != nil || l.State != asp.Closed {
		t.Errorf("%+v %v", l, err)
	}
	if next := ask(); next == first {
		t.Error("the closed session was used")
	}
}

// TestCancelIsWithdrawn: the cancellation of a request to an ASP agent becomes a WITHDRAW
// in the session, with the id that the agent knows.
func TestCancelIsWithdrawn(t *testing.T) {
	w := newWorld(t, node.Config{})
	bob := w.client("bob")
	ctx := w.ctx()
	asked, withdrawn := make(chan *asp.Message, 1), make(chan *asp.Message, 1)
	answer(ctx, t, bob, func(s *asp.Session, m *asp.Message) (err error) {
		switch {
		case m.IsInvitation():
			_, err = s.Send(ctx, asp.Accept, asp.Answer{}, asp.InReplyTo(m))
		case m.Performative == asp.Query:
			asked <- m
		case m.Performative == asp.Withdraw:
			withdrawn <- m
		}
		return err
	})
	name := nameOf(t, w, bob.Identity.ID())
	request, err := w.Hub().Accept(ctx, hub.Submission{Scope: "go", Message: question(name, "well?")})
	if err != nil {
		t.Fatal(err)
	}
	q := wasAsked(ctx, t, asked)
	if _, err := w.Hub().Accept(ctx, hub.Submission{Scope: "go",
		Message: &parley.Message{Kind: parley.Cancel, From: "crew/echo", To: name, InReplyTo: request.ID,
			Origin: parley.Origin{Protocol: "go"}}}); err != nil {
		t.Fatal(err)
	}
	select {
	case m := <-withdrawn:
		l, err := w.ASP().Server().Session(ctx, m.SessionID, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range l.Items {
			if i.MessageID == q.MessageID && (i.Status != "withdrawn" || m.Reference() != i.ID &&
				m.Reference() != i.MessageID) {
				t.Errorf("%+v after %s", i, m.Body)
			}
		}
	case <-ctx.Done():
		t.Fatal("the question was not withdrawn")
	}
}

// TestCommitmentAndDispute: through the hub, an accepted commitment can no longer be
// withdrawn (ASP-056), and a dispute about it is recorded. Both are in the transcript,
// which verifies.
func TestCommitmentAndDispute(t *testing.T) {
	w := newWorld(t, node.Config{})
	alice, bob := w.client("alice"), w.client("bob")
	ctx := w.ctx()
	s, err := alice.Open(ctx, asp.Invitation{To: []string{bob.Identity.ID()}})
	if err != nil {
		t.Fatal(err)
	}
	bs, err := bob.Join(ctx, s.ID())
	if err != nil {
		t.Fatal(err)
	}
	for m, err := range bs.Messages(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case m.IsInvitation(), m.Performative == asp.Commit:
			if _, err := bs.Send(ctx, asp.Accept, asp.Answer{}, asp.InReplyTo(m)); err != nil {
				t.Fatal(err)
			}
			if m.Performative == asp.Commit {
				break
			}
			wait(t, s, asp.Introduced)
			if _, err := s.Send(ctx, asp.Inform, asp.Information{Topic: "hello"}); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Send(ctx, asp.Commit, asp.Promise{CommitmentID: "c-1",
				Terms: asp.Terms{Obligations: []asp.Obligation{{Party: alice.Identity.ID(),
					Action: "bake"}}}}); err != nil {
				t.Fatal(err)
			}
			continue
		default:
			continue
		}
		break
	}
	server := w.ASP().Server()
	d := asp.Dispute{DisputeID: "d-1", SessionID: s.ID(), CommitmentID: "c-1", FiledBy: bob.Identity.ID(),
		FiledAgainst: alice.Identity.ID(), Reason: "fulfillment-mismatch", Severity: 3,
		Evidence: []byte(`{"agreedTerms":"bread","deliveredResult":"cake"}`)}
	wait(t, s, asp.Executing)
	if _, err := s.Send(ctx, asp.Withdraw, asp.Answer{ReferenceID: "c-1"}); err == nil {
		t.Error("ASP-056: an accepted commitment was withdrawn")
	}
	stranger := d
	stranger.FiledBy = "agent://stranger.example/test/x"
	other := d
	other.CommitmentID = "c-2"
	for _, bad := range []asp.Dispute{stranger, other} {
		if err := server.FileDispute(ctx, bad); err == nil {
			t.Errorf("%+v was recorded", bad)
		}
	}
	if err := server.FileDispute(ctx, d); err != nil {
		t.Fatal(err)
	}
	l, err := server.Session(ctx, s.ID(), "")
	if err != nil || len(l.Commitments) != 1 || l.Commitments[0].Status != asp.Disputed ||
		l.Commitments[0].AcceptedBy != bob.Identity.ID() {
		t.Errorf("%+v %v", l, err)
	}
	var out strings.Builder
	if r, err := s.Export(ctx, &out); err != nil || r.State != asp.Executing || r.Records != r.Messages+1 {
		t.Errorf("%+v %v", r, err)
	}
	if !strings.Contains(out.String(), `"disputeId":"d-1"`) ||
		!strings.Contains(out.String(), `"deliveredResult":"cake"`) {
		t.Error("the dispute is not in the transcript")
	}
}

// TestKeysOfStandIn: a stand-in whose keys are replaced during a session uses the new
// keys after the session (ASP-075). Messages with the old keys still verify.
func TestKeysOfStandIn(t *testing.T) {
	w := newWorld(t, node.Config{})
	alice := w.client("alice")
	ctx := w.ctx()
	ask := func(s *asp.Session) string {
		t.Helper()
		m, err := s.Ask(ctx, asp.Question{QueryType: "echo", Parameters: map[string]string{"text": "hi"}})
		if err != nil || m.Performative != asp.Inform {
			t.Fatal(m, err)
		}
		return m.MessageID
	}
	key := func() string {
		t.Helper()
		c, err := alice.Card(ctx, w.echoID())
		if err != nil {
			t.Fatal(err)
		}
		return c.Key().ID() + c.ProofKey.Thumbprint()
	}
	open := func() *asp.Session {
		t.Helper()
		s, err := alice.Open(ctx, asp.Invitation{To: []string{w.echoID()}})
		if err != nil {
			t.Fatal(err)
		}
		wait(t, s, asp.Introduced)
		return s
	}
	s := open()
	ask(s)
	before := key()
	for _, purpose := range []string{"asp", "asp-dpop"} {
		if _, err := w.Keys().Rotate("crew/echo", purpose, "test", time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	ask(s)
	if key() != before {
		t.Error("the keys changed in a session")
	}
	if err := s.Close(ctx, "done"); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if r, err := s.Export(ctx, &out); err != nil || !r.Signed {
		t.Errorf("%+v %v", r, err)
	}
	// The hub checks the keys when it sends as the agent. Without this call, the next
	// session could still begin with the old keys.
	if _, err := w.ASP().StandIn(ctx, "crew/echo"); err != nil {
		t.Fatal(err)
	}
	if key() == before {
		t.Error("the new keys are not used after the session")
	}
	ask(open())
	out.Reset()
	if r, err := s.Export(ctx, &out); err != nil || !r.Signed {
		t.Errorf("the old session after the keys changed: %+v %v", r, err)
	}
}

// TestKeyEnd: a proof is remembered to the last moment of its window (ASP-079).
func TestKeyEnd(t *testing.T) {
	h := &fakeClock{now: time.Now().Truncate(time.Second)}
	w := newWorld(t, node.Config{Now: h.Now, ASP: node.ASP{Idle: node.Duration{Duration: time.Hour}}})
	ctx := w.ctx()
	alice := w.at(h, "alice")
	s, err := alice.Open(ctx, asp.Invitation{To: []string{w.echoID()}})
	if err != nil {
		t.Fatal(err)
	}
	wait(t, s, asp.Introduced)
	used, err := s.Send(ctx, asp.Inform, asp.Information{Topic: "hello"})
	if err != nil {
		t.Fatal(err)
	}
	server := w.ASP().Server()
	try := func(want string) {
		t.Helper()
		l, err := server.Session(ctx, s.ID(), "")
		if err != nil {
			t.Fatal(err)
		}
		next := int64(-1)
		for _, p := range l.Participants {
			if p.AgentID == alice.Identity.ID() {
				next = p.Next
			}
		}
		e, err := asp.Draft{SessionID: s.ID(), SequenceNumber: next, PreviousHash: l.Head.Hash,
			Performative: asp.Inform, Time: h.Now(),
			Body: asp.Information{Topic: "again"}}.Sign(alice.Identity)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := server.Ingest(ctx, borrowed(t, e, used), asp.Transport{Agent: alice.Identity.ID()},
			s.ID()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a proof served twice: %v, want %s", err, want)
		}
	}
	try("dpop_jti_replayed")
	h.move(300 * time.Second)
	try("dpop_jti_replayed")
	h.move(time.Second)
	try("dpop_iat_out_of_window")
	h.move(bridge.ClockMargin)
	try("dpop_iat_out_of_window")
}
