package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/parley-hub/parley/a2e"
	"github.com/parley-hub/parley/node"
)

// TestKilledInbox kills the hub while an A2E agent waits in parley_inbox with the SDK's
// defaults: the agent asks for events and ignores them. A message that the call did not
// return is in the agent's next call, however often the hub is killed, and a returned
// message does not come again, although the hub is killed at once.
func TestKilledInbox(t *testing.T) {
	dir := t.TempDir()
	tokens := map[string]string{"alice": "token-of-alice-0123456789", "bob": "token-of-bob-0123456789ab"}
	c := node.Config{Data: filepath.Join(dir, "data"), Name: "hub-under-test", Agents: map[string]node.Agent{},
		Listen: node.Listen{HTTP: "127.0.0.1:0", Admin: "127.0.0.1:0"},
		A2E:    node.A2E{Listen: fmt.Sprintf("127.0.0.1:%d", fixedPort(t))}}
	for name, token := range tokens {
		path := filepath.Join(dir, name+".token")
		if err := os.WriteFile(path, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
		c.Agents[name] = node.Agent{Expose: []string{"all"}, A2E: &node.A2EAgent{TokenFile: path}}
	}
	args := []string{program(t, "internal/testhub"), "-config", writeConfig(t, dir, c)}
	p := launch(t, args...)
	restart := func() {
		t.Helper()
		p.kill()
		p = launch(t, args...)
	}
	tell := func(text string) {
		t.Helper()
		alice := &a2e.Client{URL: "tcp://" + c.A2E.Listen, Token: tokens["alice"]}
		defer alice.Close()
		r, err := alice.CallTool(t.Context(), "parley_send", map[string]string{"agent": "bob", "content": text}, nil)
		if err != nil || !r.Success {
			t.Fatalf("%+v, %v\n%s", r, err, p.errs)
		}
	}
	// The agent's process ends with the hub's: each call is of a new session.
	inbox := func(arguments map[string]any) []string {
		t.Helper()
		bob := &a2e.Client{URL: "tcp://" + c.A2E.Listen, Token: tokens["bob"]}
		t.Cleanup(func() { bob.Close() })
		r, err := bob.CallTool(t.Context(), "parley_inbox", arguments, func(a2e.Event) {})
		if err != nil {
			t.Fatalf("%v\n%s", err, p.errs)
		}
		var got struct {
			Messages []struct{ Content string }
		}
		if data, _ := r.Data.(json.RawMessage); json.Unmarshal(data, &got) != nil {
			t.Fatalf("%s", data)
		}
		texts := []string{}
		for _, m := range got.Messages {
			texts = append(texts, m.Content)
		}
		return texts
	}
	killed := func(text string) { // during a call that has brought the text as an event
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		bob := &a2e.Client{URL: "tcp://" + c.A2E.Listen, Token: tokens["bob"]}
		defer bob.Close()
		event, ended := make(chan string), make(chan struct{})
		defer func() { cancel(); <-ended }()
		go func() {
			defer close(ended)
			_, _ = bob.CallTool(ctx, "parley_inbox", map[string]any{"max": 10}, func(e a2e.Event) { // ends with the hub
				var v struct{ Content string }
				_ = json.Unmarshal(e.Data, &v)
				select {
				case event <- v.Content:
				case <-ctx.Done():
				}
			})
		}()
		select {
		case got := <-event:
			if got != text {
				t.Fatalf("the event says %q, want %q", got, text)
			}
		case <-ended:
			t.Fatalf("the call ended without an event\n%s", p.errs)
		}
		delivered(t, operator(t, p, c.Data)) // so the hub has recorded the delivery; without a record it may come again
		restart()
	}

	tell("one")
	killed("one")
	if got := inbox(map[string]any{"max": 1}); !slices.Equal(got, []string{"one"}) {
		t.Errorf("after a kill the next call returned %q", got)
	}
	restart() // at once: the agent has sent nothing more
	if got := inbox(map[string]any{"wait": 0.3}); len(got) != 0 {
		t.Errorf("a message came a third time: %q", got)
	}
	tell("two")
	for range 2 { // no call returned it
		killed("two")
	}
	if got := inbox(map[string]any{"max": 1}); !slices.Equal(got, []string{"two"}) {
		t.Errorf("after two kills the next call returned %q", got)
	}
	if got := inbox(map[string]any{"wait": 0.3}); len(got) != 0 {
		t.Errorf("a returned message came again: %q", got)
	}
}
