package agh_test

import (
	"context"
	"fmt"
	"log"

	"github.com/nats-io/nats.go"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/agh/aghnats"
	"github.com/parley-hub/parley/node"
)

// A Go function is a peer in a channel on the hub's NATS; another peer gives it
// work.
func Example() {
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	n, err := node.Open(ctx, node.Config{Durability: "memory", Listen: node.Listen{AGH: "127.0.0.1:0"},
		Policy: node.Policy{Assurance: "session"}, // AGH peers sign only with a verified handle
		AGH: node.AGH{
			Users: map[string]node.AGHUser{
				"ops": {Token: "ops-token", Peers: []string{"coordinator"}, Workspaces: []string{"ws"}},
			},
			Workspaces: map[string]node.AGHWorkspace{"ws": {Channels: []string{"builders"}}},
		}})
	if err != nil {
		log.Fatal(err)
	}
	defer n.Close(context.Background())

	err = n.Handle(parley.Agent{Name: "weather", Exposed: parley.Everywhere}, parley.Skill("forecast",
		func(_ context.Context, m *parley.Message, city string) (string, error) {
			return fmt.Sprintf("21 °C in %s", city), nil
		}))
	if err != nil {
		log.Fatal(err)
	}
	if err := n.Start(ctx); err != nil {
		log.Fatal(err)
	}

	nc, err := nats.Connect(n.Addresses().AGH, nats.Token("ops-token"))
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	c := &agh.Client{Transport: &aghnats.Transport{Conn: nc}, WorkspaceID: "ws", Channel: "builders",
		PeerID: "coordinator"}
	if err := c.Join(ctx); err != nil {
		log.Fatal(err)
	}
	for answer, err := range c.Whois(ctx, "", "weather", false) { // until the hub's greeting has come
		if err == nil && answer.Envelope.From == "weather" {
			break
		}
	}
	end, err := c.Ask(ctx, "weather", &agh.Say{Text: "Bern"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(end.State, string(end.Envelope.Content().(*agh.Trace).Result))
	// Output: completed {"result":"21 °C in Bern"}
}
