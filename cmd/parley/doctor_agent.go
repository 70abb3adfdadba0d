package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/parley-hub/parley/node"
)

// agent checks the ways to an agent that the running hub, or else the configuration, has.
func (d *doctor) agent(ctx context.Context, ref string) {
	if name := d.named(ctx, ref); d.hub == nil {
		d.configured(ctx, name)
	} else {
		d.Agent(ctx, name)
	}
}

// configured checks an agent of the configuration while no hub runs.
func (d *doctor) configured(ctx context.Context, name string) {
	a, known := d.c.Agents[name]
	if !known {
		d.Failed("agent", "start the hub, or name its configuration with --config",
			fmt.Errorf("no hub answers, and no agent %q is in the configuration", name))
		return
	}
	for _, p := range protocols {
		if p.way == nil {
			continue
		}
		if w := p.way(&d.c, &a); w != nil {
			w.Protocol = p.name
			d.Way(ctx, name, *w)
		}
	}
	d.Skip("connection", "no hub runs, so nobody knows who is connected, and which messages wait")
}

// named gives the directory name of an agent, which ref names by name or by its id in a
// protocol. It returns an unknown or ambiguous ref unchanged: find reports it.
func (d *doctor) named(ctx context.Context, ref string) string {
	if _, ok := d.c.Agents[ref]; ok {
		return ref
	}
	if d.hub != nil {
		if v, err := d.hub.Agent(ctx, ref, 0); err == nil {
			return v.Name
		}
		return ref
	}
	var names []string
	for name, a := range d.c.Agents {
		if slices.ContainsFunc(node.Protocols, func(p *node.Protocol) bool {
			return p.AgentID != nil && p.AgentID(&a) == ref
		}) {
			names = append(names, name)
		}
	}
	if len(names) == 1 {
		return names[0]
	}
	return ref
}
