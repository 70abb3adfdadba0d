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

// The container of a conversation is found after a restart.
func TestContainersOverRestart(t *testing.T) {
	j := memoryJournal(t)
	thread, room, other := parley.HashID([]byte("thread")), parley.HashID([]byte("room")),
		parley.HashID([]byte("other"))
	at := container{"acme", protocol.Container{Channel: "builders", Surface: protocol.SurfaceThread, ID: "thread_abc"}}
	start := func() *Binding {
		return &Binding{c: Config{Now: time.Now}, threads: journal.NewTable[container](j, "agh.containers", maxThreads)}
	}
	one := start()
	for id, e := range map[parley.ID]*protocol.Envelope{
		thread: {WorkspaceID: "acme", Channel: "builders", Surface: protocol.SurfaceThread, ThreadID: "thread_abc"},
		room:   {WorkspaceID: "acme", Channel: "builders", Surface: protocol.SurfaceDirect, DirectID: "direct_abc"},
	} {
		if err := one.noteThread(t.Context(), id, e); err != nil {
			t.Fatal(err)
		}
	}
	for name, b := range map[string]*Binding{"running": one, "again": start()} {
		if got, ok := b.thread(t.Context(), thread, "acme"); !ok || got != at {
			t.Errorf("%s: found %v, %v; want %v", name, got, ok, at)
		}
		for _, id := range []parley.ID{room, other} {
			if got, ok := b.thread(t.Context(), id, "acme"); ok {
				t.Errorf("%s: found %v", name, got)
			}
		}
	}
}
