package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/delivery"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/testcluster"
	"github.com/parley-hub/parley/internal/testjournal"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/index"
	"github.com/parley-hub/parley/keyring"
	"github.com/parley-hub/parley/policy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testcluster.Leaks()...) }

// The revisions of clients, one for each era.
const (
	legacy = "2025-11-25"
	modern = "2026-07-28"
)

// world is a hub with the binding, on a journal and an index in memory. The agents alice and bob call over
// MCP. It works in a bubble of testing/synctest too.
type world struct {
	t    testing.TB
	dir  *directory.Directory
	keys *keyring.Ring
	j    *journal.Journal
	c    Config // of the binding
	node *testNode
}

// testNode is one run of the hub.
type testNode struct {
	hub   *hub.Hub
	index *index.Index
	*Binding
	far *farBinding
}

// farBinding delivers to agents with an identity of the protocol "far" as the test says.
type farBinding struct {
	deliver func(ctx context.Context, o hub.Outbound) hub.Outcome // nil: they have it, and answer later
}

func (f *farBinding) Protocol() string               { return "far" }
func (f *farBinding) Capabilities() hub.Capabilities { return hub.Capabilities{Deduplicates: true} }
func (f *farBinding) Deliver(ctx context.Context, o hub.Outbound) hub.Outcome {
	if f.deliver == nil {
		return hub.Outcome{}
	}
	return f.deliver(ctx, o)
}

func newWorld(t testing.TB, edit ...func(*Config)) *world {
	t.Helper()
	return newWorldOn(t, journal.Config{Store: testjournal.Memory(t)}, edit...)
}

func newWorldOn(t testing.TB, j journal.Config, edit ...func(*Config)) *world {
	t.Helper()
	w := &world{t: t}
	var err error
	w.j, err = journal.Open(context.Background(), j)
	w.must(err)
	w.dir, err = directory.Open(context.Background(), directory.Options{})
	w.must(err)
	w.keys, err = keyring.Open(keyring.Options{})
	w.must(err)
	w.c = Config{Keys: w.keys, Journal: w.j, PublicURL: "https://hub.test", Version: "1.2.3"}
	for _, f := range edit {
		f(&w.c)
	}
	for _, name := range []string{"alice", "bob"} {
		w.agent(parley.Agent{Name: name, Identities: []parley.Identity{IdentityOfCaller(name)}})
	}
	w.node = w.start(nil)
	t.Cleanup(func() {
		w.stop(w.node)
		w.must(w.j.Close())
	})
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// agent adds an agent to the directory.
func (w *world) agent(a parley.Agent) {
	w.t.Helper()
	_, err := w.dir.Put(context.Background(), a, directory.FromOperator)
	w.must(err)
}

// far adds an agent that farBinding delivers to, with one skill.
func (w *world) far(name string, skill parley.SkillSpec) {
	w.t.Helper()
	w.agent(parley.Agent{Name: name, Exposed: parley.Everywhere, Skills: []parley.SkillSpec{skill},
		Identities: []parley.Identity{{Protocol: "far", ID: name}}})
}

// start opens a hub on the world's journal, with the agents here.
func (w *world) start(handlers map[string]parley.Handler) *testNode {
	w.t.Helper()
	p, err := policy.New(policy.Config{Hub: "here", Assurance: map[string]parley.Assurance{"": parley.Session}})
	w.must(err)
	n := &testNode{far: &farBinding{}}
	n.hub, err = hub.New(hub.Config{ID: "here", Secret: bytes.Repeat([]byte("s"), 32), Journal: w.j, Directory: w.dir,
		Policy: p, Delivery: delivery.Config{Retry: delivery.Retry{First: time.Second, Longest: time.Second, Tries: 3}}})
	w.must(err)
	n.index, err = index.Open(context.Background(), index.Config{Journal: w.j})
	w.must(err)
	c := w.c
	c.Hub, c.Index = n.hub, n.index
	n.Binding, err = New(c)
	w.must(err)
	w.must(n.hub.Bind(n.Binding))
	w.must(n.hub.Bind(n.far))
	w.must(n.Start(context.Background()))
	for name, h := range handlers {
		w.handleAt(n, name, parley.RawSkill("do", h))
	}
	n.hub.Start()
	return n
}

// stop ends the work of agents at once.
func (w *world) stop(n *testNode) {
	w.t.Helper()
	ctx, cut := context.WithCancel(context.Background())
	cut()
	if err := n.hub.Close(ctx); !errors.Is(err, context.Canceled) {
		w.must(err)
	}
	w.must(errors.Join(n.Close(), n.index.Close()))
}

// restart stops the hub, and opens it again on the same journal.
func (w *world) restart(handlers map[string]parley.Handler) {
	w.t.Helper()
	w.stop(w.node)
	w.node = w.start(handlers)
}

func (w *world) handleAt(n *testNode, name string, skills ...parley.SkillSpec) {
	w.t.Helper()
	w.must(n.hub.Handle(parley.Agent{Name: name, Exposed: parley.Everywhere, Skills: skills}))
}

// handle adds an agent of this process with the skill "do", which has no schema: the tool NAME__do.
func (w *world) handle(name string, h parley.Handler) {
	w.t.Helper()
	w.handleAt(w.node, name, parley.RawSkill("do", h))
}

// schemas gives a skill its schemas; "": none.
func schemas(s parley.SkillSpec, input, output string) parley.SkillSpec {
	if input != "" {
		s.Input = json.RawMessage(input)
	}
	if output != "" {
		s.Output = json.RawMessage(output)
	}
	return s
}

// caller is a caller with a token.
func (w *world) caller(name string) *caller {
	return &caller{Caller: bridge.Caller{Name: name, Peer: "token " + name, Verdict: parley.Verdict{
		Assurance: parley.Session, Checks: []parley.Check{{Name: "token", OK: true}}}}, endpoint: Base,
		remote: "192.0.2.1:99"}
}

// toolCall is a call of a tool by a caller, as the middleware makes it. arguments are JSON, or "".
func (w *world) toolCall(c *caller, name, arguments string) *toolCall {
	w.t.Helper()
	t := &toolCall{caller: c, name: name, params: &mcp.CallToolParamsRaw{Meta: mcp.Meta{}, Name: name}}
	if arguments != "" {
		t.params.Arguments = json.RawMessage(arguments)
	}
	if !slices.Contains(hubTools, name) {
		tool, ok := w.node.catalogue.Tool(name)
		if !ok {
			w.t.Fatalf("no tool %q", name)
		}
		t.tool = tool
	}
	return t
}

// client is a real client of the SDK, connected to the hub.
type client struct {
	*mcp.ClientSession
	w *world

	mu       sync.Mutex
	progress []*mcp.ProgressNotificationParams
	answers  []string // responses and notifications as the server wrote them
}

// connect connects a client of an era. edit may change its options and its caller.
func (w *world) connect(name, revision string, edit ...func(*mcp.ClientOptions, *caller)) *client {
	w.t.Helper()
	return w.connectTo(w.node, name, revision, edit...)
}

func (w *world) connectTo(n *testNode, name, revision string, edit ...func(*mcp.ClientOptions, *caller)) *client {
	w.t.Helper()
	c := &client{w: w}
	who := w.caller(name)
	who.session = "session of " + name
	o := &mcp.ClientOptions{Capabilities: &mcp.ClientCapabilities{},
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.progress = append(c.progress, r.Params)
		}}
	for _, f := range edit {
		f(o, who)
	}
	near, far := mcp.NewInMemoryTransports()
	ss, err := w.server(n).Connect(context.Background(), &letIn{Transport: near, n: n, who: who, c: c}, nil)
	w.must(err)
	c.ClientSession, err = mcp.NewClient(&mcp.Implementation{Name: "test", Version: "0"}, o).Connect(context.Background(),
		far, &mcp.ClientSessionOptions{ProtocolVersion: revision})
	w.must(err)
	w.t.Cleanup(func() {
		_ = c.Close()
		_ = ss.Close()
	})
	return c
}

// answering gives a client the capability to be asked.
func answering(f func(*mcp.ElicitParams) *mcp.ElicitResult) func(*mcp.ClientOptions, *caller) {
	return func(o *mcp.ClientOptions, _ *caller) {
		o.Capabilities.Elicitation = &mcp.ElicitationCapabilities{Form: &mcp.FormElicitationCapabilities{},
			URL: &mcp.URLElicitationCapabilities{}}
		o.ElicitationHandler = func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return f(r.Params), nil
		}
	}
}

// tool calls a tool. arguments are JSON. edit may change the parameters.
func (c *client) tool(ctx context.Context, name, arguments string, edit ...func(*mcp.CallToolParams)) (
	*mcp.CallToolResult, error) {
	p := &mcp.CallToolParams{Name: name, Arguments: json.RawMessage(arguments)}
	for _, f := range edit {
		f(p)
	}
	return c.CallTool(ctx, p)
}

// withMeta adds members of _meta to a call.
func withMeta(pairs ...any) func(*mcp.CallToolParams) {
	return func(p *mcp.CallToolParams) {
		if p.Meta == nil {
			p.Meta = mcp.Meta{}
		}
		for i := 0; i < len(pairs); i += 2 {
			p.Meta[pairs[i].(string)] = pairs[i+1]
		}
	}
}

// wrote gives what the server wrote with all of these words.
func (c *client) wrote(words ...string) (out []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range c.answers {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(a, w) }) {
			out = append(out, a)
		}
	}
	return out
}

// told gives the messages of the progress notifications.
func (c *client) told() (out []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.progress {
		out = append(out, p.Message)
	}
	return out
}

// letIn is the server's end of a connection, on which each request has a caller: what the door and the tunnels do.
type letIn struct {
	mcp.Transport
	n   *testNode
	who *caller
	c   *client
}

func (l *letIn) Connect(ctx context.Context) (mcp.Connection, error) {
	c, err := l.Transport.Connect(ctx)
	return &letInConn{c, l}, err
}

type letInConn struct {
	mcp.Connection
	*letIn
}

func (l *letInConn) Read(ctx context.Context) (jsonrpc.Message, error) {
	m, err := l.Connection.Read(ctx)
	r, ok := m.(*jsonrpc.Request)
	if err != nil || !ok {
		return m, err
	}
	if r.Method == "notifications/cancelled" {
		var p struct {
			RequestID json.RawMessage `json:"requestId"`
		}
		l.n.must(json.Unmarshal(r.Params, &p))
		l.n.calls.cancelled(l.who.session, string(p.RequestID))
	}
	who := *l.who
	if r.ID.IsValid() {
		id, err := json.Marshal(r.ID.Raw())
		l.n.must(err)
		who.id = string(id)
	}
	r.Extra = &mcp.RequestExtra{TokenInfo: who.tokenInfo()}
	return r, nil
}

func (n *testNode) must(err error) {
	if err != nil {
		panic(err) // not in the test's goroutine
	}
}

func (l *letInConn) Write(ctx context.Context, m jsonrpc.Message) error {
	b, err := jsonrpc.EncodeMessage(m)
	l.n.must(err)
	l.c.mu.Lock()
	l.c.answers = append(l.c.answers, string(b))
	l.c.mu.Unlock()
	return l.Connection.Write(ctx, m)
}

// server is the binding's server, or one that does no more than its middleware must for calls.
func (w *world) server(n *testNode) *mcp.Server {
	if n.clients.server != nil {
		return n.clients.server
	}
	type named struct{}
	s := mcp.NewServer(&mcp.Implementation{Name: "parley", Version: "0"}, &mcp.ServerOptions{
		Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}}})
	s.AddTool(&mcp.Tool{Name: "hidden", InputSchema: json.RawMessage(`{"type":"object"}`)},
		func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			name, _ := ctx.Value(named{}).(string)
			t := &toolCall{caller: callerOf(r), name: name, params: r.Params, session: r.Session}
			switch {
			case slices.Contains([]string{toolSend, toolInbox, toolReply}, name):
				return n.inbox.call(ctx, t), nil
			case !slices.Contains(hubTools, name):
				t.tool, _ = n.catalogue.Tool(name)
			}
			return n.calls.call(ctx, t)
		})
	s.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, r mcp.Request) (mcp.Result, error) {
			if p, ok := r.GetParams().(*mcp.CallToolParamsRaw); ok {
				ctx = context.WithValue(ctx, named{}, p.Name)
				p.Name = "hidden"
			}
			return next(ctx, method, r)
		}
	})
	return s
}

// eventually asks again until f holds.
func (w *world) eventually(what string, f func() bool) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			w.t.Fatal(what)
		}
	}
}

// messages gives the recorded messages of a kind, in order.
func (w *world) messages(kind parley.Kind) (out []*parley.Message) {
	w.t.Helper()
	for p := range w.j.Partitions() {
		for r, err := range w.j.Records(w.t.Context(), p, journal.From{Sequence: 1}) {
			w.must(err)
			if r.Message != nil && r.Message.Kind == kind && r.Refused == nil {
				out = append(out, r.Message)
			}
		}
	}
	return out
}

// texts gives the texts of a result.
func texts(r *mcp.CallToolResult) string {
	var out []string
	for _, c := range r.Content {
		if t, ok := c.(*mcp.TextContent); ok {
			out = append(out, t.Text)
		}
	}
	return strings.Join(out, "\n")
}

// echo answers with what it got.
func echo(_ context.Context, m *parley.Message, r parley.Replier) error { return r.Reply(m.Parts...) }

// gate is a handler that does one step for each token: "progress TEXT", "piece TEXT", "ask TEXT", "fail TEXT", or
// "TEXT", the answer.
type gate chan string

func (g gate) handler(ctx context.Context, _ *parley.Message, r parley.Replier) error {
	for {
		select {
		case step := <-g:
			kind, text, _ := strings.Cut(step, " ")
			var err error
			switch kind {
			case "piece":
				err = r.Chunk(parley.Text(text))
			case "progress":
				err = r.Progress(text)
			case "ask":
				p, _ := r.(parley.Prompter)
				_, err = p.NeedInput(parley.Text(text))
			case "fail":
				return parley.Refuse(parley.Rejected, "%s", text)
			default:
				return r.Reply(parley.Text(step))
			}
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func encoded(t testing.TB, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
