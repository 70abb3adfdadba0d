package hub

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// TestOverdueWhileTheJournalCannot: a request whose deadline passes while the
// journal takes nothing is ended when it does again.
func TestOverdueWhileTheJournalCannot(t *testing.T) {
	var free atomic.Uint64
	free.Store(1 << 40)
	j, err := journal.Open(t.Context(), journal.Config{Durability: journal.Memory, MinFree: 1 << 20, FreeSpace: func(string) (uint64, error) { return free.Load(), nil }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // after the hub is closed
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
	silent := &wire{name: "wire", repeatable: true, deliver: func(context.Context, Outbound) Outcome { return Outcome{} }}
	h := start(t, func(c *Config) { c.Journal = j }, silent)
	h.agent(t, "bob", parley.Identity{Protocol: "wire", ID: "bob"})
	s := ask("bob", "", "are you there?")
	s.Message.Deadline = time.Now().Add(time.Hour)
	m, err := h.Accept(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	state := func() (parley.DeliveryState, journal.Position) {
		v, ok := j.Delivery(m.ID, "bob")
		if !ok {
			return parley.Answered, v.Position
		}
		return v.State, v.Position
	}
	await := func(want parley.DeliveryState) (at journal.Position) {
		t.Helper()
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		for {
			now, at := state()
			if now == want {
				return at
			}
			select {
			case <-time.After(5 * time.Millisecond):
			case <-ctx.Done():
				t.Fatalf("it is %s, not %s", now, want)
			}
		}
	}
	at := await(parley.Delivered)
	free.Store(0)
	h.overdue(m.ID, "bob", at)
	if now, _ := state(); now != parley.Delivered {
		t.Fatalf("it is %s, which could not be recorded", now)
	}
	free.Store(1 << 40)
	await(parley.Answered)
}
