package bench

import (
	"context"
	"fmt"

	bridge "github.com/parley-hub/parley/bridge/mcp"
	"github.com/parley-hub/parley/internal/bench/floor"
	"github.com/parley-hub/parley/node"
)

// MCP measures tool calls of MCP clients to a Go handler, each recorded with its answer, next to a bare server of the
// official SDK with two appends.
func MCP(ctx context.Context, c Config, each func(Row)) error {
	return c.compare(ctx, floor.MCP, c.mcp, each)
}

func (c *Config) mcp(ctx context.Context, storage floor.Storage, connections int) (Figures, error) {
	return c.overHTTP(ctx, storage, connections, overHTTP{
		name: fmt.Sprintf("mcp-%s", storage), perSecond: 25_000, most: 400_000,
		hub:      node.Config{Listen: node.Listen{HTTP: "127.0.0.1:0", Admin: "127.0.0.1:0"}},
		answered: floor.MCPAnswered,
		prepare: func(n *node.Node, host string) (func(int) ([]byte, error), error) {
			token, err := callerToken(ctx, n, bridge.IdentityOfCaller("bench"))
			return func(i int) ([]byte, error) { return floor.MCPRequest(host, token, i, c.Payload), nil }, err
		}})
}
