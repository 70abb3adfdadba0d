package mcp

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
)

// What `parley doctor` shows of an attached server.
func TestWay(t *testing.T) {
	t.Parallel()
	at, err := IdentityAt("https://files.test/mcp")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		id    parley.Identity
		state serverState
		want  []string
	}{
		"open": {at, serverState{open: true, version: "2026-07-28", called: time.Unix(0, 0)},
			[]string{"connection ok open, in revision 2026-07-28 of MCP", "calls ok it answered the last one at 1970-01-01",
				"credentials ok none", "load ok it works on 0 calls"}},
		"not opened yet": {at, serverState{}, []string{"connection skipped the next call", "calls skipped none"}},
		"unreachable": {at, serverState{err: errors.New("bad card"), failed: &callError{err: errors.New("oops")}},
			[]string{"connection failed the server cannot be reached: bad card", "calls warning the last call failed: oops"}},
		"not attached": {IdentityOfTunnel("files"), serverState{},
			[]string{"connection failed the server is not attached", "parley mcp attach files -- COMMAND"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newOutWorld(t, outConfig{}, nil)
			w.outgoing.state = func(string) serverState { return c.state }
			e, _ := w.dir.Agent("files")
			way := w.way(t.Context(), e, c.id)
			all := lines(way)
			for _, want := range c.want {
				if !strings.Contains(all, want) {
					t.Errorf("no %q in\n%s", want, all)
				}
			}
			if strings.Contains(all, "other hubs") {
				t.Errorf("there is one hub:\n%s", all)
			}
			if IsTunnel(c.id.ID) == strings.Contains(all, "credentials") || IsTunnel(c.id.ID) == (len(way.Addresses) == 1) {
				t.Errorf("addresses %q\n%s", way.Addresses, all)
			}
		})
	}
}

// lines writes the findings of a way.
func lines(w hub.Way) string {
	var b strings.Builder
	for _, f := range w.Findings {
		fmt.Fprintln(&b, f.Check, f.State, f.Detail, f.Fix)
	}
	return b.String()
}

// An agent that calls the hub is not called.
func TestWayOfCaller(t *testing.T) {
	t.Parallel()
	w := newOutWorld(t, outConfig{}, nil)
	e, _ := w.dir.Agent("files")
	way := w.way(t.Context(), e, IdentityOfCaller("alice"))
	if !strings.Contains(way.How, "parley_inbox") || len(way.Findings) != 0 {
		t.Errorf("%+v", way)
	}
}
