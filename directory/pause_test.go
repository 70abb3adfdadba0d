package directory

import (
	"strings"
	"testing"
	"time"
)

// Since when an agent is paused, by whom and why is known at each hub on a state and after a restart, whether the state
// has the whole entry or the pause alone.
func TestPauseBy(t *testing.T) {
	ctx, state := t.Context(), shared(t)
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	start := func() *Directory {
		d := opened(t, Options{State: state, Now: func() time.Time { return now }})
		if _, err := d.Put(ctx, agent("file", "agent://file"), FromConfig); err != nil {
			t.Fatal(err)
		}
		return d
	}
	one, two := start(), start()
	if _, err := one.Put(ctx, agent("kept", "agent://kept"), FromOperator); err != nil {
		t.Fatal(err)
	}
	told := follow(t, two)
	for _, name := range []string{"file", "kept"} {
		want := Pause{Since: now, By: "ann", Reason: "moves"}
		if err := one.PauseBy(ctx, name, "ann", "moves"); err != nil {
			t.Fatal(err)
		}
		told.until(t, "paused", func(c Change) bool { return c.New != nil && c.New.Name == name && c.New.Pause == want })
		now = now.Add(time.Hour)
		if err := one.PauseBy(ctx, name, "bob", "still"); err != nil {
			t.Fatal(err)
		}
		want.By, want.Reason = "bob", "still"
		told.until(t, "another reason", func(c Change) bool { return c.New != nil && c.New.Pause == want })
		if e, _ := start().Agent(name); !e.Paused || e.Pause != want {
			t.Errorf("%s after a restart: %+v", name, e.Pause)
		}
		if err := one.Pause(ctx, name, false); err != nil {
			t.Fatal(err)
		}
		told.until(t, "resumed", func(c Change) bool { return c.New != nil && c.New.Name == name && !c.New.Paused })
		if e, _ := start().Agent(name); e.Paused || e.Pause != (Pause{}) {
			t.Errorf("%s is resumed: %+v", name, e.Pause)
		}
	}
	if _, err := one.Put(ctx, agent("kept", "agent://kept"), FromOperator); err != nil {
		t.Fatal(err)
	}
	v, err := state.Get(ctx, "kept")
	if err != nil || strings.Contains(string(v.Data), "Pause\"") {
		t.Errorf("an entry without a pause is stored as %s, %v", v.Data, err)
	}
}
