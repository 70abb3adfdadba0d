package node

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-hub/parley/admin"
)

var mcpRevisions = []string{"2025-11-25", "2026-07-28"}

// bearer sends a token with each request.
type bearer string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(r)
}

// agentToken issues a token for an agent.
func agentToken(t testing.TB, n *Node, agent string) string {
	t.Helper()
	issued, err := n.Admin().IssueToken(t.Context(), everything,
		admin.NewToken{Name: strings.ReplaceAll(agent, "/", "-"), Agent: agent})
	if err != nil {
		t.Fatal(err)
	}
	return issued.Secret
}

// mcpClient connects a client of the official SDK to an endpoint of the hub.
func mcpClient(t testing.TB, n *Node, path, token, revision string, o *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	return mcpSession(t, &mcp.StreamableClientTransport{Endpoint: n.Addresses().Local + path, MaxRetries: -1,
		HTTPClient: &http.Client{Transport: bearer(token)}}, revision, o)
}

func mcpSession(t testing.TB, over mcp.Transport, revision string, o *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	s, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, o).Connect(context.Background(), over,
		&mcp.ClientSessionOptions{ProtocolVersion: revision})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// said calls a tool, and gives what the result says, and the handle of its request.
func said(t testing.TB, s *mcp.ClientSession, tool, arguments string, meta mcp.Meta) (text, handle string) {
	t.Helper()
	r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Meta: meta, Name: tool, Arguments: json.RawMessage(arguments)})
	if err != nil {
		t.Fatalf("%s: %v", tool, err)
	}
	for _, c := range r.Content {
		if c, ok := c.(*mcp.TextContent); ok {
			text += c.Text
		}
	}
	handle, _ = r.Meta["hub.parley/handle"].(string)
	return text, handle
}

// lists waits until a client's list has a tool.
func lists(t testing.TB, s *mcp.ClientSession, tool string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		l, err := s.ListTools(ctx, nil)
		if err != nil {
			t.Fatalf("%s is not listed: %v", tool, err)
		}
		if slices.ContainsFunc(l.Tools, func(d *mcp.Tool) bool { return d.Name == tool }) {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s is not listed", tool)
		}
	}
}

// greeter is a server with the tool greet.
func greeter(name string) *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: name, Version: "1"}, nil)
	s.AddTool(&mcp.Tool{Name: "greet", InputSchema: json.RawMessage(`{"type":"object"}`)},
		func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{
				&mcp.TextContent{Text: name + " greets " + string(r.Params.Arguments)}}}, nil
		})
	return s
}

func serveMCP(t testing.TB, s *mcp.Server, around func(http.Handler) http.Handler) string {
	h := http.Handler(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s },
		&mcp.StreamableHTTPOptions{Stateless: true}))
	if around != nil {
		h = around(h)
	}
	web := httptest.NewServer(h)
	t.Cleanup(web.Close)
	return web.URL
}

// wire is the far end of a tunnel, as the commands `parley mcp attach` and `parley mcp stdio` have it.
type wire struct{ *websocket.Conn }

func tunnelTo(t testing.TB, n *Node, path, token string) wire {
	t.Helper()
	c, _, err := websocket.Dial(t.Context(), n.Addresses().Local+path,
		&websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + token}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.CloseNow() })
	return wire{c}
}

func (w wire) Connect(context.Context) (mcp.Connection, error) { return w, nil }
func (w wire) SessionID() string                               { return "" }
func (w wire) Close() error                                    { return w.CloseNow() }

func (w wire) Read(ctx context.Context) (jsonrpc.Message, error) {
	_, b, err := w.Conn.Read(ctx)
	if err != nil {
		return nil, err
	}
	return jsonrpc.DecodeMessage(b)
}

func (w wire) Write(ctx context.Context, m jsonrpc.Message) error {
	b, err := jsonrpc.EncodeMessage(m)
	if err != nil {
		return err
	}
	return w.Conn.Write(ctx, websocket.MessageText, b)
}

// attach joins a server to the hub, as the agent that the token speaks for.
func attach(t testing.TB, n *Node, name, token string, s *mcp.Server) {
	t.Helper()
	session, err := s.Connect(context.Background(), tunnelTo(t, n, "/mcp/attach/"+name, token), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
}

// TestMCPThroughANode: clients of both eras, over HTTP and by a tunnel, call an agent of the program, a server attached
// over HTTP and one attached by a tunnel (MCP-001). The tools that an attached server adds wait for the operator
// (MCP-074).
func TestMCPThroughANode(t *testing.T) {
	shop := serveMCP(t, greeter("shop"), nil)
	n, _, _ := fromFile(t, "[network]\nallow = [\"loopback\"]\n[agents.shop.mcp]\nurl = \""+shop+
		"\"\n[agents.files.mcp]\nattached = true\n")
	files, its := greeter("files"), agentToken(t, n, "files")
	attach(t, n, "files", its, files)
	token := agentToken(t, n, "crew/alice")
	check := func(name string, s *mcp.ClientSession) {
		t.Helper()
		for tool, want := range map[string]string{"echo__say": `{"a":1}`, "shop__greet": `shop greets {"a":1}`,
			"files__greet": `files greets {"a":1}`} {
			lists(t, s, tool)
			if got, handle := said(t, s, tool, `{"a":1}`, nil); got != want || handle == "" {
				t.Errorf("%s, %s: %q, handle %q", name, tool, got, handle)
			}
		}
	}
	for _, revision := range mcpRevisions {
		check(revision, mcpClient(t, n, "/mcp", token, revision, nil))
	}
	check("stdio", mcpSession(t, tunnelTo(t, n, "/mcp/connect", token), mcpRevisions[0], nil))
	one := mcpClient(t, n, "/mcp/agents/files", token, mcpRevisions[1], nil)
	if got, _ := said(t, one, "greet", `{}`, nil); got != "files greets {}" {
		t.Errorf("at the agent's endpoint: %q", got)
	}
	if at := n.AgentAddresses("files")["mcp"]; at != n.Addresses().HTTP+"/mcp/agents/files" {
		t.Errorf("its address is %q", at)
	}

	added := make(chan struct{}, 9)
	s := mcpClient(t, n, "/mcp", token, mcpRevisions[0], &mcp.ClientOptions{
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { added <- struct{}{} }})
	mcp.AddTool(files, &mcp.Tool{Name: "remove"}, func(context.Context, *mcp.CallToolRequest, struct{}) (
		*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{}, nil, nil
	})
	attach(t, n, "files", its, files) // again: the hub reads the list of a new tunnel at once
	var tools admin.AgentTools
	for tick := time.NewTicker(5 * time.Millisecond); tools.Offered == nil; <-tick.C {
		var err error
		if tools, err = n.Admin().AgentTools(t.Context(), everything, "files"); err != nil {
			t.Fatal(err)
		}
	}
	if l, err := s.ListTools(t.Context(), nil); err != nil || slices.ContainsFunc(l.Tools,
		func(d *mcp.Tool) bool { return d.Name == "files__remove" }) {
		t.Errorf("a new tool did not wait for the operator: %v", err)
	}
	if _, err := n.Admin().ApproveTools(t.Context(), everything, "files", tools.Digest); err != nil {
		t.Fatal(err)
	}
	<-added
	lists(t, s, "files__remove")
}

// TestMCPListFollowsReload: a client hears that a reload changed its tools.
func TestMCPListFollowsReload(t *testing.T) {
	n, write, _ := fromFile(t, "[agents.lab]\nexpose = [\"mcp\"]\nsamvad = { url = \"https://lab.example\" }\n")
	changed := make(chan struct{}, 9)
	s := mcpClient(t, n, "/mcp", agentToken(t, n, "crew/alice"), mcpRevisions[0], &mcp.ClientOptions{
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { changed <- struct{}{} }})
	lists(t, s, "lab__talk")
	write("[agents.museum]\nexpose = [\"mcp\"]\nsamvad = { url = \"https://museum.example\" }\n")
	if _, err := n.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-changed
	lists(t, s, "museum__talk")
	_, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "lab__talk", Arguments: map[string]any{"text": "x"}})
	if err == nil || !strings.Contains(err.Error(), "unknown tool") {
		t.Errorf("the agent that was removed: %v", err)
	}
}

// TestMCPStop: a call that is open when the hub stops gets its handle. The answer of the agent, which reads its
// messages with parley_inbox, is there after the restart, by the handle (MCP-060) and by the idempotency key (MCP-061).
// What was forgotten is not.
func TestMCPStop(t *testing.T) {
	c := Config{Data: t.TempDir(), Durability: "disk", Listen: Listen{HTTP: "127.0.0.1:0", Admin: "127.0.0.1:0"},
		Agents: map[string]Agent{"bob": {MCP: &MCPAgent{Calls: true}}}}
	open := func() *Node {
		t.Helper()
		n, err := Open(t.Context(), c)
		if err == nil {
			err = n.Start(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	n := open()
	token, his := agentToken(t, n, "crew/alice"), agentToken(t, n, "bob")
	s, bob := mcpClient(t, n, "/mcp", token, mcpRevisions[1], nil), mcpClient(t, n, "/mcp", his, mcpRevisions[1], nil)
	key := mcp.Meta{"hub.parley/idempotencyKey": "k1"}
	type result struct{ text, handle string }
	got := make(chan result, 1)
	go func() {
		text, handle := said(t, s, "bob__talk", `{"text":"quincunx"}`, key)
		got <- result{text, handle}
	}()
	if text, _ := said(t, bob, "parley_inbox", `{}`, nil); !strings.Contains(text, "quincunx") {
		t.Fatalf("the inbox has %s", text)
	}
	if err := n.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	r := <-got
	if r.handle == "" || !strings.Contains(r.text, "parley_result") {
		t.Fatalf("%+v", r)
	}
	n = open()
	t.Cleanup(func() { _ = n.Close(context.Background()) })
	s, bob = mcpClient(t, n, "/mcp", token, mcpRevisions[1], nil), mcpClient(t, n, "/mcp", his, mcpRevisions[1], nil)
	said(t, bob, "parley_reply", `{"id":"`+r.handle+`","content":"saxifrage"}`, nil)
	for what, call := range map[string]func() (string, string){
		"by the handle": func() (string, string) { return said(t, s, "parley_result", `{"id":"`+r.handle+`"}`, nil) },
		"by the key":    func() (string, string) { return said(t, s, "bob__talk", `{"text":"quincunx"}`, key) },
	} {
		if text, handle := call(); text != "saxifrage" || handle != r.handle {
			t.Errorf("%s: %q %q", what, text, handle)
		}
	}
	m, err := n.Admin().Message(t.Context(), everything, r.handle, false)
	if err != nil {
		t.Fatal(err)
	}
	what := admin.Forget{Conversation: m.Conversation.String()}
	if _, err := n.Admin().Forget(t.Context(), everything, what); err != nil {
		t.Fatal(err)
	}
	if text, _ := said(t, s, "parley_result", `{"id":"`+r.handle+`"}`, nil); strings.Contains(text, "saxifrage") {
		t.Errorf("after it was forgotten: %q", text)
	}
	for _, word := range []string{"quincunx", "saxifrage"} {
		if files := inFiles(t, c.Data, word); len(files) > 0 {
			t.Errorf("%s is still in %v", word, files)
		}
	}
}
