package hub

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/delivery"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/internal/testjournal"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/policy"
)

var connectionRefused = parley.Fail(parley.Unavailable, nil, "the agent cannot be reached").With(parley.ByNetwork,
	parley.ConnectionRefused, "connection refused by 192.0.2.7:80")

// restartable starts hubs on one journal in memory: after each other, or at once.
func restartable(t *testing.T) func(id string, w *wire) (h *Hub, stop func()) {
	t.Helper()
	j, err := journal.Open(t.Context(), journal.Config{Store: testjournal.Memory(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
	d, err := directory.Open(t.Context(), directory.Options{State: j.State("agents")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	p, err := policy.New(policy.Config{Hub: "here", Assurance: map[string]parley.Assurance{"": parley.Session}})
	if err != nil {
		t.Fatal(err)
	}
	return func(id string, w *wire) (*Hub, func()) {
		h, err := New(Config{ID: id, Secret: make([]byte, 32), Journal: j, Directory: d, Policy: p,
			Delivery: delivery.Config{Retry: delivery.Retry{Tries: 3}}})
		if err != nil {
			t.Fatal(err)
		}
		if err := h.Bind(w); err != nil {
			t.Fatal(err)
		}
		h.Start()
		return h, func() {
			if err := h.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
}

func (h *Hub) notice(t *testing.T, to string) {
	t.Helper()
	s := ask(to, "", "hello")
	s.Message.Kind = parley.Notice
	if _, err := h.Accept(t.Context(), s); err != nil {
		t.Fatal(err)
	}
}

func (h *Hub) condition(t *testing.T, name string) Condition {
	t.Helper()
	e, ok := h.Directory().Agent(name)
	if !ok {
		t.Fatalf("no agent %q", name)
	}
	return h.Condition(e)
}

// rows lists the recorded states of agents.
func (h *Hub) healthRows(t *testing.T) (out []string) {
	t.Helper()
	rows, err := h.health.rows.List(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		out = append(out, fmt.Sprint(r.Key, " ", r.Value.Failures))
	}
	return out
}

// An agent that cannot be reached is so after a restart, too, and at the other hubs on the journal, until one of them
// reaches it.
func TestConditionOutlivesTheHub(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open := restartable(t)
		down := &wire{name: "w", deliver: func(context.Context, Outbound) Outcome { return Outcome{Err: connectionRefused} }}
		h, stop := open("one", down)
		h.agent(t, "bob", parley.Identity{Protocol: "w", ID: "bob"})
		begun := time.Now()
		if c := h.condition(t, "bob"); c.State != Ready {
			t.Errorf("before any attempt: %+v", c)
		}
		h.notice(t, "bob")
		synctest.Wait()
		c := h.condition(t, "bob")
		if c.State != Unreachable || !c.Since.Equal(begun) || c.Failures != 1 || c.Err.Detail != connectionRefused.Detail ||
			!c.Next.After(begun) {
			t.Errorf("after an attempt: %+v", c)
		}
		time.Sleep(time.Minute) // a dead letter after three attempts
		synctest.Wait()
		if c = h.condition(t, "bob"); c.Failures != 3 || !c.Next.IsZero() {
			t.Errorf("after a dead letter: %+v", c)
		}
		if rows := h.healthRows(t); len(rows) != 1 || rows[0] != "bob 2" {
			t.Errorf("recorded after three attempts: %v, want the news at 1 and 2", rows)
		}
		stop()

		up := &wire{name: "w", deliver: func(context.Context, Outbound) Outcome { return Outcome{} }}
		h, stop = open("one", up)
		c = h.condition(t, "bob")
		if c.State != Unreachable || !c.Since.Equal(begun) || c.Failures != 3 || c.Err.Reason != parley.ConnectionRefused ||
			!strings.Contains(c.Err.Detail, "192.0.2.7") {
			t.Errorf("after a restart: %+v", c)
		}
		if _, here := h.Failing(); here("bob") {
			t.Error("the failure of an earlier process counts as one of this")
		}
		other, stopOther := open("two", up)
		if c := other.condition(t, "bob"); c.State != Unreachable {
			t.Errorf("at another hub: %+v", c)
		}
		h.notice(t, "bob")
		time.Sleep(2 * healthPause)
		synctest.Wait()
		if c := h.condition(t, "bob"); c.State != Ready {
			t.Errorf("after a success: %+v", c)
		}
		if c := other.condition(t, "bob"); c.State != Ready {
			t.Errorf("at another hub, after a success: %+v", c)
		}
		if rows := h.healthRows(t); len(rows) != 0 {
			t.Errorf("recorded after a success: %v", rows)
		}
		stop()
		stopOther()
	})
}

// Each state of an agent, and the way out of it. A message from the agent is none.
func TestConditions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var outcome atomic.Pointer[Outcome]
		var away atomic.Bool
		set := func(o Outcome) { outcome.Store(&o) }
		w := &wire{name: "w", deliver: func(context.Context, Outbound) Outcome { return *outcome.Load() },
			can: Capabilities{Holds: func(*directory.Entry, parley.Identity) bool { return away.Load() }}}
		h, stop := restartable(t)("one", w)
		defer stop()
		h.agent(t, "bob", parley.Identity{Protocol: "w", ID: "bob"})
		is := func(what string, want AgentState) {
			t.Helper()
			synctest.Wait()
			if c := h.condition(t, "bob"); c.State != want {
				t.Errorf("%s: %+v, want %s", what, c, want)
			}
		}
		set(Outcome{Err: connectionRefused})
		h.notice(t, "bob")
		is("connection refused", Unreachable)
		from := ask("alice", "", "hi")
		from.Message.Kind, from.Message.From = parley.Notice, "bob"
		h.agent(t, "alice", parley.Identity{Protocol: "w", ID: "alice"})
		if _, err := h.Accept(t.Context(), from); err != nil {
			t.Fatal(err)
		}
		is("a message from it", Unreachable)
		set(Outcome{Err: parley.Fail(parley.Unavailable, nil, "oops").With(parley.ByPeer, parley.PeerFailed, "500")})
		time.Sleep(10 * time.Second)
		h.notice(t, "bob")
		is("it fails", Failing)
		if err := h.Pause(t.Context(), "bob", true); err != nil {
			t.Fatal(err)
		}
		is("paused", Paused)
		set(Outcome{Err: parley.Fail(parley.RateLimited, nil, "slowly").With(parley.ByPeer, parley.PeerRate, "429"),
			Wait: time.Hour})
		if err := h.Pause(t.Context(), "bob", false); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		is("a 429", Postponed)
		if c := h.condition(t, "bob"); time.Until(c.Next) > time.Hour || time.Until(c.Next) < 50*time.Minute {
			t.Errorf("next attempt %s from now", time.Until(c.Next))
		}
		away.Store(true)
		is("away", NotConnected)
		away.Store(false)
		set(Outcome{})
		time.Sleep(2 * time.Hour)
		is("a success", Ready)

		// Another address, another agent.
		set(Outcome{Err: connectionRefused})
		h.notice(t, "bob")
		is("connection refused", Unreachable)
		if err := h.Directory().StandIn(t.Context(), "bob", parley.Identity{Protocol: "v", ID: "bob-v"}); err != nil {
			t.Fatal(err)
		}
		is("a stand-in", Unreachable)
		h.agent(t, "bob", parley.Identity{Protocol: "w", ID: "bob", URL: "elsewhere"})
		is("another address", Ready)

		h.agent(t, "box", parley.Identity{Protocol: "api", ID: "box"})
		h.Inbox("box")
		if c := h.condition(t, "box"); c.State != NoReader {
			t.Errorf("an inbox without a reader: %+v", c)
		}
		if _, err := h.Read(t.Context(), "box"); err != nil {
			t.Fatal(err)
		}
		if c := h.condition(t, "box"); c.State != Ready {
			t.Errorf("an inbox with a reader: %+v", c)
		}
	})
}

// The text of an error may quote a message: it is not recorded, and forgotten with the message. Guests cause no rows.
// The row of a removed agent goes.
func TestHealthRecordIsClean(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		secret := parley.Fail(parley.Unavailable, nil, "what does SECRET mean?").With(parley.ByPeer, parley.PeerFailed,
			"SECRET")
		w := &wire{name: "w", deliver: func(context.Context, Outbound) Outcome { return Outcome{Err: secret} }}
		h, stop := restartable(t)("one", w)
		defer stop()
		h.agent(t, "bob", parley.Identity{Protocol: "w", ID: "bob"})
		if _, err := h.Directory().Put(t.Context(), parley.Agent{Name: "guest/w/x", Exposed: parley.Everywhere,
			Identities: []parley.Identity{{Protocol: "w", ID: "x"}}}, directory.FromGuest); err != nil {
			t.Fatal(err)
		}
		h.notice(t, "bob")
		h.notice(t, "guest/w/x")
		time.Sleep(time.Hour)
		synctest.Wait()
		if c := h.condition(t, "guest/w/x"); c.State != Failing {
			t.Errorf("a guest: %+v", c)
		}
		if rows := h.healthRows(t); len(rows) != 1 || rows[0] != "bob 2" {
			t.Errorf("recorded: %v", rows)
		}
		v, err := h.c.Journal.State(healthBucket).Get(t.Context(), "bob")
		if err != nil || strings.Contains(string(v.Data), "SECRET") {
			t.Errorf("recorded: %s, %v", v.Data, err)
		}
		if _, err := h.Forget(t.Context(), Forgetting{Agent: "bob"}); err != nil {
			t.Fatal(err)
		}
		if c := h.condition(t, "bob"); c.State != Failing || c.Err.Text != "" || c.Err.Detail != "" {
			t.Errorf("forgotten: %+v", c)
		}
		if err := h.Directory().Remove(t.Context(), "bob"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if rows := h.healthRows(t); len(rows) != 0 {
			t.Errorf("recorded of a removed agent: %v", rows)
		}
	})
}

// A message that fails does not hold up others of its conversation when the directory says so, and is given up by the
// agent's own numbers.
func TestRetriesOfAnAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var attempts []string
		w := &wire{name: "w", deliver: func(_ context.Context, o Outbound) Outcome {
			mu.Lock()
			defer mu.Unlock()
			attempts = append(attempts, fmt.Sprint(o.Message.Text(), o.Attempt))
			if o.Message.Text() == "bad" {
				return Outcome{Err: connectionRefused}
			}
			return Outcome{}
		}}
		h, stop := restartable(t)("one", w)
		defer stop()
		h.agent(t, "bob", parley.Identity{Protocol: "w", ID: "bob"})
		send := func(text string) {
			s := ask("bob", "", text)
			s.Message.Kind = parley.Notice
			if _, err := h.Accept(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		made := func() string {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			return strings.Join(attempts, " ")
		}
		send("bad")
		send("good")
		if got := made(); got != "bad1" {
			t.Errorf("in order: %s", got)
		}
		if err := h.Directory().SetRetries(t.Context(), "bob", parley.Retries{Tries: 2, Unordered: true}); err != nil {
			t.Fatal(err)
		}
		if got := made(); got != "bad1 good1" {
			t.Errorf("without an order: %s", got)
		}
		time.Sleep(time.Hour)
		if got := made(); got != "bad1 good1 bad2" || len(h.Dead()) != 1 {
			t.Errorf("with two tries: %s, %d dead letters", got, len(h.Dead()))
		}
	})
}
