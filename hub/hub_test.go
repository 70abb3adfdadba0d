package hub

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/delivery"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/internal/testjournal"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/policy"
)

// wire is a protocol for tests: its binding does what the test says.
type wire struct {
	name    string
	can     Capabilities
	deliver func(ctx context.Context, o Outbound) Outcome
	calls   atomic.Int64
}

func (w *wire) Protocol() string           { return w.name }
func (w *wire) Capabilities() Capabilities { return w.can }
func (w *wire) Deliver(ctx context.Context, o Outbound) Outcome {
	w.calls.Add(1)
	return w.deliver(ctx, o)
}

// start makes a hub on a journal in memory.
func start(t *testing.T, edit func(*Config), bindings ...*wire) *Hub {
	t.Helper()
	j, err := journal.Open(t.Context(), journal.Config{Store: testjournal.Memory(t)})
	if err != nil {
		t.Fatal(err)
	}
	d, err := directory.Open(t.Context(), directory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := policy.New(policy.Config{Hub: "here", Assurance: map[string]parley.Assurance{"strict": parley.Signed,
		"": parley.Session}})
	if err != nil {
		t.Fatal(err)
	}
	secret := make([]byte, 32)
	rand.Read(secret)
	c := Config{ID: "here", Secret: secret, Journal: j, Directory: d, Policy: p,
		Delivery: delivery.Config{Retry: delivery.Retry{First: time.Millisecond, Longest: time.Millisecond, Tries: 3}}}
	if edit != nil {
		edit(&c)
	}
	h, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range bindings {
		if err := h.Bind(b); err != nil {
			t.Fatal(err)
		}
	}
	h.Start()
	t.Cleanup(func() {
		ctx, stop := context.WithTimeout(context.Background(), time.Minute)
		defer stop()
		h.Close(ctx)
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

func (h *Hub) agent(t *testing.T, name string, ids ...parley.Identity) {
	t.Helper()
	if _, err := h.Directory().Put(t.Context(), parley.Agent{Name: name, Identities: ids, Exposed: parley.Everywhere},
		directory.FromOperator); err != nil {
		t.Fatal(err)
	}
}

func ask(to, skill, text string) Submission {
	return Submission{Scope: "test " + to, Foreign: "thread",
		Message: &parley.Message{Kind: parley.Request, From: "alice", To: to, Skill: skill,
			Parts:  []parley.Part{parley.Text(text)},
			Origin: parley.Origin{Protocol: "api", Peer: "alice", Verdict: parley.Verdict{Assurance: parley.Session}}}}
}

func echo(name string) parley.Agent {
	return parley.Agent{Name: name, Exposed: parley.Everywhere, Skills: []parley.SkillSpec{
		parley.RawSkill("echo", func(_ context.Context, m *parley.Message,
			r parley.Replier) error {
			return r.Reply(m.Parts...)
		}, parley.AsDefault()),
		parley.RawSkill("panic", func(context.Context, *parley.Message,
			parley.Replier) error {
			panic("oh no: secret")
		}),
		parley.RawSkill("fail", func(context.Context, *parley.Message,
			parley.Replier) error {
			return errors.New("secret path /etc")
		}),
		parley.RawSkill("refuse", func(context.Context, *parley.Message, parley.Replier) error {
			return parley.Refuse(parley.Rejected, "not today")
		}),
		parley.RawSkill("stuck", func(ctx context.Context, _ *parley.Message, _ parley.Replier) error { select {} }),
		parley.RawSkill("steps", func(_ context.Context, _ *parley.Message, r parley.Replier) error {
			for i := range 3 {
				if err := r.Chunk(parley.Text(fmt.Sprint("piece ", i))); err != nil {
					return err
				}
			}
			if err := r.Progress("nearly"); err != nil {
				return err
			}
			return r.Reply(parley.Text("done"))
		}),
		parley.Skill("typed", func(_ context.Context, _ *parley.Message, q struct{ City string }) (string, error) {
			return q.City, nil
		}),
	}}
}

func TestAskAHandler(t *testing.T) {
	h := start(t, nil)
	if err := h.Handle(echo("echo")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		skill, text string
		kind        parley.Kind
		code        parley.Code
		want        string
	}{
		{"", "hello", parley.Response, "", "hello"},
		{"panic", "", parley.Failure, parley.HandlerFailed, "the agent failed"},
		{"fail", "", parley.Failure, parley.HandlerFailed, "the agent failed"},
		{"refuse", "", parley.Failure, parley.Rejected, "not today"},
		{"typed", "Bern", parley.Response, "", `"Bern"`},
		{"typed", `{"City":"Basel"}`, parley.Response, "", `"Basel"`},
	} {
		t.Run(c.skill+c.text, func(t *testing.T) {
			s := ask("echo", c.skill, c.text)
			m, err := h.Ask(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			if m.Kind != c.kind || m.InReplyTo != s.Message.ID || m.From != "echo" || m.To != "alice" ||
				m.Conversation != s.Message.Conversation {
				t.Fatalf("%+v", m)
			}
			if c.kind == parley.Failure {
				if m.Error.Code != c.code || m.Error.Text != c.want || m.Error.Source != parley.ByPeer {
					t.Errorf("%+v", m.Error)
				}
			} else if got := string(m.Parts[0].Data); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
			if _, open := h.Journal().Delivery(s.Message.ID, "echo"); open {
				t.Error("an answered request is not settled")
			}
		})
	}
	for _, c := range []struct {
		s      Submission
		code   parley.Code
		reason parley.Reason
	}{
		{ask("nobody", "", ""), parley.UnknownAgent, parley.NoSuchAgent},
		{ask("echo", "none", ""), parley.UnknownSkill, ""},
		{ask("echo", "typed", "[1]"), "", ""}, // text fills the only string
	} {
		_, err := h.Ask(t.Context(), c.s)
		if parley.CodeOf(err) != c.code {
			t.Errorf("%s/%s: %v, want %q", c.s.Message.To, c.s.Message.Skill, err, c.code)
		}
		if e := parley.AsError(err).Stated(); err != nil && (e.Source != parley.ByPolicy || e.Reason != c.reason) {
			t.Errorf("%s/%s: %s %s", c.s.Message.To, c.s.Message.Skill, e.Source, e.Reason)
		}
	}
	bad := ask("echo", "typed", "")
	bad.Message.Parts = []parley.Part{{MediaType: "application/json", Data: []byte(`{"City":7}`)}}
	if _, err := h.Ask(t.Context(), bad); parley.CodeOf(err) != parley.InvalidContent ||
		!strings.Contains(err.Error(), "/City") {
		t.Errorf("content that does not fit: %v", err)
	}
}

func TestAHandlerThatOverrunsHarmsOnlyItsMessage(t *testing.T) {
	h := start(t, func(c *Config) { c.HandlerCalls = 2 })
	if err := h.Handle(echo("echo")); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 2 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			s := ask("echo", "stuck", "")
			s.Foreign = ""
			s.Message.Deadline = time.Now().Add(100 * time.Millisecond)
			m, err := h.Ask(context.Background(), s)
			if err != nil || m.Kind != parley.Failure || m.Error.Code != parley.TimedOut {
				t.Errorf("%+v, %v", m, err)
			}
		}()
	}
	wg.Wait()
	// Both places are taken for ever now: the next call is refused, and others go on.
	s := ask("echo", "echo", "")
	s.Foreign = ""
	m, err := h.Ask(t.Context(), s)
	if err != nil || m.Kind != parley.Failure || m.Error.Code != parley.Unavailable {
		t.Errorf("%+v, %v", m, err)
	}
	if err := h.Handle(echo("other")); err != nil {
		t.Fatal(err)
	}
	if m, err := h.Ask(t.Context(), ask("other", "echo", "x")); err != nil || m.Kind != parley.Response {
		t.Errorf("%+v, %v", m, err)
	}
}

func TestStream(t *testing.T) {
	h := start(t, nil)
	if err := h.Handle(echo("echo")); err != nil {
		t.Fatal(err)
	}
	call, err := h.Begin(t.Context(), ask("echo", "steps", ""))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for m, err := range call.Stream(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%s%d%s %s", m.Kind, m.Number, m.State, m.Text()))
	}
	want := "event1none piece 0,event2none piece 1,event3none piece 2,event4working nearly,response0none done"
	if s := strings.Join(got, ","); s != want {
		t.Errorf("got  %s\nwant %s", s, want)
	}
	// Leaving the loop cancels the handler.
	call, err = h.Begin(t.Context(), ask("echo", "stuck", ""))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	for m, err := range call.Stream(ctx) {
		if err == nil && m.Kind != parley.Failure {
			t.Errorf("%+v", m)
		}
	}
}

// TestAskTakesAnyNumberOfEvents: a caller that reads no events does not stop a handler
// or a peer that sends more of them than a caller's queue holds.
func TestAskTakesAnyNumberOfEvents(t *testing.T) {
	w := &wire{name: "wire", deliver: func(_ context.Context, o Outbound) Outcome {
		for range 9 {
			if err := o.Event(parley.Working); err != nil {
				return Outcome{Err: parley.AsError(err)}
			}
		}
		return Outcome{Answered: true, Parts: []parley.Part{parley.Text("done")}}
	}}
	h := start(t, func(c *Config) { c.Events = 4 }, w)
	h.agent(t, "bob", parley.Identity{Protocol: "wire", ID: "bob"})
	if err := h.Handle(echo("echo")); err != nil {
		t.Fatal(err)
	}
	for to, skill := range map[string]string{"bob": "", "echo": "steps"} {
		m, err := h.Ask(t.Context(), ask(to, skill, ""))
		if err != nil || m.Kind != parley.Response || m.Text() != "done" {
			t.Errorf("%s: %+v, %v", to, m, err)
		}
	}
}

func TestReplayGivesThePrior(t *testing.T) {
	h := start(t, nil)
	if err := h.Handle(echo("echo")); err != nil {
		t.Fatal(err)
	}
	key := journal.Key{ID: "nonce", Sender: "alice", Until: time.Now().Add(time.Minute)}
	first := ask("echo", "", "x")
	first.Key = key
	if _, err := h.Ask(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	again := ask("echo", "", "x")
	again.Key = key
	_, err := h.Ask(t.Context(), again)
	var prior *Prior
	if !errors.As(err, &prior) || prior.Of.Message != first.Message.ID || parley.CodeOf(err) != parley.Replayed ||
		prior.Of.Reply.IsZero() {
		t.Fatalf("%v, %+v", err, prior)
	}
	// A proved message that is refused uses up its key too.
	refused := ask("echo", "none", "x")
	refused.Key = journal.Key{ID: "nonce 2", Sender: "alice", Until: key.Until}
	if _, err := h.Ask(t.Context(), refused); parley.CodeOf(err) != parley.UnknownSkill {
		t.Fatal(err)
	}
	refused = ask("echo", "", "x")
	refused.Key = journal.Key{ID: "nonce 2", Sender: "alice", Until: key.Until}
	if _, err := h.Ask(t.Context(), refused); !errors.As(err, &prior) || !prior.Of.Refused {
		t.Fatal(err)
	}
	if n := len(h.waiters); n != 0 {
		t.Errorf("%d waiters are left", n)
	}
}

func TestRemote(t *testing.T) {
	w := &wire{name: "wire"}
	h := start(t, nil, w)
	h.agent(t, "bob", parley.Identity{Protocol: "wire", ID: "bob"})

	t.Run("answers", func(t *testing.T) {
		w.deliver = func(_ context.Context, o Outbound) Outcome {
			if err := o.Event(parley.Working, parley.Text("busy")); err != nil {
				t.Error(err)
			}
			return Outcome{Answered: true, Parts: []parley.Part{parley.Text("yes")},
				Losses: []parley.Loss{{Field: "Act", Reason: "none"}}}
		}
		m, err := h.Ask(t.Context(), ask("bob", "", "?"))
		if err != nil || m.Text() != "yes" {
			t.Fatalf("%+v, %v", m, err)
		}
	})
	t.Run("its own failure is its answer", func(t *testing.T) {
		w.deliver = func(context.Context, Outbound) Outcome {
			return Outcome{Answered: true, Failure: parley.Refuse(parley.Forbidden, "go away")}
		}
		m, err := h.Ask(t.Context(), ask("bob", "", "?"))
		if err != nil || m.Kind != parley.Failure || m.Error.Code != parley.Forbidden {
			t.Fatalf("%+v, %v", m, err)
		}
	})
	t.Run("cannot be reached, caller waits", func(t *testing.T) {
		w.calls.Store(0)
		w.deliver = func(context.Context, Outbound) Outcome {
			return Outcome{Err: parley.Fail(parley.Unavailable, nil, "down")}
		}
		m, err := h.Ask(t.Context(), ask("bob", "", "?"))
		if err != nil || m.Kind != parley.Failure || m.Error.Code != parley.Unavailable || w.calls.Load() != 1 {
			t.Fatalf("%+v, %v, %d calls", m, err, w.calls.Load())
		}
	})
	t.Run("cannot be reached, no caller waits", func(t *testing.T) {
		w.calls.Store(0)
		m, err := h.Accept(t.Context(), ask("bob", "", "?"))
		if err != nil {
			t.Fatal(err)
		}
		for len(h.Dead()) == 0 {
			wait(t, h)
		}
		v := h.Dead()[0]
		if v.Message != m.ID || v.Error.Code != parley.Unavailable || w.calls.Load() != 3 {
			t.Fatalf("%+v, %d calls", v, w.calls.Load())
		}
		w.deliver = func(context.Context, Outbound) Outcome { return Outcome{Answered: true} }
		if err := h.Retry(t.Context(), m.ID, "bob"); err != nil {
			t.Fatal(err)
		}
		// until it is settled, w.deliver is in use
		for open := true; open || len(h.Dead()) > 0; _, open = h.Journal().Delivery(m.ID, "bob") {
			wait(t, h)
		}
		if err := h.Drop(t.Context(), m.ID, "bob"); parley.CodeOf(err) != parley.Conflict {
			t.Errorf("a letter that is not dead was dropped: %v", err)
		}
	})
	t.Run("replies later", func(t *testing.T) {
		w.deliver = func(_ context.Context, o Outbound) Outcome {
			go func() {
				for _, m := range []*parley.Message{
					{Kind: parley.Event, State: parley.Working},
					{Kind: parley.Response, Parts: []parley.Part{parley.Text("later")}},
					{Kind: parley.Response, Parts: []parley.Part{parley.Text("twice")}},
				} {
					m.From, m.InReplyTo = "bob", o.Message.ID
					m.Origin = parley.Origin{Protocol: "wire", Verdict: parley.Verdict{Assurance: parley.Signed}}
					if _, err := h.Accept(context.Background(),
						Submission{Scope: "other", Message: m}); (err != nil) != (m.Text() == "twice") {
						t.Errorf("%s: %v", m.Text(), err)
					}
				}
			}()
			return Outcome{}
		}
		call, err := h.Begin(t.Context(), ask("bob", "", "?"))
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for m, err := range call.Stream(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if n++; m.Kind == parley.Response && m.Text() != "later" {
				t.Errorf("%+v", m)
			}
		}
		if n != 2 {
			t.Errorf("%d messages", n)
		}
	})
	t.Run("never replies", func(t *testing.T) {
		w.deliver = func(context.Context, Outbound) Outcome { return Outcome{} }
		s := ask("bob", "", "?")
		s.Message.Deadline = time.Now().Add(50 * time.Millisecond)
		m, err := h.Ask(t.Context(), s)
		if err != nil || m.Kind != parley.Failure || m.Error.Code != parley.TimedOut {
			t.Fatalf("%+v, %v", m, err)
		}
		if _, open := h.Journal().Delivery(s.Message.ID, "bob"); open {
			t.Error("the request stays open")
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		w := &wire{name: "wire"} // another hub: earlier requests can be cancelled at any time
		h := start(t, nil, w)
		h.agent(t, "bob", parley.Identity{Protocol: "wire", ID: "bob"})
		begun := make(chan struct{})
		ended := make(chan struct{})
		w.deliver = func(ctx context.Context, o Outbound) Outcome {
			if o.Message.Kind == parley.Cancel {
				return Outcome{}
			}
			close(begun)
			<-ctx.Done()
			close(ended)
			return Outcome{Err: parley.AsError(ctx.Err())}
		}
		m, err := h.Accept(t.Context(), ask("bob", "", "?"))
		if err != nil {
			t.Fatal(err)
		}
		<-begun
		stranger := Submission{Scope: "x", Message: &parley.Message{Kind: parley.Cancel,
			From: "eve", To: "bob", InReplyTo: m.ID}}
		if _, err := h.Accept(t.Context(), stranger); parley.CodeOf(err) != parley.Conflict {
			t.Errorf("a stranger cancelled: %v", err)
		}
		if _, err := h.Accept(t.Context(), Submission{Scope: "x",
			Message: &parley.Message{Kind: parley.Cancel, From: "alice", To: "bob", InReplyTo: m.ID}}); err != nil {
			t.Fatal(err)
		}
		<-ended
	})
}

// TestReplyGoesWithItsRecord: a reply that comes by itself is recorded with its first
// attempt, and a refused one leaves the lane free.
func TestReplyGoesWithItsRecord(t *testing.T) {
	asked, told := make(chan parley.ID, 1), make(chan Outbound, 1)
	far := &wire{name: "far", deliver: func(_ context.Context, o Outbound) Outcome {
		asked <- o.Message.ID
		return Outcome{}
	}}
	near := &wire{name: "near", can: Capabilities{CarriesReplies: true},
		deliver: func(_ context.Context, o Outbound) Outcome {
			told <- o
			return Outcome{}
		}}
	h := start(t, nil, far, near)
	h.agent(t, "alice", parley.Identity{Protocol: "near", ID: "alice"})
	h.agent(t, "bob", parley.Identity{Protocol: "far", ID: "bob"})
	var mu sync.Mutex
	var records []*journal.Record
	defer h.Journal().Watch(func(r *journal.Record) {
		mu.Lock()
		defer mu.Unlock()
		records = append(records, r)
	})()
	reply := func(to parley.ID, text string) (*parley.Message, error) {
		return h.Accept(t.Context(), Submission{Scope: "other",
			Message: &parley.Message{Kind: parley.Response, From: "bob", InReplyTo: to,
				Parts: []parley.Part{parley.Text(text)}, Origin: parley.Origin{Protocol: "far",
					Verdict: parley.Verdict{Assurance: parley.Signed}}}})
	}
	for round := range 3 {
		s := ask("bob", "", "?")
		s.Message.Origin.Protocol = "near"
		if _, err := h.Accept(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		request := <-asked
		m, err := reply(request, "yes")
		if err != nil {
			t.Fatal(err)
		}
		if o := <-told; o.Message.ID != m.ID || o.Attempt != 1 || o.Request == nil || o.Request.ID != request {
			t.Errorf("round %d: %+v", round, o)
		}
		if _, err := reply(request, "no"); parley.CodeOf(err) != parley.Conflict {
			t.Errorf("round %d: a second reply: %v", round, err)
		}
		mu.Lock()
		opened := 0
		for _, r := range records {
			if r.Message != nil && r.Message.ID == m.ID && len(r.Open) == 1 && r.Open[0].Attempt == 1 {
				opened++
			}
			for _, s := range r.Steps {
				if s.Message == m.ID && s.State == parley.Delivering {
					t.Errorf("round %d: the attempt has a record of its own", round)
				}
			}
		}
		mu.Unlock()
		if opened != 1 {
			t.Errorf("round %d: the reply is recorded %d times with its attempt", round, opened)
		}
		for h.Stats().Delivery.Lanes > 0 { // until the deliveries are settled
			wait(t, h)
		}
	}
}

// wait waits for the next record.
func wait(t *testing.T, h *Hub) {
	t.Helper()
	c := make(chan struct{}, 1)
	stop := h.Journal().Watch(func(*journal.Record) { token(c) })
	defer stop()
	select {
	case <-c:
	case <-time.After(20 * time.Millisecond):
	}
}

func TestInbox(t *testing.T) {
	h := start(t, nil)
	h.agent(t, "script")
	h.Inbox("script")
	m, err := h.Accept(t.Context(), ask("script", "", "are you there?"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	in, err := h.Read(ctx, "script")
	if err != nil {
		t.Fatal(err)
	}
	got := <-in
	if got.Message.ID != m.ID {
		t.Fatalf("%+v", got)
	}
	stop()
	for range in {
	}
}

func TestConversationsAreTheParticipantsOwn(t *testing.T) {
	h := start(t, nil)
	c := h.Conversation("samvad", "s", "trace", "a", "b")
	if c != h.Conversation("samvad", "s", "trace", "b", "a") ||
		c == h.Conversation("samvad", "s", "trace", "a", "eve") ||
		c == h.Conversation("agh", "s", "trace", "a", "b") || c == h.Conversation("samvad", "st", "race", "a", "b") {
		t.Error("conversations")
	}
}

func TestRefusals(t *testing.T) {
	h := start(t, func(c *Config) { c.Refusals = 80 })
	kept := h.Refuse(Refusal{Source: "10.0.0.1", Text: "once"})
	var last string
	for i := range 100_000 {
		last = h.Refuse(Refusal{Source: "10.0.0.2", Claim: strings.Repeat("x", 5000), Text: fmt.Sprint(i)})
	}
	if _, ok := h.Explain(kept); !ok {
		t.Error("a flood from one source hid another's refusal")
	}
	if r, ok := h.Explain(strings.ToUpper(last)); !ok || r.Text != "99999" || len(r.Claim) > 600 {
		t.Errorf("the last of the flood: %v %+v", ok, r)
	}
	for i := range 100_000 {
		last = h.Refuse(Refusal{Source: fmt.Sprint("10.1.", i/256, ".", i%256)})
		if _, ok := h.Explain(last); !ok {
			t.Fatalf("reference %d does not resolve", i)
		}
	}
	if n := len(h.Refused(0)); n != 80 || len(h.refusals.sources) > 81 {
		t.Errorf("%d kept, %d sources", n, len(h.refusals.sources))
	}
	if h.Stats().Refused != 200_001 {
		t.Error(h.Stats().Refused)
	}
}

// The order of refusals is that in which they were kept, whatever their times are.
func TestRefusedSince(t *testing.T) {
	h := start(t, nil)
	now := time.Now()
	var refs []string
	for _, at := range []time.Time{now, now, now, now.Add(-time.Second)} {
		refs = append(refs, h.Refuse(Refusal{Time: at}))
	}
	for n := range 5 {
		list, all := h.RefusedSince(uint64(n))
		var got []string
		for _, r := range slices.Backward(list) {
			got = append(got, r.Ref)
		}
		if !slices.Equal(got, refs[n:]) || all != 4 {
			t.Errorf("after %d: %q of %d, want %q", n, got, all, refs[n:])
		}
	}
	if list := h.Refused(1); len(list) != 1 || list[0].Ref != refs[3] {
		t.Errorf("the newest is %+v", list)
	}
}

func TestConcurrentLoad(t *testing.T) {
	h := start(t, nil)
	if err := h.Handle(echo("echo")); err != nil {
		t.Fatal(err)
	}
	// Stats is called all the while: it must not hold a lock that the dispatcher
	// needs while it holds its own.
	polling, stopPolling := context.WithCancel(t.Context())
	var pollers, wg sync.WaitGroup
	defer pollers.Wait()
	defer stopPolling()
	pollers.Go(func() {
		for polling.Err() == nil {
			h.Stats()
		}
	})
	for i := range 500 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			s := ask("echo", "", fmt.Sprint(i))
			s.Foreign = fmt.Sprint(i % 50) // some share a conversation
			m, err := h.Ask(context.Background(), s)
			if err != nil || m.Text() != fmt.Sprint(i) {
				t.Errorf("%d: %+v, %v", i, m, err)
			}
		}()
	}
	wg.Wait()
	stopPolling()
	// A caller may have its answer before its lane is given back.
	for deadline := time.Now().Add(10 * time.Second); h.Stats().Delivery.Lanes != 0 && time.Now().Before(deadline); {
		wait(t, h)
	}
	if st := h.Stats(); st.Delivery.Lanes != 0 || st.Waiting != 0 {
		t.Errorf("left over: %+v", st)
	}
}

// Close waits for callers of this process, and ends them when its time is up.
func TestCloseEndsCallers(t *testing.T) {
	h := start(t, nil)
	begun := make(chan struct{}, 1)
	stuck := parley.RawSkill("stuck", func(context.Context, *parley.Message,
		parley.Replier) error {
		token(begun)
		select {}
	})
	if err := h.Handle(parley.Agent{Name: "echo", Exposed: parley.Everywhere,
		Skills: []parley.SkillSpec{stuck}}); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		m, err := h.Ask(context.Background(), ask("echo", "stuck", ""))
		if err == nil && m.Kind != parley.Failure {
			err = fmt.Errorf("answered %s", m.Kind)
		}
		done <- err
	}()
	<-begun
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := h.Close(ctx); err == nil {
		t.Error("Close did not report an attempt in flight")
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A call without a reader does not hold up the end of the hub, and its late reader
// gets an error.
func TestCloseWithACallThatNobodyReads(t *testing.T) {
	h := start(t, nil)
	if err := h.Handle(echo("echo")); err != nil {
		t.Fatal(err)
	}
	c, err := h.Begin(t.Context(), ask("echo", "echo", "anybody?"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	closed := make(chan error, 1)
	go func() { closed <- h.Close(ctx) }()
	<-closed // its error does not matter
	if m, err := c.Reply(t.Context()); parley.CodeOf(err) != parley.Unavailable {
		t.Errorf("%+v, %v", m, err)
	}
}

func TestHandleRefusesWhatCannotWork(t *testing.T) {
	h := start(t, nil)
	for name, a := range map[string]parley.Agent{
		"no skills":  {Name: "a"},
		"no handler": {Name: "a", Skills: []parley.SkillSpec{{ID: "x"}}},
		"bad name":   {Name: "A", Skills: echo("a").Skills},
		"twice":      {Name: "a", Skills: append(echo("a").Skills, echo("a").Skills...)},
		"bad schema": {Name: "a", Skills: []parley.SkillSpec{{ID: "x", Handler: echo("a").Skills[0].Handler,
			Input: json.RawMessage(`{"type":7}`)}}},
		"remote refs": {Name: "a", Skills: []parley.SkillSpec{{ID: "x", Handler: echo("a").Skills[0].Handler,
			Input: json.RawMessage(`{"$ref":"http://10.0.0.1/x"}`)}}},
	} {
		if err := h.Handle(a); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
