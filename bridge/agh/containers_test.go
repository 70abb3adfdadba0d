package agh

import (
	"testing"
	"time"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/internal/testjournal"
	"github.com/parley-hub/parley/journal"
)

func memoryJournal(t *testing.T) *journal.Journal {
	t.Helper()
	j, err := journal.Open(t.Context(), journal.Config{Store: testjournal.Memory(t), Node: "n"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
	return j
}

// Where a conversation is, is found after a restart.
func TestContainersOverRestart(t *testing.T) {
	j := memoryJournal(t)
	thread, room, other := parley.HashID([]byte("thread")), parley.HashID([]byte("room")),
		parley.HashID([]byte("other"))
	at := container{"acme", protocol.Container{Channel: "builders", Surface: protocol.SurfaceThread, ID: "thread_abc"}}
	between := container{"acme", protocol.Container{Channel: "builders", Surface: protocol.SurfaceDirect,
		ID: "direct_abc"}}
	start := func() *containers { return newContainers(j, time.Now) }
	one := start()
	if err := one.note(t.Context(), thread, at); err != nil {
		t.Fatal(err)
	}
	if err := one.note(t.Context(), room, between); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]*containers{"running": one, "again": start()} {
		if got, ok := c.find(t.Context(), thread); !ok || got != at {
			t.Errorf("%s: found %v, %v; want %v", name, got, ok, at)
		}
		for _, id := range []parley.ID{room, other} {
			if got, ok := c.find(t.Context(), id); ok {
				t.Errorf("%s: found %v", name, got)
			}
		}
	}
}
