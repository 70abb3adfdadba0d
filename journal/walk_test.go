package journal

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/parley-hub/parley"
)

// Walk sees what Deliveries lists, also while others write.
func TestWalk(t *testing.T) {
	t.Parallel()
	j := open(t, setup{Memory: true, Partitions: 4})
	for n := range walkChunk + 1000 {
		to := fmt.Sprintf("agent-%d", n%5)
		m := &parley.Message{ID: parley.ID{byte(n >> 16), byte(n >> 8), byte(n), 0, 0, 0, 0x70, 0, 0x80}, Kind: parley.Notice,
			From: "alice", To: to}
		if _, err := j.Append(t.Context(), Entry{Scope: to, Message: m, Open: []Opening{{To: to}}}); err != nil {
			t.Fatal(err)
		}
	}
	var writers sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	writers.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			m := &parley.Message{ID: parley.ID{0xff, byte(n >> 16), byte(n >> 8), byte(n), 0, 0, 0x70, 0, 0x80},
				Kind: parley.Notice, From: "alice", To: "other"}
			if _, err := j.Append(ctx, Entry{Scope: "other", Message: m, Open: []Opening{{To: "other"}}}); err != nil {
				return // at its end
			}
		}
	})
	want := j.Deliveries(Filter{To: "agent-3", States: []parley.DeliveryState{parley.Waiting}})
	var got []parley.ID
	j.Walk(Filter{To: "agent-3", States: []parley.DeliveryState{parley.Waiting}}, func(d *Delivery) bool {
		got = append(got, d.Message)
		return true
	})
	cancel()
	writers.Wait()
	slices.SortFunc(got, func(a, b parley.ID) int { return slices.Compare(a[:], b[:]) })
	if len(got) != len(want) || len(want) < walkChunk/6 {
		t.Fatalf("%d deliveries, want %d", len(got), len(want))
	}
	for i, d := range want {
		if got[i] != d.Message {
			t.Fatalf("delivery %d is %s, want %s", i, got[i], d.Message)
		}
	}
	n := 0
	if j.Walk(Filter{}, func(*Delivery) bool { n++; return n < 7 }); n != 7 {
		t.Errorf("%d deliveries after fn said that it is enough", n)
	}
}
