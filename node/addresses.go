package node

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/parley-hub/parley/directory"
)

// Addresses are the addresses of a hub and of the agents of its program. Those of any
// agent are given by [Node.AgentAddresses].
type Addresses struct {
	HTTP   string                       `json:"http,omitempty"`       // base URL of the protocols for peers
	Local  string                       `json:"local,omitempty"`      // the same, for this machine
	Admin  string                       `json:"admin,omitempty"`      // base URL of the admin API
	AGH    string                       `json:"agh,omitempty"`        // NATS for AGH peers
	A2E    string                       `json:"a2e,omitempty"`        // NDJSON over TCP for A2E agents
	A2A    string                       `json:"a2a,omitempty"`        // gRPC for A2A clients: grpc://HOST:PORT
	Hub    string                       `json:"hub"`                  // the hub's own id
	Agents map[string]map[string]string `json:"agents,omitempty"`     // of [Node.Handle], at most 100: name → protocol → address
	Count  int                          `json:"agentCount,omitempty"` // of all agents of the directory
}

// String is a table for people, without a line feed at its end:
//
//	hub hub-0123456789
//	  protocols  http://127.0.0.1:8080
//	  admin      http://127.0.0.1:9090
//	  agents     1: `parley agents list` shows them
//	  weather    samvad  http://127.0.0.1:8080/agents/weather
func (a Addresses) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "hub %s\n", a.Hub)
	for _, l := range [][2]string{{"protocols", a.HTTP}, {"AGH", a.AGH}, {"A2E", a.A2E}, {"A2A gRPC", a.A2A},
		{"admin", a.Admin}} {
		if l[1] != "" {
			fmt.Fprintf(&b, "  %-9s  %s\n", l[0], l[1])
		}
	}
	names, protocols := len("protocols"), 0
	for name, at := range a.Agents {
		names = max(names, len(name))
		for protocol := range at {
			protocols = max(protocols, len(protocol))
		}
	}
	if a.Count > 0 {
		fmt.Fprintf(&b, "  agents     %d: `parley agents list` shows them\n", a.Count)
	}
	for _, name := range slices.Sorted(maps.Keys(a.Agents)) {
		first := name
		for _, protocol := range slices.Sorted(maps.Keys(a.Agents[name])) {
			fmt.Fprintf(&b, "  %-*s  %-*s  %s\n", names, first, protocols, protocol, a.Agents[name][protocol])
			first = ""
		}
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// ownAgents bounds [Addresses.Agents].
const ownAgents = 100

// Addresses gives the addresses of the hub, and of the agents of this program.
func (n *Node) Addresses() Addresses {
	a := Addresses{Hub: n.hub.ID(), HTTP: n.c.PublicURL, Count: n.directory.Len(),
		Agents: map[string]map[string]string{}}
	if n.httpListen != nil {
		a.Local = localURL(n.httpListen.Addr(), n.c.secure())
	}
	if n.adminListen != nil {
		a.Admin = localURL(n.adminListen.Addr(), false)
	}
	for _, b := range n.bindings {
		if b.Addresses != nil {
			b.Addresses(&a)
		}
	}
	for _, e := range n.directory.All() {
		if e.Source != directory.FromCode || len(a.Agents) == ownAgents {
			continue
		}
		if at := n.hub.Addresses(e); len(at) > 0 {
			a.Agents[e.Name] = at
		}
	}
	return a
}

// AgentAddresses gives the addresses of an agent by protocol; none for an agent that the directory does not have.
func (n *Node) AgentAddresses(name string) map[string]string {
	e, ok := n.directory.Agent(name)
	if !ok {
		return nil
	}
	return n.hub.Addresses(e)
}
