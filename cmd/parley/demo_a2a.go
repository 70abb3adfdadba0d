package main

import (
	"context"
	"iter"
	"net"
	"net/http"
	"strings"
	"time"

	wire "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	bridge "github.com/parley-hub/parley/bridge/a2a"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/internal/connect"
)

// innkeeper is an A2A agent elsewhere, of the official SDK: it has a room in every city.
type innkeeper struct{}

// Execute implements a2asrv.AgentExecutor.
func (innkeeper) Execute(_ context.Context, c *a2asrv.ExecutorContext) iter.Seq2[wire.Event, error] {
	return func(yield func(wire.Event, error) bool) {
		for _, e := range []wire.Event{wire.NewSubmittedTask(c, c.Message),
			wire.NewStatusUpdateEvent(c, wire.TaskStateWorking, nil),
			wire.NewArtifactEvent(c, wire.NewTextPart("a room with a view: "+a2aText(c.Message.Parts))),
			wire.NewStatusUpdateEvent(c, wire.TaskStateCompleted, nil)} {
			if !yield(e, nil) {
				return
			}
		}
	}
}

// Cancel implements a2asrv.AgentExecutor.
func (innkeeper) Cancel(_ context.Context, c *a2asrv.ExecutorContext) iter.Seq2[wire.Event, error] {
	return func(yield func(wire.Event, error) bool) {
		yield(wire.NewStatusUpdateEvent(c, wire.TaskStateCanceled, nil), nil)
	}
}

// startInn serves the innkeeper at a socket of its own.
func startInn() (base string, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	base = "http://" + l.Addr().String()
	card := &wire.AgentCard{Name: "Inn", Description: "Has a room.", Version: "1.0.0",
		Capabilities: wire.AgentCapabilities{Streaming: true}, DefaultInputModes: []string{"text/plain"},
		DefaultOutputModes: []string{"text/plain"},
		Skills: []wire.AgentSkill{{ID: "book", Name: "Book", Description: "Books a room.",
			Tags: []string{"rooms"}}},
		SupportedInterfaces: []*wire.AgentInterface{{URL: base + "/rpc",
			ProtocolBinding: wire.TransportProtocolJSONRPC, ProtocolVersion: wire.Version}}}
	mux := http.NewServeMux()
	mux.Handle(bridge.CardPath, a2asrv.NewStaticAgentCardHandler(card))
	mux.Handle("/rpc", a2asrv.NewJSONRPCHandler(a2asrv.NewHandler(innkeeper{})))
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = s.Serve(l) }() // ends with Close
	return base, func() { _ = s.Close() }, nil
}

// a2aScenes adds an A2A agent elsewhere, and calls a Go handler as an A2A client does.
func (d *demo) a2aScenes(ctx context.Context) {
	base, stop, err := startInn()
	if err == nil {
		d.leaves = append(d.leaves, stop)
		var id parley.Identity
		if id, err = bridge.IdentityAt(base); err == nil {
			_, err = d.node.Hub().Directory().Put(ctx, parley.Agent{Name: "inn", Identities: []parley.Identity{id}},
				directory.FromOperator)
		}
	}
	var token admin.Token
	if err == nil {
		token, err = d.node.Admin().IssueToken(ctx, admin.Actor{Name: "demo", Role: admin.Administer},
			admin.NewToken{Name: "tourist", Agent: "tourist"})
	}
	if err != nil {
		d.scene("an A2A agent is added", func() ([]string, error) { return nil, err })
		return
	}
	d.inn = true
	d.scene("tourist, an A2A client with a token of the hub, asks weather and reads the stream of its task → a Go handler",
		func() ([]string, error) {
			at := d.node.Addresses().HTTP + bridge.Base + "weather"
			credentials := &a2aCredentials{origin: originOf(at), token: token.Secret}
			card, _, err := connect.ReadA2ACard(ctx, credentials, at, bridge.V1)
			if err != nil {
				return nil, err
			}
			client, err := newA2AClient(ctx, card, &http.Client{Transport: credentials})
			if err != nil {
				return nil, err
			}
			question := wire.NewMessage(wire.MessageRoleUser, wire.NewDataPart(map[string]any{"city": "Bern"}))
			var lines []string
			for e, err := range client.SendStreamingMessage(ctx, &wire.SendMessageRequest{Message: question}) {
				if err != nil {
					return lines, err
				}
				switch e := e.(type) {
				case *wire.TaskStatusUpdateEvent:
					lines = append(lines, "status    "+e.Status.State.String())
				case *wire.TaskArtifactUpdateEvent:
					lines = append(lines, "artifact  "+a2aText(e.Artifact.Parts))
				}
			}
			return lines, want(strings.Contains(strings.Join(lines, " "), `"celsius":21`), "the answer is not the weather's")
		})
	d.scene("the planner asks inn, an A2A agent elsewhere", func() ([]string, error) {
		return d.plannerAsked(ctx, "inn", "", "two beds", "a room with a view: two beds")
	})
}
