package node

import (
	"cmp"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/bridge/mcp"
	"github.com/parley-hub/parley/bridge/uagents"
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

// foretold says what a message loses on its way, and what the answers to it lose or cannot say.
func foretold(p admin.Passage) (there, back []admin.ForeseenLoss) {
	spoken := p.By
	switch {
	case p.By == "go" || p.By == "api":
		spoken = "" // the agent is here
	case p.By == uagents.Protocol:
		there = foreseen(bridge.Foresee(uagents.WayTo(p.Message.Skill, p.To), p.Message, p.To.Name))
	default:
		for _, w := range waysTo(p.By, p.Address) { // one
			there = foreseen(bridge.Foresee(w, p.Message, p.To.Name))
		}
	}
	var ways []bridge.Way
	if p.Back != "" && p.Back != "go" && p.Back != "api" {
		ways = waysTo(p.Back, p.BackAddress)
	}
	return there, foreseen(bridge.ForeseeAnswers(spoken, ways...))
}

func foreseen(list []bridge.Prospect) (out []admin.ForeseenLoss) {
	for _, p := range list {
		what := cmp.Or(p.Title, p.Field)
		out = append(out, admin.ForeseenLoss{What: what, Fate: p.Fate.String(), Why: p.Why})
	}
	return out
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
