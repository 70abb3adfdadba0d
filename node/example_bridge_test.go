package node_test

import (
	"context"
	"fmt"
	"log"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/uagents"
)

// Let a SAMVAD agent and a uAgent talk: the hub stands in for each in the other's protocol.
// The program examples/bridge does so from its command line.
func ExampleOpen_bridge() {
	ctx := context.Background()
	n, err := node.Open(ctx, node.Config{Durability: "memory", PublicURL: "https://hub.example",
		Listen: node.Listen{HTTP: "127.0.0.1:0"},
		Agents: map[string]node.Agent{
			"museum": {SAMVAD: &node.SAMVADAgent{URL: "https://museum.example"}, Expose: parley.Everywhere},
			"guide": {UAgents: &node.UAgent{Endpoint: "https://guide.example/submit",
				Address: "agent1qvg94auggu6jhg3ccfwpjvlkp0n9zglupzqjcnlup6qj09u96lwvvnvhwr4"}, Expose: parley.Everywhere},
		}})
	if err != nil {
		log.Fatal(err)
	}
	defer n.Close(ctx)
	fmt.Println(n.AgentAddresses("guide")["samvad"])
	fmt.Println(uagents.IsAddress(n.AgentAddresses("museum")["uagents"]))
	// Output:
	// https://hub.example/agents/guide
	// true
}
