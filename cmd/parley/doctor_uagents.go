package main

import (
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/node"
)

// uagentsWay is the way to an agent with a table of uAgents.
func uagentsWay(_ *node.Config, a *node.Agent) *hub.Way {
	switch {
	case a.UAgents == nil:
		return nil
	case a.UAgents.Endpoint == "":
		return &hub.Way{ID: a.UAgents.Address, How: "it registers itself with the hub, or has a mailbox there"}
	}
	return &hub.Way{ID: a.UAgents.Address, How: "the hub calls its endpoint", Addresses: []string{a.UAgents.Endpoint}}
}
