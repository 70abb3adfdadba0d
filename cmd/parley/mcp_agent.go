package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	exam "github.com/parley-hub/parley/internal/doctor"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/cobra"

	"github.com/parley-hub/parley/admin"
	bridge "github.com/parley-hub/parley/bridge/mcp"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/node"
)

var mcpProtocol = protocol{
	name: bridge.Protocol,
	add: adding{
		how: "--mcp URL, --mcp-attached, --mcp-calls",
		help: `  parley agents add lab --mcp https://lab.example/mcp --expose all
  parley agents add files --mcp-attached --expose all
  parley agents add editor --mcp-calls
`,
		flags: func(c *cobra.Command) adder {
			s := mcpFlags{peerFlags: peerFlags{protocol: bridge.Protocol}}
			f := c.Flags()
			f.StringVar(&s.url, "mcp", "", "URL of the MCP endpoint of a server, whose tools become the agent's skills")
			f.BoolVar(&s.attached, "mcp-attached", false, "an MCP server that parley mcp attach joins to the hub")
			f.BoolVar(&s.calls, "mcp-calls", false, "an MCP client: it calls the hub, and reads its messages with parley_inbox")
			s.declare(f)
			return adder{
				given:    func() bool { return s.url != "" || s.attached || s.calls || s.shows() },
				identity: s.identity,
				paste: func(_ *app, info admin.Info, name string, id admin.NewIdentity) ([]paste, error) {
					return pasteMCP(info.PublicURL, name, id), nil
				},
			}
		},
	},
	checkID: func(id string) error {
		if _, err := bridge.IdentityAt(id); err != nil {
			return usage("--id %q: want the URL of the server's MCP endpoint", id)
		}
		return nil
	},
	unsigned:     "MCP messages have no signatures: the caller's token or certificate answers for them",
	checkHub:     (*doctor).mcpHub,
	checkAddress: (*doctor).mcpAddress,
	way:          mcpWay,
	send:         (*app).sendMCP,
	bench:        (*app).benchMCPCommand,
}

// mcpWay is the way to an agent with a table of MCP.
func mcpWay(_ *node.Config, a *node.Agent) *hub.Way {
	switch {
	case a.MCP == nil:
		return nil
	case a.MCP.Attached:
		return &hub.Way{How: "`parley mcp attach` joins its server to the hub"}
	case a.MCP.Calls:
		return &hub.Way{How: "it calls the hub, and reads its messages with parley_inbox"}
	}
	i, err := bridge.IdentityAt(a.MCP.URL)
	if err != nil {
		return nil // it has no URL, or the configuration's check says so
	}
	return &hub.Way{ID: i.ID, How: "the hub calls it", Addresses: []string{i.URL}}
}

// mcpFlags are the flags of `agents add` for an agent of MCP.
type mcpFlags struct {
	peerFlags
	url             string
	attached, calls bool
}

// identity makes the identity, and lists the tools of a server with a URL.
func (s *mcpFlags) identity(ctx context.Context, a *app, n *admin.NewAgent, out *added) (id admin.NewIdentity,
	err error) {
	ways := 0
	for _, given := range []bool{s.url != "", s.attached, s.calls} {
		if given {
			ways++
		}
	}
	if ways > 1 {
		return id, usage("--mcp URL, --mcp-attached and --mcp-calls exclude each other: give one of them")
	}
	secrets, err := s.secrets()
	if err != nil {
		return id, err
	}
	switch {
	case secrets != nil && s.url == "":
		return id, usage("the hub shows credentials to a server elsewhere: give --mcp URL")
	case s.attached:
		i := bridge.IdentityOfTunnel(n.Name)
		return admin.NewIdentity{Protocol: i.Protocol, ID: i.ID}, nil
	case s.calls:
		i := bridge.IdentityOfCaller(n.Name)
		return admin.NewIdentity{Protocol: i.Protocol, ID: i.ID}, nil
	}
	i, err := bridge.IdentityAt(s.url)
	if err != nil {
		return id, usage("--mcp: %w", err)
	}
	id = admin.NewIdentity{Protocol: i.Protocol, ID: i.ID, URL: i.URL, Credentials: secrets}
	note := func(format string, args ...any) { out.Notes = append(out.Notes, fmt.Sprintf(format, args...)) }
	if u, err := url.Parse(i.URL); err == nil {
		if why := a.notCalled(u.Hostname()); why != nil {
			note("the hub calls it only if its configuration allows that: %s", why)
		}
	}
	seen, err := lookAtMCP(ctx, i.URL, http.DefaultTransport)
	switch {
	case errors.Is(err, errMCPGuarded) && secrets != nil:
		note("it wants credentials: the hub lists its tools with those that you gave")
	case errors.Is(err, errMCPGuarded):
		note("it wants credentials: add it again with --mcp-token-file, --mcp-api-key-file, --mcp-client-id or --mcp-cert, "+
			"or put it into the configuration, with agents.%s.mcp.token_file, api_key_file, oauth or cert", n.Name)
	case err != nil:
		note("its tools could not be listed (%s): its skills are not known yet; the hub lists them when it reaches "+
			"the server", short(rootCause(err), 200))
	default:
		note("its server: %s; %s", seen.server, plural(len(seen.tools), "tool", "tools"))
		for _, t := range seen.tools[:min(len(seen.tools), 20)] {
			note("tool %s: %s", short(t.Name, 128), short(cmp.Or(t.Description, t.Title), 100))
		}
		if len(seen.tools) > 20 {
			note("and %d more tools", len(seen.tools)-20)
		}
		note("the hub keeps these tools: a change waits for `parley mcp approve %s`", n.Name)
	}
	return id, nil
}

// pasteMCP are the lines with which a client calls through the hub, or a server is joined to it.
func pasteMCP(public, name string, id admin.NewIdentity) []paste {
	if id.URL != "" {
		return nil
	}
	base, file := strings.TrimRight(public, "/"), strings.ReplaceAll(name, "/", "-")
	token := paste{"for its token, at the hub", "shell", "parley tokens add " + file + "-mcp --agent " + name}
	if bridge.IsTunnel(id.ID) {
		return []paste{token, {"so that its server is joined to the hub", "shell",
			"parley mcp attach " + name + " --url " + base + " --token-file FILE -- COMMAND"}}
	}
	why := "so that it lists and calls agents through the hub; `parley agents` lists those that are exposed in mcp"
	return []paste{token, {why, "URL", base + bridge.Base}, {why, "header", "Authorization: Bearer TOKEN"},
		{why, "shell", "parley mcp config --url " + base}}
}

// errMCPGuarded says that a server wants credentials.
var errMCPGuarded = errors.New("it wants credentials")

// An mcpLook is what a server says of itself.
type mcpLook struct {
	server  string // name and version
	version string // of the protocol
	tools   []*mcp.Tool
}

// Bounds of what a command reads from a server.
const (
	maxMCPTools  = 1000
	maxMCPAnswer = 4 << 20
)

// lookAtMCP opens a session, and lists the tools. It calls none.
func lookAtMCP(ctx context.Context, at string, transport http.RoundTripper) (*mcpLook, error) {
	ctx, cancel := context.WithTimeout(ctx, exam.Wait)
	defer cancel()
	session, shown, err := openMCP(ctx, at, transport, "", nil)
	if err != nil {
		return nil, shown.guarded(err)
	}
	defer session.Close()
	out := &mcpLook{server: "a server that does not say its name"}
	if r := session.InitializeResult(); r != nil {
		out.version = short(r.ProtocolVersion, 20)
		if i := r.ServerInfo; i != nil && i.Name != "" {
			out.server = strings.TrimSpace(short(i.Name, 100) + " " + short(i.Version, 40))
		}
	}
	for t, err := range session.Tools(ctx, nil) {
		if err != nil {
			return nil, shown.guarded(err)
		}
		if out.tools = append(out.tools, t); len(out.tools) == maxMCPTools {
			break
		}
	}
	return out, nil
}
