package a2e_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	protocol "github.com/parley-hub/parley/a2e"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/node"
)

// TestAsks tests one hub; TestTwoHubs has the same for two hubs.
func TestAsks(t *testing.T) {
	t.Parallel()
	w := newWorld(t, node.Config{})
	w.A2E().SetRoom(64 << 10)
	testAsks(t, w, w)
}

// testAsks: the inbox is the same at one hub and at several. sends is the hub of the
// sender, asks the hub that the recipient calls.
func testAsks(t *testing.T, sends, asks *world) {
	// state gives the recorded state of a delivery.
	state := func(id parley.ID) (last parley.DeliveryState) {
		t.Helper()
		j := sends.Hub().Journal()
		for p := range j.Partitions() {
			for r, err := range j.Records(t.Context(), p, journal.From{}) {
				if err != nil {
					t.Fatal(err)
				}
				for _, s := range r.Steps {
					if s.Message == id && s.To == "bob" {
						last = s.State
					}
				}
			}
		}
		return last
	}
	send := func(m parley.Message) parley.ID {
		t.Helper()
		m.From, m.To = "crew/echo", "bob"
		m.Origin = parley.Origin{Protocol: "go", Peer: "crew/echo", Verdict: parley.Verdict{Assurance: parley.Signed}}
		sent, err := sends.Hub().Accept(t.Context(), hub.Submission{Scope: "go test", Message: &m})
		if err != nil {
			t.Fatal(err)
		}
		return sent.ID
	}
	note := func(text string) parley.ID {
		t.Helper()
		return send(parley.Message{Kind: parley.Notice, Parts: []parley.Part{parley.Text(text)},
			Conversation: parley.HashID(make([]byte, 16))})
	}
	before := asks.t
	asks.t = t // its clients end with the test
	defer func() { asks.t = before }()
	calls := func() (n int) {
		t.Helper()
		for v, err := range sends.Hub().Journal().State("a2e.asks").Range(t.Context(), "") {
			if err != nil {
				t.Fatal(err)
			}
			if v.Key != "call" { // else of a hub that is gone
				n++
			}
		}
		return n
	}
	// returned waits until the hubs have recorded that the agent continues after an
	// answer, and that the call has ended. Earlier, the next call at another hub may
	// get a message again, and this call may be sent a message.
	returned := func(c *protocol.Client, texts ...string) {
		t.Helper()
		eventually(t, func() bool {
			if _, err := c.Ping(t.Context()); err != nil {
				t.Fatal(err)
			}
			for v, err := range sends.Hub().Journal().State("a2e.inbox").Range(t.Context(), "") {
				if err != nil {
					t.Fatal(err)
				}
				var kept struct{ Arrival struct{ Content string } }
				if json.Unmarshal(v.Data, &kept) == nil && slices.Contains(texts, kept.Arrival.Content) {
					return false
				}
			}
			return calls() == 0
		})
		if _, err := sends.Hub().Journal().State("test").Put(t.Context(), "all before is known", nil,
			time.Time{}); err != nil {
			t.Fatal(err)
		}
	}
	fetch := func(c *protocol.Client, most int, wait float64) []string {
		t.Helper()
		texts := asks.inboxOf(c, most, wait)
		returned(c, texts...)
		return texts
	}

	t.Run("what nobody fetches is not delivered, and ends with its time", func(t *testing.T) {
		soon := func() time.Time { return time.Now().Add(time.Second) }
		notice := send(parley.Message{Kind: parley.Notice, Expires: soon(), Parts: []parley.Part{parley.Text("late")}})
		request := send(parley.Message{Kind: parley.Request, Deadline: soon(),
			Parts: []parley.Part{parley.Text("late?")}})
		eventually(t, func() bool {
			return state(notice).Settled(parley.Notice) &&
				state(request).Settled(parley.Request)
		})
		if n, r := state(notice), state(request); n != parley.Expired || r != parley.Expired && r != parley.Answered {
			t.Errorf("the notice is %s, the request is %s", n, r)
		}
		for v, err := range asks.Hub().Journal().State("a2e.inbox").Range(t.Context(), "") {
			t.Errorf("%s is kept, %v", v.Key, err)
		}
	})
	t.Run("a call of a hub that is gone takes nothing", func(t *testing.T) {
		data, err := json.Marshal(map[string]any{"agent": "bob", "node": "gone", "since": time.Now().Add(-time.Minute),
			"max": 10})
		if err == nil {
			_, err = sends.Hub().Journal().State("a2e.asks").Put(t.Context(), "call", data, time.Now().Add(time.Hour))
		}
		if err != nil {
			t.Fatal(err)
		}
		id := note("here")
		if got := fetch(asks.tcp(tokenBob), 1, 60); !slices.Equal(got, []string{"here"}) {
			t.Errorf("the call returned %q", got)
		}
		eventually(t, func() bool { return state(id) == parley.Delivered })
	})
	t.Run("a call takes no more than it has room for", func(t *testing.T) {
		bob := asks.tcp(tokenBob)
		large := strings.Repeat("x", 40<<10) // an answer has room for one of them
		var ids []parley.ID
		for _, text := range []string{"1" + large, "2" + large, "3", "4"} {
			ids = append(ids, note(text))
		}
		var got []string
		call := func(most int) {
			t.Helper()
			for _, text := range fetch(bob, most, 60) {
				got = append(got, text[:1])
			}
		}
		call(10)
		if state(ids[2]) == parley.Delivered {
			t.Error("the message after the one that did not fit is delivered")
		}
		for len(got) < 4 {
			call(1)
			if n := len(got); n > 1 && n < 4 && state(ids[n]) == parley.Delivered {
				t.Errorf("message %d is delivered before a call took it", n+1)
			}
		}
		if !slices.Equal(got, []string{"1", "2", "3", "4"}) {
			t.Errorf("the calls returned %q", got)
		}
		bob.Close()
	})
	t.Run("an agent that does not wait gets what waits", func(t *testing.T) {
		note("now")
		bob := asks.tcp(tokenBob)
		var got []string
		eventually(t, func() bool { got = fetch(bob, 1, 0); return len(got) > 0 })
		if !slices.Equal(got, []string{"now"}) {
			t.Errorf("the call returned %q", got)
		}
	})
	t.Run("a result comes where it is awaited", func(t *testing.T) {
		alice, bob := asks.tcp(tokenAlice), sends.tcp(tokenBob)
		ask := func(kind string, body map[string]any) *protocol.Envelope {
			t.Helper()
			m, err := alice.Ask(t.Context(), protocol.Message{Type: "multi_agent/" + kind, Body: body})
			if err != nil {
				t.Fatal(err)
			}
			return m
		}
		sub := map[string]any{"subagent_id": ask("spawn", map[string]any{"name": "bob"}).Str("subagent_id"),
			"task_name": "t", "instruction": "hi"}
		ask("delegate", sub)
		r, err := bob.CallTool(t.Context(), "parley_inbox", map[string]any{"max": 1, "wait": 60}, nil)
		if err != nil {
			t.Fatal(err)
		}
		var d struct{ Messages []struct{ ID string } }
		if err := json.Unmarshal([]byte(data(t, r)), &d); err != nil || len(d.Messages) != 1 {
			t.Fatal(data(t, r), err)
		}
		reply := map[string]any{"id": d.Messages[0].ID, "content": "done"}
		if _, err := bob.CallTool(t.Context(), "parley_reply", reply, nil); err != nil { // bob has the message
			t.Fatal(err)
		}
		returned(bob, "hi")
		if m := ask("await", sub); m.Str("status") != protocol.StatusCompleted {
			t.Errorf("%v", m)
		}
	})
	eventually(t, func() bool { return calls() == 0 }) // no call is open
}
