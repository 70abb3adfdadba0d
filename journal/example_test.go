package journal_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/sqlite"
)

// Record a message, and read the journal back.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "journal")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	s, err := sqlite.Open(ctx, sqlite.Config{Dir: dir})
	if err != nil {
		log.Fatal(err)
	}
	j, err := journal.Open(ctx, journal.Config{Store: s})
	if err != nil {
		log.Fatal(err)
	}
	defer j.Close()

	at, err := j.Append(ctx, journal.Entry{
		Scope: "weather", // entries with the same scope are ordered
		Message: &parley.Message{
			ID: parley.HashID([]byte("question-0000000")), Kind: parley.Notice, From: "alice", To: "weather",
			Parts: []parley.Part{parley.Text("it rains")},
		},
	})
	if err != nil {
		log.Fatal(err) // not recorded, unless it is journal.ErrUnknown
	}
	fmt.Println("recorded at", at)

	for r, err := range j.Records(ctx, at.Partition, journal.From{}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(r.Position, r.Message.From, r.Message.Text())
	}
	// Output:
	// recorded at 0-1
	// 0-1 alice it rains
}

// Record a request once, with its delivery: the first attempt, and the answer.
func Example_delivery() {
	ctx := context.Background()
	s, err := sqlite.Open(ctx, sqlite.Config{Memory: true})
	if err != nil {
		log.Fatal(err)
	}
	j, err := journal.Open(ctx, journal.Config{Store: s})
	if err != nil {
		log.Fatal(err)
	}
	defer j.Close()

	question := &parley.Message{
		ID: parley.HashID([]byte("question-0000000")), Kind: parley.Request, From: "alice", To: "weather",
		Parts: []parley.Part{parley.Text("will it rain?")},
	}
	entry := journal.Entry{
		Scope:   "weather",
		Message: question,
		Open:    []journal.Opening{{To: "weather"}},
		Key:     journal.Key{ID: "nonce 77", Sender: "alice", Until: time.Now().Add(5 * time.Minute)},
	}
	at, _, err := j.Accept(ctx, entry) // durable from here on
	fmt.Println(at, err)

	_, prior, err := j.Accept(ctx, entry) // the same again
	fmt.Println("seen at", prior.Position, err)

	// Each attempt is recorded before it is made.
	attempt := journal.Step{Message: question.ID, To: "weather", State: parley.Delivering, Attempt: 1}
	_, err = j.Append(ctx, journal.Entry{Steps: []journal.Step{attempt}})
	fmt.Println(err)
	_, err = j.Append(ctx, journal.Entry{Steps: []journal.Step{attempt}})
	fmt.Println(errors.Is(err, journal.ErrConflict))

	// The answer and the end of the request's delivery are one record.
	answer := &parley.Message{
		ID: parley.HashID([]byte("answer-000000000")), Kind: parley.Response, From: "weather", To: "alice",
		InReplyTo: question.ID, Parts: []parley.Part{parley.Text("no")},
	}
	at, err = j.Append(ctx, journal.Entry{
		Scope: "weather", Message: answer,
		Steps: []journal.Step{{Message: question.ID, To: "weather", State: parley.Answered}},
	})
	fmt.Println(at, err, len(j.Deliveries(journal.Filter{})))

	record, err := j.Read(ctx, at)
	fmt.Println(record.Message.Text(), err)

	// Output:
	// 0-1 <nil>
	// seen at 0-1 <nil>
	// <nil>
	// true
	// 0-3 <nil> 0
	// no <nil>
}
