package node

import (
	"maps"
	"slices"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/policy"
)

// guestBudget is the use of the guests' budget, for operators.
func (n *Node) guestBudget() *admin.GuestBudget {
	s, c := n.guests.Stats(), n.conns.snapshot()
	return &admin.GuestBudget{
		Memory: s.Memory, MaxMemory: s.Limits.Memory, Disk: s.Disk, MaxDisk: s.Limits.Disk,
		Registrations: s.Registrations, MaxRegistrations: s.Limits.Registrations,
		Mailboxes: s.Mailboxes, MaxMailboxes: s.Limits.Mailboxes, Manifests: s.Manifests,
		Connections: c.Guests, MaxConnections: n.conns.guests, AllConnections: c.Open, MaxAllConnections: n.conns.total,
		Requests: s.Limits.Requests, Share: s.Limits.Share,
		Written: s.Written, Refused: s.Refused, Evicted: s.Evicted, Delayed: s.Delayed,
		ConnectionsRefused: c.Refused, ConnectionsEvicted: c.Evicted,
	}
}

// guestRules let callers without credentials reach agents in a protocol: those that fit the patterns, and those of the
// configuration that are open.
func (c *Config) guestRules(protocol string, patterns []string, open func(*Agent) bool) (out []policy.Least) {
	if len(patterns) > 0 {
		out = append(out, policy.Least{To: patterns, Protocol: protocol, Assurance: parley.Unsigned})
	}
	for _, name := range slices.Sorted(maps.Keys(c.Agents)) {
		if a := c.Agents[name]; open(&a) {
			out = append(out, policy.Least{To: []string{name}, Protocol: protocol, Assurance: parley.Unsigned})
		}
	}
	return out
}
