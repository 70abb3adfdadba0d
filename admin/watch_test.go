package admin

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/index"
)

// TestWatch: what happens comes in batches, each message in its last state.
func TestWatch(t *testing.T) {
	b := open(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var ref string
	var r Receipt
	states := map[parley.ID]parley.DeliveryState{}
	refused := false
	for batch, err := range b.client.Watch(ctx, TimelineFilter{}, func() {
		r = b.ask("Bern")
		ref = b.forge("agent://x")
	}) {
		if err != nil {
			t.Fatal(err)
		}
		if batch.Missed > 0 || len(batch.Others) > 0 {
			t.Errorf("%+v", batch)
		}
		for _, e := range batch.Entries {
			if e.Refusal != nil {
				refused = e.Refusal.Ref == ref
				continue
			}
			states[e.Message.ID] = 0
			if len(e.Message.Deliveries) > 0 {
				states[e.Message.ID] = e.Message.Deliveries[0].State
			}
		}
		if refused && len(states) == 3 && states[r.ID] == parley.Answered {
			break
		}
	}
}

// TestWatchChanges: a message that a filter no longer chooses comes once more, in its new state.
func TestWatchChanges(t *testing.T) {
	b := open(t, nil)
	by := Actor{Name: "test", Role: Read}
	for _, agent := range []string{"far", "near"} {
		if _, err := b.client.AddAgent(t.Context(), NewAgent{Name: agent, Identities: []NewIdentity{{Protocol: "agh",
			ID: "nowhere/" + agent}}}); err != nil {
			t.Fatal(err)
		}
	}
	f := TimelineFilter{Show: ShowWaiting}
	f.To = "far"
	waited, others := false, 0
	for batch, err := range b.admin.Watch(t.Context(), by, f, func() {
		if _, err := b.client.Pause(t.Context(), "far", true); err != nil {
			t.Error(err)
		}
		for _, to := range []string{"far", "near"} {
			if _, err := b.client.Send(t.Context(), Send{To: to, Kind: parley.Notice, Text: text("hello")}); err != nil {
				t.Error(err)
			}
		}
	}) {
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range batch.Entries {
			if e.Message.To != "far" || e.Message.Deliveries[0].State != parley.Waiting {
				t.Errorf("%+v", e.Message)
			}
			if !waited {
				waited = true
				if _, err := b.client.Pause(t.Context(), "far", false); err != nil {
					t.Error(err)
				}
			}
		}
		for _, m := range batch.Others {
			if m.To != "far" {
				t.Errorf("%+v", m)
			}
			if m.Deliveries[0].State == parley.Dead {
				others++
			}
		}
		if others > 0 {
			break
		}
	}
	if !waited {
		t.Error("the waiting message was not shown")
	}
}

// TestTouchedIsBounded: of more messages than a batch looks at the newest stay, and the others are counted.
func TestTouchedIsBounded(t *testing.T) {
	var u touched
	id := func(i int) parley.ID { return parley.HashID([]byte{byte(i >> 8), byte(i)}) }
	for i := range watchLooked + 10 {
		u.add(&journal.Record{Message: &parley.Message{ID: id(i), Kind: parley.Response, InReplyTo: id(0)}})
		u.add(&journal.Record{Steps: []journal.Step{{Message: id(i)}}})
	}
	if len(u.list) != watchLooked || len(u.is) != watchLooked || u.missed == 0 ||
		u.list[len(u.list)-1] != id(0) && u.list[len(u.list)-1] != id(watchLooked+9) {
		t.Errorf("%d messages, %d missed", len(u.list), u.missed)
	}
}

// TestPaced: the first news after a quiet time are a batch at once; later news are gathered, and all are sent.
func TestPaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		news, ended := make(chan int, 1000), make(chan struct{})
		var held []int
		got := map[time.Duration][]int{}
		go paced(t.Context(), ended, news, func(n int) { held = append(held, n) }, func() (some, more bool) {
			if some = len(held) > 0; some {
				got[time.Since(begin)] = held
			}
			held = nil
			return some, true
		})
		at := func(d time.Duration, n int) {
			time.Sleep(d - time.Since(begin))
			news <- n
		}
		for i, d := range []time.Duration{13, 20, 200, 262, 270, 2000, 2001} {
			at(d*time.Millisecond, i)
		}
		time.Sleep(time.Second)
		close(ended)
		synctest.Wait()
		want := map[time.Duration][]int{13 * time.Millisecond: {0}, 263 * time.Millisecond: {1, 2, 3},
			513 * time.Millisecond: {4}, 2000 * time.Millisecond: {5}, 2250 * time.Millisecond: {6}}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
	})
}

// TestWatchSurvivesBursts: a reader that takes nothing for a while gets the number of what it missed, and goes
// on.
func TestWatchSurvivesBursts(t *testing.T) {
	b := open(t, nil)
	first, missed := true, uint64(0)
	for batch, err := range b.admin.Watch(t.Context(), Actor{Name: "test", Role: Read}, TimelineFilter{},
		func() { b.ask("Bern") }) {
		if err != nil {
			t.Fatal(err)
		}
		if len(batch.Entries) > watchEntries {
			t.Errorf("a batch of %d entries", len(batch.Entries))
		}
		if first {
			first = false
			for range tailQueue / 2 {
				b.ask("Bern")
			}
			continue
		}
		if missed += batch.Missed; missed > 0 && len(batch.Entries) > 0 {
			break
		}
	}
}

// TestWatchNeedsRole: a caller without the role observe gets nothing.
func TestWatchNeedsRole(t *testing.T) {
	b := open(t, nil)
	by := Actor{Name: "test", Role: Register}
	for _, err := range b.admin.Watch(t.Context(), by, TimelineFilter{}, nil) {
		code(t, err, parley.Forbidden)
	}
	for name, err := range map[string]error{
		"timeline": errorOf(b.admin.Timeline(t.Context(), by, TimelineFilter{})),
		"counts":   errorOf(b.admin.Counts(t.Context(), by, TimelineFilter{})),
		"hidden":   errorOf(b.admin.Hidden(t.Context(), by, TimelineFilter{Filter: index.Filter{Agent: "x"}})),
		"trace":    errorOf(b.admin.Trace(t.Context(), by, "00000000", "", 0)),
		"around":   errorOf(b.admin.RefusalsAround(t.Context(), by, "00000000")),
		"page":     errorOf(b.admin.ConversationAround(t.Context(), by, "00000000", "00000000", 0)),
	} {
		if parley.CodeOf(err) != parley.Forbidden {
			t.Errorf("%s: %v", name, err)
		}
	}
}
