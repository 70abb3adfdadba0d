package delivery_test

import (
	"context"
	"fmt"
	"log"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/delivery"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/sqlite"
)

// printer is a Transport that prints each attempt to the standard output.
type printer struct{}

func (printer) Attempt(_ context.Context, a delivery.Attempt) delivery.Result {
	fmt.Printf("attempt %d: %s gets %q\n", a.Number, a.To, a.Message.Text())
	return delivery.Result{} // without Err: delivered
}

func (printer) FailureReply(*parley.Message, journal.Position, string, *parley.Error) *delivery.Reply {
	return nil
}
func (printer) Repeatable(parley.ID, string) bool { return true }
func (printer) Paused(string) bool                { return false }
func (printer) Absent(string) bool                { return false }
func (printer) Retries(string) parley.Retries     { return parley.Retries{} }
func (printer) KeepsHealth(string) bool           { return true }
func (printer) LaneLimit(string) int              { return 0 }
func (printer) Nested(parley.ID, string) bool     { return false }
func (printer) Waits(parley.ID, string) bool      { return false }

// Deliver the messages that a journal records.
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
	d := delivery.New(delivery.Config{Log: j, Transport: printer{}})
	defer j.Watch(d.Recorded)()

	if _, err := j.Append(ctx, journal.Entry{
		Scope: "weather",
		Message: &parley.Message{ID: parley.HashID([]byte("notice-000000000")), Kind: parley.Notice, From: "ann",
			To: "bob", Parts: []parley.Part{parley.Text("it rains")}},
		Open: []journal.Opening{{To: "bob"}},
	}); err != nil {
		log.Fatal(err)
	}
	if err := d.Close(ctx); err != nil { // waits for attempts in flight
		log.Fatal(err)
	}
	fmt.Println(len(j.Deliveries(journal.Filter{})), "deliveries are open")
	// Output:
	// attempt 1: bob gets "it rains"
	// 0 deliveries are open
}
