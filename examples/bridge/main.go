// Command bridge lets a SAMVAD agent and a uAgent talk, each in its own protocol. It is a
// hub with the two agents "museum" and "guide":
//
//	go run ./examples/bridge -museum http://127.0.0.1:8091 -key BASE64KEY \
//		-guide agent1q… -endpoint http://127.0.0.1:8001/submit
//
// It prints where each is found in the other's protocol. The guide then sends to the
// museum with any uAgents library, and the museum to the guide with any SAMVAD library.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/node"
)

func main() {
	var museum node.SAMVADAgent
	var guide node.UAgent
	flag.StringVar(&museum.URL, "museum", "", "base URL of the SAMVAD agent")
	flag.StringVar(&museum.ID, "id", "agent://museum.example", "its identity")
	flag.StringVar(&museum.Key, "key", "", "its public key, base64")
	flag.StringVar(&guide.Address, "guide", "", "address of the uAgent")
	flag.StringVar(&guide.Endpoint, "endpoint", "", "where it takes envelopes")
	listen := flag.String("listen", "127.0.0.1:8080", "address of the hub")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()

	n, err := node.Open(ctx, node.Config{
		Data:   "bridge-data", // messages are on disk here before a sender hears "accepted"
		Listen: node.Listen{HTTP: *listen},
		// Without this the hub calls public addresses only.
		Network: node.Network{Allow: []string{"loopback"}},
		// Each agent is exposed: the hub stands in for it in the other's protocol.
		Agents: map[string]node.Agent{
			"museum": {SAMVAD: &museum, Expose: parley.Everywhere},
			"guide":  {UAgents: &guide, Expose: parley.Everywhere},
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(n.Addresses().HTTP)
	fmt.Println("museum", n.AgentAddresses("museum")["uagents"])
	fmt.Println("guide", n.AgentAddresses("guide")["samvad"])
	if err := n.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
