package a2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	protocol "github.com/parley-hub/parley/a2e"

	"github.com/parley-hub/parley"
	bridge "github.com/parley-hub/parley/bridge/a2e"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/node"
)

// logged collects a hub's log; it may be read while the hub writes.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestStopWithWaitingCallers: while callers wait, a stopping hub lets an agent return
// to answer them, over each transport. New calls are refused, and the stop logs no
// error.
func TestStopWithWaitingCallers(t *testing.T) {
	t.Parallel()
	log := &logged{}
	w := newWorld(t, node.Config{Log: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	ctx := t.Context()
	e := parley.Agent{Name: "bob", Exposed: parley.Everywhere,
		Identities: []parley.Identity{{Protocol: bridge.Protocol, ID: bridge.TokenID(tokenBob)}}}
	if _, err := w.Hub().Directory().Put(ctx, e, directory.FromOperator); err != nil {
		t.Fatal(err)
	}
	ask := func(to string) (*parley.Message, error) {
		return w.Hub().Ask(ctx, hub.Submission{Scope: "go", Message: &parley.Message{Kind: parley.Request,
			From: "crew/echo", To: to,
			Parts: []parley.Part{parley.Text("well?")}, Origin: parley.Origin{Protocol: "go",
				Verdict: parley.Verdict{Assurance: parley.Session}}}})
	}
	alice := w.tcp(tokenAlice)
	answers := make(chan string, 2)
	go func() {
		reply, err := ask("bob")
		if err != nil {
			answers <- err.Error()
			return
		}
		answers <- string(reply.Parts[0].Data)
	}()
	go func() {
		r, err := alice.CallTool(ctx, "bob__talk", map[string]string{"text": "well?"}, nil)
		if err != nil {
			answers <- err.Error()
			return
		}
		b, _ := json.Marshal(r.Data)
		answers <- string(b)
	}()
	bob := w.tcp(tokenBob)
	var ids []string
	for len(ids) < 2 {
		r, err := bob.CallTool(ctx, "parley_inbox", map[string]any{"max": 2}, nil)
		if err != nil {
			t.Fatal(err)
		}
		var got struct{ Messages []struct{ ID string } }
		if err := json.Unmarshal([]byte(data(t, r)), &got); err != nil {
			t.Fatal(err)
		}
		for _, m := range got.Messages {
			ids = append(ids, m.ID)
		}
	}
	bob.Close() // bob pauses, then returns

	stopped := make(chan error, 1)
	go func() {
		patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		stopped <- w.Close(patience)
	}()
	eventually(t, func() bool { err := w.Ready(); return err != nil && strings.Contains(err.Error(), "stopping") })
	eventually(t, func() bool {
		_, err := ask("crew/echo")
		return parley.CodeOf(err) == parley.Unavailable
	})
	var refused *protocol.Error
	if _, err := w.tcp(tokenAlice).CallTool(ctx, "crew-echo__echo", map[string]string{"text": "x"},
		nil); !errors.As(err, &refused) ||
		!refused.Retryable || !strings.Contains(refused.Text, "stopping") {
		t.Errorf("a new call: %v", err)
	}
	for i, c := range []*protocol.Client{w.tcp(tokenBob), w.http(tokenBob)} {
		r, err := c.CallTool(ctx, "parley_reply", map[string]any{"id": ids[i], "content": map[string]int{"answer": 42}},
			nil)
		if err != nil || !r.Success {
			t.Errorf("%+v, %v", r, err)
		}
	}
	for range 2 {
		if got := <-answers; got != `{"answer":42}` {
			t.Errorf("a caller heard %s", got)
		}
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if got := log.String(); got != "" {
		t.Errorf("the log of an orderly stop:\n%s", got)
	}
}
