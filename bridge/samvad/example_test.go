package samvad_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"log"
	"net/netip"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/samvad"
)

// A Go function is a SAMVAD agent at the hub, which a SAMVAD client calls.
func Example() {
	ctx := context.Background()
	me, err := samvad.NewIdentity("agent://client.local", "key-1")
	if err != nil {
		log.Fatal(err)
	}
	client := node.Agent{SAMVAD: &node.SAMVADAgent{ID: me.ID(),
		Key: base64.StdEncoding.EncodeToString(me.Public())}}
	n, err := node.Open(ctx, node.Config{Durability: "memory", Listen: node.Listen{HTTP: "127.0.0.1:0"},
		Agents: map[string]node.Agent{"client": client}})
	if err != nil {
		log.Fatal(err)
	}
	defer n.Close(ctx)

	type query struct {
		City string `json:"city"`
	}
	err = n.Handle(parley.Agent{Name: "weather", Exposed: parley.Everywhere}, parley.Skill("forecast",
		func(_ context.Context, m *parley.Message, q query) (string, error) {
			return fmt.Sprintf("%s asks about %s, %s", m.From, q.City, m.Origin.Verdict.Assurance), nil
		}))
	if err != nil {
		log.Fatal(err)
	}
	if err := n.Start(ctx); err != nil {
		log.Fatal(err)
	}

	c := &samvad.Client{Identity: me, Guard: samvad.AllowPrefixes(netip.MustParsePrefix("127.0.0.0/8"))}
	reply, err := c.Ask(ctx, samvad.Call{URL: n.AgentAddresses("weather")["samvad"], Skill: "forecast",
		Payload: []byte(`{"city":"Bern"}`)})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(reply.Result))
	// Output: {"result":"client asks about Bern, signed"}
}
