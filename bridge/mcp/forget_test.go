package mcp

import (
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
)

// Rows of erased messages go; those of others stay.
func TestForgetCalls(t *testing.T) {
	t.Parallel()
	w := newOutWorld(t, outConfig{}, nil)
	erased, kept := parley.ID{1}, parley.ID{2}
	for _, id := range []parley.ID{erased, kept} {
		_, err := w.outgoing.sent.Put(t.Context(), id.String(), sentCall{To: "files"}, time.Now().Add(time.Hour))
		w.must(err)
	}
	for want := 1; want >= 0; want-- { // repeating it is harmless
		n, err := w.Forget(t.Context(), hub.Forgetting{Agent: "files",
			Message: func(id parley.ID) bool { return id == erased }})
		if err != nil || n != want {
			t.Errorf("%d values, want %d; %v", n, want, err)
		}
	}
	if !w.outgoing.resumes(kept) || w.outgoing.resumes(erased) {
		t.Error("the wrong rows stay")
	}
}
