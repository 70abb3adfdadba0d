package main

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"strings"

	"github.com/parley-hub/parley/internal/connect"
	exam "github.com/parley-hub/parley/internal/doctor"

	bridge "github.com/parley-hub/parley/bridge/mcp"
	"github.com/parley-hub/parley/internal/netguard"
)

// mcpHub checks that clients reach the hub's MCP endpoint at the public URL. A guest who is asked for a token has
// reached it.
func (d *doctor) mcpHub(ctx context.Context) {
	if d.hub == nil || d.Info.PublicURL == "" || d.c.MCP.Off {
		return // SAMVAD's check says that nothing answers
	}
	d.mcpEndpoint(ctx, "public_url, or the proxy in front of the hub",
		strings.TrimRight(d.Info.PublicURL, "/")+bridge.Base, nil)
}

// mcpAddress checks the endpoint of a server that the hub calls.
func (d *doctor) mcpAddress(ctx context.Context, at exam.WayPoint) {
	d.mcpEndpoint(ctx, at.Setting+", or remove the agent and add it again with --mcp URL", at.Address, d.Guard)
}

func (d *doctor) mcpEndpoint(ctx context.Context, setting, at string, guard *netguard.Guard) {
	ctx, cancel := context.WithTimeout(ctx, exam.Wait)
	defer cancel()
	if d.Reach(ctx, setting, at, guard) == nil {
		return
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: d.Roots}, DisableKeepAlives: true}
	seen, err := connect.LookAtMCP(ctx, at, transport, version)
	switch {
	case errors.Is(err, connect.ErrGuarded) && guard != nil:
		d.Skip("mcp", "it wants credentials: the hub shows them, the doctor does not")
	case errors.Is(err, connect.ErrGuarded):
		d.OK("mcp", "%s answers, and asks for a token", at)
	case err != nil:
		d.Failed("mcp", setting, err)
	default:
		d.OK("mcp", "%s, MCP %s, %s", seen.Server, seen.Version, plural(len(seen.Tools), "tool", "tools"))
	}
}
