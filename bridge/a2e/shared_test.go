package a2e_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	protocol "github.com/parley-hub/parley/a2e"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/node"
)

// twoHubs opens two hubs on one journal.
func twoHubs(t *testing.T) (first, second *world) {
	t.Helper()
	s, err := server.NewServer(&server.Options{Port: -1, JetStream: true, StoreDir: t.TempDir(), NoSigs: true,
		NoLog: true, MaxPayload: 8 << 20})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(time.Minute) {
		t.Fatal("no server")
	}
	config := node.Config{Durability: "replicated", Passphrase: []byte("a passphrase"), PassphraseWork: 4,
		Engine: node.Engine{URL: s.ClientURL(), Partitions: 2, Replicas: 1}}
	one := config
	one.Name, one.Data = "one", t.TempDir()
	two := config
	two.Name, two.Data = "two", t.TempDir()
	return newWorld(t, one), newWorld(t, two)
}

// TestTwoHubs: two hubs on one journal. An agent at one hub gets messages sent at the
// other, and the results of its work at any hub that it asks.
func TestTwoHubs(t *testing.T) {
	t.Parallel()
	first, second := twoHubs(t)
	first.A2E().SetRoom(64 << 10)
	second.A2E().SetRoom(64 << 10)
	for name, w := range map[string][2]*world{"asks elsewhere": {first, second}, "asks here": {second, second}} {
		t.Run(name, func(t *testing.T) { testAsks(t, w[0], w[1]) })
	}
	for name, w := range map[string][2]*world{"the other hub": {first, second}, "the same hub": {first, first},
		"back": {second, first}} {
		t.Run(name, func(t *testing.T) {
			bob := w[1].tcp(tokenBob)
			if err := w[0].tell(t.Context(), "bob", "over there"); err != nil {
				t.Fatal(err)
			}
			r, err := bob.CallTool(t.Context(), "parley_inbox", map[string]any{"max": 1}, nil)
			if err != nil || strings.Count(data(t, r), `"content":"over there"`) != 1 {
				t.Errorf("%s, %v", data(t, r), err)
			}
		})
	}
	t.Run("a session goes on at the other hub", func(t *testing.T) {
		raw := newRaw(t, first.Addresses().Local+"/a2e")
		stream := raw.stream(t)
		raw.send(t, `{"type":"handshake/req","id":"h","agent_caps":["tools"],"auth_token":"`+tokenBob+`"}`)
		stream.next(t, "handshake/resp")
		stream.close()
		eventually(t, func() bool {
			s, ok := first.A2E().Host().Session(raw.session)
			if !ok {
				return false
			}
			_, attached := s.State()
			return !attached
		})
		// The agent is away; its answers wait in the journal, which the hubs share.
		sum := sha256.Sum256([]byte("a2e session\x00" + raw.session))
		key := hex.EncodeToString(sum[:16])
		state := second.Hub().Journal().State("a2e.sessions")
		const answers = 5
		for i := range answers {
			raw.send(t,
				fmt.Sprintf(`{"type":"tool/call/req","id":"c%d","tool_name":"crew-echo__echo","arguments":{"text":"answer %d"}}`, i, i))
			eventually(t, func() bool {
				v, err := state.Get(t.Context(), key)
				var saved struct{ Frames []json.RawMessage }
				return err == nil && json.Unmarshal(v.Data, &saved) == nil && len(saved.Frames) == i+1
			})
		}
		before := first.calls.Load() + second.calls.Load()
		// The agent returns at the other hub, and the first one drops the session.
		there := *raw
		there.base = second.Addresses().Local + "/a2e"
		stream = there.stream(t)
		defer stream.close()
		for i := range answers {
			if f := stream.next(t, "tool/call/resp"); f.ReqID != fmt.Sprint("c", i) ||
				!strings.Contains(f.line, fmt.Sprint("answer ", i)) {
				t.Errorf("%d: %s", i, f.line)
			}
		}
		eventually(t, func() bool { _, ok := first.A2E().Host().Session(raw.session); return !ok })
		// The first hub passes lines of the agent on.
		raw.send(t, `{"type":"ping","id":"through the first"}`)
		if f := stream.next(t, "pong"); f.ReqID != "through the first" {
			t.Errorf("%s", f.line)
		}
		// The other hub continues without duplicates.
		there.send(t, `{"type":"ping","id":"p"}`)
		if f := stream.next(t, "pong"); f.ReqID != "p" {
			t.Errorf("%s", f.line)
		}
		// A repeated request is answered, not executed.
		there.send(t,
			`{"type":"tool/call/req","id":"c0","tool_name":"crew-echo__echo","arguments":{"text":"answer 0"}}`)
		if f := stream.next(t, "tool/call/resp"); f.ReqID != "c0" || !strings.Contains(f.line, "answer 0") {
			t.Errorf("%s", f.line)
		}
		if n := first.calls.Load() + second.calls.Load(); n != before {
			t.Errorf("%d calls, want %d", n, before)
		}
	})
	t.Run("a call is answered where its agent is", func(t *testing.T) {
		at := newRaw(t, first.Addresses().Local+"/a2e")
		stream := at.stream(t)
		at.send(t, `{"type":"handshake/req","id":"h","agent_caps":["tools"],"auth_token":"`+tokenBob+`"}`)
		stream.next(t, "handshake/resp")
		answer := func(w *world) {
			t.Helper()
			alice := w.tcp(tokenAlice)
			defer alice.Close()
			r, err := alice.CallTool(t.Context(), "parley_inbox", map[string]any{"max": 1}, nil)
			if err != nil {
				t.Fatal(err)
			}
			var got struct {
				Messages []struct{ ID, Content string }
			}
			if err := json.Unmarshal([]byte(data(t, r)), &got); err != nil || len(got.Messages) != 1 {
				t.Fatalf("%s: %v", data(t, r), err)
			}
			if r, err := alice.CallTool(t.Context(), "parley_reply",
				map[string]any{"id": got.Messages[0].ID, "content": "re: " + got.Messages[0].Content},
				nil); err != nil || !r.Success {
				t.Fatal(r, err)
			}
		}
		calls := 0
		// ask sends a call to one hub, and runs then before the answer.
		ask := func(sends *raw, w *world, then func()) {
			t.Helper()
			calls++
			text := fmt.Sprint("question ", calls)
			sends.send(t,
				fmt.Sprintf(`{"type":"tool/call/req","id":"q%d","tool_name":"parley_ask","arguments":{"agent":"alice","content":%q}}`, calls, text))
			eventually(t, func() bool { return asked(first, "alice") })
			then()
			answer(w)
			f := stream.next(t, "tool/call/resp")
			if f.ReqID != fmt.Sprint("q", calls) || !strings.Contains(f.line, "re: "+text) {
				t.Errorf("%s", f.line)
			}
		}
		there := *at
		there.base = second.Addresses().Local + "/a2e"
		// The agent sends at another hub than that of its stream.
		ask(&there, second, func() {})
		if _, moved := second.A2E().Host().Session(at.session); moved {
			t.Error("the session moved to where the agent only sends")
		}
		// Its stream moves while the call is executed, there and back.
		ask(at, second, func() {
			stream.close()
			stream = there.stream(t)
		})
		ask(at, first, func() {
			stream.close()
			stream = at.stream(t)
		})
		defer stream.close()
		ask(at, second, func() {})
	})
	t.Run("multi_agent", func(t *testing.T) {
		c := second.tcp(tokenAlice)
		m, err := c.Ask(t.Context(), protocol.Message{Type: "multi_agent/spawn",
			Body: map[string]any{"name": "crew/echo"}})
		if err != nil {
			t.Fatal(err)
		}
		sub := map[string]any{"subagent_id": m.Str("subagent_id"), "task_name": "t", "instruction": "hi"}
		if _, err := c.Ask(t.Context(), protocol.Message{Type: "multi_agent/delegate", Body: sub}); err != nil {
			t.Fatal(err)
		}
		m, err = c.Ask(t.Context(), protocol.Message{Type: "multi_agent/await", Body: sub})
		if err != nil || m.Str("status") != protocol.StatusCompleted {
			t.Errorf("%v, %v", m, err)
		}
	})
}

// asked reports whether a request to an agent is open.
func asked(w *world, agent string) bool {
	f := openTo(agent)
	f.States = append(f.States, parley.Delivered)
	return len(w.Hub().Journal().Deliveries(f)) > 0
}
