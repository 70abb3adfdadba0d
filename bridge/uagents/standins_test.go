package uagents

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/parley-hub/parley/keyring"
)

// TestKeysMadeMeanwhile: when several hubs with one keyring start at once, one makes the
// keys, and the others use them.
func TestKeysMadeMeanwhile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	open := func() *keyring.Ring {
		r, err := keyring.Open(keyring.Options{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		})
		return r
	}
	first, second := open(), open()
	standIns := func(r *keyring.Ring) *standIns { return newStandIns(&Binding{c: Config{Keys: r, Root: "hub"}}) }
	if err := standIns(first).makeKeys([]string{"hub", "alice"}); err != nil {
		t.Fatal(err)
	}
	if err := standIns(second).makeKeys([]string{"hub", "alice", "bob"}); err != nil { // second has read an older keyring
		t.Fatal(err)
	}
	for _, owner := range []string{keyring.Hub, "alice"} {
		a, err := first.Signer(owner, Protocol)
		if err != nil {
			t.Fatal(err)
		}
		b, err := second.Signer(owner, Protocol)
		if err != nil || !bytes.Equal(a.Public(), b.Public()) {
			t.Errorf("two hubs have different keys of %s: %v", owner, err)
		}
	}
}
