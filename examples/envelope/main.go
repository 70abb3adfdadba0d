// Command envelope checks the envelope of a uAgent for the agent with the given address,
// and prints its message:
//
//	go run ./examples/envelope agent1q… < envelope.json
//
// Its exit code is 1 if the envelope is not genuine, not for this agent, or expired.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/parley-hub/parley/uagents"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: envelope ADDRESS < FILE")
	}
	body, err := io.ReadAll(io.LimitReader(os.Stdin, 2<<20))
	if err != nil {
		log.Fatal(err)
	}
	// A program keeps one verifier: it remembers envelopes, so that none counts twice.
	v := &uagents.Verifier{Self: os.Args[1]}
	m, err := v.Verify(context.Background(), body)
	if e, ok := errors.AsType[*uagents.Error](err); ok {
		log.Fatalf("%s: %s", e.Code, e.Text)
	}
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s says, %s: %s\n", m.Sender, m.Verdict.Assurance, m.Content.Payload)
}
