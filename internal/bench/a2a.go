package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	bridge "github.com/parley-hub/parley/bridge/a2a"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/internal/bench/floor"
	"github.com/parley-hub/parley/node"
)

// A2A measures blocking A2A calls over JSON-RPC to a Go handler, each recorded with its answer, next to a bare
// server of the official SDK with two appends.
func A2A(ctx context.Context, c Config, each func(Row)) error {
	return c.compare(ctx, floor.A2A, c.a2a, each)
}

func (c *Config) a2a(ctx context.Context, storage floor.Storage, connections int) (Figures, error) {
	return c.overHTTP(ctx, storage, connections, overHTTP{
		name: fmt.Sprintf("a2a-%s", storage), perSecond: 25_000, most: 400_000,
		hub:      node.Config{Listen: node.Listen{HTTP: "127.0.0.1:0", Admin: "127.0.0.1:0"}},
		answered: floor.A2AAnswered,
		prepare: func(n *node.Node, host string) (func(int) ([]byte, error), error) {
			token, err := callerToken(ctx, n, bridge.IdentityOfCaller("bench"))
			return func(i int) ([]byte, error) {
				return floor.A2ARequest(host, floor.A2APath, token, i, c.Payload), nil
			}, err
		}})
}

// callerToken adds the agent "bench" with an identity, and issues a token for its calls. Without an entry of its own,
// the caller would have the limits of guests.
func callerToken(ctx context.Context, n *node.Node, id parley.Identity) (string, error) {
	agent := parley.Agent{Name: "bench", Identities: []parley.Identity{id}}
	if _, err := n.Hub().Directory().Put(ctx, agent, directory.FromOperator); err != nil {
		return "", err
	}
	t, err := n.Admin().IssueToken(ctx, admin.Actor{Name: "bench", Role: admin.Administer},
		admin.NewToken{Name: "bench", Agent: "bench", Expires: time.Now().Add(time.Hour)})
	return t.Secret, err
}
