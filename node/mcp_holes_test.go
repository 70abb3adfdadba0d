package node

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"
	"testing"
)

const mcpInitialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25",` +
	`"capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`

// postMCP sends a message to an endpoint; headers are pairs of names and values. Host is the header of the name.
func postMCP(t testing.TB, n *Node, path, body string, headers ...string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, n.Addresses().Local+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	for i := 0; i < len(headers); i += 2 {
		if r.Header.Set(headers[i], headers[i+1]); headers[i] == "Host" {
			r.Host = headers[i+1]
		}
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(b)
}

// TestMCPDoor: a page under another name or of another origin reaches nothing (MCP-010), and a session is of one caller
// at one endpoint, whatever its id (MCP-006).
func TestMCPDoor(t *testing.T) {
	n := running(t, Config{})
	alice, bob := "Bearer "+agentToken(t, n, "crew/alice"), "Bearer "+agentToken(t, n, "crew/bob")
	for _, c := range [][]string{{"Host", "evil.example"}, {"Host", "localhost.evil.example:80"},
		{"Origin", "https://evil.example"}, {"Origin", "null"}} {
		resp, body := postMCP(t, n, "/mcp", mcpInitialize, append(c, "Authorization", alice)...)
		if resp.StatusCode != http.StatusForbidden || resp.Header.Get("Mcp-Session-Id") != "" ||
			resp.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%v: %d %s", c, resp.StatusCode, body)
		}
	}
	resp, body := postMCP(t, n, "/mcp", mcpInitialize, "Authorization", alice)
	session := resp.Header.Get("Mcp-Session-Id")
	if resp.StatusCode != http.StatusOK || session == "" {
		t.Fatalf("%d %s", resp.StatusCode, body)
	}
	const ping = `{"jsonrpc":"2.0","id":2,"method":"ping"}`
	for _, c := range []struct {
		name, path, token string
		status            int
	}{{"her own", "/mcp", alice, 200}, {"another caller", "/mcp", bob, 404},
		{"another endpoint", "/mcp/agents/echo", alice, 404}, {"no token", "/mcp", "", 401}, {"another token", "/mcp", "Bearer x", 401}} {
		headers := []string{"Mcp-Session-Id", session, "Mcp-Protocol-Version", "2025-11-25"}
		if c.token != "" {
			headers = append(headers, "Authorization", c.token)
		}
		if resp, body := postMCP(t, n, c.path, ping, headers...); resp.StatusCode != c.status {
			t.Errorf("%s: %d %s", c.name, resp.StatusCode, body)
		}
	}
}

// TestMCPTokensStay: the token of a caller reaches neither an attached server nor its token endpoint, and is in no file
// of the hub (MCP-013). The credentials for the server are its own, and stay out of the journal too.
func TestMCPTokensStay(t *testing.T) {
	var mu sync.Mutex
	var seen strings.Builder
	shop := serveMCP(t, greeter("shop"), func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			dump, err := httputil.DumpRequest(r, true)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			seen.Write(dump)
			mu.Unlock()
			if r.URL.Path == "/token" {
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, `{"access_token":"shop-access","token_type":"Bearer","expires_in":3600}`)
				return
			}
			h.ServeHTTP(w, r)
		})
	})
	dir := t.TempDir()
	write(t, dir, "shop.secret", "shop-secret", 0o600)
	c, err := Load(write(t, dir, "parley.toml", `durability = "disk"
[listen]
http = "127.0.0.1:0"
admin = "127.0.0.1:0"
[network]
allow = ["loopback"]
[agents.shop.mcp]
url = "`+shop+`/mcp"
oauth = { token_url = "`+shop+`/token", client_id = "hub", client_secret_file = "shop.secret" }
`, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	c.Data = t.TempDir()
	n := running(t, c)
	token := agentToken(t, n, "crew/alice")
	for _, revision := range mcpRevisions {
		s := mcpClient(t, n, "/mcp", token, revision, nil)
		lists(t, s, "shop__greet")
		if got, _ := said(t, s, "shop__greet", `{"a":1}`, nil); got != `shop greets {"a":1}` {
			t.Errorf("%s: %q", revision, got)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if got := seen.String(); strings.Contains(got, token) || !strings.Contains(got, "Bearer shop-access") {
		t.Errorf("the attached server saw\n%s", got)
	}
	for _, secret := range []string{token, "shop-access", "shop-secret"} {
		if files := inFiles(t, c.Data, secret); len(files) > 0 {
			t.Errorf("%q is in %v", secret, files)
		}
	}
}

// TestMCPTokensOfAnIssuer: a token for the MCP endpoint is taken, one for another resource is not (MCP-013), and a
// client finds the issuer by the metadata that the refusal names (MCP-012).
func TestMCPTokensOfAnIssuer(t *testing.T) {
	l := newLogin(t)
	n := running(t, Config{PublicURL: "https://hub.example", Network: Network{Allow: []string{"loopback"}},
		Callers: Callers{Issuers: []Issuer{{Name: "corp", URL: l.URL, Agents: []Subject{{"alice", "crew/alice"}}}}}})
	for audience, want := range map[string]int{"https://hub.example/mcp": 200, "https://hub.example": 200,
		"https://hub.example/mcp/agents/echo": 401, "https://other.example/mcp": 401} {
		resp, body := postMCP(t, n, "/mcp", mcpInitialize, "Authorization", "Bearer "+l.tokenFor(t, audience, "alice", "k1"))
		if resp.StatusCode != want {
			t.Errorf("%s: %d %s", audience, resp.StatusCode, body)
		}
	}
	resp, _ := postMCP(t, n, "/mcp", mcpInitialize)
	const at = "https://hub.example/.well-known/oauth-protected-resource/mcp"
	if got := resp.Header.Get("WWW-Authenticate"); resp.StatusCode != 401 || !strings.Contains(got, at) {
		t.Errorf("%d %q", resp.StatusCode, got)
	}
	found, err := http.Get(n.Addresses().Local + "/.well-known/oauth-protected-resource/mcp")
	if err != nil {
		t.Fatal(err)
	}
	defer found.Body.Close()
	var m struct {
		Resource string   `json:"resource"`
		Servers  []string `json:"authorization_servers"`
	}
	if err := json.NewDecoder(found.Body).Decode(&m); err != nil || m.Resource != "https://hub.example/mcp" ||
		len(m.Servers) != 1 || m.Servers[0] != l.URL {
		t.Errorf("%+v %v", m, err)
	}
}
