package index_test

import (
	"context"
	"fmt"
	"log"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/index"
	"github.com/parley-hub/parley/journal/sqlite"
)

// Search the messages of a journal.
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
	x, err := index.Open(ctx, index.Config{Journal: j}) // without Path: in memory
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()

	for i, text := range []string{"it rains in Bern", "the sun shines in Rome"} {
		m := &parley.Message{ID: parley.HashID(fmt.Appendf(nil, "message-%08d", i)), Kind: parley.Notice, From: "ann",
			To: "bob", Parts: []parley.Part{parley.Text(text)}}
		if _, err := j.Append(ctx, journal.Entry{Scope: "weather", Message: m}); err != nil {
			log.Fatal(err)
		}
	}
	if err := x.Wait(ctx); err != nil { // until both are indexed
		log.Fatal(err)
	}
	page, err := x.Messages(ctx, index.Filter{From: "ann", Text: "rain*"})
	if err != nil {
		log.Fatal(err)
	}
	for _, m := range page.Messages {
		fmt.Println(m.Position, m.To, m.Snippet)
	}
	// Output: 0-1 bob it «rain»s in Bern
}
