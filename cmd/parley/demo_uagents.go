package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/parley-hub/parley/uagents"
)

// uagentsScenes adds a uAgent on a socket of its own, which registers with the hub as
// with Agentverse, asks a Go handler, and is asked by a Go handler.
func (d *demo) uagentsScenes(ctx context.Context) {
	base := d.node.Addresses().HTTP
	me, err := uagents.NewIdentity()
	var l net.Listener
	if err == nil {
		l, err = net.Listen("tcp", "127.0.0.1:0")
	}
	if err != nil {
		d.scene("a uAgent starts", func() ([]string, error) { return nil, err })
		return
	}
	client := &uagents.Client{Identity: me, HTTP: d.http, Resolver: uagents.Almanac(base)}
	server := &uagents.Server{Client: client, Resolve: uagents.Serve(&uagents.Agent{Address: me.Address(), Identity: me,
		Handler: uagents.ChatHandler(nil, func(_ context.Context, _ *uagents.Request,
			m *uagents.ChatMessage) (*uagents.ChatMessage, error) {
			answer := uagents.NewChat(time.Now(), uagents.Text("You said: "+m.Text()), uagents.EndSession())
			return &answer, nil
		})})}
	s := &http.Server{Handler: server, ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = s.Serve(l) }()                        // ends with Close
	d.leaves = append(d.leaves, func() { _ = s.Close() }) // this also closes the listener
	d.guide = client
	weather := ""
	d.scene("a uAgent registers with the hub, as it would with Agentverse, and finds weather there",
		func() ([]string, error) {
			r := &uagents.Registrar{Identity: me, URL: base, HTTP: d.http,
				Endpoints: []uagents.Endpoint{{URL: "http://" + l.Addr().String() + "/submit", Weight: 1}},
				Protocols: []string{uagents.ChatProtocolDigest}}
			if err := r.Register(ctx); err != nil {
				return nil, err
			}
			address, _, err := client.Resolver.Resolve(ctx, "weather")
			weather = address
			return []string{"the agent  " + me.Address(), "weather    " + address}, err
		})
	d.scene("the uAgent asks weather: signed with secp256k1 → a Go handler, answered by weather's stand-in, signed too",
		func() ([]string, error) {
			model, err := uagents.ParseModel([]byte(`{"title":"ForecastRequest","type":"object",` +
				`"properties":{"city":{"title":"City","type":"string"}},"required":["city"]}`))
			if err != nil {
				return nil, err
			}
			r, err := client.Ask(ctx, weather, model.MessageText([]byte(`{"city":"Bern"}`)))
			if err != nil {
				return nil, err
			}
			return []string{fmt.Sprintf("%s  %s", r.Assurance, r.Payload)},
				want(r.Assurance == uagents.Signed, "the answer is not signed")
		})
	d.scene("the planner chats with the uAgent: acknowledged, answered, session ended", func() ([]string, error) {
		guide, err := d.agent("uagents", me.Address())
		if err != nil {
			return nil, err
		}
		return d.plannerAsked(ctx, guide.Name, "", "Grüezi!", "You said: Grüezi!")
	})
}
