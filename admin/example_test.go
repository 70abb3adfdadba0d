package admin_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/node"
)

// Give a hub an agent over the admin API, and read what the hub keeps for it.
func ExampleClient() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	data, err := os.MkdirTemp("", "parley")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(data)
	var token string
	n, err := node.Open(ctx, node.Config{Data: data, Listen: node.Listen{Admin: "127.0.0.1:0"},
		FirstToken: func(secret string) { token = secret }})
	if err != nil {
		log.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- n.Run(ctx) }()

	c := &admin.Client{Base: n.Addresses().Admin, Token: token}
	if _, err := c.AddAgent(ctx, admin.NewAgent{Name: "bob", Inbox: true}); err != nil {
		log.Fatal(err)
	}
	text := "it rains"
	if _, err := c.Send(ctx, admin.Send{From: "ann", To: "bob", Kind: parley.Notice, Text: &text}); err != nil {
		log.Fatal(err)
	}
	list, err := c.Collect(ctx, "bob", 1, time.Minute)
	if err != nil {
		log.Fatal(err)
	}
	for _, m := range list {
		fmt.Println(m.From, "says:", *m.Parts[0].Text)
	}
	stop()
	if err := <-done; err != nil {
		log.Fatal(err)
	}
	// Output: ann says: it rains
}
