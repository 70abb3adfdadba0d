package journal

import (
	"fmt"
	"slices"
	"testing"

	"github.com/parley-hub/parley"
)

// TestLossesOfEvents: the losses of an event are added to the delivery of its request,
// besides the losses of the steps. This holds for a journal read from the log and from a
// checkpoint.
func TestLossesOfEvents(t *testing.T) {
	cfg := setup{Dir: t.TempDir(), Node: "n"}
	j := open(t, cfg)
	asked := &parley.Message{ID: newID(t, j.cfg.Now()), Kind: parley.Request, From: "alice", To: "bob"}
	if _, err := j.Append(t.Context(), Entry{Scope: "bob", Message: asked,
		Open: []Opening{{To: "bob", Attempt: 1}}}); err != nil {
		t.Fatal(err)
	}
	say := func(m *parley.Message, losses ...parley.Loss) error {
		m.ID, m.From, m.To, m.InReplyTo = newID(t, j.cfg.Now()), "bob", "alice", asked.ID
		_, err := j.Append(t.Context(), Entry{Scope: "bob", Message: m, Losses: losses})
		return err
	}
	loss := func(n int) parley.Loss { return parley.Loss{Field: fmt.Sprint("f", n), Reason: "no word"} }
	var want []parley.Loss
	check := func(where string) {
		t.Helper()
		if v, ok := j.Delivery(asked.ID, "bob"); !ok || !slices.Equal(v.Losses, want) {
			t.Errorf("%s: %v, want %v", where, v.Losses, want)
		}
	}
	if err := say(&parley.Message{Kind: parley.Event}, loss(0), loss(1), loss(0)); err != nil {
		t.Fatal(err)
	}
	want = append(want, loss(0), loss(1))
	check("after an event")
	if _, err := j.Append(t.Context(), Entry{Steps: []Step{{Message: asked.ID, To: "bob", State: parley.Delivered,
		Attempt: 1, Losses: []parley.Loss{loss(1), loss(2)}}}}); err != nil {
		t.Fatal(err)
	}
	want = append(want, loss(2))
	check("after a step")
	for n := range 2 * MaxLosses {
		if err := say(&parley.Message{Kind: parley.Event}, loss(n)); err != nil {
			t.Fatal(err)
		}
		if n > 2 && len(want) < MaxLosses {
			want = append(want, loss(n))
		}
	}
	check("after too many losses")
	again := open(t, setup{Dir: crash(t, cfg.Dir), Node: "n"}) // from the log
	if v, ok := again.Delivery(asked.ID, "bob"); !ok || !slices.Equal(v.Losses, want) {
		t.Errorf("after a crash: %v, want %v", v.Losses, want)
	}
	j = reopened(t, j, cfg) // from the checkpoint
	check("after a restart")
	if err := say(&parley.Message{Kind: parley.Response}, loss(0)); err == nil {
		t.Error("a response has losses of its own")
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
}
