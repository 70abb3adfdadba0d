package a2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	protocol "github.com/parley-hub/parley/a2e"

	"github.com/parley-hub/parley/node"
)

// TestManySessions: 1,000 agents at once, ten calls each, over TCP and HTTP;
// one that never reads delays none of them.
func TestManySessions(t *testing.T) {
	w := newWorld(t, node.Config{A2E: node.A2E{Sessions: 100_000}})
	w.web = w.httpPool()
	ctx := t.Context()
	var agents sync.WaitGroup
	faults := make(chan error, 1000)
	slots := make(chan struct{}, 200) // connections that are being made
	for i := range 1000 {
		agents.Go(func() {
			c := &protocol.Client{URL: w.Addresses().A2E, Token: tokenAlice}
			if i%10 == 0 {
				c = &protocol.Client{URL: w.Addresses().Local + "/a2e", Token: tokenAlice, HTTP: w.web}
			}
			defer c.Close()
			slots <- struct{}{}
			err := c.Connect(ctx)
			<-slots
			if err != nil {
				faults <- err
				return
			}
			for n := range 10 {
				text := fmt.Sprint(i, " ", n)
				r, err := c.CallTool(ctx, "crew-echo__echo", map[string]string{"text": text}, nil)
				if err != nil {
					faults <- err
					return
				}
				if b, _ := json.Marshal(r.Data); string(b) != `{"text":"`+text+`"}` {
					faults <- fmt.Errorf("%s was answered %s", text, b)
					return
				}
			}
		})
	}
	agents.Wait()
	close(faults)
	for err := range faults {
		t.Error(err)
	}
	if n := w.calls.Load(); n != 10_000 {
		t.Errorf("%d calls, want 10,000", n)
	}
}

// TestSessionOverRestart: what an agent has not read is there when it comes
// back to the hub that has been restarted, in order and once.
func TestSessionOverRestart(t *testing.T) {
	config := node.Config{Data: filepath.Join(t.TempDir(), "data"), Durability: "disk"}
	w := newWorld(t, config)
	ctx := t.Context()
	raw := newRaw(t, w.Addresses().Local+"/a2e")
	stream := raw.stream(t)
	raw.send(t, `{"type":"handshake/req","id":"h","auth_token":"`+tokenBob+`","agent_caps":["tools"]}`)
	stream.next(t, "handshake/resp")
	stream.close()
	// The agent is away, and its answers and messages come.
	raw.send(t, `{"type":"tool/call/req","id":"i1","tool_name":"parley_inbox","arguments":{"max":3},"streaming":true,"timeout":60}`)
	for i := range 3 {
		if err := w.tell(ctx, "bob", fmt.Sprint("note ", i)); err != nil {
			t.Fatal(err)
		}
	}
	raw.send(t, `{"type":"tool/call/req","id":"c1","tool_name":"crew-echo__echo","arguments":{"text":"late"}}`)
	eventually(t, func() bool { return w.calls.Load() == 1 && len(w.Hub().Journal().Deliveries(openTo("bob"))) == 0 })
	w.close()
	w.open(config)
	raw.base = w.Addresses().Local + "/a2e"
	stream = raw.stream(t)
	var notes []string
	answers := map[string]int{}
	for len(answers) < 2 || len(notes) < 3 {
		m := stream.next(t, "")
		switch {
		case m.Type == "tool/event":
			notes = append(notes, m.Content())
		case m.Type == "tool/call/resp":
			answers[m.ReqID]++
		default:
			t.Fatalf("%s", m.line)
		}
	}
	if want := []string{"note 0", "note 1", "note 2"}; !slices.Equal(notes, want) || answers["i1"] != 1 || answers["c1"] != 1 {
		t.Errorf("%q %v", notes, answers)
	}
	// The session goes on, and nothing comes again.
	raw.send(t, `{"type":"ping","id":"p"}`)
	if m := stream.next(t, ""); m.Type != "pong" {
		t.Errorf("%s", m.line)
	}
	// A request that is sent again after the restart is answered with the
	// recorded answer and not executed again.
	raw.send(t, `{"type":"tool/call/req","id":"c1","tool_name":"crew-echo__echo","arguments":{"text":"late"}}`)
	if m := stream.next(t, "tool/call/resp"); m.ReqID != "c1" || !strings.Contains(m.line, `"text":"late"`) || w.calls.Load() != 1 {
		t.Errorf("%s, %d calls", m.line, w.calls.Load())
	}
	stream.close()
}

// TestOwed: what a session that ended had not brought to its agent is in the
// agent's next inbox call, in order and once.
func TestOwed(t *testing.T) {
	w := newWorld(t, node.Config{})
	ctx := t.Context()
	raw := newRaw(t, w.Addresses().Local+"/a2e")
	stream := raw.stream(t)
	raw.send(t, `{"type":"handshake/req","id":"h","auth_token":"`+tokenBob+`"}`)
	stream.next(t, "handshake/resp")
	stream.close()
	raw.send(t, `{"type":"tool/call/req","id":"i1","tool_name":"parley_inbox","arguments":{"max":3},"streaming":true,"timeout":60}`)
	for i := range 3 {
		if err := w.tell(ctx, "bob", fmt.Sprint("note ", i)); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, func() bool { return len(w.Hub().Journal().Deliveries(openTo("bob"))) == 0 })
	raw.send(t, `{"type":"shutdown","id":"s","timeout":0}`)
	eventually(t, func() bool { return len(w.A2E().Host().Sessions()) == 0 })
	bob := w.tcp(tokenBob)
	r, err := bob.CallTool(ctx, "parley_inbox", map[string]any{"max": 3, "wait": 10}, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := data(t, r)
	if strings.Index(got, "note 0") > strings.Index(got, "note 1") || strings.Index(got, "note 1") > strings.Index(got, "note 2") || strings.Count(got, `"content":"note`) != 3 {
		t.Error(got)
	}
	r, err = bob.CallTool(ctx, "parley_inbox", map[string]any{"wait": 0.3}, nil)
	if err != nil || data(t, r) != `{"messages":[],"more":false}` {
		t.Errorf("%s, %v", data(t, r), err)
	}
}

// eventually waits until ok.
func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("it did not settle")
		}
	}
}
