package samvad_test

import (
	"bytes"
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/samvad"
)

// A stream reader that stalls delays no other client: its handler is held back after
// a bounded number of bytes, other requests and streams of the same agent go on, and
// all of it ends with the connection.
func TestStalledReaderCostsNobodyElse(t *testing.T) {
	w := newWorld(t, node.Config{})
	chunk := parley.Part{MediaType: "application/json", Data: []byte(`"` + string(bytes.Repeat([]byte("x"), 256<<10)) +
		`"`)}
	var produced atomic.Int64
	ended := make(chan error, 1)
	if err := w.Handle(parley.Agent{Name: "flood", Exposed: parley.Everywhere},
		parley.RawSkill("flood", func(ctx context.Context, _ *parley.Message, r parley.Replier) error {
			for {
				if err := r.Chunk(chunk); err != nil {
					ended <- ctx.Err()
					return err
				}
				produced.Add(1)
			}
		}),
		parley.RawSkill("short", func(_ context.Context, _ *parley.Message, r parley.Replier) error {
			for range 3 {
				if err := r.Chunk(parley.Text("piece")); err != nil {
					return err
				}
			}
			return r.Reply(parley.Text("end"))
		})); err != nil {
		t.Fatal(err)
	}
	url := w.base + "/agents/flood"
	r, _, err := w.client.Request(t.Context(), samvad.Call{URL: url, Skill: "flood"}, samvad.ModeStream)
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", strings.TrimPrefix(w.base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := r.Write(c); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the flood does not begin", func() bool { return produced.Load() > 0 })
	rounds := 100
	if testing.Short() {
		rounds = 20
	}
	for range rounds {
		if _, err := w.client.Ask(t.Context(), samvad.Call{URL: url, Skill: "short"}); err != nil {
			t.Fatal(err)
		}
		n := 0
		for e, err := range w.client.Stream(t.Context(), samvad.Call{URL: url, Skill: "short"}) {
			if n++; err != nil || e.Done != (n == 4) {
				t.Fatalf("event %d: %+v, %v", n, e, err)
			}
		}
	}
	// The hub and the sockets buffer some.
	if n := produced.Load() * int64(len(chunk.Data)); n > 48<<20 {
		t.Errorf("%d bytes were produced for a reader that reads nothing", n)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Error("the handler's context goes on")
	}
}
