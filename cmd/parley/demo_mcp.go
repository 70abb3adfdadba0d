package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	bridge "github.com/parley-hub/parley/bridge/mcp"
	"github.com/parley-hub/parley/directory"
)

// mcpScenes lets an assistant, an MCP client of the official SDK, join the trip.
func (d *demo) mcpScenes(ctx context.Context) {
	const name = "assistant"
	var session *mcp.ClientSession
	d.scene("the traveller's assistant joins, an MCP client with a token of the hub, and lists its tools",
		func() ([]string, error) {
			token, err := d.node.Admin().IssueToken(ctx, admin.Actor{Name: "demo", Role: admin.Administer},
				admin.NewToken{Name: name, Agent: name})
			if err != nil {
				return nil, err
			}
			if _, err := d.node.Hub().Directory().Put(ctx, parley.Agent{Name: name,
				Identities: []parley.Identity{bridge.IdentityOfCaller(name)}}, directory.FromOperator); err != nil {
				return nil, err
			}
			if session, _, err = openMCP(ctx, d.node.Addresses().HTTP+bridge.Base, http.DefaultTransport, token.Secret,
				nil); err != nil {
				return nil, err
			}
			d.leaves = append(d.leaves, func() { _ = session.Close() })
			var names []string
			for t, err := range session.Tools(ctx, nil) {
				if err != nil {
					return nil, err
				}
				if !strings.HasPrefix(t.Name, "guest-") { // their names are long
					names = append(names, t.Name)
				}
			}
			return []string{"tools  " + strings.Join(names, ", ")}, want(slices.Contains(names, "inn__book") &&
				slices.Contains(names, "parley_inbox"), "tools are missing")
		})
	d.scene("the assistant asks the inn, MCP to A2A, and reads the proof of who asked and who answered",
		func() ([]string, error) {
			if session == nil {
				return nil, errors.New("the assistant did not come")
			}
			r, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "inn__book",
				Arguments: map[string]any{"text": "two beds"}})
			if err != nil {
				return nil, err
			}
			lines := []string{mcpText(r.Content)}
			if r.IsError || !strings.Contains(lines[0], "a room with a view: two beds") {
				return lines, errors.New("the answer is not the inn's")
			}
			var proof []string
			err = soon(ctx, func() error {
				proof, err = provedMessages(ctx, session, fmt.Sprint(r.Meta["hub.parley/conversation"]))
				return errors.Join(err, want(len(proof) >= 2, "the conversation is incomplete"))
			})
			return append(lines, proof...), err
		})
}

// provedMessages reads a conversation as its participant may: who sent each request and answer, and what proves it.
func provedMessages(ctx context.Context, session *mcp.ClientSession, conversation string) (lines []string, err error) {
	r, err := session.ReadResource(ctx, &mcp.ReadResourceParams{URI: "parley://conversations/" + conversation})
	if err != nil {
		return nil, err
	}
	for _, c := range r.Contents {
		var talk struct {
			Messages []struct {
				Kind, From, To string
				Provenance     struct {
					Protocol, Assurance, Digest string
					Proved                      []string
				}
			}
		}
		if err := json.Unmarshal([]byte(c.Text), &talk); err != nil {
			return nil, err
		}
		for _, m := range talk.Messages {
			if m.Kind != parley.Request.String() && m.Kind != parley.Response.String() {
				continue
			}
			p := m.Provenance
			line := fmt.Sprintf("%-8s  %s → %s, %s, proved by %s", m.Kind, m.From, m.To, p.Assurance,
				strings.Join(append([]string{p.Protocol}, p.Proved...), " "))
			if p.Digest != "" {
				line += ", " + p.Digest
			}
			lines = append(lines, line)
		}
	}
	return lines, nil
}
