package mcp

import (
	"context"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-hub/parley/bridge"
)

// clients is the server that all clients talk to. It lists for each caller the tools and resources that this one may use.
type clients struct {
	b      *Binding
	server *mcp.Server
}

func newClients(b *Binding) *clients { return &clients{b: b} }

// start follows the directory and the policy, for notices of changed lists.
func (c *clients) start(context.Context) error { return nil }

// A toolCall is one tools/call of a client, whose tool this caller may use.
type toolCall struct {
	caller  *caller
	name    string       // of the tool, as listed
	tool    *bridge.Tool // nil: one of the hub's own, see hubTools
	params  *mcp.CallToolParamsRaw
	session *mcp.ServerSession
}
