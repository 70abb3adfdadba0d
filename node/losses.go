package node

import (
	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/bridge/mcp"
)

// callersLose says what callers of a protocol lose at the stand-in of an agent, to which the hub sends by another one
// with that identity; "go" and "api" are agents that are here.
func callersLose(callers, native string, id parley.Identity) []string {
	switch native {
	case "":
		return nil // the hub has no way to it
	case "go", "api":
		return bridge.CallersLose(callers)
	}
	return bridge.CallersLose(callers, waysTo(native, id)...)
}

// waysTo gives the forms in which an agent gets messages.
func waysTo(native string, id parley.Identity) (ways []bridge.Way) {
	switch native {
	case "a2e":
		if id.URL != "" {
			return []bridge.Way{bridge.Call}
		}
		return []bridge.Way{bridge.Inbox}
	case "mcp":
		if mcp.IsCaller(id.ID) {
			return []bridge.Way{bridge.MCPClient}
		}
		return []bridge.Way{bridge.MCPServer}
	}
	for _, w := range bridge.Ways {
		if w.Protocol == native {
			ways = append(ways, w.Way)
		}
	}
	return ways
}

// line gives the place of a key in the configuration file that is in force.
func (n *Node) line(key string) (file string, line int) { return n.live.Load().lines.line(key) }
