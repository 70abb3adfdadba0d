package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/a2e"
	bridge "github.com/parley-hub/parley/bridge/a2e"
	"github.com/parley-hub/parley/directory"
)

// a2eScenes adds an A2E agent that connects over a real socket: it calls a Go handler as
// a tool, and a Go handler asks it through its inbox.
func (d *demo) a2eScenes(ctx context.Context) {
	base := d.node.A2E().Base()
	token, err := bridge.NewToken()
	if err == nil {
		_, err = d.node.Hub().Directory().Put(ctx,
			parley.Agent{Name: "robot", Skills: []parley.SkillSpec{{ID: "pack", Name: "Pack",
				Description: "Packs what a trip needs."}},
				Identities: []parley.Identity{{Protocol: bridge.Protocol, ID: bridge.TokenID(token)}}},
			directory.FromOperator)
	}
	if err != nil {
		d.scene("an A2E agent is added", func() ([]string, error) { return nil, err })
		return
	}
	c := &a2e.Client{URL: base, Token: token, HTTP: &http.Client{}} // no time limit: the client holds a stream
	d.leaves = append(d.leaves, func() { _ = c.Close() })           // the hub may have ended its session
	d.robot = c
	d.scene("robot, an A2E agent, plugs into the hub as its environment and lists its tools", func() ([]string, error) {
		list, err := c.Tools(ctx, a2e.ToolQuery{Query: "weather"})
		if err != nil {
			return nil, err
		}
		var lines []string
		for _, t := range list {
			lines = append(lines, "tool  "+t.Name)
		}
		return lines, want(len(list) > 0, "weather is not among its tools")
	})
	d.scene("robot calls the tool weather__forecast → a Go handler", func() ([]string, error) {
		r, err := c.CallTool(ctx, "weather__forecast", map[string]string{"city": "Bern"}, nil)
		if err != nil {
			return nil, err
		}
		b, err := json.Marshal(r.Data)
		return []string{string(b)}, err
	})
	d.scene("the planner asks robot, which waits at parley_inbox and answers with parley_reply",
		func() ([]string, error) {
			answered := make(chan error, 1)
			go func() { answered <- robot(ctx, c) }()
			lines, err := d.plannerAsked(ctx, "robot", "", "Battery?", "87 percent")
			if err != nil {
				return lines, err
			}
			return lines, <-answered
		})
}

// robot answers one request.
func robot(ctx context.Context, c *a2e.Client) error {
	var id string
	_, err := c.CallTool(ctx, "parley_inbox", map[string]any{"max": 1}, func(e a2e.Event) {
		var m struct {
			ID string `json:"id"`
		}
		if json.Unmarshal(e.Data, &m) == nil {
			id = m.ID
		}
	})
	if err != nil {
		return err
	}
	if _, err := c.CallTool(ctx, "parley_reply", map[string]any{"id": id, "content": "87 percent"}, nil); err != nil {
		return fmt.Errorf("reply: %w", err)
	}
	return nil
}
