package asp_test

import (
	"context"
	"fmt"
	"log"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/node"
)

// A Go function is an ASP agent at the hub. Another agent opens a session with it and
// sends a QUERY.
func Example() {
	ctx := context.Background()
	n, err := node.Open(ctx, node.Config{Durability: "memory", Listen: node.Listen{HTTP: "127.0.0.1:0"},
		ASP: node.ASP{Registration: "open"}})
	if err != nil {
		log.Fatal(err)
	}
	defer n.Close(ctx)

	type query struct {
		City string `json:"city"`
	}
	err = n.Handle(parley.Agent{Name: "weather", Exposed: parley.Everywhere}, parley.Skill("forecast",
		func(_ context.Context, m *parley.Message, q query) (string, error) {
			return fmt.Sprintf("21 °C in %s, %s", q.City, m.Origin.Verdict.Assurance), nil
		}))
	if err != nil {
		log.Fatal(err)
	}
	if err := n.Start(ctx); err != nil {
		log.Fatal(err)
	}

	me, err := asp.GenerateIdentity("agent://acme.example/procurement/buyer", "org_acme")
	if err != nil {
		log.Fatal(err)
	}
	c := &asp.Client{Server: n.Addresses().HTTP, Identity: me}
	if err := c.Register(ctx, me.Card(), nil); err != nil {
		log.Fatal(err)
	}
	s, err := c.Open(ctx, asp.Invitation{To: []string{n.AgentAddresses("weather")["asp"]}, Purpose: "weather"})
	if err != nil {
		log.Fatal(err)
	}
	for m, err := range s.Messages(ctx) { // until the invitation is accepted
		if err != nil {
			log.Fatal(err)
		}
		if m.Performative == asp.Accept {
			break
		}
	}
	answer, err := s.Ask(ctx, asp.Question{QueryType: "forecast", Parameters: query{"Bern"}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(answer.Performative, string(answer.BodyMember("data")))
	// Output: INFORM {"result":"21 °C in Bern, signed"}
}
