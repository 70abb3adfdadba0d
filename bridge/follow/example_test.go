package follow_test

import (
	"context"
	"fmt"
	"log"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge/follow"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/index"
	"github.com/parley-hub/parley/journal/sqlite"
)

// Follow a request live, then find it again by its id.
func Example() {
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
	x, err := index.Open(ctx, index.Config{Journal: j})
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	requests := follow.New(follow.Config{Journal: j, Index: x})
	requests.Start()
	defer requests.Close()

	request := &parley.Message{ID: parley.HashID([]byte("request-00000001")), Kind: parley.Request, From: "ann", To: "bob"}
	answer := &parley.Message{ID: parley.HashID([]byte("answer-000000001")), Kind: parley.Response, From: "bob",
		InReplyTo: request.ID, Parts: []parley.Part{parley.Text("it rains")}}
	live := requests.Subscribe(request.ID, false) // before the request is recorded
	defer live.End()
	for _, m := range []*parley.Message{request, answer} { // the hub's part
		if _, err := j.Append(ctx, journal.Entry{Scope: "weather", Message: m}); err != nil {
			log.Fatal(err)
		}
	}
	records, err := live.Take(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, r := range records {
		fmt.Println("live:", r.Message.Kind)
	}

	found, err := requests.Find(ctx, request.ID, follow.By{From: "ann"})
	if err != nil {
		log.Fatal(err)
	}
	for r, err := range requests.Load(ctx, found, true, nil) {
		if err != nil {
			log.Fatal(err)
		}
		if r.Message.Kind.Terminal() {
			fmt.Println("later:", r.Message.Kind, string(r.Message.Parts[0].Data))
		}
	}
	_, err = requests.Find(ctx, request.ID, follow.By{From: "eve"})
	fmt.Println("eve:", err)
	// Output:
	// live: request
	// live: response
	// later: response it rains
	// eve: follow: no such request
}
