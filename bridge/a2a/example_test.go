package a2a_test

import (
	"context"
	"fmt"
	"log"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2aclient/agentcard"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/node"
)

// A Go function is an A2A agent at the hub. A client of the official SDK reads its card and
// sends it a message; the answer is a task.
func Example() {
	ctx := context.Background()
	n, err := node.Open(ctx, node.Config{Durability: "memory", Listen: node.Listen{HTTP: "127.0.0.1:0"},
		A2A: node.A2A{Guests: []string{"weather"}}})
	if err != nil {
		log.Fatal(err)
	}
	defer n.Close(ctx)

	err = n.Handle(parley.Agent{Name: "weather", Exposed: parley.Everywhere}, parley.Skill("forecast",
		func(_ context.Context, _ *parley.Message, q struct{ City string }) (string, error) {
			return "21 °C in " + q.City, nil
		}))
	if err != nil {
		log.Fatal(err)
	}
	if err := n.Start(ctx); err != nil {
		log.Fatal(err)
	}

	card, err := agentcard.DefaultResolver.Resolve(ctx, n.AgentAddresses("weather")["a2a"])
	if err != nil {
		log.Fatal(err)
	}
	client, err := a2aclient.NewFromCard(ctx, card)
	if err != nil {
		log.Fatal(err)
	}
	answer, err := client.SendMessage(ctx, &protocol.SendMessageRequest{
		Message: protocol.NewMessage(protocol.MessageRoleUser, protocol.NewTextPart("Bern"))})
	if err != nil {
		log.Fatal(err)
	}
	if task, ok := answer.(*protocol.Task); ok {
		fmt.Println(task.Status.State, task.Artifacts[0].Parts[0].Data())
	}
	// Output: TASK_STATE_COMPLETED 21 °C in Bern
}
