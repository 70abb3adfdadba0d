package node_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/node"
)

// Run a hub in a program, with an agent, and ask the agent.
func Example() {
	ctx := context.Background()
	data, err := os.MkdirTemp("", "parley")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(data)
	n, err := node.Open(ctx, node.Config{Data: data, Listen: node.Listen{HTTP: "127.0.0.1:0"}})
	if err != nil {
		log.Fatal(err)
	}
	defer n.Close(ctx)

	type query struct {
		City string `json:"city"`
	}
	type answer struct {
		Celsius float64 `json:"celsius"`
	}
	forecast := func(context.Context, *parley.Message, query) (answer, error) { return answer{21}, nil }
	if err := n.Handle(parley.Agent{Name: "weather", Exposed: parley.Everywhere},
		parley.Skill("forecast", forecast)); err != nil {
		log.Fatal(err)
	}
	city, err := parley.JSON(query{"Bern"})
	if err != nil {
		log.Fatal(err)
	}
	m, err := n.Hub().Ask(ctx, hub.Submission{Scope: "go ann", Message: &parley.Message{
		Kind: parley.Request, From: "ann", To: "weather", Skill: "forecast", Parts: []parley.Part{city},
		Origin: parley.Origin{Protocol: "go"},
	}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(m.Kind, string(m.Parts[0].Data))
	// Output: response {"celsius":21}
}
