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

	"github.com/parley-hub/parley/node"
)

// TestTwoHubs: two hubs on one journal. An agent at one of them gets what the
// other one hands out, and its work is reported wherever it awaits it.
func TestTwoHubs(t *testing.T) {
	s, err := server.NewServer(&server.Options{Port: -1, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	defer s.WaitForShutdown()
	defer s.Shutdown()
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("no server")
	}
	config := node.Config{Durability: "replicated", Engine: node.Engine{URL: s.ClientURL(), Partitions: 2, Replicas: 1}}
	one := config
	one.Name, one.Data = "one", t.TempDir()
	two := config
	two.Name, two.Data = "two", t.TempDir()
	first := newWorld(t, one)
	second := newWorld(t, two)
	for name, w := range map[string][2]*world{"the other hub": {first, second}, "the same hub": {first, first}, "back": {second, first}} {
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
			raw.send(t, fmt.Sprintf(`{"type":"tool/call/req","id":"c%d","tool_name":"crew-echo__echo","arguments":{"text":"answer %d"}}`, i, i))
			eventually(t, func() bool {
				v, err := state.Get(t.Context(), key)
				var saved struct{ Frames []json.RawMessage }
				return err == nil && json.Unmarshal(v.Data, &saved) == nil && len(saved.Frames) == i+1
			})
		}
		before := first.calls.Load() + second.calls.Load()
		// It comes back at the other hub, and the first one does not know.
		there := *raw
		there.base = second.Addresses().Local + "/a2e"
		stream = there.stream(t)
		defer stream.close()
		for i := range answers {
			if f := stream.next(t, "tool/call/resp"); f.ReqID != fmt.Sprint("c", i) || !strings.Contains(f.line, fmt.Sprint("answer ", i)) {
				t.Errorf("%d: %s", i, f.line)
			}
		}
		// The first one wakes up and wants to write: it is refused, and lets go.
		if _, ok := first.A2E().Host().Session(raw.session); !ok {
			t.Fatal("the first hub let go before it could know")
		}
		raw.send(t, `{"type":"ping","id":"stale"}`)
		eventually(t, func() bool { _, ok := first.A2E().Host().Session(raw.session); return !ok })
		// The other one goes on: nothing comes twice, nothing of the first one's.
		there.send(t, `{"type":"ping","id":"p"}`)
		if f := stream.next(t, "pong"); f.ReqID != "p" {
			t.Errorf("%s", f.line)
		}
		// And a request that is sent again is answered, not executed.
		there.send(t, `{"type":"tool/call/req","id":"c0","tool_name":"crew-echo__echo","arguments":{"text":"answer 0"}}`)
		if f := stream.next(t, "tool/call/resp"); f.ReqID != "c0" || !strings.Contains(f.line, "answer 0") {
			t.Errorf("%s", f.line)
		}
		if n := first.calls.Load() + second.calls.Load(); n != before {
			t.Errorf("%d calls, want %d", n, before)
		}
	})
	t.Run("multi_agent", func(t *testing.T) {
		c := second.tcp(tokenAlice)
		m, err := c.Ask(t.Context(), protocol.Message{Type: "multi_agent/spawn", Body: map[string]any{"name": "crew/echo"}})
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
