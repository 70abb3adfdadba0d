package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/agh/aghnats"
	"github.com/parley-hub/parley/node"
)

// demoAGH permits the demo's peer.
func demoAGH() node.AGH {
	return node.AGH{Users: map[string]node.AGHUser{"mason": {Token: "demo-mason", Peers: []string{"mason"},
		Workspaces: []string{"demo"}}},
		Workspaces: map[string]node.AGHWorkspace{"demo": {Channels: []string{"square"}}}}
}

// aghScenes adds an AGH peer on a NATS connection of its own, which sees the demo's
// agents as peers, gives work to one and gets work from one.
func (d *demo) aghScenes(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	d.leaves = append(d.leaves, cancel)
	nc, err := nats.Connect(d.node.Addresses().AGH, nats.Token("demo-mason"))
	if err != nil {
		d.scene("an AGH peer connects", func() ([]string, error) { return nil, err })
		return
	}
	d.leaves = append(d.leaves, nc.Close)
	mason := &agh.Client{Transport: &aghnats.Transport{Conn: nc}, WorkspaceID: "demo", Channel: "square",
		PeerID: "mason", DisplayName: "Mason",
		Handler: func(ctx context.Context, r *agh.Request) {
			if r.Envelope.WorkID != "" {
				_ = r.Trace(ctx, &agh.Trace{State: agh.StateCompleted, Message: "built",
					Result: json.RawMessage(`{"wall":"4 m"}`)}) // if this fails, the scene reports the missing answer
			}
		}}
	d.mason = mason
	d.scene("an AGH peer connects by NATS, greets, and asks who is there", func() ([]string, error) {
		if err := mason.Join(ctx); err != nil {
			return nil, err
		}
		for v, err := range mason.Whois(ctx, "weather", "", true) {
			if err != nil {
				return nil, err
			}
			w, ok := v.Envelope.Content().(*agh.Whois)
			if !ok {
				return nil, errors.New("the answer is no whois")
			}
			return []string{fmt.Sprintf("%s: %s, capabilities %s", v.Envelope.From, w.Card.DisplayName,
				strings.Join(w.Card.Capability, ", "))}, nil
		}
		return nil, errors.New("no peer answers")
	})
	d.scene("the peer gives weather work: a directed say → a Go handler, answered by receipt, say and trace",
		func() ([]string, error) {
			return masonAsks(ctx, mason, "weather", &agh.Say{Text: `{"city":"Bern"}`})
		})
	d.scene("the planner gives the peer work", func() ([]string, error) {
		peer, err := d.agent("agh", "demo/mason")
		if err != nil {
			return nil, err
		}
		reply, err := d.plannerAsks(ctx, peer.Name, "", parley.Text("build a wall"), nil)
		if err != nil {
			return nil, err
		}
		return []string{peer.Name + "  " + string(reply.Parts[0].Data)}, nil
	})
}

// masonAsks gives work to a peer, and shows the messages about it.
func masonAsks(ctx context.Context, mason *agh.Client, to string, work *agh.Say) (lines []string, err error) {
	state := agh.StateSubmitted
	for e, err := range mason.Stream(ctx, to, work) {
		if err != nil {
			return lines, err
		}
		state = e.State
		lines = append(lines, fmt.Sprintf("%-8s %s", e.Envelope.Kind, e.Envelope.Body))
	}
	return lines, want(state == agh.StateCompleted, "the work was not completed")
}
