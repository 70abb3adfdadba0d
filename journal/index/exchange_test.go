package index

import (
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// TestDeliveryProtocol: a delivery has the protocol of its last attempt that was
// recorded with its exchange.
func TestDeliveryProtocol(t *testing.T) {
	j := memoryJournal(t, 1)
	x := openIndex(t, Config{Journal: j})
	id, now := testID(1, 1), time.Unix(1, 0)
	entries := []journal.Entry{
		{Scope: "bob", Message: &parley.Message{ID: id, Kind: parley.Request, From: "alice", To: "bob",
			Origin: parley.Origin{Protocol: "samvad"}}, Open: []journal.Opening{{To: "bob", Attempt: 1}}},
		{Steps: []journal.Step{{Message: id, To: "bob", State: parley.Waiting, Attempt: 1, Next: now,
			Exchange: &parley.Exchange{Protocol: "asp"}}}},
		{Steps: []journal.Step{{Message: id, To: "bob", State: parley.Delivering, Attempt: 2}}},
		{Steps: []journal.Step{{Message: id, To: "bob", State: parley.Delivered, Attempt: 2,
			Exchange: &parley.Exchange{Protocol: "mcp"}}}},
		{Steps: []journal.Step{{Message: id, To: "bob", State: parley.Abandoned, Attempt: 2}}}, // no attempt
	}
	for i, want := range []string{"", "asp", "asp", "mcp", "mcp"} {
		if _, err := j.Append(t.Context(), entries[i]); err != nil {
			t.Fatal(err)
		}
		if err := x.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		m, err := x.Message(t.Context(), id.String())
		if err != nil || len(m.Deliveries) != 1 {
			t.Fatal(m, err)
		}
		if got := m.Deliveries[0].Protocol; got != want {
			t.Errorf("after record %d: protocol %q, want %q", i+1, got, want)
		}
	}
}
