package node

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/a2e"
	a2ebridge "github.com/parley-hub/parley/bridge/a2e"
)

// TestStopWithWaitingCallers: a caller of each protocol waits for an agent while the hub
// is stopped. The agent reconnects and answers; every caller gets its answer, and the log
// of the stop has no warning.
func TestStopWithWaitingCallers(t *testing.T) {
	var log logBuffer
	c := fiveConfig()
	c.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	f := newFive(t, c)
	const token = "token-of-worker-0123456789abcdef"
	f.target = "worker"
	f.put(f.target, parley.Identity{Protocol: "a2e", ID: a2ebridge.TokenID(token)}, func(a *parley.Agent) {
		a.Exposed = parley.Everywhere
		a.Skills = []parley.SkillSpec{{ID: "say", Default: true}}
	})
	atStart := log.String() // this configuration causes warnings at the start
	type heard struct{ protocol, what string }
	answers := make(chan heard, len(fiveProtocols))
	asking, early := context.WithCancelCause(t.Context())
	defer early(nil)
	for _, p := range fiveProtocols {
		go func() {
			what, err := f.callBy(t.Context(), p)
			if err != nil {
				what = err.Error()
			}
			early(fmt.Errorf("%s was answered first: %s", p, what))
			answers <- heard{p, what}
		}()
	}
	requests := map[string]string{} // by protocol
	worker := &a2e.Client{URL: f.Addresses().A2E, Token: token}
	for len(requests) < len(fiveProtocols) {
		r, err := worker.CallTool(asking, "parley_inbox", nil, nil)
		if err != nil {
			t.Fatal(err, context.Cause(asking))
		}
		b, _ := json.Marshal(r.Data)
		var got struct {
			Messages []struct {
				ID       string
				Kind     string
				Metadata struct{ Parley struct{ Protocol string } }
			}
		}
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatal(err)
		}
		for _, m := range got.Messages {
			if m.Kind == "request" {
				requests[m.Metadata.Parley.Protocol] = m.ID
			}
		}
	}
	worker.Close()

	stopped := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		stopped <- f.Close(ctx)
	}()
	f.until("the hub is stopping", func() bool {
		err := f.Ready()
		return err != nil &&
			strings.Contains(err.Error(), "stopping")
	})
	again := &a2e.Client{URL: f.Addresses().A2E, Token: token}
	defer again.Close()
	// first those whose callers hold no connection
	for _, p := range []string{"agh", "asp", "samvad", "uagents", "a2e"} {
		r, err := again.CallTool(t.Context(), "parley_reply",
			map[string]any{"id": requests[p], "content": map[string]string{"message": "hello"}}, nil)
		if err != nil || !r.Success {
			t.Errorf("the answer to %s: %+v, %v", p, r, err)
		}
		if got := <-answers; got != (heard{p, "ok"}) {
			t.Errorf("%s: %+v", p, got)
		}
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if said := strings.TrimPrefix(log.String(), atStart); said != "" {
		t.Errorf("the log of an orderly stop:\n%s", said)
	}
}

// TestStopWithAnOpenQuestionOfAnAgent: an agent of this process that waits for an answer of an MCP client does not hold
// the stop up, whether the client has the question as text, or as a form that nobody fills in.
func TestStopWithAnOpenQuestionOfAnAgent(t *testing.T) {
	ask := func(ctx context.Context, _ *parley.Message, _ struct{}) (string, error) {
		m, err := parley.NeedInput(ctx, "where to?")
		if err != nil {
			return "", err
		}
		return m.Text(), nil
	}
	t.Run("text", func(t *testing.T) {
		n := running(t, Config{})
		if err := n.Handle(parley.Agent{Name: "booker", Exposed: parley.Everywhere}, parley.Skill("book", ask)); err != nil {
			t.Fatal(err)
		}
		s := mcpClient(t, n, "/mcp", agentToken(t, n, "crew/alice"), "2025-11-25", nil)
		if text, _ := said(t, s, "booker__book", "{}", nil); !strings.Contains(text, "where to?") {
			t.Fatalf("the client got %q", text)
		}
		if err := n.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	t.Run("form", func(t *testing.T) {
		n := running(t, Config{})
		if err := n.Handle(parley.Agent{Name: "booker", Exposed: parley.Everywhere}, parley.Skill("book", ask)); err != nil {
			t.Fatal(err)
		}
		shown, over := make(chan struct{}), make(chan struct{})
		defer close(over) // before the session is closed, which waits for the form
		s := mcpSession(t, &mcp.StreamableClientTransport{Endpoint: n.Addresses().Local + "/mcp", DisableStandaloneSSE: true,
			HTTPClient: &http.Client{Transport: bearer(agentToken(t, n, "crew/alice"))}}, "2025-11-25", &mcp.ClientOptions{
			ElicitationHandler: func(ctx context.Context, _ *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
				close(shown)
				select { // the SDK sends that the question is withdrawn beside the answer of the call, so it may be lost
				case <-ctx.Done():
				case <-over:
				}
				return &mcp.ElicitResult{Action: "cancel"}, nil
			}})
		got := make(chan error, 1)
		go func() {
			r, err := s.CallTool(context.Background(), &mcp.CallToolParams{Name: "booker__book"})
			if err == nil && r.Meta["hub.parley/handle"] == nil {
				err = fmt.Errorf("the client got %+v, and no handle", r)
			}
			got <- err
		}()
		<-shown
		if err := n.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if err := <-got; err != nil {
			t.Error(err)
		}
	})
}

// logBuffer holds a log that is read while the hub writes it.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestStreamsEndBeforeConnections: a binding hears that the hub stops while its callers are still connected, so that it
// can tell the hub's end from a caller that leaves. An MCP client withdraws its call by closing the connection.
func TestStreamsEndBeforeConnections(t *testing.T) {
	n := running(t, Config{Listen: Listen{HTTP: "127.0.0.1:0"}})
	told := false
	for _, b := range n.bindings {
		if end := b.EndStreams; end != nil {
			b.EndStreams = func() {
				told = true
				if c, err := net.Dial("tcp", n.httpListen.Addr().String()); err != nil {
					t.Errorf("the listener was shut first: %v", err)
				} else {
					_ = c.Close()
				}
				end()
			}
		}
	}
	if err := n.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if !told {
		t.Error("no binding was told")
	}
}
