package node

import "github.com/parley-hub/parley/admin"

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
