package mcp_test

import (
	"context"
	"fmt"
	"log"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/node"
)

// A Go function is a tool at the hub. A client of the official SDK lists it, and calls it.
func Example() {
	ctx := context.Background()
	n, err := node.Open(ctx, node.Config{Durability: "memory", Listen: node.Listen{HTTP: "127.0.0.1:0"},
		MCP: node.MCP{Guests: []string{"weather"}}})
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

	client, err := mcp.NewClient(&mcp.Implementation{Name: "editor", Version: "1"}, nil).Connect(ctx,
		&mcp.StreamableClientTransport{Endpoint: n.Addresses().HTTP + "/mcp", DisableStandaloneSSE: true}, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	list, err := client.ListTools(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	for _, t := range list.Tools {
		fmt.Println(t.Name)
	}
	result, err := client.CallTool(ctx, &mcp.CallToolParams{Name: "weather__forecast",
		Arguments: map[string]any{"City": "Bern"}})
	if err != nil {
		log.Fatal(err)
	}
	if text, ok := result.Content[0].(*mcp.TextContent); ok {
		fmt.Println(text.Text)
	}
	// Output:
	// parley_result
	// parley_send
	// weather__forecast
	// "21 °C in Bern"
}
