// Command transcript verifies the transcript of an ASP session, without a server:
//
//	go run ./examples/transcript session.json
//
// Its exit code is 1 if the transcript does not verify.
package main

import (
	"fmt"
	"log"
	"os"

	"github.com/parley-hub/parley/asp"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: transcript FILE")
	}
	f, err := os.Open(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	// The keys are those in the file. To trust a certain server or other keys, use
	// asp.TranscriptVerifier.
	report, err := asp.VerifyTranscript(f)
	for _, w := range report.Warnings {
		fmt.Println("warning:", w)
	}
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("session %s is %s: %d messages verify, signed by %s\n", report.SessionID, report.State, report.Messages,
		report.Server)
}
