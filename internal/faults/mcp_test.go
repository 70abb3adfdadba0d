package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-hub/parley/internal/pairs"
	"github.com/parley-hub/parley/node"
)

// withBearer sends a token with each request.
type withBearer struct {
	token string
	http.RoundTripper
}

func (b withBearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.RoundTripper.RoundTrip(r)
}

// mcpHub is a hub in a process of its own.
type mcpHub struct {
	*process
	args  []string
	place pairs.Place
}

func newMCPHub(t *testing.T, agents map[string]node.Agent) *mcpHub {
	t.Helper()
	dir := t.TempDir()
	c := node.Config{Data: filepath.Join(dir, "data"), Agents: agents,
		Listen: node.Listen{HTTP: fmt.Sprintf("127.0.0.1:%d", fixedPort(t))}}
	if err := pairs.Configure(&c, dir); err != nil {
		t.Fatal(err)
	}
	h := &mcpHub{place: pairs.Place{HTTP: "http://" + c.Listen.HTTP, Token: pairs.Announced(c.Data)},
		args: []string{program(t, "cmd/parley"), "serve", "--json", "--log", "error", "--config", writeConfig(t, dir, c)}}
	h.process = launch(t, h.args...)
	return h
}

func (h *mcpHub) token(t *testing.T, agent string) string {
	t.Helper()
	token, err := h.place.Token(t.Context(), agent)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// mcpConnect connects a client of the official SDK.
func mcpConnect(t *testing.T, over mcp.Transport) *mcp.ClientSession {
	t.Helper()
	s, err := mcp.NewClient(&mcp.Implementation{Name: "asker", Version: "1"}, nil).Connect(t.Context(), over,
		&mcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// mcpListed waits until a client's list has a tool.
func mcpListed(ctx context.Context, t *testing.T, s *mcp.ClientSession, name string) {
	t.Helper()
	for tick := time.NewTicker(10 * time.Millisecond); ; <-tick.C {
		l, err := s.ListTools(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(l.Tools, func(d *mcp.Tool) bool { return d.Name == name }) {
			return
		}
	}
}

// mcpSaid calls a tool, and gives what the result says and the handle of its request.
func mcpSaid(ctx context.Context, t *testing.T, s *mcp.ClientSession, p *mcp.CallToolParams) (text, handle string) {
	t.Helper()
	r, err := s.CallTool(ctx, p)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range r.Content {
		if c, ok := c.(*mcp.TextContent); ok {
			text += c.Text
		}
	}
	handle, _ = r.Meta["hub.parley/handle"].(string)
	return text, handle
}

// TestCrashMCPCall kills the hub during a long call of a tool of an attached server. The next hub calls the server
// again, and the client finds the answer by its idempotency key (MCP-061) and by the handle (MCP-060).
func TestCrashMCPCall(t *testing.T) {
	t.Parallel()
	begun, release := make(chan struct{}, 9), make(chan struct{})
	var calls atomic.Int32
	s := mcp.NewServer(&mcp.Implementation{Name: "worker", Version: "1"}, nil)
	s.AddTool(&mcp.Tool{Name: "count", InputSchema: json.RawMessage(`{"type":"object"}`)},
		func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			calls.Add(1)
			begun <- struct{}{}
			select {
			case <-release:
			case <-ctx.Done():
			}
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "counted 3"}}}, nil
		})
	web := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s },
		&mcp.StreamableHTTPOptions{Stateless: true}))
	t.Cleanup(web.Close)

	h := newMCPHub(t, map[string]node.Agent{"asker": {MCP: &node.MCPAgent{Calls: true}},
		"worker": {MCP: &node.MCPAgent{URL: web.URL, Repeatable: []string{"count"}}}})
	over := &http.Transport{}
	t.Cleanup(over.CloseIdleConnections)
	client := &http.Client{Transport: withBearer{h.token(t, "asker"), over}}
	connect := func() *mcp.ClientSession {
		t.Helper()
		return mcpConnect(t, &mcp.StreamableClientTransport{Endpoint: h.place.HTTP + "/mcp", MaxRetries: -1,
			HTTPClient: client})
	}
	ctx, stop := context.WithTimeout(t.Context(), 2*readyWithin)
	defer stop()
	count := &mcp.CallToolParams{Meta: mcp.Meta{"hub.parley/idempotencyKey": "k1"}, Name: "worker__count",
		Arguments: map[string]any{}}
	first := connect()
	mcpListed(ctx, t, first, count.Name)
	broken := make(chan error, 1)
	go func() {
		_, err := first.CallTool(ctx, count)
		broken <- err
	}()
	select {
	case <-begun:
	case err := <-broken:
		t.Fatalf("the call ended early: %v", err)
	}
	h.kill()
	if err := <-broken; err == nil {
		t.Fatal("the call was answered by a hub that was killed")
	}
	launch(t, h.args...)
	select {
	case <-begun: // the next hub calls again
	case <-ctx.Done():
		t.Fatal("the work does not go on")
	}
	close(release)
	again := connect()
	text, handle := mcpSaid(ctx, t, again, count)
	if text != "counted 3" || handle == "" {
		t.Errorf("by the key: %q, handle %q", text, handle)
	}
	text, _ = mcpSaid(ctx, t, again, &mcp.CallToolParams{Name: "parley_result", Arguments: map[string]any{"id": handle}})
	if text != "counted 3" {
		t.Errorf("by the handle: %q", text)
	}
	if n := calls.Load(); n != 2 {
		t.Errorf("the tool was called %d times, want one call of each hub", n)
	}
}

// serveEnv has the test binary be an MCP server over standard input and output.
const serveEnv = "PARLEY_FAULTS_MCP"

func serveStdio() error {
	s := mcp.NewServer(&mcp.Implementation{Name: "files", Version: "1"}, nil)
	s.AddTool(&mcp.Tool{Name: "environment", InputSchema: json.RawMessage(`{"type":"object"}`)},
		func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: strings.Join(os.Environ(), " ")}}}, nil
		})
	return s.Run(context.Background(), &mcp.StdioTransport{})
}

// TestMCPCommands: a client that starts `parley mcp stdio` calls a server that `parley mcp attach` runs, which sees no
// environment but what is listed (MCP-080). The server is joined again after a crash of the hub.
func TestMCPCommands(t *testing.T) {
	t.Parallel()
	h := newMCPHub(t, map[string]node.Agent{"asker": {MCP: &node.MCPAgent{Calls: true}},
		"files": {MCP: &node.MCPAgent{Attached: true}}})
	dir := t.TempDir()
	tokenOf := func(agent string) string {
		t.Helper()
		path := filepath.Join(dir, agent+".token")
		if err := os.WriteFile(path, []byte(h.token(t, agent)), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	parley := program(t, "cmd/parley")
	command := func(args ...string) *exec.Cmd {
		c := exec.Command(parley, args...)
		c.Dir = dir
		c.Env = append(os.Environ(), "SECRET=quincunx")
		return c
	}
	attach := command("mcp", "attach", "files", "--url", h.place.HTTP, "--token-file", tokenOf("files"), "--env",
		serveEnv+"=1", "--", os.Args[0])
	var log tail
	attach.Stderr = &log
	if err := attach.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(attach.Process.Signal(os.Interrupt), attach.Wait()); err != nil {
			t.Errorf("%v\n%s", err, &log)
		}
	})
	asker := tokenOf("asker")
	ctx, stop := context.WithTimeout(t.Context(), 2*readyWithin)
	defer stop()
	for range 2 {
		s := mcpConnect(t, &mcp.CommandTransport{
			Command: command("mcp", "stdio", "--url", h.place.HTTP, "--token-file", asker)})
		mcpListed(ctx, t, s, "files__environment")
		text, handle := mcpSaid(ctx, t, s, &mcp.CallToolParams{Name: "files__environment", Arguments: map[string]any{}})
		if text != serveEnv+"=1" || handle == "" {
			t.Errorf("%q, handle %q", text, handle)
		}
		h.kill()
		h.process = launch(t, h.args...)
	}
}
