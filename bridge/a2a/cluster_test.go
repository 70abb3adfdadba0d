package a2a

import (
	"fmt"
	"slices"
	"testing"

	"github.com/parley-hub/parley/internal/testcluster"
	"github.com/parley-hub/parley/internal/testjournal"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/jetstream"
)

// A2A-031: a task is found, followed and repeated at another hub of the cluster.
func TestTasksOfAnotherHub(t *testing.T) {
	url := testcluster.Start(t, 1).URLs[0]
	open := func(name string) *world {
		w := newWorldOn(t, journal.Config{Store: testjournal.Cluster(t, jetstream.Config{URL: url}), Node: name})
		w.remote()
		return w
	}
	a, b := open("a"), open("b")
	task := a.task("alice", "remote", immediately(say("m1", "go", "")))
	there := b.subscribe(b.node, "alice", "remote", task.ID)
	here := a.subscribe(a.node, "alice", "remote", task.ID)
	a.eventually("both subscriptions", func() bool { return len(there.seen()) == 1 && len(here.seen()) == 1 })
	want := []string{"task SUBMITTED"}
	for i := range 20 { // through both hubs
		w, text := a, fmt.Sprint(i)
		if i%2 == 1 {
			w = b
		}
		w.about(task.ID, piece(text))
		want = append(want, fmt.Sprintf("result append=%v last=false %s", i > 0, text))
	}
	b.about(task.ID, answer("done"))
	want = append(want, "result append=false last=true done", "COMPLETED")
	for name, r := range map[string]*reader{"here": here, "there": there} {
		<-r.done
		if got := r.seen(); r.err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v", name, got, r.err)
		}
	}
	for _, w := range []*world{a, b} {
		if got, err := w.get("alice", "remote", task.ID); err != nil || shortly(got) != "task COMPLETED [done]" {
			t.Errorf("%+v, %v", got, err)
		}
	}
	if again := b.task("alice", "remote", say("m1", "go", "")); again.ID != task.ID { // A2A-021
		t.Errorf("the repeat at the other hub gives %s", again.ID)
	}
}
