package hub

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/delivery"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/policy"
)

func (h *Hub) conditions(t *testing.T, name string) map[string]IdentityCondition {
	t.Helper()
	e, ok := h.Directory().Agent(name)
	if !ok {
		t.Fatalf("no agent %q", name)
	}
	out := map[string]IdentityCondition{}
	for _, c := range h.Conditions(e) {
		out[c.Protocol] = c
	}
	return out
}

// An agent that is reached by one protocol and not by another has two states, not one for both. The success of one does
// not hide the failure of the other.
func TestEachWayHasAStateOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		down.Store(true)
		v := &wire{name: "v", deliver: func(context.Context, Outbound) Outcome {
			if down.Load() {
				return Outcome{Err: connectionRefused}
			}
			return Outcome{}
		}}
		w := &wire{name: "w", deliver: func(context.Context, Outbound) Outcome { return Outcome{} }}
		h := start(t, func(c *Config) {
			c.Now = nil
			c.Delivery.Retry = delivery.Retry{Tries: 2}
			var err error
			unsigned := policy.Config{Assurance: map[string]parley.Assurance{"": parley.Unsigned}}
			if c.Policy, err = policy.New(unsigned); err != nil {
				t.Fatal(err)
			}
		}, v, w)
		h.agent(t, "bob", parley.Identity{Protocol: "w", ID: "bob"}, parley.Identity{Protocol: "v", ID: "bob"},
			parley.Identity{Protocol: "u", ID: "bob", StandIn: true}, parley.Identity{Protocol: "x", ID: "bob"})
		begun := time.Now()
		send := func(protocol string) {
			t.Helper()
			s := ask("bob", "", "hello")
			s.Message.Kind, s.Message.Origin.Protocol = parley.Notice, protocol
			if _, err := h.Accept(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		send("v")
		time.Sleep(time.Second)
		send("w")
		got := h.conditions(t, "bob")
		if c := got["v"]; c.State != Unreachable || !c.Since.Equal(begun) || c.Err.Detail != connectionRefused.Detail {
			t.Errorf("by v: %+v", c)
		}
		if c := got["w"]; c.State != Ready {
			t.Errorf("by w: %+v", c)
		}
		if c := got["u"]; c.State != Ready || c.Text != "answers for it" || !c.StandIn {
			t.Errorf("the stand-in: %+v", c)
		}
		if c := got["x"]; c.State != Unreachable || c.Err == nil || c.Since.IsZero() {
			t.Errorf("by a protocol that is not spoken here: %+v", c)
		}
		time.Sleep(time.Hour) // the dead letter leaves no lane
		if c := h.conditions(t, "bob")["v"]; c.State != Unreachable {
			t.Errorf("by v, when nothing is under way: %+v", c)
		}
		down.Store(false)
		send("v")
		if c := h.conditions(t, "bob")["v"]; c.State != Ready {
			t.Errorf("by v, after a success: %+v", c)
		}
		down.Store(true)
		send("v")
		h.agent(t, "bob", parley.Identity{Protocol: "w", ID: "bob"}, parley.Identity{Protocol: "v", ID: "bob2"})
		synctest.Wait()
		if c := h.conditions(t, "bob")["v"]; c.State != Ready {
			t.Errorf("at another address: %+v", c)
		}
	})
}

// Every state that is not ready says since when.
func TestSinceWhen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var away atomic.Bool
		var left atomic.Pointer[time.Time]
		left.Store(&time.Time{})
		begun := time.Now()
		w := &wire{name: "w", deliver: func(context.Context, Outbound) Outcome {
			return Outcome{Err: parley.Fail(parley.RateLimited, nil, "slowly").With(parley.ByPeer, parley.PeerRate, "429"),
				Wait: time.Minute}
		}, can: Capabilities{Holds: func(*directory.Entry, parley.Identity) bool { return away.Load() },
			Connection: func(*directory.Entry, parley.Identity) Connection {
				return Connection{Text: "stream", Since: *left.Load(), Heard: begun}
			}}}
		h, stop := restartable(t)("one", w)
		defer stop()
		time.Sleep(time.Hour)
		h.agent(t, "bob", parley.Identity{Protocol: "w", ID: "bob"})
		added := time.Now()
		h.notice(t, "bob")
		for range 3 { // it asks again each minute
			synctest.Wait()
			if c := h.condition(t, "bob"); c.State != Postponed || !c.Since.Equal(added) {
				t.Errorf("postponed: %+v, want since %s", c, added)
			}
			time.Sleep(time.Minute)
		}
		away.Store(true)
		if c := h.condition(t, "bob"); c.State != NotConnected || !c.Since.Equal(added) {
			t.Errorf("never connected: %+v, want since it was added", c)
		}
		gone := time.Now()
		left.Store(&gone)
		c := h.conditions(t, "bob")["w"]
		if c.State != NotConnected || !c.Since.Equal(gone) || c.Text != "stream" || !c.Heard.Equal(begun) {
			t.Errorf("not connected: %+v, want since %s", c, gone)
		}

		h.agent(t, "box", parley.Identity{Protocol: "api", ID: "box"})
		h.Inbox("box")
		opened := time.Now()
		time.Sleep(time.Minute)
		if c := h.condition(t, "box"); c.State != NoReader || !c.Since.Equal(opened) {
			t.Errorf("an inbox that nobody has read: %+v, want since %s", c, opened)
		}
		ctx, end := context.WithCancel(t.Context())
		if _, err := h.Read(ctx, "box"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		end()
		synctest.Wait()
		stopped := time.Now()
		time.Sleep(time.Minute)
		if c := h.conditions(t, "box")["api"]; c.State != NoReader || !c.Since.Equal(stopped) || !c.Heard.Equal(stopped) {
			t.Errorf("after its reader: %+v, want since %s", c, stopped)
		}
	})
}

// A handler of this process is a way as well.
func TestConditionOfAHandler(t *testing.T) {
	h := start(t, nil)
	if err := h.Handle(echo("inside")); err != nil {
		t.Fatal(err)
	}
	if c := h.conditions(t, "inside")["go"]; c.State != Ready || c.Text != "runs here, 0 at work" || c.ID != "inside" {
		t.Errorf("%+v", c)
	}
}
