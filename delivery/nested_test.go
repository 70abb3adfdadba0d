package delivery

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// A nested request waits neither for room nor behind a handler that waits; behind other work it waits for its turn.
func TestNestedRequests(t *testing.T) {
	run(t, Config{PerRecipient: 1}, func(t *testing.T, w *world) {
		gates := map[string]chan struct{}{"m1": make(chan struct{}), "m2": make(chan struct{})}
		w.transport.attempt = func(_ context.Context, a Attempt) Result {
			if g := gates[a.Message.Skill]; g != nil {
				<-g
			}
			return Result{}
		}
		w.record(message(1, "bob", 9, parley.Notice))
		w.record(message(2, "bob", 8, parley.Notice)) // waits for room
		synctest.Wait()
		w.transport.nested = []parley.ID{id(3), id(4), id(5), id(6)}
		if w.d.Claim(0, id(3), "bob", id(9), true) != nil {
			t.Error("a nested request does not wait for its turn")
		}
		m := message(3, "bob", 9, parley.Request)
		if _, err := w.log.Append(t.Context(), journal.Entry{Message: m,
			Open: []journal.Opening{{To: "bob", Sync: true}}}); err != nil {
			t.Fatal(err)
		}
		other := w.d.Claim(0, id(4), "bob", id(7), true)
		if other == nil {
			t.Fatal("a nested request waits for room")
		}
		other.Release(nil)
		w.transport.waits = []parley.ID{id(1)}
		if w.d.Claim(0, id(7), "bob", id(9), true) != nil {
			t.Error("another request does not wait for its turn")
		}
		if w.d.Claim(0, id(5), "bob", id(9), false) != nil {
			t.Error("a message for whose outcome nobody waits does not wait for its turn")
		}
		back := w.d.Claim(0, id(6), "bob", id(9), true)
		if back == nil {
			t.Fatal("a nested request waits for a handler that waits")
		}
		back.Release(nil)
		close(gates["m1"])
		synctest.Wait()
		got := w.transport.order()
		slices.Sort(got)
		equal(t, "attempts while m2 has the only room", got, []string{"bob/m1#1", "bob/m2#1", "bob/m3#1"})
		close(gates["m2"])
		synctest.Wait()
		equal(t, "in memory", w.tracked(), 0)
	})
}
