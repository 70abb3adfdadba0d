package journal

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-hub/parley"
)

// TestLate: a late entry is recorded in one group with the next entry, in order, or
// alone after a few milliseconds.
func TestLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := open(t, setup{Memory: true})
		groups := func() uint64 { return j.Stats().Partitions[0].Groups }
		m := request(t, "a", "b")
		if _, err := j.Append(t.Context(), Entry{Scope: "s", Message: m,
			Open: []Opening{{To: "b", Attempt: 1}}}); err != nil {
			t.Fatal(err)
		}
		step := func(state parley.DeliveryState, late bool) chan error {
			done := make(chan error, 1)
			go func() {
				_, err := j.Append(t.Context(), Entry{Late: late,
					Steps: []Step{{Message: m.ID, To: "b", State: state, Attempt: 1}}})
				done <- err
			}()
			synctest.Wait()
			return done
		}
		before, begun := groups(), time.Now()
		alone := step(parley.Waiting, true)
		if n := groups(); n != before {
			t.Errorf("%d groups were written at once for a late entry", n-before)
		}
		if err := <-alone; err != nil || time.Since(begun) != maxLateWait {
			t.Errorf("alone: %v after %v", err, time.Since(begun))
		}

		before, begun = groups(), time.Now()
		delivered := step(parley.Delivered, true)
		expired := step(parley.Expired, false)
		if err := errors.Join(<-delivered, <-expired); err != nil || time.Since(begun) != 0 {
			t.Errorf("with another: %v after %v", err, time.Since(begun))
		}
		if n := groups() - before; n != 1 {
			t.Errorf("%d groups for two steps of one delivery", n)
		}
		if d, ok := j.Delivery(m.ID, "b"); ok {
			t.Errorf("the delivery is %v", d.State)
		}
	})
}

// TestStepsOfAGroup: a step that conflicts with a step in flight is refused only after
// that step is recorded.
func TestStepsOfAGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := open(t, setup{Memory: true})
		m := request(t, "a", "b")
		if _, err := j.Append(t.Context(), Entry{Scope: "s", Message: m,
			Open: []Opening{{To: "b", Attempt: 1}}}); err != nil {
			t.Fatal(err)
		}
		results := make(chan error, 3)
		for _, state := range []parley.DeliveryState{parley.Expired, parley.Delivered, parley.Dead} {
			go func() {
				_, err := j.Append(t.Context(), Entry{Late: true,
					Steps: []Step{{Message: m.ID, To: "b", State: state, Attempt: 1}}})
				results <- err
			}()
			synctest.Wait()
		}
		var ok, conflicts int
		for range 3 {
			switch err := <-results; {
			case err == nil:
				ok++
			case errors.Is(err, ErrConflict):
				conflicts++
			default:
				t.Error(err)
			}
		}
		if ok != 1 || conflicts != 2 {
			t.Errorf("%d recorded, %d in conflict", ok, conflicts)
		}
		if n := j.Stats().Partitions[0].Groups; n != 2 {
			t.Errorf("%d groups", n)
		}
	})
}
