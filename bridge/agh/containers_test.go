package agh

import (
	"testing"
	"time"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/agh"
)

// A conversation that is a thread is found after a restart, and where nobody
// knows whether the state has it; a room is not noted.
func TestThreadsOverRestart(t *testing.T) {
	j := memoryJournal(t)
	thread, room, other := parley.HashID([]byte("thread")), parley.HashID([]byte("room")), parley.HashID([]byte("other"))
	at := container{"acme", protocol.Container{Channel: "builders", Surface: protocol.SurfaceThread, ID: "thread_abc"}}
	start := func(rooms, loaded bool) *containers {
		t.Helper()
		c := &containers{state: j.State("agh.containers"), now: time.Now, rooms: rooms}
		if loaded {
			if err := c.load(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		return c
	}
	one := start(false, true)
	if err := one.note(t.Context(), thread, at); err != nil {
		t.Fatal(err)
	}
	if err := one.note(t.Context(), room, container{"acme", protocol.Container{Channel: "builders", Surface: protocol.SurfaceDirect, ID: "direct_abc"}}); err != nil {
		t.Fatal(err)
	}
	again := start(false, true)
	again.noted[other] = struct{}{} // and gone from the state since
	for name, c := range map[string]*containers{"running": one, "again": again, "shared": start(true, true), "not told": start(false, false)} {
		if got, ok := c.find(t.Context(), thread); !ok || got != at {
			t.Errorf("%s: the thread is %v, %v", name, got, ok)
		}
		for _, id := range []parley.ID{room, other} {
			if got, ok := c.find(t.Context(), id); ok {
				t.Errorf("%s: found %v", name, got)
			}
		}
	}
}
