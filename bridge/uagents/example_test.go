package uagents_test

import (
	"context"
	"fmt"
	"log"
	"net/http"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/uagents"
)

// A Go function is a uAgent at the hub. Another uAgent finds the function's address in
// the hub's Almanac, and gets an answer signed by that address.
func Example() {
	ctx := context.Background()
	n, err := node.Open(ctx, node.Config{Durability: "memory", Listen: node.Listen{HTTP: "127.0.0.1:0"}})
	if err != nil {
		log.Fatal(err)
	}
	defer n.Close(ctx)

	type ForecastRequest struct { // the model of a skill "forecast"
		City string `json:"city"`
	}
	type report struct {
		Celsius float64 `json:"celsius"`
	}
	err = n.Handle(parley.Agent{Name: "weather", Exposed: parley.Everywhere}, parley.Skill("forecast",
		func(context.Context, *parley.Message, ForecastRequest) (report, error) { return report{21}, nil }))
	if err != nil {
		log.Fatal(err)
	}
	if err := n.Start(ctx); err != nil {
		log.Fatal(err)
	}

	me, err := uagents.NewIdentity()
	if err != nil {
		log.Fatal(err)
	}
	c := &uagents.Client{Identity: me, HTTP: http.DefaultClient, // the default refuses loopback
		Resolver: &uagents.AlmanacResolver{URL: n.Addresses().HTTP, HTTP: http.DefaultClient}}
	question := uagents.ModelOf[ForecastRequest]().Message(ForecastRequest{"Bern"})
	reply, err := c.Ask(ctx, n.AgentAddresses("weather")["uagents"], question)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(reply.Assurance, string(reply.Payload))
	// Output: signed {"celsius": 21}
}
