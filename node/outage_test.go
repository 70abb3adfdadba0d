package node

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
)

// TestLogWhileTheJournalTakesNothing: many deliveries fail for one cause, and the log has
// one line in ten seconds, not one for each delivery.
func TestLogWhileTheJournalTakesNothing(t *testing.T) {
	const requests = 50
	var log logBuffer
	var free atomic.Uint64
	free.Store(1 << 50)
	n := running(t, Config{Durability: "disk", Data: t.TempDir(), Log: slog.New(slog.NewJSONHandler(&log, nil)),
		FreeSpace: func(string) (uint64, error) { return free.Load(), nil }})
	gate := make(chan struct{})
	var calls atomic.Int64
	err := n.Handle(parley.Agent{Name: "slow"}, parley.RawSkill("x",
		func(ctx context.Context, _ *parley.Message, r parley.Replier) error {
			calls.Add(1)
			<-gate
			return r.Reply(parley.Text("done"))
		}, parley.AsDefault()))
	if err != nil {
		t.Fatal(err)
	}
	var ids []parley.ID
	for range requests {
		m, err := n.Hub().Accept(t.Context(), hub.Submission{Scope: "go ann",
			Message: &parley.Message{Kind: parley.Request, From: "ann", To: "slow",
				Origin: parley.Origin{Protocol: "go", Peer: "ann", Verdict: parley.Verdict{Assurance: parley.Session}}}})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, m.ID)
	}
	eventually(t.Context(), t, func() bool { return calls.Load() == requests })
	free.Store(0)
	close(gate)
	const text = "cannot record the outcome of a delivery"
	eventually(t.Context(), t, func() bool { return strings.Contains(log.String(), text) })
	free.Store(1 << 50)
	eventually(t.Context(), t, func() bool {
		for _, id := range ids {
			if d, open := n.Hub().Journal().Delivery(id, "slow"); open && d.State != parley.Answered {
				return false
			}
		}
		return true
	})
	var last time.Time
	for line := range strings.Lines(log.String()) {
		var v struct {
			Time time.Time
			Msg  string
		}
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatal(err)
		}
		if v.Msg == text {
			if v.Time.Sub(last) < 10*time.Second {
				t.Fatalf("%d lines for %d deliveries", strings.Count(log.String(), text), requests)
			}
			last = v.Time
		}
	}
}
