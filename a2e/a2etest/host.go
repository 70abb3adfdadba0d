package a2etest

import (
	"context"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"

	"github.com/parley-hub/parley/a2e"
	"github.com/parley-hub/parley/internal/memhttp"
)

// Agent and Token are the name and the secret of the agent of a [Host].
const (
	Agent = "agent"
	Token = "the secret of a test"
)

// connect makes an agent of a host. stop ends its connections.
func connect(h *a2e.Host, token string) (c *a2e.Client, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	c = &a2e.Client{Token: token, Dial: func(context.Context) (io.ReadWriteCloser, error) {
		ours, theirs := net.Pipe()
		serving.Go(func() {
			_ = h.ServeConn(ctx, theirs) // the agent sees the end of its connection
		})
		return ours, nil
	}}
	return c, func() {
		_ = c.Close() // of a connection that may be broken
		cancel()
		serving.Wait()
	}
}

// Connect gives an agent of a host, with the secret token. The agent leaves at the end of
// the test.
func Connect(t testing.TB, h *a2e.Host, token string) *a2e.Client {
	c, stop := connect(h, token)
	t.Cleanup(stop)
	return c
}

// A Host is a host in memory. It knows one agent, [Agent] with the secret [Token].
type Host struct {
	*a2e.Host

	t     testing.TB
	tools a2e.Toolbox

	mu    sync.Mutex
	calls []*a2e.ToolCall
}

// NewHost makes a host with the capability "tools". Set further Capabilities before its
// first use. It ends with the test.
func NewHost(t testing.TB) *Host {
	h := &Host{t: t}
	h.Host = &a2e.Host{Auth: a2e.StaticTokens{Agent: Token},
		Capabilities: map[string]a2e.Provider{"tools": a2e.ServeTools(&h.tools)}}
	t.Cleanup(func() { shut(h.Host) })
	return h
}

// shut ends a host at once.
func shut(h *a2e.Host) {
	over, cancel := context.WithCancel(context.Background())
	cancel()
	_ = h.Shutdown(over) // ends every session, whatever it says
}

// Tool adds a tool without declared parameters.
func (h *Host) Tool(name string, f a2e.ToolFunc) {
	h.tools.Add(a2e.ToolDefinition{Name: name, Description: "A tool in a test."},
		func(ctx context.Context, c *a2e.ToolCall) (any, error) {
			h.mu.Lock()
			h.calls = append(h.calls, c)
			h.mu.Unlock()
			return f(ctx, c)
		})
}

// Calls gives the calls of tools so far, in the order of their arrival.
func (h *Host) Calls() []*a2e.ToolCall {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.calls)
}

// HTTP gives an HTTP client, for [a2e.Client.HTTP], that reaches the host at every URL.
func (h *Host) HTTP() *http.Client {
	web, stop := memhttp.Client(h.Host)
	h.t.Cleanup(func() {
		shut(h.Host)
		stop()
	})
	return web
}
