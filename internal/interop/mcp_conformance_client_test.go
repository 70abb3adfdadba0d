package interop

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/node"
)

// TestMCPConformanceClient runs the suite's requirements for clients against hubs (MCP-110). For each scenario the
// suite starts a server, and this test again as the client, with the server's URL.
func TestMCPConformanceClient(t *testing.T) {
	if scenario := os.Getenv("MCP_CONFORMANCE_SCENARIO"); scenario != "" {
		playScenario(t, scenario, flag.Arg(0))
		return
	}
	mcpFolder(t)
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(turnsEnv, takeTurns(t, 4))
	for _, revision := range []string{"2026-07-28", "2025-11-25"} {
		t.Run("MCP-110 client "+revision, func(t *testing.T) {
			out := mcpRequirements(t, revision, "client", "--timeout", "240000", "--command",
				program+" -test.run=TestMCPConformanceClient")
			if strings.Contains(out, "Client exited with code") || strings.Contains(out, "Client timed out") {
				t.Error(out) // the suite itself judges by what its server got
			}
		})
	}
}

// turnsEnv is the environment variable with the address at which a client waits for its turn.
const turnsEnv = "PARLEY_INTEROP_TURNS"

// takeTurns lets some processes at once go on: the suite starts the clients of all scenarios together, and their hubs
// would have too little time each. A process connects to the address, goes on when it gets a byte, and keeps the
// connection until it ends.
func takeTurns(t *testing.T, atOnce int) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var waiting sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		waiting.Wait()
	})
	turns := make(chan struct{}, atOnce)
	waiting.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			waiting.Go(func() {
				defer c.Close()
				turns <- struct{}{}
				defer func() { <-turns }()
				_, _ = c.Write([]byte{1})
				_, _ = c.Read(make([]byte, 1)) // until the process ends
			})
		}
	})
	return l.Addr().String()
}

// mcpArguments are for the tools of the suite that need some.
var mcpArguments = map[string]string{
	"add_numbers":              `{"a":5,"b":3}`,
	"json_schema_2020_12_tool": `{"contactMethod":"phone","phone":"1"}`,
	"lookup_user":              `{"id":"u1"}`,
	"valid_tool":               `{"region":"eu"}`,
}

// playScenario has an agent of a hub call the tools of the suite's server, which is attached to the hub.
func playScenario(t *testing.T, scenario, url string) {
	var given struct {
		ID        string `json:"client_id"`
		Secret    string `json:"client_secret"`
		ToolCalls []struct {
			Name      string
			Arguments map[string]json.RawMessage
		}
	}
	if raw := os.Getenv("MCP_CONFORMANCE_CONTEXT"); raw != "" {
		if err := json.Unmarshal([]byte(raw), &given); err != nil {
			t.Fatal(err)
		}
	}
	turn, err := net.Dial("tcp", os.Getenv(turnsEnv))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { turn.Close() })
	if _, err := turn.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	server := node.MCPAgent{URL: url}
	credentials := scenario == "auth/pre-registration" || scenario == "auth/client-credentials-basic"
	if credentials {
		server.OAuth = node.OAuthClient{TokenURL: tokenEndpoint(t, url), ClientID: given.ID,
			ClientSecretFile: secretFile(t, given.Secret)}
	}
	n := serversHub(t, server)
	ctx, stop := context.WithTimeout(n.As(t.Context(), "caller"), 100*time.Second)
	defer stop()
	var connection hub.Finding
	tools := map[string]json.RawMessage{}
	eventually(ctx, t, "the hub reads the server's tools", func() bool {
		connection = connectionOf(ctx, t, n)
		e, _ := n.Hub().Directory().Agent("remote")
		for _, s := range e.Skills {
			tools[s.ID] = s.Input
		}
		return connection.State == hub.FindingFailed || connection.State == hub.FindingOK &&
			(len(tools) > 0 || scenario == "initialize" || scenario == "request-metadata") // servers without tools
	})
	if strings.HasPrefix(scenario, "auth/") && !credentials {
		if connection.State != hub.FindingFailed || !strings.Contains(connection.Detail, "HTTP status 401") {
			t.Errorf("without a credential: %+v", connection)
		}
		return
	} else if connection.State != hub.FindingOK {
		t.Fatalf("%+v", connection)
	}
	arguments := map[string]any{}
	for tool := range tools {
		if strings.HasPrefix(tool, "invalid_") {
			t.Errorf("the hub takes the tool %q", tool)
		}
		arguments[tool] = json.RawMessage(cmp.Or(mcpArguments[tool], "{}"))
	}
	for _, c := range given.ToolCalls {
		for name, v := range c.Arguments {
			if string(v) == "null" { // the hub refuses it for a boolean
				delete(c.Arguments, name)
			}
		}
		arguments[c.Name] = c.Arguments
	}
	if schema := tools["json_schema_2020_12_tool"]; schema != nil {
		arguments["json_schema_echo"] = map[string]json.RawMessage{"schema": schema}
	}
	for tool, content := range arguments {
		callSuite(ctx, t, tool, content)
	}
}

// callSuite calls a tool of the suite's server, and answers its questions.
func callSuite(ctx context.Context, t *testing.T, tool string, content any) {
	for u, err := range parley.Stream[*parley.Message](ctx, "remote", tool, content) {
		var e *parley.Error
		switch {
		case errors.As(err, &e) && e.Code == parley.Unsupported && tool == "lookup_user": // it is listed alone
		case err != nil:
			t.Errorf("%s: %v", tool, err)
		case u.Event == nil || u.Event.State != parley.NeedsInput:
		default:
			answer := map[string]bool{}
			if strings.HasPrefix(tool, "test_mrtr_") {
				callSuite(ctx, t, "test_mrtr_unrelated", map[string]any{}) // while the question is open
				answer["confirmed"] = true
			}
			if err := parley.Answer(ctx, u.Event, answer); err != nil {
				t.Error(err)
			}
		}
	}
}

// connectionOf says how the hub is connected to the server "remote".
func connectionOf(ctx context.Context, t *testing.T, n *node.Node) hub.Finding {
	t.Helper()
	ways, err := n.Admin().Ways(ctx, admin.Actor{Name: "test", Role: admin.Administer}, "remote")
	if err != nil || len(ways) != 1 || len(ways[0].Findings) == 0 || ways[0].Findings[0].Check != "connection" {
		t.Fatalf("%+v, %v", ways, err)
	}
	return ways[0].Findings[0]
}

// tokenEndpoint finds out where a server's issuer gives tokens, as an operator does before the server is attached.
func tokenEndpoint(t *testing.T, url string) string {
	t.Helper()
	base := strings.TrimSuffix(url, "/mcp")
	var resource struct {
		Servers []string `json:"authorization_servers"`
	}
	read(t, base+"/.well-known/oauth-protected-resource/mcp", &resource)
	if len(resource.Servers) != 1 {
		t.Fatalf("%+v", resource)
	}
	var issuer struct {
		Endpoint string `json:"token_endpoint"`
	}
	read(t, resource.Servers[0]+"/.well-known/oauth-authorization-server", &issuer)
	return issuer.Endpoint
}

// read gets a JSON document.
func read(t *testing.T, url string, into any) {
	t.Helper()
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if err := json.NewDecoder(r.Body).Decode(into); err != nil {
		t.Fatalf("%s: %v", url, err)
	}
}
