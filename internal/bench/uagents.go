package bench

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/internal/bench/floor"
	"github.com/parley-hub/parley/internal/bench/load"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/uagents"
)

// UAgents measures signed synchronous uAgents envelopes over HTTP to a Go handler: each
// is recorded with its reply, and the reply is signed. The floor makes two appends and
// signs nothing. UAgents passes each row to each as soon as it is measured.
func UAgents(ctx context.Context, c Config, each func(Row)) error {
	return c.compare(ctx, floor.UAgents, c.uagents, each)
}

func (c *Config) uagents(ctx context.Context, storage floor.Storage, connections int) (Figures, error) {
	return c.overHTTP(ctx, storage, connections, overHTTP{
		name: "uagents-" + string(storage), perSecond: 12_000, most: 200_000,
		hub: node.Config{Listen: node.Listen{HTTP: "127.0.0.1:0"}},
		output: []byte(`{"title":"Done","type":"object",` +
			`"properties":{"ok":{"title":"Ok","type":"boolean"}},"required":["ok"]}`),
		// A replay has no second effect and is answered by an error message.
		replayed: func(status int, body string) bool {
			return status == http.StatusOK && strings.Contains(body, uagents.ErrorMessageDigest)
		},
		prepare: func(n *node.Node, host string) (func(int) ([]byte, error), error) {
			e, ok := n.Hub().Directory().Agent("echo")
			if !ok {
				return nil, errors.New("the agent is not there")
			}
			target := n.UAgents().Address(e)
			var ids []*uagents.Identity
			for i := range senders { // enrolled: the hub lets guests have 100 requests a second
				id, err := uagents.NewIdentity()
				if err != nil {
					return nil, err
				}
				a := parley.Agent{Name: fmt.Sprintf("sender-%d", i), Identities: []parley.Identity{{Protocol: "uagents",
					ID: id.Address()}}}
				if _, err := n.Hub().Directory().Put(ctx, a, directory.FromOperator); err != nil {
					return nil, err
				}
				ids = append(ids, id)
			}
			type question struct {
				Text string `json:"text"`
			}
			message := uagents.ModelOf[question]().Message(question{filler((c.Payload-640)*3/4, 0)})
			header := http.Header{"Content-Type": {"application/json"}, "X-Uagents-Connection": {"sync"}}
			expires := time.Now().Add(10 * time.Minute) // longer than any run
			return func(i int) ([]byte, error) {
				id := ids[i%len(ids)]
				e, err := uagents.NewEnvelope(id.Address(), target, "", message, expires)
				if err == nil {
					err = e.Sign(id)
				}
				if err != nil {
					return nil, err
				}
				b, err := e.Encode()
				return load.NewRequest(http.MethodPost, host, "/submit", header, b), err
			}, nil
		}})
}
