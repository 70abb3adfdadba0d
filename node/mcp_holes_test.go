package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
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
		{"another endpoint", "/mcp/agents/echo", alice, 404}, {"no token", "/mcp", "", 401},
		{"another token", "/mcp", "Bearer x", 401}} {
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

// TestMCPGuestFlood: calls of many guests from many addresses use up the one budget of guests, and are told when to
// come again, also from an address that has used nothing; a caller with a token is served as before, also from one of
// theirs.
func TestMCPGuestFlood(t *testing.T) {
	if l, err := net.Listen("tcp", "127.0.0.2:0"); err != nil {
		t.Skip("this machine has one loopback address alone, so all guests would be one source:", err)
	} else if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	n := running(t, Config{Guests: Guests{Disk: "4MiB"}, // 34 KiB of them at once
		MCP: MCP{Guests: []string{"slow"}, Wait: Duration{time.Millisecond}}})
	waiting := make(chan struct{})
	release := sync.OnceFunc(func() { close(waiting) })
	defer release()
	err := n.Handle(parley.Agent{Name: "slow", Exposed: parley.Everywhere},
		parley.RawSkill("say", func(ctx context.Context, _ *parley.Message, r parley.Replier) error {
			select {
			case <-waiting:
			case <-ctx.Done():
			}
			return r.Reply(parley.Text("slow, but here it is"))
		}))
	if err != nil {
		t.Fatal(err)
	}
	from := func(address, token string) *mcp.ClientSession {
		over := &http.Transport{DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}).DialContext}
		t.Cleanup(over.CloseIdleConnections)
		c := &http.Client{Transport: over}
		if token != "" {
			c.Transport = roundTrip(func(r *http.Request) (*http.Response, error) {
				r = r.Clone(r.Context())
				r.Header.Set("Authorization", "Bearer "+token)
				return over.RoundTrip(r)
			})
		}
		return mcpSession(t, &mcp.StreamableClientTransport{Endpoint: n.Addresses().Local + "/mcp", MaxRetries: -1,
			HTTPClient: c}, mcpRevisions[1], nil)
	}
	const each = 15 << 10
	big := `{"text":"` + strings.Repeat("x", each) + `"}`
	// sends reports whether the hub takes a call of a guest.
	sends := func(s *mcp.ClientSession) bool {
		r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "slow__say", Arguments: json.RawMessage(big)})
		if err != nil {
			t.Error(err)
			return false
		}
		var e struct {
			Code  string
			After int64
		}
		b, err := json.Marshal(r.Meta["hub.parley/error"])
		if err != nil || r.IsError && (json.Unmarshal(b, &e) != nil || e.Code != string(parley.RateLimited) || e.After <= 0) {
			t.Errorf("a guest: %s %v", b, err)
		}
		return !r.IsError
	}
	var accepted atomic.Int64
	var guests sync.WaitGroup
	for i := range 12 {
		s := from(fmt.Sprint("127.0.0.", 2+i), "")
		for range 3 {
			guests.Go(func() {
				if sends(s) {
					accepted.Add(1)
				}
			})
		}
	}
	guests.Wait()
	if got := accepted.Load(); got == 0 || got > 3 {
		t.Errorf("%d calls of guests are accepted, want 34 KiB of them and one more", got)
	}
	if sends(from("127.0.0.99", "")) {
		t.Error("the flood leaves a budget of its own to another address")
	}
	token, waits := agentToken(t, n, "crew/alice"), mcp.Meta{"progressToken": "p"} // up to 10 min
	var alice *mcp.ClientSession
	var handle string
	for _, address := range []string{"127.0.0.1", "127.0.0.2"} {
		alice = from(address, token)
		for range 8 {
			if got, _ := said(t, alice, "echo__say", `{"a":1}`, waits); got != `{"a":1}` {
				t.Errorf("a caller with a token: %q", got)
			}
		}
		_, handle = said(t, alice, "slow__say", big, nil)
	}
	release()
	if got, _ := said(t, alice, "parley_result", `{"id":"`+handle+`"}`, waits); got != "slow, but here it is" {
		t.Errorf("the agent that the guests call: %q", got)
	}
}

// TestMCPTooLarge: a client reads why its call is refused as too large, and its next one is answered.
func TestMCPTooLarge(t *testing.T) {
	n := running(t, Config{})
	token := agentToken(t, n, "crew/alice")
	for _, revision := range mcpRevisions {
		s := mcpClient(t, n, "/mcp", token, revision, nil)
		_, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "echo__say",
			Arguments: map[string]any{"a": strings.Repeat("x", 1<<20)}})
		if e, ok := errors.AsType[*jsonrpc.Error](err); !ok || !strings.Contains(e.Message, "larger than 1048576 bytes") {
			t.Errorf("%s: %v", revision, err)
		}
		if got, _ := said(t, s, "echo__say", `{"a":1}`, nil); got != `{"a":1}` {
			t.Errorf("%s, the next call: %q", revision, got)
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

// TestMCPServerAway: a server that does not listen has not answered, although the SDK makes an error of JSON-RPC of it.
func TestMCPServerAway(t *testing.T) {
	n := running(t, Config{Network: Network{Allow: []string{"loopback"}},
		Agents: map[string]Agent{"shop": {MCP: &MCPAgent{URL: "http://127.0.0.1:1/mcp"}}}})
	m, err := n.Hub().Ask(t.Context(), hub.Submission{Scope: "alice", Message: &parley.Message{Kind: parley.Request,
		From: "alice", To: "shop", Parts: []parley.Part{parley.Text("hello")},
		Origin: parley.Origin{Protocol: "api", Peer: "alice", Verdict: parley.Verdict{Assurance: parley.Session}}}})
	if err != nil {
		t.Fatal(err)
	}
	if m.Error == nil || m.Error.Reason != parley.ConnectionRefused {
		t.Errorf("%+v", m.Error)
	}
}
