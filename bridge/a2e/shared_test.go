package a2e_test

import (
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
