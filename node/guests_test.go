package node

import (
	"testing"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/policy"
)

// TestGuestRules: agents.NAME.a2a.guests and .mcp.guests, and the patterns of the protocol's table, let callers without
// credentials reach an agent in that protocol alone, and a reload takes it back.
func TestGuestRules(t *testing.T) {
	t.Parallel()
	for protocol, c := range map[string]Config{
		"a2a": {A2A: A2A{Guests: []string{"public/*"}}, Agents: map[string]Agent{
			"open": {A2A: &A2AAgent{Guests: true}}, "shut": {A2A: &A2AAgent{Calls: true}}}},
		"mcp": {MCP: MCP{Guests: []string{"public/*"}}, Agents: map[string]Agent{
			"open": {MCP: &MCPAgent{Guests: true}}, "shut": {MCP: &MCPAgent{Calls: true}}}},
	} {
		c.Require = []Require{{To: []string{"**"}, Assurance: "signed"}}
		for _, want := range []bool{true, false} {
			k, err := c.check()
			if err != nil {
				t.Fatal(err)
			}
			n := &Node{k: k}
			p, err := policy.New(n.policyConfig(&c, k))
			if err != nil {
				t.Fatal(err)
			}
			permits := func(name, protocol string) bool {
				m := &parley.Message{Kind: parley.Request, From: "guest", Origin: parley.Origin{Protocol: protocol,
					Verdict: parley.Verdict{Assurance: parley.Unsigned}}}
				return p.Permits(m, policy.Recipient{Agent: &parley.Agent{Name: name, Exposed: parley.Everywhere}})
			}
			if permits("open", protocol) != want || permits("public/x", protocol) != want {
				t.Errorf("a guest of %s reaches open agents: %t, want %t", protocol, !want, want)
			}
			if permits("open", "samvad") || permits("public/x", "agh") || permits("shut", protocol) {
				t.Errorf("guests of %s reach more than was opened to them", protocol)
			}
			c.Agents, c.A2A.Guests, c.MCP.Guests = nil, nil, nil
		}
	}
}
