package mcp

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/memhttp"
	"github.com/parley-hub/parley/internal/testjournal"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/index"
	"github.com/parley-hub/parley/keyring"
	"github.com/parley-hub/parley/policy"
)

// doorWorld is a hub whose door leads to a small server of the SDK.
type doorWorld struct {
	*Binding
	t       testing.TB
	hub     *hub.Hub
	callers *doorCallers

	mu    sync.Mutex
	calls []*caller     // of the tools
	ended chan error    // of the context of the tool "slow"
	slow  chan struct{} // ends the tool "slow"
}

// doorCallers knows the callers of tokens: "alice" is the token of the agent alice.
type doorCallers struct {
	mu        sync.Mutex
	resources []string
	revoked   context.Context
}

func (c *doorCallers) Identify(ctx context.Context, protocol string, h http.Header, _ *tls.ConnectionState,
	remote string) (bridge.Caller, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.resources = bridge.ResourcesOf(ctx)
	token, shown := strings.CutPrefix(h.Get("Authorization"), "Bearer ")
	switch {
	case !shown:
		host, _, _ := net.SplitHostPort(remote)
		return bridge.Caller{Name: directory.GuestName(protocol, host, ""), Peer: host, Guest: true}, nil
	case !slices.Contains([]string{"alice", "bob", "tunnel"}, token):
		return bridge.Caller{}, parley.Refuse(parley.Unauthenticated, "the hub does not accept these credentials")
	}
	return bridge.Caller{Name: token, Peer: "token " + token, Verdict: parley.Verdict{Assurance: parley.Session},
		During: func(ctx context.Context) (context.Context, func()) {
			ctx, cancel := context.WithCancel(ctx)
			if c.revoked != nil {
				context.AfterFunc(c.revoked, cancel)
			}
			return ctx, cancel
		}}, nil
}

func (c *doorCallers) Schemes() []bridge.CallerScheme {
	return []bridge.CallerScheme{{Name: "parley", Bearer: true},
		{Name: "corp", OpenID: "https://login.test/.well-known/openid-configuration", Issuer: "https://login.test"}}
}

func newDoorWorld(t testing.TB, edit ...func(*Config)) *doorWorld {
	t.Helper()
	ctx := context.Background()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	j, err := journal.Open(ctx, journal.Config{Store: testjournal.Memory(t)})
	must(err)
	dir, err := directory.Open(ctx, directory.Options{})
	must(err)
	keys, err := keyring.Open(keyring.Options{})
	must(err)
	w := &doorWorld{t: t, callers: &doorCallers{}, ended: make(chan error, 1), slow: make(chan struct{})}
	for _, a := range []parley.Agent{{Name: "alice"}, {Name: "crew/echo", Exposed: parley.Everywhere}, {Name: "hidden"},
		{Name: "tunnel", Identities: []parley.Identity{IdentityOfTunnel("tunnel")}}} {
		_, err := dir.Put(ctx, a, directory.FromOperator)
		must(err)
	}
	p, err := policy.New(policy.Config{Hub: "here"})
	must(err)
	w.hub, err = hub.New(hub.Config{ID: "here", Secret: bytes.Repeat([]byte("s"), 32), Journal: j,
		Directory: dir, Policy: p})
	must(err)
	x, err := index.Open(ctx, index.Config{Journal: j})
	must(err)
	c := Config{Hub: w.hub, Keys: keys, Journal: j, Index: x, Callers: w.callers, PublicURL: "https://hub.test"}
	for _, f := range edit {
		f(&c)
	}
	w.Binding, err = New(c)
	must(err)
	must(w.hub.Bind(w.Binding))
	server := w.server()
	w.door.server = func() *mcp.Server { return server }
	must(w.Start(ctx))
	w.hub.Start()
	t.Cleanup(func() {
		closing, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		must(errors.Join(w.hub.Close(closing), w.Close(), x.Close(), j.Close()))
	})
	t.Cleanup(sync.OnceFunc(func() { close(w.slow) }))
	return w
}

// server has the tools echo, ask, slow and broken.
func (w *doorWorld) server() *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "door", Version: "1"}, &mcp.ServerOptions{
		Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{ListChanged: true}}})
	tool := func(name string, h func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error)) {
		s.AddTool(&mcp.Tool{Name: name, InputSchema: json.RawMessage(`{"type":"object"}`)},
			func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				w.mu.Lock()
				w.calls = append(w.calls, callerOf(r))
				w.mu.Unlock()
				return h(ctx, r)
			})
	}
	say := func(s string) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: s}}}, nil
	}
	tool("echo", func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		if a := r.Extra.Header.Get("Authorization"); a != placeholder || r.Extra.Header.Get("Cookie") != "" {
			return say("the handler sees credentials")
		}
		return say(string(r.Params.Arguments))
	})
	tool("ask", func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		if answer, ok := r.Params.InputResponses["q"].(*mcp.ElicitResult); ok {
			return say(fmt.Sprint(answer.Content["answer"]))
		}
		return &mcp.CallToolResult{RequestState: "s", InputRequests: mcp.InputRequestMap{"q": &mcp.ElicitParams{
			Mode: "form", Message: "where to?", RequestedSchema: json.RawMessage(
				`{"type":"object","properties":{"answer":{"type":"string"}}}`)}}}, nil
	})
	tool("slow", func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		select {
		case <-ctx.Done():
			w.ended <- ctx.Err()
		case <-w.slow:
		}
		return say("late")
	})
	tool("broken", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return nil, errors.New("secret of the inside")
	})
	return s
}

// last is the caller of the last call of a tool.
func (w *doorWorld) last() *caller {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.calls) == 0 {
		return nil
	}
	return w.calls[len(w.calls)-1]
}

// An ask is one HTTP request to the door.
type ask struct {
	method, path, host, body string
	header                   map[string]string
	token                    string // "": none
	local                    bool   // the listener's address is of this machine
	ctx                      context.Context
}

// on makes the request.
func (a ask) on() *http.Request {
	r := httptest.NewRequest(cmp.Or(a.method, "POST"), "https://"+cmp.Or(a.host, "hub.test")+cmp.Or(a.path, "/mcp"),
		strings.NewReader(a.body))
	if a.ctx != nil {
		r = r.WithContext(a.ctx)
	}
	r.RemoteAddr = "192.0.2.7:5000"
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	if a.token != "" {
		r.Header.Set("Authorization", "Bearer "+a.token)
	}
	for k, v := range a.header {
		if r.Header.Set(k, v); v == "" {
			r.Header.Del(k)
		}
	}
	if a.local {
		r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey,
			&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80}))
	}
	return r
}

func (w *doorWorld) do(a ask) *http.Response { return a.to(w) }

// to makes the request to a hub.
func (a ask) to(h http.Handler) *http.Response {
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, a.on())
	return rec.Result()
}

// rpcAnswer is what the tests read of an answer.
type rpcReply struct {
	ID     json.RawMessage
	Result json.RawMessage
	Error  *struct {
		Code    int
		Message string
		Data    json.RawMessage
	}
}

// replyOf reads an answer: JSON, or the last event of a stream.
func replyOf(t testing.TB, r *http.Response) (out rpcReply) {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	if strings.HasPrefix(r.Header.Get("Content-Type"), "text/event-stream") {
		_, data, _ := bytes.Cut(b[max(0, bytes.LastIndex(b, []byte("event: message"))):], []byte("data: "))
		b = data
	}
	if err := json.Unmarshal(b, &out); err != nil {
		t.Fatalf("%d %s: %q: %v", r.StatusCode, r.Header.Get("Content-Type"), b, err)
	}
	return out
}

const modernMeta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
	`"io.modelcontextprotocol/clientCapabilities":{}}`

// modernAsk is a request of 2026-07-28. A tool's name goes to the header.
func modernAsk(method, params string) ask {
	a := ask{token: "alice", header: map[string]string{"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": method}}
	var p struct{ Name string }
	if json.Unmarshal([]byte("{"+params+"}"), &p) == nil && p.Name != "" {
		a.header["Mcp-Name"] = p.Name
	}
	if params != "" {
		params += ","
	}
	a.body = `{"jsonrpc":"2.0","id":7,"method":"` + method + `","params":{` + params + modernMeta + `}}`
	return a
}

const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25",` +
	`"capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`

// begin begins a session.
func (w *doorWorld) begin(token string) (session string) {
	w.t.Helper()
	r := w.do(ask{token: token, body: initialize})
	session = r.Header.Get("Mcp-Session-Id")
	if r.StatusCode != 200 || session == "" || replyOf(w.t, r).Error != nil {
		w.t.Fatalf("initialize: %d, session %q", r.StatusCode, session)
	}
	return session
}

// legacyAsk is a request of 2025-11-25 in a session.
func legacyAsk(token, session, body string) ask {
	return ask{token: token, body: body,
		header: map[string]string{"Mcp-Session-Id": session, "Mcp-Protocol-Version": "2025-11-25"}}
}

func with(a ask, header ...string) ask {
	h := map[string]string{}
	for k, v := range a.header {
		h[k] = v
	}
	for i := 0; i < len(header); i += 2 {
		h[header[i]] = header[i+1]
	}
	a.header = h
	return a
}

// Every line of section 9 of the digest, and more of the kind.
func TestBadInput(t *testing.T) {
	t.Parallel()
	w := newDoorWorld(t, func(c *Config) { c.MaxBody = 4096 })
	session := w.begin("alice")
	body := func(s string) ask { return ask{token: "alice", body: s} }
	listTools := modernAsk("tools/list", "")
	edit := func(old, new string) ask {
		a := modernAsk("tools/call", `"name":"echo","arguments":{}`)
		a.body = strings.Replace(a.body, old, new, 1)
		return a
	}
	deep := strings.Repeat("[", 200) + strings.Repeat("]", 200)
	for _, c := range []struct {
		name   string
		ask    ask
		status int
		code   int
		id     string // "": null
		text   string
	}{
		{"MCP-011 malformed", body(`{"jsonrpc":"2.0",`), 400, -32700, "", ""},
		{"MCP-011 empty", body(""), 400, -32700, "", ""},
		{"MCP-011 no UTF-8", body("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}"), 400, -32700, "", ""},
		{"MCP-011 id null", body(`{"jsonrpc":"2.0","id":null,"method":"tools/list"}`), 400, -32600, "", "id"},
		{"MCP-011 id fraction", body(`{"jsonrpc":"2.0","id":1.5,"method":"tools/list"}`), 400, -32600, "", "id"},
		{"MCP-011 id beyond doubles", body(`{"jsonrpc":"2.0","id":9007199254740993,"method":"tools/list"}`), 400, -32600,
			"", ""},
		{"MCP-011 id object", body(`{"jsonrpc":"2.0","id":{},"method":"tools/list"}`), 400, -32600, "", "id"},
		{"MCP-011 id too long", body(`{"jsonrpc":"2.0","id":"` + strings.Repeat("x", 1100) + `","method":"tools/list"}`), 400,
			-32600, "", "id"},
		{"MCP-011 batch", body(`[{"jsonrpc":"2.0","id":1,"method":"tools/list"}]`), 400, -32600, "", "batch"},
		{"MCP-011 no object", body(`7`), 400, -32600, "", ""},
		{"MCP-011 duplicate", edit(`"id":7`, `"id":7,"id":7`), 400, -32600, "", "duplicate"},
		{"MCP-011 duplicate inside", edit(`"arguments":{}`, `"arguments":{"a":1,"a":2}`), 400, -32600, "", "duplicate"},
		{"MCP-011 wrong case", edit(`"method"`, `"Method"`), 400, -32600, "7", `"method"`},
		{"MCP-011 wrong case of _meta", edit(`"_meta"`, `"_Meta"`), 400, -32600, "7", `"_meta"`},
		{"MCP-011 wrong case in _meta", edit(`protocolVersion"`, `ProtocolVersion"`), 400, -32600, "7", "protocolVersion"},
		{"MCP-011 trailing bytes", edit(modernMeta+"}}", modernMeta+"}}x"), 400, -32600, "", "after"},
		{"MCP-011 depth", edit(`"arguments":{}`, `"arguments":{"a":`+deep+`}`), 400, -32600, "", "deep"},
		{"MCP-011 no version of JSON-RPC", edit(`"jsonrpc":"2.0",`, ``), 400, -32600, "7", "jsonrpc"},
		{"MCP-011 method no string", edit(`"tools/call"`, `7`), 400, -32600, "7", "method"},
		{"MCP-011 params no object", body(`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":[]}`), 400, -32602, "1",
			""},
		{"MCP-011 _meta no object", edit(modernMeta, `"_meta":7`), 400, -32602, "7", "_meta"},
		{"MCP-011 progress token", edit(`"_meta":{`, `"_meta":{"progressToken":{},`), 400, -32602, "7", "progressToken"},
		{"MCP-011 neither request nor answer", body(`{"jsonrpc":"2.0","id":1}`), 400, -32600, "1", ""},
		{"MCP-011 answer without an id", body(`{"jsonrpc":"2.0","result":{}}`), 400, -32600, "", ""},
		{"MCP-011 text/plain", with(listTools, "Content-Type", "text/plain"), 415, -32600, "", "application/json"},
		{"MCP-011 no type", with(listTools, "Content-Type", ""), 415, -32600, "", ""},
		{"MCP-011 charset", with(listTools, "Content-Type", "application/json; charset=latin1"), 415, -32600, "", ""},
		{"MCP-011 Accept JSON alone", with(listTools, "Accept", "application/json"), 400, -32600, "", "Accept"},
		{"MCP-011 Accept events alone", with(listTools, "Accept", "text/event-stream"), 400, -32600, "", "Accept"},
		{"MCP-011 too large", edit(`"arguments":{}`, `"arguments":{"a":"`+strings.Repeat("x", 5000)+`"}`), 413, -32600, "7",
			"4096"},
		{"MCP-011 too large, the id comes late", body(`{"jsonrpc":"2.0","method":"tools/list","params":{"a":"` +
			strings.Repeat("x", 5000) + `"},"id":7}`), 413, -32600, "", "4096"},
		{"MCP-011 too large, the id is cut", body(`{"a":"` + strings.Repeat("x", maxHead-len(`{"a":"","id":12`)) +
			`","id":12345` + strings.Repeat(" ", 5000) + `}`), 413, -32600, "", "4096"},
		{"MCP-011 too large, no JSON", body(strings.Repeat(`{"id"`, 1000)), 413, -32600, "", "4096"},
		{"MCP-007 GET without a session", ask{method: "GET", token: "alice"}, 405, -32600, "", ""},
		{"MCP-007 GET modern", with(ask{method: "GET", token: "alice"}, "Mcp-Session-Id", session, "Mcp-Protocol-Version",
			"2026-07-28"), 405, -32600, "", ""},
		{"MCP-007 DELETE modern", with(ask{method: "DELETE", token: "alice"}, "Mcp-Protocol-Version", "2026-07-28"), 405,
			-32600, "", ""},
		{"MCP-007 PUT", ask{method: "PUT", token: "alice"}, 405, -32600, "", ""},
		{"MCP-007 GET resumes nothing", with(ask{method: "GET", token: "alice"}, "Mcp-Session-Id", session, "Last-Event-ID",
			"a_1"), 400, -32600, "", "parley_result"},
		{"MCP-007 GET takes no events", with(ask{method: "GET", token: "alice"}, "Mcp-Session-Id", session, "Accept",
			"application/json"), 400, -32600, "", "Accept"},
		{"MCP-004 version of the future", with(edit("2026-07-28", "9999-01-01"), "Mcp-Protocol-Version", "9999-01-01"), 400,
			-32022, "7", ""},
		{"MCP-004 version of the past", with(body(initialize), "Mcp-Protocol-Version", "1900-01-01"), 400, -32022, "1", ""},
		{"MCP-004 no version", with(body(initialize), "Mcp-Protocol-Version", "new"), 400, -32022, "1", ""},
		{"MCP-004 GET with a version of the past", with(ask{method: "GET", token: "alice"}, "Mcp-Session-Id", session,
			"Mcp-Protocol-Version", "1900-01-01"), 400, -32022, "", ""},
		{"MCP-003 no _meta", with(body(`{"jsonrpc":"2.0","id":7,"method":"tools/list"}`), "Mcp-Protocol-Version",
			"2026-07-28", "Mcp-Method", "tools/list"), 400, -32602, "7", "protocolVersion"},
		{"MCP-003 no capabilities", edit(`,"io.modelcontextprotocol/clientCapabilities":{}`, ``), 400, -32602, "7",
			"clientCapabilities"},
		{"MCP-003 version no string", edit(`"2026-07-28"`, `7`), 400, -32602, "7", "protocolVersion"},
		{"MCP-003 no Mcp-Method", with(listTools, "Mcp-Method", ""), 400, -32020, "7", "Mcp-Method"},
		{"MCP-003 another Mcp-Method", with(listTools, "Mcp-Method", "tools/call"), 400, -32020, "7", "Mcp-Method"},
		{"MCP-003 no Mcp-Name", with(edit("", ""), "Mcp-Name", ""), 400, -32020, "7", "Mcp-Name"},
		{"MCP-003 another Mcp-Name", with(edit("", ""), "Mcp-Name", "ask"), 400, -32020, "7", "Mcp-Name"},
		{"MCP-003 another Mcp-Name in base64", with(edit("", ""), "Mcp-Name", "=?base64?YXNr?="), 400, -32020, "7",
			"Mcp-Name"},
		{"MCP-003 no header", with(listTools, "Mcp-Protocol-Version", ""), 400, -32020, "7", "MCP-Protocol-Version"},
		{"MCP-003 another version in the header", with(listTools, "Mcp-Protocol-Version", "2025-11-25"), 400, -32020, "7",
			""},
		{"MCP-004 unknown method", modernAsk("tools/nope", ""), 404, -32601, "7", "tools/nope"},
		{"MCP-004 ping", modernAsk("ping", ""), 404, -32601, "7", "ping"},
		{"MCP-004 initialize", modernAsk("initialize", ""), 404, -32601, "7", ""},
		{"MCP-004 a notification with an id", modernAsk("notifications/initialized", ""), 404, -32601, "7", ""},
		{"MCP-004 a modern response", with(body(`{"jsonrpc":"2.0","id":1,"result":{}}`), "Mcp-Protocol-Version",
			"2026-07-28"), 400, -32600, "1", ""},
		{"MCP-004 unknown method in a session", legacyAsk("alice", session, `{"jsonrpc":"2.0","id":2,"method":"no"}`), 200,
			-32601, "2", `"no"`},
		{"MCP-004 a modern method in a session", legacyAsk("alice", session,
			`{"jsonrpc":"2.0","id":2,"method":"subscriptions/listen","params":{}}`), 200, -32601, "2", ""},
		{"MCP-023 unknown tool", modernAsk("tools/call", `"name":"nope"`), 400, -32602, "7", `unknown tool "nope"`},
		{"MCP-011 no params", legacyAsk("alice", session, `{"jsonrpc":"2.0","id":2,"method":"tools/call"}`), 400, -32602, "2",
			"params"},
		{"MCP-004 bad cursor", modernAsk("tools/list", `"cursor":"x"`), 400, -32602, "7", ""},
		{"MCP-006 unknown session", legacyAsk("alice", "nope", `{"jsonrpc":"2.0","id":2,"method":"ping"}`), 404, -32600,
			"", "no such session"},
		{"MCP-006 GET of an unknown session", with(ask{method: "GET", token: "alice"}, "Mcp-Session-Id", "nope"), 404, -32600,
			"", "no such session"},
		{"MCP-006 no session", body(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`), 400, -32600, "2", "initialize"},
		{"MCP-006 initialize again", legacyAsk("alice", session, initialize), 400, -32600, "1", ""},
		{"MCP-006 another caller's session", legacyAsk("bob", session, `{"jsonrpc":"2.0","id":2,"method":"ping"}`), 404,
			-32600, "", ""},
		{"MCP-006 another caller's stream", with(ask{method: "GET", token: "bob"}, "Mcp-Session-Id", session), 404, -32600,
			"", ""},
		{"MCP-006 another caller ends it", with(ask{method: "DELETE", token: "bob"}, "Mcp-Session-Id", session), 404, -32600,
			"", ""},
		{"MCP-006 the session at another endpoint", func() ask {
			a := legacyAsk("alice", session, `{"jsonrpc":"2.0","id":2,"method":"ping"}`)
			a.path = "/mcp/agents/crew/echo"
			return a
		}(), 404, -32600, "", ""},
		{"MCP-012 no token", ask{body: initialize}, 401, -32600, "", ""},
		{"MCP-012 bad token", ask{body: initialize, token: "eve"}, 401, -32600, "", ""},
		{"MCP-012 no token in a session", legacyAsk("", session, `{"jsonrpc":"2.0","id":2,"method":"ping"}`), 401, -32600,
			"", ""},
		{"MCP-012 no token for the stream", with(ask{method: "GET"}, "Mcp-Session-Id", session), 401, -32600, "", ""},
		{"MCP-010 Host", ask{host: "evil.example", token: "alice", body: initialize}, 403, -32600, "", "mcp.hosts"},
		{"MCP-010 Host on loopback", ask{host: "evil.example", token: "alice", local: true, body: initialize}, 403, -32600,
			"",
			""},
		{"MCP-010 Host localhost from elsewhere", ask{host: "localhost", token: "alice", body: initialize}, 403, -32600,
			"", ""},
		{"MCP-010 Origin", with(body(initialize), "Origin", "https://evil.example"), 403, -32600, "", "listen.origins"},
		{"MCP-010 Host of a stream", with(ask{method: "GET", host: "evil.example", token: "alice"}, "Mcp-Session-Id",
			session), 403, -32600, "", ""},
		{"MCP-010 Origin of a tunnel", with(ask{method: "GET", path: "/mcp/connect", token: "alice"}, "Origin",
			"https://evil.example"), 403, -32600, "", ""},
		{"MCP-010 Origin null", with(body(initialize), "Origin", "null"), 403, -32600, "", ""},
		{"MCP-010 Origin of this machine", with(ask{token: "alice", local: true, body: initialize}, "Origin",
			"http://localhost:3000"), 403, -32600, "", ""},
		{"no such endpoint", ask{path: "/mcp/nope", token: "alice"}, 404, -32600, "", ""},
		{"a slash more", ask{path: "/mcp/", token: "alice"}, 404, -32600, "", ""},
		{"unknown agent", ask{path: "/mcp/agents/nobody", token: "alice"}, 404, -32600, "", ""},
		{"agent that is not exposed", ask{path: "/mcp/agents/hidden", token: "alice"}, 404, -32600, "", ""},
		{"no clean path", ask{path: "/mcp/agents//crew/echo", token: "alice"}, 404, -32600, "", ""},
		{"escaped slash", ask{path: "/mcp/agents/crew%2Fecho", token: "alice"}, 404, -32600, "", ""},
		{"attach of another agent", ask{method: "GET", path: "/mcp/attach/tunnel", token: "alice"}, 404, -32600, "", ""},
		{"attach of an unknown agent", ask{method: "GET", path: "/mcp/attach/nobody", token: "alice"}, 404, -32600, "", ""},
		{"attach of an agent without a tunnel", ask{method: "GET", path: "/mcp/attach/alice", token: "alice"}, 403, -32600,
			"",
			"mcp.attached"},
		{"attach by a guest", ask{method: "GET", path: "/mcp/attach/tunnel"}, 401, -32600, "", ""},
		{"POST to a tunnel", ask{path: "/mcp/connect", token: "alice"}, 405, -32600, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := w.do(c.ask)
			got := replyOf(t, r)
			switch {
			case got.Error == nil:
				t.Fatalf("no error: %d %s", r.StatusCode, got.Result)
			case r.StatusCode != c.status || got.Error.Code != c.code || string(got.ID) != cmp.Or(c.id, "null") ||
				!strings.Contains(got.Error.Message, c.text) || got.Error.Message == "":
				t.Errorf("%d %+v, id %s; want %d, %d, %q", r.StatusCode, *got.Error, got.ID, c.status, c.code, c.text)
			}
			if ct := r.Header.Get("Content-Type"); ct != "application/json" || r.Header.Get("Cache-Control") != "no-store" {
				t.Errorf("content type %q, cache %q", ct, r.Header.Get("Cache-Control"))
			}
			if ref := r.Header.Get("Parley-Ref"); c.code != -32022 {
				if _, known := w.hub.Explain(ref); !known {
					t.Errorf("the operator does not know the reference %q", ref)
				}
			}
			if c.text == "no such session" && !strings.Contains(string(got.Error.Data), `"code":"conflict"`) {
				t.Errorf("data %s", got.Error.Data)
			}
			if c.status == 405 && r.Header.Get("Allow") == "" {
				t.Error("no Allow")
			}
			if c.code == -32022 {
				var data struct {
					Supported []string
					Requested string
				}
				if err := json.Unmarshal(got.Error.Data, &data); err != nil || len(data.Supported) != 5 || data.Requested == "" {
					t.Errorf("data %s: %v", got.Error.Data, err)
				}
			}
			if c.status == 401 {
				want := `Bearer realm="parley", resource_metadata="https://hub.test/.well-known/oauth-protected-resource/mcp`
				if got := r.Header.Get("WWW-Authenticate"); !strings.HasPrefix(got, want) ||
					strings.Contains(got, "invalid_token") != (c.ask.token != "") {
					t.Errorf("challenge %s", got)
				}
			}
		})
	}
	if w.begin("alice"); w.last() != nil {
		t.Error("a refused call reached a tool")
	}
}

func TestGoodInput(t *testing.T) {
	t.Parallel()
	w := newDoorWorld(t, func(c *Config) {
		c.Hosts, c.Origins = []string{"other.test:8443", "10.0.0.7"}, []string{"https://app.test"}
		c.Guests = []string{"crew/*"}
	})
	list := modernAsk("tools/list", "")
	at := func(f func(*ask)) ask { a := with(list); f(&a); return a }
	for name, a := range map[string]ask{
		"plain":                      list,
		"charset":                    with(list, "Content-Type", "application/json; charset=UTF-8"),
		"any type":                   with(list, "Accept", "*/*"),
		"MCP-010 a port":             at(func(a *ask) { a.host = "hub.test:443" }),
		"MCP-010 another host":       at(func(a *ask) { a.host = "other.test:8443" }),
		"MCP-010 an address":         at(func(a *ask) { a.host = "10.0.0.7:80" }),
		"MCP-010 loopback":           at(func(a *ask) { a.host, a.local = "[::1]:8080", true }),
		"MCP-010 own origin":         with(list, "Origin", "https://hub.test"),
		"MCP-010 own origin, port":   with(list, "Origin", "https://hub.test:443"),
		"MCP-010 an allowed origin":  with(list, "Origin", "https://app.test"),
		"MCP-012 a guest":            at(func(a *ask) { a.token = "" }),
		"MCP-012 a guest, one agent": at(func(a *ask) { a.token, a.path = "", "/mcp/agents/crew/echo" }),
		"one agent":                  at(func(a *ask) { a.path = "/mcp/agents/crew/echo" }),
		"unknown members":            at(func(a *ask) { a.body = strings.Replace(a.body, `"id"`, `"more":1,"id"`, 1) }),
		"params null in a discover":  modernAsk("server/discover", ""),
		"Mcp-Name in base64": with(modernAsk("tools/call", `"name":"echo","arguments":{}`), "Mcp-Name",
			"=?base64?ZWNobw==?="),
	} {
		r := w.do(a)
		if got := replyOf(t, r); r.StatusCode != 200 || got.Error != nil || string(got.ID) != "7" {
			t.Errorf("%s: %d %+v", name, r.StatusCode, got.Error)
		}
		for _, v := range r.Header["Access-Control-Allow-Origin"] {
			if v != a.header["Origin"] || v == "*" {
				t.Errorf("%s: allows the origin %q", name, v)
			}
		}
	}
	if r := w.do(at(func(a *ask) { a.token, a.path, a.body = "", "/mcp/agents/hidden", "" })); r.StatusCode != 404 {
		t.Errorf("a guest at a hidden agent: %d", r.StatusCode)
	}
	pre := w.do(with(ask{method: "OPTIONS"}, "Origin", "https://app.test", "Access-Control-Request-Method", "POST"))
	if h := pre.Header; pre.StatusCode != 204 || h.Get("Access-Control-Allow-Origin") != "https://app.test" ||
		!strings.Contains(h.Get("Access-Control-Allow-Headers"), "Mcp-Session-Id") {
		t.Errorf("preflight: %d %v", pre.StatusCode, h)
	}
	session := w.begin("alice")
	for name, body := range map[string]string{
		"notification":         `{"jsonrpc":"2.0","method":"notifications/initialized"}`,
		"unknown notification": `{"jsonrpc":"2.0","method":"notifications/of/others","params":{}}`,
		"an answer":            `{"jsonrpc":"2.0","id":4,"result":{}}`,
		"an error":             `{"jsonrpc":"2.0","id":4,"error":{"code":-1,"message":"no","more":1}}`,
	} {
		if r := w.do(legacyAsk("alice", session, body)); r.StatusCode != 202 {
			t.Errorf("%s: %d", name, r.StatusCode)
		}
	}
	r := w.do(modernAsk("notifications/cancelled", `"requestId":1`))
	if r.StatusCode != 404 { // it has an id
		t.Errorf("cancelled with an id: %d", r.StatusCode)
	}
}

// MCP-010: a hub on this machine takes pages of this machine, and a name that only begins like its own is another host.
func TestMCP010LoopbackPages(t *testing.T) {
	t.Parallel()
	w := newDoorWorld(t, func(c *Config) { c.PublicURL = "http://127.0.0.1:8080" })
	for _, c := range []struct {
		host, origin string
		local        bool
		want         int
	}{
		{"127.0.0.1:8080", "http://localhost:3000", true, 200},
		{"localhost:8080", "http://127.0.0.1:8080", true, 200},
		{"127.0.0.1:8080", "http://localhost:3000", false, 403},
		{"127.0.0.1:8080", "http://evil.example", true, 403},
		{"localhost.evil.example", "", true, 403},
		{"127.0.0.1.evil.example", "", true, 403},
	} {
		a := ask{host: c.host, local: c.local, token: "alice", body: initialize}
		if c.origin != "" {
			a = with(a, "Origin", c.origin)
		}
		if r := w.do(a); r.StatusCode != c.want {
			t.Errorf("%+v: %d", c, r.StatusCode)
		}
	}
}

// varying is what differs between two answers to one request: ids, times, spans, references, and sealed states.
var varying = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}|\d{4}-\d\d-\d\dT[0-9:.]+Z|` +
	`00-[0-9a-f]{32}-[0-9a-f]{16}-01|"(?:ref|requestState)":"[^"]+"`)

// MCP-002: the answer to a request of 2026-07-28 is that to the same request of a hub that was never asked before,
// whatever came before it, from this caller or another.
func TestModernRequestsAreJudgedAlone(t *testing.T) {
	t.Parallel()
	open := func(t *testing.T) *testNode {
		w := newWorld(t, func(c *Config) { c.Callers = &doorCallers{} })
		w.handle("free", echo)
		w.handle("travel", asking(say("where to?")))
		return w.node
	}
	able := func(a ask) ask {
		a.body = strings.Replace(a.body, `clientCapabilities":{}`, `clientCapabilities":{"elicitation":{"form":{}}}`, 1)
		return a
	}
	travel := modernAsk("tools/call", `"name":"travel__do","arguments":{"text":"go"}`)
	list := modernAsk("tools/list", "")
	judged := map[string]ask{
		"discover": modernAsk("server/discover", ""), "a list": list,
		"a call": modernAsk("tools/call", `"name":"free__do","arguments":{"text":"hi"}`),
		"a call of a client that cannot be asked": travel,
		"a call of a client that can be asked":    able(travel),
		"a list with the id of a session":         with(list, "Mcp-Session-Id", "nope"),
		"an unknown tool":                         modernAsk("tools/call", `"name":"nope"`),
		"an unknown revision":                     with(list, "Mcp-Protocol-Version", "9999-01-01"),
		"a header that differs":                   with(list, "Mcp-Method", "ping"),
		"a body without the client's capabilities": {token: "alice", header: list.header,
			body: strings.Replace(list.body, `,"io.modelcontextprotocol/clientCapabilities":{}`, "", 1)},
	}
	before := maps.Clone(judged)
	before["a session of a client that can be asked"] = ask{token: "alice", body: strings.Replace(initialize,
		`"capabilities":{}`, `"capabilities":{"elicitation":{}}`, 1)}
	before["another caller"] = with(list, "Authorization", "Bearer bob")
	before["nobody"] = with(list, "Authorization", "")
	before["a notification"] = ask{token: "alice", header: map[string]string{"Mcp-Protocol-Version": modern,
		"Mcp-Method": "notifications/cancelled"}, body: `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{` +
		`"requestId":7,` + modernMeta + `}}`}

	answer := func(n *testNode, a ask) string {
		r := a.to(n)
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%d %s", r.StatusCode, varying.ReplaceAll(b, nil))
	}
	alone := map[string]string{}
	for name, a := range judged {
		alone[name] = answer(open(t), a)
	}
	for name, want := range map[string]string{
		"discover": `200 .*"supportedVersions"`, "a list": `200 .*"free__do"`, "a call": `200 .*"text":"hi"`,
		"a call of a client that cannot be asked":  `200 .*"isError":true`,
		"a call of a client that can be asked":     `200 .*"resultType":"input_required"`,
		"a list with the id of a session":          regexp.QuoteMeta(alone["a list"]),
		"an unknown tool":                          `400 .*-32602`,
		"an unknown revision":                      `400 .*-320`,
		"a header that differs":                    `400 .*-32020`,
		"a body without the client's capabilities": `400 .*-32602`,
	} {
		if !regexp.MustCompile(`(?s)^` + want).MatchString(alone[name]) {
			t.Errorf("%s alone: %s", name, alone[name])
		}
	}
	n := open(t)
	for first, a := range before {
		for name, b := range judged {
			answer(n, a)
			if got := answer(n, b); got != alone[name] {
				t.Errorf("%s, after %s:\n%s\nwant %s", name, first, got, alone[name])
			}
		}
	}
}

// MCP-005: every result of 2026-07-28 says its type, and which server it is.
func TestModernResults(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *Config) { c.Callers = &doorCallers{} })
	w.handle("free", echo)
	for _, a := range []ask{
		modernAsk(methodDiscover, ""), modernAsk(methodListTools, ""), modernAsk(methodResources, ""),
		modernAsk(methodTemplates, ""), modernAsk(methodCallTool, `"name":"free__do","arguments":{"text":"hi"}`),
		modernAsk(methodCallTool, `"name":"`+toolResult+`","arguments":{"id":"x"}`),
		with(modernAsk(methodRead, `"uri":"`+agentURI+`free"`), "Mcp-Name", agentURI+"free"),
	} {
		var got struct {
			ResultType string
			Meta       struct {
				Server struct{ Name, Version string } `json:"io.modelcontextprotocol/serverInfo"`
			} `json:"_meta"`
		}
		r := a.to(w.node)
		if err := json.Unmarshal(replyOf(t, r).Result, &got); err != nil {
			t.Errorf("%s: %d, %v", a.body, r.StatusCode, err)
		}
		if s := got.Meta.Server; got.ResultType != "complete" || s.Name != "parley" || s.Version != "1.2.3" {
			t.Errorf("%s: %+v", a.body, got)
		}
	}
}

// bearer shows a token.
type bearer struct {
	http.RoundTripper
	token   string
	chunked bool // requests do not say how large they are
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	r.Header.Set("Cookie", "secret")
	if b.chunked && r.ContentLength > 0 {
		r.ContentLength = -1
	}
	return b.RoundTripper.RoundTrip(r)
}

// client connects a client of the SDK as alice. chunked: its requests do not say how large they are.
func (w *doorWorld) client(t *testing.T, version string, chunked bool) *mcp.ClientSession {
	t.Helper()
	c, stop := memhttp.Client(w)
	t.Cleanup(stop)
	c.Transport = bearer{c.Transport, "alice", chunked}
	client := mcp.NewClient(&mcp.Implementation{Name: "c", Version: "1"}, &mcp.ClientOptions{
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"answer": "SFO"}}, nil
		}})
	s, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: "https://hub.test/mcp", HTTPClient: c},
		&mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestClientsOfBothEras(t *testing.T) {
	t.Parallel()
	for _, version := range wireRevisions {
		t.Run("MCP-001 "+version, func(t *testing.T) {
			t.Parallel()
			w := newDoorWorld(t)
			s := w.client(t, version, false)
			if got := s.InitializeResult().ProtocolVersion; got != version {
				t.Fatalf("the version is %s", got)
			}
			tools, err := s.ListTools(t.Context(), nil)
			if err != nil || len(tools.Tools) != 4 {
				t.Fatalf("%+v %v", tools, err)
			}
			for name, want := range map[string]string{"echo": `{"a":1}`, "ask": "SFO"} {
				r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: name, Arguments: map[string]any{"a": 1}})
				if err != nil {
					t.Fatal(err)
				}
				if text, ok := r.Content[0].(*mcp.TextContent); !ok || text.Text != want {
					t.Errorf("%s: %+v", name, r.Content[0])
				}
			}
			c := w.last()
			isModern := version == statelessRevision
			if c == nil || c.Name != "alice" || c.modern != isModern || (c.session == "") != isModern || c.endpoint != "/mcp" ||
				c.id == "" {
				t.Errorf("caller %+v", c)
			}
			w.callers.mu.Lock()
			defer w.callers.mu.Unlock()
			if want := []string{"https://hub.test/mcp", "https://hub.test/mcp"}; !slices.Equal(w.callers.resources, want) {
				t.Errorf("MCP-013 resources %q", w.callers.resources)
			}
		})
	}
}

// MCP-011: a client of the SDK reads why a request is refused as too large, whether or not it says before how large it
// is, and goes on. Without the id the SDK would give the connection up.
func TestMCP011TooLargeIsAnAnswer(t *testing.T) {
	t.Parallel()
	for _, version := range []string{statelessRevision, "2025-11-25"} {
		for _, chunked := range []bool{false, true} {
			t.Run(fmt.Sprint(version, " ", chunked), func(t *testing.T) {
				t.Parallel()
				w := newDoorWorld(t, func(c *Config) { c.MaxBody = 4096 })
				s := w.client(t, version, chunked)
				_, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "echo",
					Arguments: map[string]any{"a": strings.Repeat("x", 5000)}})
				if e, ok := errors.AsType[*jsonrpc.Error](err); !ok || !strings.Contains(e.Message, "larger than 4096 bytes") {
					t.Errorf("%v", err)
				}
				if _, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "echo"}); err != nil {
					t.Errorf("the next call: %v", err)
				}
			})
		}
	}
}

// MCP-001: the revisions that the hub lists are those that it serves.
func TestMCP001RevisionsAreThoseOfTheSDK(t *testing.T) {
	t.Parallel()
	w := newDoorWorld(t)
	var found struct{ SupportedVersions []string }
	if err := json.Unmarshal(replyOf(t, w.do(modernAsk("server/discover", ""))).Result, &found); err != nil ||
		!slices.Equal(found.SupportedVersions, wireRevisions) {
		t.Errorf("%q, want %q: %v", found.SupportedVersions, wireRevisions, err)
	}
}
