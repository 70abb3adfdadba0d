// Command first is the README's first agent.
package main

import (
	"context"
	"log"
	"os"
	"os/signal"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/node"
)

type Query struct {
	City string `json:"city"`
}
type Answer struct {
	Celsius float64 `json:"celsius"`
}

func forecast(ctx context.Context, m *parley.Message, q Query) (Answer, error) {
	return Answer{21}, nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	n, err := node.Open(ctx, node.Config{Data: "parley-data",
		Listen: node.Listen{HTTP: "127.0.0.1:8080", Admin: "127.0.0.1:9090"}})
	if err != nil {
		log.Fatal(err)
	}
	if err := n.Handle(parley.Agent{Name: "weather", Exposed: parley.Everywhere},
		parley.Skill("forecast", forecast)); err != nil {
		log.Fatal(err)
	}
	log.Print(n.Addresses())
	if err := n.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
