package agh_test

import (
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/agh"
)

// Only the envelope's size bounds a message id. A message with the longest possible
// id is accepted, answered and deduplicated, and the hub keeps a short form of it.
func TestLongIDs(t *testing.T) {
	w := newWorld(t, nil)
	alice := w.bare("ta", "alice")
	w.here("acme", "alice")
	const answer = `say {"celsius":21,"city":"Bern"}`
	for _, c := range []struct {
		name string
		id   string
		want []string // messages about the work that alice gets
	}{
		{"repeated in every answer", strings.Repeat("i", 100<<10),
			[]string{"receipt accepted", answer, "trace completed"}},
		{"named in the receipt", strings.Repeat("j", 500<<10), []string{"receipt accepted", answer, "trace completed"}},
		{"no room for a receipt", strings.Repeat("k", 1<<20-1024), []string{answer, "trace completed"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := &agh.Envelope{ID: c.id, WorkspaceID: "acme", Channel: "builders", Surface: agh.SurfaceThread,
				ThreadID: "thread_long", From: "alice",
				To: "crew__weather", WorkID: agh.NewWorkID(), TraceID: "t", TS: time.Now().Unix()}
			subject, raw := written(t, e, &agh.Say{Text: `{"city":"Bern"}`})
			for range 2 { // the second one is a duplicate
				if err := alice.nc.Publish(subject, raw); err != nil {
					t.Fatal(err)
				}
			}
			for _, want := range c.want {
				got, said := alice.work(t, e.WorkID)
				if said != want {
					t.Errorf("received %s, want %s", said, want)
				}
				if named := got.ReplyTo; named != "" && named != c.id || named == "" && len(c.id) <= 128<<10 {
					t.Errorf("the answer is to %.20q", named)
				}
			}
		})
	}
	for _, m := range w.messages(parley.Request) {
		for name, v := range m.Trace.Foreign {
			if len(v) > 4096 {
				t.Errorf("%d bytes are kept as %s", len(v), name)
			}
		}
	}
	if n := len(w.messages(parley.Request)); n != 3 {
		t.Errorf("%d requests are recorded of 3 that were sent twice", n)
	}
}

// work gives the next message about a piece of work, except receipts of duplicates.
func (p *bare) work(t *testing.T, id string) (*agh.Envelope, string) {
	t.Helper()
	for {
		if e, said := p.next(t); e.WorkID == id && said != "receipt duplicate" {
			return e, said
		}
	}
}
