package admin

import (
	"context"

	"github.com/parley-hub/parley"
)

// maxReason bounds the reason that an operator gives.
const maxReason = 512

// checkReason refuses a reason that is too long.
func checkReason(reason string) error {
	if len(reason) > maxReason {
		return parley.Refuse(parley.TooLarge, "a reason has at most %d bytes", maxReason)
	}
	return nil
}

// PauseFor holds deliveries to an agent back. Its state tells the reason, which may be empty, with the time
// and the name of the actor's token, until the agent is resumed.
func (a *Admin) PauseFor(ctx context.Context, by Actor, name, reason string) (Agent, error) {
	if err := checkReason(reason); err != nil {
		return Agent{}, err
	}
	return a.edit(ctx, by, Operate, "agent.pause", name, reason, func(ctx context.Context, name string) error {
		return a.c.Hub.PauseBy(ctx, name, by.Name, reason)
	})
}

// why is the body of a request that gives a reason.
type why struct {
	Reason string `json:"reason,omitzero"`
}

func postPause(a *Admin, c *call) (any, error) {
	var w why
	if err := c.body(&w, true); err != nil {
		return nil, err
	}
	return a.PauseFor(c.r.Context(), c.by, c.r.PathValue("name"), w.Reason)
}

func postResume(a *Admin, c *call) (any, error) {
	return a.Pause(c.r.Context(), c.by, c.r.PathValue("name"), false)
}

// PauseFor holds deliveries to an agent back, and says why.
func (c *Client) PauseFor(ctx context.Context, name, reason string) (Agent, error) {
	return fetch[Agent](c, ctx, "POST", agentPath(name, "/pause"), nil, why{reason})
}
