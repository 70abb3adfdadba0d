package admin

import (
	"context"
	"net/url"
	"time"
)

// Inspect explains a message that is pasted, or recorded.
func (c *Client) Inspect(ctx context.Context, i Inspection) (Inspected, error) {
	return fetch[Inspected](c, ctx, "POST", "/inspect", nil, i)
}

// Doctor lets the hub check the ways to an agent step by step.
func (c *Client) Doctor(ctx context.Context, name string) ([]DoctorStep, error) {
	var v struct {
		Steps []DoctorStep `json:"steps"`
	}
	err := c.do(ctx, "POST", agentPath(name, "/doctor"), nil, nil, &v)
	return v.Steps, err
}

// PreviewAgent reads what an agent says of itself. It changes nothing.
func (c *Client) PreviewAgent(ctx context.Context, n NewAgent) (AgentReading, error) {
	return fetch[AgentReading](c, ctx, "POST", "/preview", nil, n)
}

// Connect adds an agent, and lets the hub work on its checklist.
func (c *Client) Connect(ctx context.Context, n NewAgent) (Checklist, error) {
	return fetch[Checklist](c, ctx, "POST", "/checklists", nil, n)
}

// Checklists lists the checklists of agents that are being connected, the newest first.
func (c *Client) Checklists(ctx context.Context) ([]Checklist, error) {
	return fetchList[Checklist](c, ctx, "/checklists", nil, "checklists")
}

// Checklist says how far an agent is connected.
func (c *Client) Checklist(ctx context.Context, name string) (Checklist, error) {
	return fetch[Checklist](c, ctx, "GET", "/checklists/"+url.PathEscape(name), nil, nil)
}

// NextChecklist waits until a checklist is no longer of a version, at most so long.
func (c *Client) NextChecklist(ctx context.Context, name, version string, wait time.Duration) (Checklist, error) {
	return fetch[Checklist](c, ctx, "GET", "/checklists/"+url.PathEscape(name), url.Values{"version": {version},
		"wait": {wait.String()}}, nil)
}
