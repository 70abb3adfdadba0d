package a2e_test

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	protocol "github.com/parley-hub/parley/a2e"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/node"
)

// labHost is an A2E host that can be stopped and restarted at the same address, over
// TCP or HTTP.
type labHost struct {
	t       *testing.T
	web     bool
	address string
	stop    func()
}

func newLabHost(t *testing.T, web bool) *labHost {
	h := &labHost{t: t, web: web, address: "127.0.0.1:0"}
	l := h.listen()
	h.address = l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *labHost) listen() net.Listener {
	l, err := net.Listen("tcp", h.address)
	if err != nil {
		h.t.Fatal(err)
	}
	return l
}

func (h *labHost) url() string {
	if h.web {
		return "http://" + h.address
	}
	return "tcp://" + h.address
}

func (h *labHost) start(tools ...string) {
	box := &protocol.Toolbox{}
	for _, name := range tools {
		box.Add(protocol.ToolDefinition{Name: name, Description: name},
			func(_ context.Context, c *protocol.ToolCall) (any, error) {
				if c.Name == "big" {
					return strings.Repeat("x", protocol.DefaultMaxFrame), nil
				}
				return c.Name, nil
			})
	}
	host := &protocol.Host{Auth: protocol.Anonymous("hub"),
		Capabilities: map[string]protocol.Provider{"tools": protocol.ServeTools(box)},
		Limits:       protocol.Limits{Frame: 2 * protocol.DefaultMaxFrame}}
	l := h.listen()
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	if h.web {
		server := &http.Server{Handler: host}
		serving.Go(func() { _ = server.Serve(l) })
		h.stop = sync.OnceFunc(func() { cancel(); _ = server.Close(); serving.Wait() })
	} else {
		serving.Go(func() { _ = host.Serve(ctx, l) })
		h.stop = sync.OnceFunc(func() { cancel(); serving.Wait() })
	}
	h.t.Cleanup(h.stop)
}

func (w *world) skills(agent string) []string {
	var names []string
	if e, ok := w.Hub().Directory().Agent(agent); ok {
		for _, s := range e.Skills {
			names = append(names, s.ID)
		}
	}
	return names
}

// TestHostFaults: agents of every protocol that call a host's tools get its faults as a
// text and a code.
func TestHostFaults(t *testing.T) {
	for name, web := range map[string]bool{"http": true, "tcp": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newLabHost(t, web)
			w := newWorld(t, node.Config{Agents: map[string]node.Agent{
				"lab": {A2E: &node.A2EAgent{URL: h.url()}, Expose: parley.Everywhere},
			}})
			alice := w.tcp(tokenAlice)
			fails := func(tool string, code protocol.Code, reason, text string, wait time.Duration) {
				t.Helper()
				ctx, cancel := context.WithTimeout(t.Context(), wait)
				defer cancel()
				_, err := alice.CallTool(ctx, tool, map[string]any{}, nil)
				if e, ok := err.(*protocol.Error); !ok || e.Code != code || e.Reason != reason ||
					!strings.Contains(e.Text, text) {
					t.Errorf("%s: %v, want %s (%s): %s", tool, err, code, reason, text)
				}
			}
			fails("lab", protocol.ToolError, "unavailable", "has not been reached yet", time.Minute)
			eventually(t, func() bool {
				_, err := alice.CallTool(t.Context(), "lab", map[string]any{}, nil)
				e, ok := err.(*protocol.Error)
				return ok && strings.Contains(e.Text, "not been reached yet") &&
					strings.Contains(e.Text, "connection refused")
			})

			h.start("big", "small")
			eventually(t, func() bool { return slices.Equal(w.skills("lab"), []string{"big", "small"}) })
			fails("lab__big", protocol.ToolError, "handler_failed", "the result is too large", time.Minute)
			h.stop()
			eventually(t, func() bool {
				// A call that leaves before the hub has seen the connection end is in
				// doubt, and waits for the host to come back.
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				_, err := alice.CallTool(ctx, "lab__big", map[string]any{}, nil)
				e, ok := err.(*protocol.Error)
				return ok && e.Code == protocol.ToolError && e.Reason == "unavailable" &&
					strings.Contains(e.Text, "cannot be reached: connection refused")
			})
		})
	}
}

// TestHostSilent: a host that has the request and does not answer gives another error
// than one that cannot be reached.
func TestHostSilent(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	t.Cleanup(func() { // after the hub has gone
		_ = l.Close()
		serving.Wait()
	})
	serving.Go(func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		for in := protocol.NewReader(conn); ; {
			m, err := in.ReadMessage(nil)
			if err != nil {
				return
			}
			answer := protocol.Message{Type: strings.TrimSuffix(m.Type, "/req") +
				"/resp", Body: map[string]any{"req_id": m.ID}}
			if m.Type == "tool/call/req" {
				continue
			}
			line, err := answer.Encode(time.Now())
			if err != nil {
				t.Error(err)
			}
			if _, err := conn.Write(append(line, '\n')); err != nil {
				return
			}
		}
	})
	w := newWorld(t, node.Config{Agents: map[string]node.Agent{
		"lab": {A2E: &node.A2EAgent{URL: "tcp://" + l.Addr().String()}, Expose: parley.Everywhere},
	}})
	m := &parley.Message{Kind: parley.Request, From: "crew/echo", To: "lab", Skill: "add",
		Parts:    []parley.Part{parley.Text("x")},
		Deadline: time.Now().Add(2 * time.Second), Origin: parley.Origin{Protocol: "go", Peer: "crew/echo",
			Verdict: parley.Verdict{Assurance: parley.Signed}}}
	reply, err := w.Hub().Ask(t.Context(), hub.Submission{Scope: "go test", Message: m})
	if err != nil || reply.Kind != parley.Failure || reply.Error.Code != parley.TimedOut ||
		!strings.Contains(reply.Error.Text, "did not answer in time") {
		t.Errorf("%+v, %v", reply, err)
	}
}

// TestHostComesBack: a host that returns is asked for its tools at once, without
// waiting for the interval.
func TestHostComesBack(t *testing.T) {
	for name, web := range map[string]bool{"http": true, "tcp": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newLabHost(t, web)
			h.start("one")
			w := newWorld(t, node.Config{Agents: map[string]node.Agent{
				"lab": {A2E: &node.A2EAgent{URL: h.url()}, Expose: parley.Everywhere},
			}})
			eventually(t, func() bool { return slices.Equal(w.skills("lab"), []string{"one"}) })
			h.stop()
			h.start("one", "two")
			eventually(t, func() bool { return slices.Equal(w.skills("lab"), []string{"one", "two"}) })
		})
	}
}

// TestTypesByAgreement: types unknown to the specification reach the host that serves
// their namespace, and its answers come back.
func TestTypesByAgreement(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	host := &protocol.Host{Auth: protocol.Anonymous("hub"), Capabilities: map[string]protocol.Provider{
		"foo": protocol.Handler(func(ctx context.Context, r *protocol.Request) (protocol.Response, error) {
			if r.Type == "foo/none" {
				return protocol.Response{}, protocol.ErrUnknownType
			}
			if err := r.Status(ctx, "half"); err != nil {
				return protocol.Response{}, err
			}
			return protocol.Response{Body: map[string]any{"got": r.Get("x")}}, nil
		}),
	}}
	ctx, stop := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() { _ = host.Serve(ctx, l) })
	t.Cleanup(func() { stop(); serving.Wait() })
	w := newWorld(t, node.Config{A2E: node.A2E{Providers: []string{"foo=lab", "mcp=lab"}},
		Agents: map[string]node.Agent{
			"lab": {A2E: &node.A2EAgent{URL: "tcp://" + l.Addr().String()}},
		}})
	w.each("carried", func(t *testing.T, c *protocol.Client) {
		var events []string
		var final *protocol.Envelope
		for e, err := range c.Stream(t.Context(), protocol.Message{Type: "foo/bar",
			Body: map[string]any{"x": json.RawMessage("1.50")}}) {
			switch {
			case err != nil:
				t.Fatal(err)
			case e.Final:
				final = e.Envelope
			default:
				events = append(events, string(e.Data))
			}
		}
		if final.Type != "foo/bar/resp" || string(final.Get("got")) != "1.50" || len(events) != 1 ||
			!strings.Contains(events[0], "half") {
			t.Errorf("%s, %v", final.Raw(), events)
		}
	})
	w.each("refused", func(t *testing.T, c *protocol.Client) {
		for _, typ := range []string{"foo/none", "bar/foo", "env/reset/req", "mcp/sample/req", "mcp/root/list/req"} {
			_, err := c.Ask(t.Context(), protocol.Message{Type: typ, Body: map[string]any{"env_name": "x"}})
			if code, _ := codeOf(err); code != protocol.InvalidMessage || !protocol.NotSupported(err) {
				t.Errorf("%s: %v", typ, err)
			}
		}
	})
}

// TestHostRefusalsHaveReasons: what a real host answers has a reason for operators.
func TestHostRefusalsHaveReasons(t *testing.T) {
	t.Parallel()
	box := &protocol.Toolbox{}
	tools := map[string]struct {
		err    error // that the tool gives; nil: an answer that is too large
		reason parley.Reason
		source parley.Source
	}{
		"denied":  {protocol.ErrToolDenied, parley.PeerForbids, parley.ByPeer},
		"unknown": {protocol.ErrUnknownTool, parley.PeerGone, parley.ByPeer},
		"schema":  {protocol.ErrSchema, parley.PeerContent, parley.ByPeer},
		"busy":    {protocol.ErrBusy, parley.PeerRate, parley.ByPeer},
		"stops":   {protocol.ErrShuttingDown, parley.PeerBusy, parley.ByPeer},
		"version": {protocol.ErrVersion, parley.PeerUnsupported, parley.ByPeer},
		"fails":   {&protocol.Error{Code: protocol.ToolError, Text: "no"}, parley.PeerFailed, parley.ByPeer},
		"big":     {nil, parley.PeerAnswerLarge, parley.ByLimit},
	}
	var asked sync.Map
	for name, tool := range tools {
		box.Add(protocol.ToolDefinition{Name: name, Description: name},
			func(_ context.Context, c *protocol.ToolCall) (any, error) {
				if _, again := asked.LoadOrStore(name, true); again {
					t.Errorf("%s was asked again", name)
				}
				if tool.err == nil {
					return strings.Repeat("x", protocol.DefaultMaxFrame), nil
				}
				return nil, tool.err
			})
	}
	serve := func(auth protocol.Authenticator) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		host := &protocol.Host{Auth: auth, Limits: protocol.Limits{Frame: 2 * protocol.DefaultMaxFrame},
			Capabilities: map[string]protocol.Provider{"tools": protocol.ServeTools(box)}}
		ctx, stop := context.WithCancel(context.Background())
		var serving sync.WaitGroup
		serving.Go(func() { _ = host.Serve(ctx, l) })
		t.Cleanup(func() { stop(); serving.Wait() })
		return "tcp://" + l.Addr().String()
	}
	w := newWorld(t, node.Config{Agents: map[string]node.Agent{
		"lab":    {A2E: &node.A2EAgent{URL: serve(protocol.Anonymous("hub"))}},
		"closed": {A2E: &node.A2EAgent{URL: serve(protocol.StaticTokens{"hub": "another-secret-0123456789"})}},
	}})
	ask := func(to, skill string) *parley.Error {
		t.Helper()
		m := &parley.Message{Kind: parley.Request, From: "crew/echo", To: to, Skill: skill,
			Parts: []parley.Part{{MediaType: "application/json", Data: []byte("{}")}}, Origin: parley.Origin{Protocol: "go", Peer: "crew/echo",
				Verdict: parley.Verdict{Assurance: parley.Signed}}}
		reply, err := w.Hub().Ask(t.Context(), hub.Submission{Scope: "go test", Message: m})
		if err != nil || reply.Kind != parley.Failure {
			t.Fatalf("%s: %+v, %v", skill, reply, err)
		}
		return reply.Error
	}
	for name, tool := range tools {
		if e := ask("lab", name); e.Source != tool.source || e.Reason != tool.reason {
			t.Errorf("%s: %v: %s %s %q, want %s %s", name, e, e.Source, e.Reason, e.Detail, tool.source, tool.reason)
		}
	}
	if e := ask("closed", "denied"); e.Code != parley.Unauthenticated || e.Source != parley.ByPeer ||
		e.Reason != parley.WrongToken || !strings.HasPrefix(e.Detail, "wrong credentials: ") {
		t.Errorf("%v: %s %s %q", e, e.Source, e.Reason, e.Detail)
	}
}
