// Command serve is a SAMVAD agent with one skill. It answers the senders whose public keys
// it is given, at once or as a stream:
//
//	go run ./examples/serve agent://me.example=BASE64KEY
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/parley-hub/parley/samvad"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:8090", "address to listen at")
	flag.Parse()
	keys := samvad.StaticKeys{}
	for _, known := range flag.Args() {
		id, text, _ := strings.Cut(known, "=")
		key, err := samvad.ParseKey(text)
		if err != nil {
			log.Fatal(err)
		}
		keys[id] = append(keys[id], key)
	}
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	base := "http://" + l.Addr().String()
	agent, err := weather(base)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(base)
	// The agent's card is at /.well-known/agent.json. Senders without an enrolled key are
	// found by their own cards if samvad.FirstOf adds a samvad.CardStore.
	handler := &samvad.Server{Agent: agent, Verifier: &samvad.Verifier{Keys: keys, NotBefore: time.Now()}}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	log.Fatal(server.Serve(l))
}

// weather is the agent.
func weather(base string) (*samvad.Agent, error) {
	// A real agent keeps its key, see samvad.LoadIdentity.
	id, err := samvad.NewIdentity("agent://weather.example", "key-1")
	if err != nil {
		return nil, err
	}
	card := &samvad.Card{ID: id.ID(), Name: "Weather", Version: "1.0.0", Description: "Knows the weather.", URL: base,
		PublicKeys: []samvad.CardKey{samvad.CardKeyOf(id, true)},
		Skills: []samvad.Skill{{ID: "forecast", Name: "Forecast", Description: "The temperature in a city.",
			Modes: []samvad.Mode{samvad.ModeSync, samvad.ModeStream}, Trust: samvad.TrustPublic,
			InputSchema:  []byte(`{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}`),
			OutputSchema: []byte(`{"type":"object"}`)}}}
	agent := &samvad.Agent{Identity: id, Card: card.Complete(), Handler: forecast}
	return agent, agent.Check() // a fault of the card is an error now, not at the first request
}

func forecast(_ context.Context, r *samvad.Request) (samvad.Response, error) {
	var q struct{ City string }
	if err := json.Unmarshal(r.Payload, &q); err != nil { // it fits the schema already
		return samvad.Response{}, err
	}
	if err := r.Chunk([]byte(`"asking the station"`)); err != nil { // only a stream has chunks
		return samvad.Response{}, err
	}
	result, err := json.Marshal(map[string]any{"city": q.City, "celsius": 21})
	return samvad.Response{Result: result}, err
}
