package admin

import "context"

// Inspect explains a message that is pasted, or recorded.
func (c *Client) Inspect(ctx context.Context, i Inspection) (Inspected, error) {
	return fetch[Inspected](c, ctx, "POST", "/inspect", nil, i)
}
