package aghnats_test

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/agh/aghnats"
)

// A hub with two peers: the coordinator gives the worker a piece of work and waits
// for its end.
func ExampleGateway() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	hub := &aghnats.Gateway{Router: &agh.Router{}, Listen: "127.0.0.1:0", Users: []aghnats.User{
		{Name: "ops", Token: "ops-token", Peers: []string{"coordinator"}, Workspaces: []string{"ws"}},
		{Name: "dev", Token: "dev-token", Peers: []string{"worker"}, Workspaces: []string{"ws"}},
	}}
	if err := hub.Start(ctx); err != nil {
		fmt.Println(err)
		return
	}
	defer hub.Close()
	join := func(peer, token string, handler func(context.Context, *agh.Request)) (*agh.Client, error) {
		nc, err := nats.Connect("nats://"+hub.Addr(), nats.Token(token))
		if err != nil {
			return nil, err
		}
		transport := &aghnats.Transport{Conn: nc}
		c := &agh.Client{Transport: transport, WorkspaceID: "ws", Channel: "builders", PeerID: peer, Handler: handler}
		return c, c.Join(ctx)
	}
	coordinator, err := join("coordinator", "ops-token", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := join("worker", "dev-token", func(ctx context.Context, r *agh.Request) {
		if err := r.Trace(ctx, &agh.Trace{State: agh.StateCompleted, Message: "all green"}); err != nil {
			fmt.Println(err)
		}
	}); err != nil {
		fmt.Println(err)
		return
	}
	for answer, err := range coordinator.Whois(ctx, "", "worker", false) { // until the worker is there
		if err == nil && answer.Envelope.From == "worker" {
			break
		}
	}
	end, err := coordinator.Ask(ctx, "worker", &agh.Say{Text: "Run the tests."})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(end.State, end.Envelope.Content().(*agh.Trace).Message)
	// Output: completed all green
}
