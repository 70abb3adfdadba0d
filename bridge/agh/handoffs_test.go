package agh_test

import (
	"slices"
	"testing"

	"github.com/parley-hub/parley/agh"
	bridge "github.com/parley-hub/parley/bridge/agh"
)

// A hub hands over messages to another hub, whose peer has disconnected without the
// first hub knowing. The messages are published when the peer reconnects.
func TestHandedOverWhileAway(t *testing.T) {
	t.Parallel()
	one, two := twoHubs(t)
	alice := one.join("ta", "acme", "alice")
	bob := two.join("tb", "acme", "bob")
	one.here("acme", "bob")
	two.here("acme", "alice")
	alice.meets(t, "bob")
	bob.stop()
	bob.nc.Close()
	e, _ := two.Hub().Directory().Lookup("agh", "acme/bob")
	two.until("bob is away", func() bool { return two.AGH().Holds(e, bridge.Identity("acme", "bob")) })
	said := []string{"first", "second", "third"}
	for _, what := range said {
		if _, err := alice.Direct(t.Context(), "bob", &agh.Say{Text: what}); err != nil {
			t.Fatal(err)
		}
	}
	bob = two.join("tb", "acme", "bob")
	var heard []string
	for range said {
		heard = append(heard, text(t, bob.next(t)))
	}
	slices.Sort(heard)
	if want := slices.Sorted(slices.Values(said)); !slices.Equal(heard, want) {
		t.Fatalf("bob received %q, want %q", heard, want)
	}
}
