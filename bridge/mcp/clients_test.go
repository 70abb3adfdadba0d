package mcp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/policy"
)

// eras runs a test for each era.
func eras(t *testing.T, f func(t *testing.T, revision string)) {
	for _, revision := range []string{legacy, modern} {
		t.Run(revision, func(t *testing.T) {
			t.Parallel()
			f(t, revision)
		})
	}
}

// allow sets the only rules of the policy.
func (w *world) allow(rules ...policy.Rule) {
	w.t.Helper()
	p, err := policy.New(policy.Config{Hub: "here", Allow: rules,
		Assurance: map[string]parley.Assurance{"": parley.Session}})
	w.must(err)
	w.node.hub.SetPolicy(p)
}

// at makes a client's caller one at the endpoint of an agent.
func at(agent string) func(*mcp.ClientOptions, *caller) {
	return func(_ *mcp.ClientOptions, c *caller) { c.endpoint, c.agent = Base+"/agents/"+agent, agent }
}

func asGuest(_ *mcp.ClientOptions, c *caller) {
	c.Guest, c.Peer, c.Verdict = true, "192.0.2.1", parley.Verdict{}
}

// rawClient writes JSON-RPC itself.
type rawClient struct {
	mcp.Connection
	w        *world
	revision string
	id       int
}

const initializing = `"capabilities":{},"clientInfo":{"name":"x","version":"0"}`

// raw connects a client that writes JSON-RPC itself; a legacy one is initialized.
func (w *world) raw(name, revision string) *rawClient {
	w.t.Helper()
	who := w.caller(name)
	near, far := mcp.NewInMemoryTransports()
	ss, err := w.server(w.node).Connect(context.Background(),
		&letIn{Transport: near, n: w.node, who: who, c: &client{w: w}}, nil)
	w.must(err)
	conn, err := far.Connect(context.Background())
	w.must(err)
	w.t.Cleanup(func() {
		_ = conn.Close()
		_ = ss.Close()
	})
	r := &rawClient{Connection: conn, w: w, revision: revision}
	if revision == legacy {
		a := r.call("initialize", `"protocolVersion":"`+modern+`",`+initializing)
		if !strings.Contains(a, `"protocolVersion":"`+legacy+`"`) {
			w.t.Fatal(a)
		}
	}
	return r
}

// call gives the answer to a request with these members of params.
func (r *rawClient) call(method, params string) string {
	r.w.t.Helper()
	if r.revision == modern {
		params = strings.TrimPrefix(params+`,"_meta":{"io.modelcontextprotocol/protocolVersion":"`+modern+
			`","io.modelcontextprotocol/clientCapabilities":{}}`, ",")
	}
	r.id++
	m, err := jsonrpc.DecodeMessage(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"method":%q,"params":{%s}}`, r.id, method,
		params))
	r.w.must(err)
	r.w.must(r.Write(r.w.t.Context(), m))
	a, err := r.Read(r.w.t.Context())
	r.w.must(err)
	b, err := jsonrpc.EncodeMessage(a)
	r.w.must(err)
	return string(b)
}

func TestOpening(t *testing.T) {
	t.Parallel()
	eras(t, func(t *testing.T, revision string) {
		w := newWorld(t)
		w.handle("weather", echo)
		c := w.connect("alice", revision)
		if _, err := c.ListTools(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		i := c.InitializeResult()
		if i.ServerInfo.Name != "parley" || i.ServerInfo.Version != "1.2.3" || i.ProtocolVersion != revision ||
			!strings.Contains(i.Instructions, "You are the agent alice") || !strings.Contains(i.Instructions, toolInbox) ||
			!strings.Contains(i.Instructions, toolResult) || strings.Contains(i.Instructions, toolFind) {
			t.Error(encoded(t, i))
		}
		if p := i.Capabilities; strings.Contains(encoded(t, p), `"logging"`) || p.Prompts != nil ||
			p.Completions != nil || p.Resources == nil ||
			p.Resources.Subscribe || p.Tools == nil || !p.Tools.ListChanged {
			t.Error(encoded(t, p))
		}
		for _, a := range c.wrote(`"result"`) {
			if revision == modern && (!strings.Contains(a, `"resultType":"complete"`) ||
				!strings.Contains(a, `serverInfo":{"name":"parley"`) || !strings.Contains(a, `"cacheScope":"private"`)) {
				t.Error("MCP-005 MCP-022:", a)
			}
			if strings.Contains(a, `"public"`) {
				t.Error("MCP-022:", a)
			}
		}
	})
	t.Run("one agent", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.must(w.node.hub.Handle(parley.Agent{Name: "weather", Exposed: parley.Everywhere, Description: "Fore\u200bcasts.",
			Skills: []parley.SkillSpec{parley.RawSkill("do", echo)}}))
		i := w.connect("alice", modern, at("weather")).InitializeResult()
		if !strings.Contains(i.Instructions, "This is the agent weather") ||
			!strings.HasSuffix(i.Instructions, "in its own words: Forecasts.") || strings.Contains(i.Instructions, toolSend) {
			t.Error(i.Instructions)
		}
		w.allow(policy.Rule{From: "bob", To: []string{"**"}})
		if i := w.connect("alice", modern, at("weather")).InitializeResult(); strings.Contains(i.Instructions, "Forecasts") {
			t.Error("MCP-022:", i.Instructions)
		}
	})
}

// MCP-005: a server is named with a version, also when the program that runs the hub has none.
func TestMCP005VersionOfTheServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *Config) { c.Version = "" })
	if i := w.connect("alice", modern).InitializeResult(); i.ServerInfo.Version == "" {
		t.Error(encoded(t, i.ServerInfo))
	}
}

func TestUnservedMethods(t *testing.T) {
	t.Parallel()
	for _, revision := range []string{legacy, modern} {
		w := newWorld(t)
		c := w.raw("alice", revision)
		for method, params := range map[string]string{
			"prompts/list": ``, "prompts/get": `"name":"x"`, "logging/setLevel": `"level":"info"`,
			"completion/complete": `"ref":{"type":"ref/prompt","name":"x"},"argument":{"name":"a","value":""}`,
			"resources/subscribe": `"uri":"parley://agents/bob"`, "resources/unsubscribe": `"uri":"parley://agents/bob"`,
			"tasks/get": `"taskId":"x"`,
		} {
			if a := c.call(method, params); !strings.Contains(a, `"code":-32601`) {
				t.Error(revision, method, a)
			}
		}
		for _, method := range []string{"tools/list", "resources/list", "resources/templates/list"} {
			if a := c.call(method, `"cursor":"abc"`); !strings.Contains(a, `"code":-32602`) {
				t.Error(revision, method, a)
			}
		}
		a := c.call("initialize", `"protocolVersion":"`+legacy+`",`+initializing)
		if !strings.Contains(a, `"code":-32600`) && !strings.Contains(a, `"code":-32601`) {
			t.Error("MCP-028", revision, a)
		}
		if a := c.call("tools/list", ``); !strings.Contains(a, `"result"`) {
			t.Error(revision, a)
		}
	}
}

// rpcCode gives the code of a JSON-RPC error, and its text.
func rpcCode(t *testing.T, err error) (int64, string) {
	t.Helper()
	e, ok := errors.AsType[*jsonrpc.Error](err)
	if !ok {
		t.Fatalf("%v is no JSON-RPC error", err)
	}
	return e.Code, e.Message
}

func TestUnknownTools(t *testing.T) {
	t.Parallel()
	eras(t, func(t *testing.T, revision string) {
		w := newWorld(t)
		w.handle("open", echo)
		w.handle("closed", echo)
		w.must(w.node.hub.Handle(parley.Agent{Name: "elsewhere", Exposed: []string{"samvad"},
			Skills: []parley.SkillSpec{parley.RawSkill("do", echo)}}))
		w.agent(parley.Agent{Name: "carol"})
		w.allow(policy.Rule{From: "*", To: []string{"open", "alice", "carol"}})
		for _, c := range []struct {
			by   string
			edit []func(*mcp.ClientOptions, *caller)
			name []string
		}{
			{"alice", nil, []string{"none__do", "closed__do", "closed.do", "closed", "elsewhere__do", "alice__talk", "alice",
				hiddenTool, "", "parley_nothing", "open__none"}},
			{"carol", nil, []string{toolInbox, toolReply}},
			{"guest/mcp/x", []func(*mcp.ClientOptions, *caller){asGuest}, []string{"open__do", toolInbox}},
			{"alice", []func(*mcp.ClientOptions, *caller){at("open")}, []string{"open__do", "none", toolFind, toolAsk,
				toolSend, toolInbox, toolReply}},
			{"alice", []func(*mcp.ClientOptions, *caller){at("closed")}, []string{"do", "closed__do"}},
			{"alice", []func(*mcp.ClientOptions, *caller){at("none")}, []string{"do", "none"}},
		} {
			client := w.connect(c.by, revision, c.edit...)
			for _, name := range c.name {
				_, err := client.tool(t.Context(), name, `{}`)
				if code, text := rpcCode(t, err); code != jsonrpc.CodeInvalidParams ||
					text != fmt.Sprintf("unknown tool %q", name) {
					t.Errorf("MCP-023 %s %q: %d %s", c.by, name, code, text)
				}
			}
		}
	})
}

// A call whose handler fails ends with a result, and the session goes on.
func TestFailedHandlers(t *testing.T) {
	t.Parallel()
	eras(t, func(t *testing.T, revision string) {
		w := newWorld(t)
		w.handle("open", echo)
		c := w.connect("alice", revision)
		calls, requests := w.node.calls, w.node.requests
		w.node.calls, w.node.requests = nil, nil
		r, err := c.tool(t.Context(), "open__do", `{}`)
		if err != nil || !r.IsError || !strings.Contains(texts(r), "the hub failed") {
			t.Errorf("MCP-028: %v, %v", r, err)
		}
		_, err = c.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: conversationURI + strings.Repeat("0", 8) +
			"-0000-7000-8000-000000000000"})
		if code, text := rpcCode(t, err); code != jsonrpc.CodeInternalError || text != "the hub failed" {
			t.Errorf("MCP-028: %d %s", code, text)
		}
		w.node.calls, w.node.requests = calls, requests
		if _, err := c.ListTools(t.Context(), nil); err != nil {
			t.Error(err)
		}
		if got := c.wrote(`"code":0`); len(got) > 0 {
			t.Error("MCP-028:", got)
		}
	})
}

func TestPublicErrors(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	own := rpcError(-32602, "mine")
	secret := errors.New("open /secret")
	for _, c := range []struct {
		method string
		err    error
		code   int64
		text   string
	}{
		{methodCallTool, own, -32602, "mine"},
		{methodListTools, secret, jsonrpc.CodeInternalError, "the hub failed"},
		{methodListen, fmt.Errorf("%w: %w", rpcError(-32602, "invalid params"), secret), -32602, "invalid params"},
		{methodInitialize, secret, jsonrpc.CodeInvalidRequest, "the session is initialized already"},
		{methodListTools, rpcError(0, "x"), jsonrpc.CodeInternalError, "the hub failed"},
	} {
		if code, text := rpcCode(t, w.node.clients.publicError(c.method, c.err)); code != c.code || text != c.text {
			t.Errorf("MCP-028 %v: %d %s", c.err, code, text)
		}
	}
	call := &toolCall{name: "x", caller: w.caller("alice")}
	if r, err := w.node.clients.unasked(t.Context(), call, own); r != nil || err != own {
		t.Error(r, err)
	}
	r, err := w.node.clients.unasked(t.Context(), call, fmt.Errorf("multi-round-trip: %w", secret))
	if res, ok := r.(*mcp.CallToolResult); err != nil || !ok || !res.IsError || strings.Contains(texts(res), "secret") {
		t.Error(r, err)
	}
}

// A client hears of changes of its own list, and of no others.
func TestListChanged(t *testing.T) {
	for _, revision := range []string{legacy, modern} {
		t.Run(revision, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.allow(policy.Rule{From: "alice", To: []string{"*"}}, policy.Rule{From: "bob", To: []string{"shared"}})
				var heard [3]atomic.Int32
				listen := func(i int) func(*mcp.ClientOptions, *caller) {
					return func(o *mcp.ClientOptions, _ *caller) {
						o.ToolListChangedHandler = func(context.Context, *mcp.ToolListChangedRequest) { heard[i].Add(1) }
					}
				}
				a, b := w.connect("alice", revision, listen(0)), w.connect("bob", revision, listen(1))
				w.connect("alice", revision, at("shared"), listen(2))
				expect := func(what string, want ...int32) {
					t.Helper()
					time.Sleep(2 * changePause)
					synctest.Wait()
					if got := []int32{heard[0].Load(), heard[1].Load(), heard[2].Load()}; !slices.Equal(got, want) {
						t.Errorf("%s: %d, want %d", what, got, want)
					}
				}
				expect("nothing happened", 0, 0, 0)
				w.handle("private", echo)
				expect("an agent that alice alone may use", 1, 0, 0)
				for range 3 {
					w.handleAt(w.node, "shared", parley.RawSkill("do", echo), parley.RawSkill("more", echo))
					w.handleAt(w.node, "shared", parley.RawSkill("do", echo))
				}
				expect("several changes at once", 2, 1, 1)
				w.must(w.dir.Pause(t.Context(), "shared", true))
				expect("a change that no list shows", 2, 1, 1)
				w.allow(policy.Rule{From: "*", To: []string{"*"}})
				w.node.ListsChanged()
				expect("a change of the policy", 2, 2, 1)
				for _, c := range []*client{a, b} {
					for _, text := range c.wrote(toolsChanged) {
						if revision == modern && !strings.Contains(text, "subscriptionId") {
							t.Error(text)
						}
					}
				}
				w.must(b.Close())
				synctest.Wait()
				w.handle("last", echo)
				expect("a session that has ended", 3, 2, 1)
			})
		})
	}
}

func TestEndedSessionsAreForgotten(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.node.clients
	c.mu.Lock()
	for range 200 {
		c.sessions[new(mcp.ServerSession)] = &listening{caller: w.caller("bob")}
	}
	c.mu.Unlock()
	var open []*client
	for range 57 { // to the next power of 2, 256
		open = append(open, w.connect("alice", legacy))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.sessions) != len(open) {
		t.Errorf("%d sessions are noted, %d are open", len(c.sessions), len(open))
	}
}
