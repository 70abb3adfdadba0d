package connect

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-hub/parley/admin"
	bridge "github.com/parley-hub/parley/bridge/mcp"
	"github.com/parley-hub/parley/internal/netguard"
	"github.com/parley-hub/parley/internal/readable"
)

var mcpProtocol = Protocol{
	Name: bridge.Protocol,
	Ways: []Way{
		{Title: "a server that the hub calls", Reads: true, Shows: true,
			Fields: []Field{{Flag: "mcp", Label: "Its endpoint", Type: "url", Must: true, Example: "https://lab.example/mcp",
				Text: "URL of the MCP endpoint of a server, whose tools become the agent's skills"}},
			Identity: func(_ string, v Values) (admin.NewIdentity, error) {
				i, err := bridge.IdentityAt(v["mcp"])
				if err != nil {
					return admin.NewIdentity{}, malformed("--mcp: %s", err)
				}
				return admin.NewIdentity{Protocol: i.Protocol, ID: i.ID, URL: i.URL}, nil
			},
			Command: func(v Values) string { return flags(v, "mcp") }},
		{Name: "attached", Title: "a server that joins by a command",
			Identity: func(name string, _ Values) (admin.NewIdentity, error) {
				i := bridge.IdentityOfTunnel(name)
				return admin.NewIdentity{Protocol: i.Protocol, ID: i.ID}, nil
			},
			Command: func(Values) string { return "--mcp-attached" }},
		{Name: "calls", Title: "a client that calls the hub",
			Identity: func(name string, _ Values) (admin.NewIdentity, error) {
				i := bridge.IdentityOfCaller(name)
				return admin.NewIdentity{Protocol: i.Protocol, ID: i.ID}, nil
			},
			Command: func(Values) string { return "--mcp-calls" }},
	},
	Paste: func(h *Hub, name string, id admin.Identity) []admin.Paste {
		return pasteMCP(h.Info.PublicURL, name, id)
	},
	Read: readMCP,
}

// readMCP lists the tools of a server with a URL.
func readMCP(ctx context.Context, r *Reader, n *admin.NewAgent, id *admin.NewIdentity, note Note) error {
	if id.URL == "" {
		return nil
	}
	shows := id.Credentials != nil
	seen, err := LookAtMCP(ctx, id.URL, r.Client.Transport, r.Version)
	switch {
	case errors.Is(err, ErrGuarded) && shows:
		note("it wants credentials: the hub lists its tools with those that you gave")
	case errors.Is(err, ErrGuarded):
		note("it wants credentials: add it again with --mcp-token-file, --mcp-api-key-file, --mcp-client-id or --mcp-cert, "+
			"or put it into the configuration, with agents.%s.mcp.token_file, api_key_file, oauth or cert", n.Name)
	case err != nil:
		note("its tools could not be listed (%s): its skills are not known yet; the hub lists them when it reaches "+
			"the server", unread(err))
	default:
		note("its server: %s; %s", seen.Server, plural(len(seen.Tools), "tool", "tools"))
		for _, t := range seen.Tools[:min(len(seen.Tools), 20)] {
			note("tool %s: %s", short(t.Name, 128), short(cmp.Or(t.Description, t.Title), 100))
		}
		if len(seen.Tools) > 20 {
			note("and %d more tools", len(seen.Tools)-20)
		}
		note("the hub keeps these tools: a change waits for `parley mcp approve %s`", n.Name)
	}
	return nil
}

// pasteMCP are the lines with which a client calls through the hub, or a server is joined to it.
func pasteMCP(public, name string, id admin.Identity) []admin.Paste {
	if id.URL != "" {
		return nil
	}
	base, file := strings.TrimRight(public, "/"), strings.ReplaceAll(name, "/", "-")
	token := admin.Paste{Why: "for its token, at the hub", SDK: "shell",
		Line: "parley tokens add " + file + "-mcp --agent " + name}
	if bridge.IsTunnel(id.ID) {
		return []admin.Paste{token, {Why: "so that its server is joined to the hub", SDK: "shell",
			Line: readable.ShellWords("parley", "mcp", "attach", name, "--url", base) + " --token-file FILE -- COMMAND"}}
	}
	why := "so that it lists and calls agents through the hub; `parley agents` lists those that are exposed in mcp"
	return []admin.Paste{token, {Why: why, SDK: "URL", Line: base + bridge.Base},
		{Why: why, SDK: "header", Line: "Authorization: Bearer TOKEN"},
		{Why: why, SDK: "shell", Line: readable.ShellWords("parley", "mcp", "config", "--url", base)}}
}

// ErrGuarded says that a server wants credentials.
var ErrGuarded = errors.New("it wants credentials")

// An MCPLook is what a server says of itself.
type MCPLook struct {
	Server  string // name and version
	Version string // of the protocol
	Tools   []*mcp.Tool
}

// Bounds of what is read from a server.
const (
	maxMCPTools  = 1000
	maxMCPAnswer = 4 << 20
)

// LookAtMCP opens a session as a client of that version, and lists the tools. It calls none.
func LookAtMCP(ctx context.Context, at string, transport http.RoundTripper, version string) (*MCPLook, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	seen := &mcpAnswers{transport: transport}
	session, err := mcp.NewClient(&mcp.Implementation{Name: "parley", Version: cmp.Or(version, "dev")},
		&mcp.ClientOptions{Capabilities: &mcp.ClientCapabilities{}}).Connect(ctx, &mcp.StreamableClientTransport{Endpoint: at,
		HTTPClient: &http.Client{Transport: seen, CheckRedirect: noRedirect}, DisableStandaloneSSE: true, MaxRetries: -1,
		MaxEventSize: maxMCPAnswer}, nil)
	if err != nil {
		return nil, seen.why(err)
	}
	defer session.Close()
	out := &MCPLook{Server: "a server that does not say its name"}
	if r := session.InitializeResult(); r != nil {
		out.Version = short(r.ProtocolVersion, 20)
		if i := r.ServerInfo; i != nil && i.Name != "" {
			out.Server = strings.TrimSpace(short(i.Name, 100) + " " + short(i.Version, 40))
		}
	}
	for t, err := range session.Tools(ctx, nil) {
		if err != nil {
			return nil, seen.why(err)
		}
		if out.Tools = append(out.Tools, t); len(out.Tools) == maxMCPTools {
			break
		}
	}
	return out, nil
}

// mcpAnswers bounds the answers of a server, and keeps the last status and error, which the SDK does not give.
type mcpAnswers struct {
	transport http.RoundTripper
	status    int
	lost      error
}

// RoundTrip implements http.RoundTripper.
func (s *mcpAnswers) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := s.transport.RoundTrip(r)
	if s.lost = err; err != nil {
		return nil, err
	}
	s.status = resp.StatusCode
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") { // the SDK bounds events
		b, err := netguard.ReadAll(resp.Body, maxMCPAnswer)
		resp.Body.Close()
		if err != nil {
			return nil, err
		}
		resp.Body = io.NopCloser(bytes.NewReader(b))
	}
	return resp, nil
}

// why is the reason of an error.
func (s *mcpAnswers) why(err error) error {
	if s.status == http.StatusUnauthorized || s.status == http.StatusForbidden {
		return ErrGuarded
	}
	return cmp.Or(s.lost, err)
}
