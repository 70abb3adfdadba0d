package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"

	"github.com/parley-hub/parley"
)

// AgentTools are the tools of a server that is attached as an agent. The server wrote their texts.
type AgentTools struct {
	Approved []Tool `json:"approved"`         // what agents call
	Offered  []Tool `json:"offered,omitzero"` // what the server lists now, if that differs; nil: it does not
	Digest   string `json:"digest,omitzero"`  // of Offered: what an approval names
}

// A Tool is one tool as its server describes it.
type Tool struct {
	Name        string          `json:"name"`
	Title       string          `json:"title,omitzero"`
	Description string          `json:"description,omitzero"`
	Input       json.RawMessage `json:"input,omitzero"`  // JSON Schema
	Output      json.RawMessage `json:"output,omitzero"` // JSON Schema
}

// toolApproval names the tools that an operator looked at.
type toolApproval struct {
	Digest string `json:"digest"`
}

// AgentTools gives the tools of an attached server.
func (a *Admin) AgentTools(ctx context.Context, by Actor, name string) (AgentTools, error) {
	if err := cmp.Or(by.may(Observe), a.resolveNames(&name)); err != nil {
		return AgentTools{}, err
	}
	p, err := a.toolsOf(by, name)
	if err != nil {
		return AgentTools{}, err
	}
	return p.Tools(ctx, name)
}

// ApproveTools lets agents call the tools that an attached server lists now, if their digest is this one. It gives the
// tools as they are then.
func (a *Admin) ApproveTools(ctx context.Context, by Actor, name, digest string) (AgentTools, error) {
	if err := cmp.Or(by.may(Administer), a.resolveNames(&name)); err != nil {
		return AgentTools{}, err
	}
	p, err := a.toolsOf(by, name)
	if err != nil {
		return AgentTools{}, err
	}
	return actFor(a, ctx, by, Administer, "tools.approve", name, digest, func(ctx context.Context) (AgentTools, error) {
		now, err := p.Tools(ctx, name)
		switch {
		case err != nil:
			return now, err
		case now.Digest == "":
			return now, parley.Refuse(parley.Conflict, "the tools of %q did not change: there is nothing to approve", name)
		case now.Digest != digest:
			return now, parley.Refuse(parley.Conflict, "the tools that %q offers changed since you looked at them, or the "+
				"digest is wrong: look again, and approve %s", name, now.Digest)
		}
		if err := p.ApproveTools(ctx, name, digest); err != nil {
			return now, err
		}
		return p.Tools(ctx, name)
	})
}

// toolsOf finds the protocol in which an agent is an attached server.
func (a *Admin) toolsOf(by Actor, name string) (Protocol, error) {
	e, err := a.entry(by, name)
	if err != nil {
		return Protocol{}, err
	}
	for _, protocol := range e.Native() {
		if p := a.protocol(protocol); p.Tools != nil && p.ApproveTools != nil {
			return p, nil
		}
	}
	return Protocol{}, parley.Refuse(parley.Unsupported, "%q is no attached server, so it has no list of tools", name)
}

func getTools(a *Admin, c *call) (any, error) {
	return a.AgentTools(c.r.Context(), c.by, c.r.PathValue("name"))
}

func approveTools(a *Admin, ctx context.Context, by Actor, name string, t toolApproval) (AgentTools, error) {
	return a.ApproveTools(ctx, by, name, t.Digest)
}

// AgentTools gives the tools of an attached server.
func (c *Client) AgentTools(ctx context.Context, name string) (AgentTools, error) {
	return fetch[AgentTools](c, ctx, "GET", agentPath(name, "/tools"), nil, nil)
}

// ApproveTools lets agents call the tools that an attached server lists now, if their digest is this one.
func (c *Client) ApproveTools(ctx context.Context, name, digest string) (AgentTools, error) {
	return fetch[AgentTools](c, ctx, "POST", agentPath(name, "/tools"), nil, toolApproval{digest})
}

// A ToolChange is a tool that a server added, removed or changed; Was or Now is nil.
type ToolChange struct {
	Was, Now *Tool
}

// Changes compares what the server offers with what is approved, by the names of the tools.
func (t *AgentTools) Changes() (out []ToolChange) {
	if t.Offered == nil {
		return nil
	}
	named := func(list []Tool, name string) *Tool {
		if i := slices.IndexFunc(list, func(t Tool) bool { return t.Name == name }); i >= 0 {
			return &list[i]
		}
		return nil
	}
	var names []string
	for _, tool := range slices.Concat(t.Approved, t.Offered) {
		names = append(names, tool.Name)
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		was, now := named(t.Approved, name), named(t.Offered, name)
		if was == nil || now == nil || !was.equal(now) {
			out = append(out, ToolChange{was, now})
		}
	}
	return out
}

func (t *Tool) equal(o *Tool) bool {
	return t.Description == o.Description && string(t.Input) == string(o.Input) && string(t.Output) == string(o.Output)
}
