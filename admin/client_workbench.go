package admin

import "context"

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
