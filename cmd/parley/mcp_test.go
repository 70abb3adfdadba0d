package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/node"
)

func TestDifferences(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ was, now, want string }{
		{"a", "a", ""},
		{"", "a", "+ a"},
		{"a", "b", "- a|+ b"},
		{"1|2|3|4|5|6", "1|2|3|4|5|7", "  …|  4|  5|- 6|+ 7"},
		{"1|2|3|4|5|6|7", "0|1|2|3|4|5|6|7|8", "+ 0|  1|  2|  …|  6|  7|+ 8"},
	} {
		got := strings.Join(differences(strings.Split(c.was, "|"), strings.Split(c.now, "|")), "|")
		if strings.TrimPrefix(got, "  …|") != strings.TrimPrefix(c.want, "  …|") {
			t.Errorf("%s → %s: got %s, want %s", c.was, c.now, got, c.want)
		}
	}
}

// Hidden text in a description, which models read and people do not see, is shown.
func TestToolTextIsVisible(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	a := &app{out: &out}
	tools := admin.AgentTools{Approved: []admin.Tool{{Name: "read", Description: "Reads.", Input: json.RawMessage(`{}`)}},
		Offered: []admin.Tool{{Name: "read", Description: "Reads.\u200b\U000e0041", Input: json.RawMessage(`{"a":1}`)},
			{Name: "new"}}, Digest: "5f2c"}
	if err := a.showTools("files", &tools); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"~ read", "- Reads.", `+ Reads.\u{200b}\u{e0041}`, `+   "a": 1`, "+ new",
		"--digest 5f2c"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, &out)
		}
	}
	if strings.ContainsRune(out.String(), '\u200b') {
		t.Errorf("a hidden character is written as it is:\n%s", &out)
	}
}

// mcpServer is a server that wants a token, if one is given.
func mcpServer(t *testing.T, token string) string {
	s := mcp.NewServer(&mcp.Implementation{Name: "lab", Version: "1.2"}, nil)
	s.AddTool(&mcp.Tool{Name: "echo", Description: "Gives it back.", InputSchema: json.RawMessage(`{"type":"object"}`)},
		func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			text := string(r.Params.Arguments)
			return &mcp.CallToolResult{IsError: strings.Contains(text, "fail"),
				Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil
		})
	h := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, nil)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if token != "" && r.Header.Get("Authorization") != "Bearer "+token {
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		if r.URL.Path != "/mcp" {
			http.NotFound(w, r)
			return
		}
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return server.URL + "/mcp"
}

func TestSendMCP(t *testing.T) {
	t.Parallel()
	open, shut := mcpServer(t, ""), mcpServer(t, "secret")
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--url", open, `{"n":1.50}`}, exitOK, `{"n":1.50}`},
		{[]string{"--url", open, "hello"}, exitOK, `{"text":"hello"}`},
		{[]string{"--url", open, "--text", "7"}, exitOK, `{"text":"7"}`},
		{[]string{"--url", open, "7"}, exitOK, `{"content":7}`},
		{[]string{"--url", open, "--skill", "echo"}, exitOK, `{}`},
		{[]string{"--url", open, "fail"}, exitRefused, `{"text":"fail"}`},
		{[]string{"--url", open, "--json", "hello"}, exitOK, `"content":[`},
		{[]string{"--url", open, "--skill", "none", "x"}, exitRefused, "it has echo"},
		{[]string{"--url", strings.TrimSuffix(open, "mcp") + "none", "x"}, exitUnreachable, "is --url its MCP endpoint?"},
		{[]string{"--url", shut, "--token-file", token, "hi"}, exitOK, `{"text":"hi"}`},
		{[]string{"--url", shut, "hi"}, exitRefused, "is the token right?"},
		{[]string{"--url", "http://127.0.0.1:1/mcp", "hi"}, exitUnreachable, "--url"},
		{[]string{"hi"}, exitUsage, "--url URL"},
		{[]string{"--url", "lab", "hi"}, exitUsage, "want http(s)"},
		{[]string{"--url", open, "--to", "x", "hi"}, exitUsage, "--token-file"},
		{[]string{"--url", open, "--no-wait", "hi"}, exitUsage, "parley_result"},
	} {
		var out bytes.Buffer
		code := run(append([]string{"send", "--protocol", "mcp"}, c.args...), strings.NewReader(""), &out, &out)
		if code != c.code || !strings.Contains(out.String(), c.want) {
			t.Errorf("%s: exit code %d\n%s", strings.Join(c.args, " "), code, &out)
		}
	}
}

// TestAddMCP: an attached server is added by its URL or for a tunnel, a client as one that calls; the tools of a server
// that can be reached are shown.
func TestAddMCP(t *testing.T) {
	t.Parallel()
	open, shut := mcpServer(t, ""), mcpServer(t, "secret")
	data := t.TempDir()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	n, err := node.Open(t.Context(), node.Config{Data: data,
		Listen:  node.Listen{HTTP: "127.0.0.1:0", Admin: "127.0.0.1:0"},
		Network: node.Network{Allow: []string{"loopback"}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close(context.Background()) })
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"agents", "add", "open", "--mcp", open}, exitOK, "tool echo: Gives it back."},
		{[]string{"agents", "add", "shut", "--mcp", shut}, exitOK, "wants credentials: add it again with --mcp-token-file"},
		{[]string{"agents", "add", "shut", "--mcp", shut, "--mcp-token-file", token}, exitOK, "with those that you gave"},
		{[]string{"agents", "add", "away", "--mcp", "http://127.0.0.1:1/mcp"}, exitOK, "could not be listed"},
		{[]string{"agents", "add", "crew/files", "--mcp-attached"}, exitOK, "parley mcp attach crew/files --url "},
		{[]string{"agents", "add", "editor", "--mcp-calls"}, exitOK, "parley tokens add editor-mcp --agent editor"},
		{[]string{"agents", "add", "x", "--mcp-calls", "--mcp", open}, exitUsage, "exclude each other"},
		{[]string{"agents", "add", "x", "--mcp-attached", "--mcp-token-file", token}, exitUsage, "give --mcp URL"},
		{[]string{"agents", "add", "x", "--mcp", "lab"}, exitUsage, "want http(s)"},
		{[]string{"agents", "add", "x", "--mcp", "http://u:p@lab.example/mcp"}, exitUsage, "want no user"},
		{[]string{"agents", "show", "open"}, exitOK, "mcp " + open},
		{[]string{"mcp", "config", "codex"}, exitOK, "url = \"" + n.Addresses().HTTP + "/mcp\""},
		{[]string{"mcp", "tools", "none"}, exitRefused, "none"},
		{[]string{"mcp", "approve", "crew/files", "--yes"}, exitFailed, "nothing to approve"},
	} {
		var out bytes.Buffer
		code := run(append(c.args, "--data", data), strings.NewReader(""), &out, &out)
		text := strings.Join(strings.Fields(out.String()), " ")
		if code != c.code || !strings.Contains(text, strings.Join(strings.Fields(c.want), " ")) {
			t.Errorf("%s: exit code %d\n%s", strings.Join(c.args, " "), code, &out)
		}
		if n := strings.Count(text, open); n > 1 {
			t.Errorf("%s shows the URL %d times: %s", strings.Join(c.args, " "), n, &out)
		}
		if strings.Contains(text, "secret") {
			t.Errorf("%s shows a secret: %s", strings.Join(c.args, " "), &out)
		}
	}
}

// TestMCPConfig: what each client is given has the hub's URL, and is valid in its format.
func TestMCPConfig(t *testing.T) {
	t.Parallel()
	for _, c := range mcpClients {
		var out bytes.Buffer
		args := []string{"mcp", "config", c.name, "--url", "https://hub.corp/base/", "--agent", "crew/weather", "--json"}
		if code := run(args, strings.NewReader(""), &out, &out); code != exitOK {
			t.Fatalf("%s: exit code %d\n%s", c.name, code, &out)
		}
		var shown map[string]string
		if err := json.Unmarshal(out.Bytes(), &shown); err != nil {
			t.Fatal(err)
		}
		text := shown[c.name]
		if !strings.Contains(text, "https://hub.corp/base/mcp/agents/crew/weather") &&
			!strings.Contains(text, `"crew/weather"`) {
			t.Errorf("%s: no URL in %s", c.name, text)
		}
		if strings.HasPrefix(text, "{") && !json.Valid([]byte(text)) {
			t.Errorf("%s: %s", c.name, text)
		}
	}
	var out bytes.Buffer
	code := run([]string{"mcp", "config", "fax", "--url", "https://hub.corp"}, strings.NewReader(""), &out, &out)
	if code != exitUsage || !strings.Contains(out.String(), "claude-code") {
		t.Errorf("exit code %d: %s", code, &out)
	}
}
