package samvad_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/internal/testjournal"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/samvad"
)

// SAM-124: the hub is killed in the middle of 1,000 running tasks, and started again
// on a copy of the disk from that moment, which has each task that was answered 202.
// The tasks of a handler of this process start again; the hub polls those of an agent
// elsewhere, and does not send them again. None stays running.
func TestRestartInTheMiddleOfRunningTasks(t *testing.T) {
	t.Parallel()
	n := 150 // of each
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
	eventually(t, "the tasks do not run", func() bool {
		left := w.Hub().Journal().Deliveries(journal.Filter{To: "elsewhere",
			States: []parley.DeliveryState{parley.Delivered}})
		return w.calls.Load() == int64(n) && len(left) == n
	})

	left := filepath.Join(dir, "left")
	testjournal.Copy(t, config.Data, left)
	again := &world{t: t, slow: make(chan struct{}), alice: w.alice}
	config.Data = left
	again.open(config)
	t.Cleanup(again.close)
	eventually(t, "the handler's tasks are not taken up", func() bool { return again.calls.Load() == int64(n) })
	for agent, ids := range tasks {
		for _, id := range ids {
			task, err := again.client.Task(t.Context(), again.base+"/agents/"+agent, id)
			if err != nil || task.Status.Finished() {
				t.Fatalf("a task that is at work: %+v, %v", task, err)
			}
		}
	}
	close(again.slow)
	close(hold) // the old process does not know that it is dead, and polls too
	for agent, want := range map[string]string{"crew/echo": "{}", "elsewhere": `{"late":true}`} {
		for _, id := range tasks[agent] {
			task, err := again.client.Wait(t.Context(), again.base+"/agents/"+agent, id)
			if err != nil || string(task.Result) != want {
				t.Fatalf("%s: %+v, %v", agent, task, err)
			}
		}
	}
	close(w.slow)
	if got := begun.Load(); got != int64(n) {
		t.Errorf("the agent elsewhere was called %d times for %d tasks", got, n)
	}
}

// The hub is killed while it sends a task to an agent elsewhere: the next process
// sends the same envelope again. An agent that did not have it takes it; one that had
// it answers so, and no task runs twice. A hub whose connection broke does the same.
func TestRestartWhileATaskIsLeftElsewhere(t *testing.T) {
	t.Parallel()
	for name, had := range map[string]bool{"the agent had it": true, "the agent did not have it": false} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			config := node.Config{Data: filepath.Join(dir, "data"),
				Durability: "disk", PublicURL: "https://parley.test"}
			w := newWorld(t, config)
			var effects atomic.Int64
			var met atomic.Bool
			arrived, hold := make(chan struct{}), make(chan struct{})
			id := agentElsewhere(t, w, func(context.Context, *samvad.Request) (samvad.Response, error) {
				effects.Add(1)
				return samvad.Response{Result: []byte(`{"done":true}`)}, nil
			}, func(agent http.Handler) http.Handler {
				return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
					if r.Method != http.MethodPost || !met.CompareAndSwap(false, true) {
						agent.ServeHTTP(rw, r)
						return
					}
					if had {
						agent.ServeHTTP(httptest.NewRecorder(), r)
					}
					close(arrived)
					<-hold
					panic(http.ErrAbortHandler) // the connection breaks before the answer
				})
			}, samvad.ModeAsync)
			if _, err := w.Hub().Directory().Put(t.Context(),
				parley.Agent{Name: "elsewhere", Identities: []parley.Identity{id}},
				directory.FromOperator); err != nil {
				t.Fatal(err)
			}
			base := "/agents/elsewhere"
			task, err := w.client.Send(t.Context(), samvad.Call{URL: w.base + base, Skill: "ask"})
			if err != nil {
				t.Fatal(err)
			}
			<-arrived
			left := filepath.Join(dir, "left")
			testjournal.Copy(t, config.Data, left)
			again := &world{t: t, slow: make(chan struct{}), alice: w.alice}
			config.Data = left
			again.open(config)
			t.Cleanup(again.close)
			ended := func(w *world, found bool) {
				t.Helper()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				got, err := w.client.Wait(ctx, w.base+base, task)
				if found {
					if err != nil || string(got.Result) != `{"done":true}` {
						t.Errorf("%+v, %v", got, err)
					}
					return
				}
				if e := new(samvad.Error); !errors.As(err, &e) || e.Code != samvad.CodeAgentUnavailable {
					t.Errorf("%+v, %v", got, err)
				}
				if dead := w.Hub().Dead(); len(dead) != 1 || dead[0].Error == nil ||
					dead[0].Error.Code != parley.OutcomeUnknown {
					t.Errorf("dead letters: %+v", dead)
				}
			}
			ended(again, !had)
			close(hold)
			ended(w, false) // the agent has it by then
			if n := effects.Load(); n != 1 {
				t.Errorf("done %d times", n)
			}
		})
	}
}
