// Command stream asks a skill of a SAMVAD agent, and prints each piece of the answer as it
// comes:
//
//	go run ./examples/stream http://127.0.0.1:8090 forecast '{"city":"Bern"}'
//
// Its key is the one that examples/call has made.
package main

import (
	"context"
	"fmt"
	"log"
	"net/netip"
	"os"
	"os/signal"

	"github.com/parley-hub/parley/samvad"
)

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: stream URL SKILL JSON")
	}
	me, err := samvad.LoadIdentity("me/key-current.key", "agent://me.example")
	if err != nil {
		log.Fatal(err)
	}
	// Ctrl-C ends the call, and the agent hears of it.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	client := &samvad.Client{Identity: me, Guard: samvad.AllowPrefixes(netip.MustParsePrefix("127.0.0.0/8"))}
	call := samvad.Call{URL: os.Args[1], Skill: os.Args[2], Payload: []byte(os.Args[3])}
	for event, err := range client.Stream(ctx, call) {
		switch {
		case err != nil:
			log.Fatal(err) // also a stream that breaks off before its last event
		case event.Done:
			fmt.Printf("result %s\n", event.Result)
		case event.Chunk != nil:
			fmt.Printf("chunk %s\n", event.Chunk)
		}
	}
}
