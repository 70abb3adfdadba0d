package asp

import (
	"log/slog"
	"testing"
	"time"

	protocol "github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/testjournal"
	"github.com/parley-hub/parley/journal"
)

// TestPartitionTaken: the new owner of a partition queues every session there with a
// stand-in. Otherwise a message recorded while the partition had no owner would wait for
// the next message.
func TestPartitionTaken(t *testing.T) {
	j, err := journal.Open(t.Context(), journal.Config{Store: testjournal.Memory(t), Partitions: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	}()
	const standIn, native = "agent://hub.example/agents/bob", "agent://alice.example/x/y"
	b := &Binding{c: Config{Hub: &hub.Hub{}, Journal: j, Now: time.Now}}
	b.store = newStore(b)
	b.standIns = newStandIns(b)
	b.standIns.byID[standIn], b.standIns.byName["bob"] = "bob", &protocol.Identity{}
	b.reconciler = newReconciler(b)
	at := func(partition int, n int) string { // the n-th session of a partition
		for i := byte('a'); ; i++ {
			if id := "session-" + string(i); j.Partition(scope(id)) == partition {
				if n--; n < 0 {
					return id
				}
			}
		}
	}
	note := func(id string, over bool, participants ...string) string {
		b.store.mu.Lock()
		defer b.store.mu.Unlock()
		b.store.noteSession(id, participants, over).known = true // and nothing is due
		return id
	}
	mine := note(at(0, 0), false, native, standIn)
	others := []string{note(at(0, 1), true, native, standIn), note(at(0, 2), false, native, native+"2"),
		note(at(1, 0), false, native, standIn)}
	b.reconciler.enqueueDue()
	if len(b.reconciler.queued) > 0 {
		t.Fatal("something is due", b.reconciler.queued)
	}
	b.store.chain(mine)
	b.reconciler.partitionOwned(0)
	if !b.reconciler.queued[mine] || b.reconciler.newest[mine] == 0 || b.store.inMemory(mine) != nil {
		t.Error("a session of the partition is not read again and queued")
	}
	for _, id := range others {
		if b.reconciler.queued[id] {
			t.Errorf("%s is queued without need", id)
		}
	}
}

// TestTendedAgain: a session whose reconciliation failed is queued again, whether or not
// this node owns its partition. It is read again, as if another node had appended to it.
func TestTendedAgain(t *testing.T) {
	j, err := journal.Open(t.Context(), journal.Config{Store: testjournal.Memory(t)})
	if err != nil {
		t.Fatal(err)
	}
	b := &Binding{c: Config{Journal: j, Now: time.Now, Logger: slog.New(slog.DiscardHandler)}, ctx: t.Context()}
	b.store = newStore(b)
	b.server = &protocol.Server{Store: b.store}
	b.reconciler = newReconciler(b)
	if err := j.Close(); err != nil { // reads fail from now on
		t.Fatal(err)
	}
	const session = "01890000-0000-7000-8000-000000000000"
	b.reconciler.newest[session] = 5
	b.reconciler.enqueue(session)
	b.reconciler.dispatch()
	b.reconciler.runs.Wait()
	if len(b.reconciler.queued) > 0 {
		t.Fatalf("queued without a pause: %v", b.reconciler.queued)
	}
	b.reconciler.retry()
	if !b.reconciler.queued[session] || b.reconciler.newest[session] <= 5 || len(b.reconciler.failed) > 0 {
		t.Errorf("queued %v, newest %v, failed %v", b.reconciler.queued, b.reconciler.newest, b.reconciler.failed)
	}
}
