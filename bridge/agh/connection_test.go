package agh_test

import (
	"testing"

	"github.com/parley-hub/parley/hub"
)

// A peer is present while it is connected, and away since it was last heard of.
func TestConnection(t *testing.T) {
	w := newWorld(t, nil)
	p := w.bare("tb", "bob")
	e, ok := w.Hub().Directory().Lookup("agh", "acme/bob")
	if !ok {
		t.Fatal("the peer is not in the directory")
	}
	condition := func() hub.IdentityCondition { return w.Hub().Conditions(e)[0] }
	there := condition()
	if there.State != hub.Ready || there.Text != "present in channel builders" || there.Heard.IsZero() {
		t.Errorf("present: %+v", there)
	}
	p.nc.Close()
	w.until("the peer is away", func() bool { return condition().State == hub.NotConnected })
	if c := condition(); c.Text != "away" || !c.Since.Equal(there.Heard) || !c.Heard.Equal(c.Since) {
		t.Errorf("away: %+v", c)
	}
}
