package samvad_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/samvad"
)

// SAM-124: the hub is stopped dead in the middle of 1,000 running tasks, and
// started again on what it left. The disk as it is while they run is what a
// kill leaves: each task was answered 202, so it is on it. Those of a handler
// of this process are taken up again; of those that were at an agent elsewhere,
// which does not recognise repeats, each that was begun ends as failed
// AGENT_UNAVAILABLE and is not begun again. None stays running.
func TestRestartInTheMiddleOfRunningTasks(t *testing.T) {
	n := 500 // of each
	if testing.Short() {
		n = 60
	}
	dir := t.TempDir()
	config := node.Config{Data: filepath.Join(dir, "data"), Durability: "disk", PublicURL: "https://parley.test"}
	w := newWorld(t, config)
	var begun atomic.Int64
	hold := make(chan struct{})
	w.agentElsewhereNamed("elsewhere", func(ctx context.Context, _ *samvad.Request) (samvad.Response, error) {
		begun.Add(1)
		select {
		case <-hold:
			return samvad.Response{Result: []byte(`{"late":true}`)}, nil
		case <-ctx.Done():
			return samvad.Response{}, ctx.Err()
		}
	}, samvad.ModeAsync)
	tasks := map[string][]string{}
	for _, c := range []struct{ agent, skill string }{{"crew/echo", "slow"}, {"elsewhere", "ask"}} {
		call := samvad.Call{URL: w.base + "/agents/" + c.agent, Skill: c.skill}
		card, err := w.client.Card(t.Context(), call.URL)
		if err != nil {
			t.Fatal(err)
		}
		call.To = card.ID
		for range n {
			id, err := w.client.Send(t.Context(), call)
			if err != nil {
				t.Fatal(err)
			}
			tasks[c.agent] = append(tasks[c.agent], id)
		}
	}
	// All of the handler run; as many as one agent elsewhere may have at once
	// have been sent to it.
	eventually(t, "the tasks do not run", func() bool { return w.calls.Load() == int64(n) && begun.Load() == int64(min(n, 64)) })

	left := filepath.Join(dir, "left")
	copyPrivately(t, config.Data, left)
	again := &world{t: t, slow: make(chan struct{}), alice: w.alice}
	config.Data = left
	before := begun.Load()
	again.open(config)
	t.Cleanup(again.close)
	state := func(agent, id string) samvad.TaskStatus {
		task, err := again.client.Task(t.Context(), again.base+"/agents/"+agent, id)
		if err != nil {
			t.Fatal(err)
		}
		return task.Status
	}
	eventually(t, "the handler's tasks are not taken up", func() bool { return again.calls.Load() == int64(n) })
	for _, id := range tasks["crew/echo"] {
		if s := state("crew/echo", id); s.Finished() {
			t.Fatalf("a task that is at work again is %s", s)
		}
	}
	close(again.slow)
	// The old process knows nothing of its death; the agent elsewhere answers
	// both, each of them its own calls.
	close(hold)
	for _, id := range tasks["crew/echo"] {
		task, err := again.client.Wait(t.Context(), again.base+"/agents/crew/echo", id)
		if err != nil || string(task.Result) != "{}" {
			t.Fatalf("%+v, %v", task, err)
		}
	}
	failed := 0
	for _, id := range tasks["elsewhere"] {
		task, err := again.client.Wait(t.Context(), again.base+"/agents/elsewhere", id)
		switch e := new(samvad.Error); {
		case err == nil && string(task.Result) == `{"late":true}`:
		case errors.As(err, &e) && e.Code == samvad.CodeAgentUnavailable:
			failed++
		default:
			t.Fatalf("%+v, %v", task, err)
		}
	}
	if failed != min(n, 64) {
		t.Errorf("%d tasks failed, %d were at work when the hub died", failed, before)
	}
	close(w.slow)
	eventually(t, "the first hub does not end", func() bool { return begun.Load() >= int64(2*n-min(n, 64)) })
	if got := begun.Load(); got > int64(2*n-min(n, 64)) {
		t.Errorf("the agent elsewhere was called %d times: some task was begun twice", got)
	}
}

// copyPrivately copies a directory so that only its owner may read it.
func copyPrivately(t *testing.T, from, to string) {
	t.Helper()
	err := os.CopyFS(to, os.DirFS(from))
	if err == nil {
		err = filepath.WalkDir(to, func(path string, d os.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if d.IsDir() {
				return os.Chmod(path, 0o700)
			}
			return os.Chmod(path, 0o600)
		})
	}
	if err != nil {
		t.Fatal(err)
	}
}
