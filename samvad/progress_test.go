package samvad

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strings"
	"testing"
)

// SAM-121: the progress of a task is 0 to 1 (response schema of a task's
// status). The server refuses another of its handler, writes none that a store
// gives back, and reads none of a peer.
func TestProgressIsBetween0And1(t *testing.T) {
	t.Parallel()
	for _, p := range []float64{0, 0.5, 1} {
		checkProgress(t, p, true)
	}
	for _, p := range []float64{-0.001, 1.001, 50, math.NaN(), math.Inf(1), math.Inf(-1)} {
		checkProgress(t, p, false)
	}
}

func checkProgress(t *testing.T, p float64, allowed bool) {
	t.Helper()
	task := Task{ID: "t", Status: TaskRunning, Progress: &p}
	b, err := task.Encode()
	if written := strings.Contains(string(b), "progress"); err != nil || written != allowed {
		t.Errorf("a task with progress %v is written as %s, %v", p, b, err)
	}
	if math.IsNaN(p) || math.IsInf(p, 0) {
		return // no number of JSON
	}
	read, err := decodeTask(200, http.Header{}, fmt.Appendf(nil, `{"taskId":"t","status":"running","progress":%v}`, p))
	if err != nil || (read.Progress != nil) != allowed || allowed && *read.Progress != p {
		t.Errorf("a peer's progress %v is read as %+v, %v", p, read, err)
	}
}

// SAM-121: a handler that reports more than 1 gets an error, and the task stays as it
// was.
func TestProgressOfAHandler(t *testing.T) {
	t.Parallel()
	refused := make(chan error, 1)
	release := make(chan struct{})
	w := newWorld(t, func(w *world) {
		w.agent.Handler = func(_ context.Context, r *Request) (Response, error) {
			if err := r.Progress(0.5); err != nil {
				return Response{}, err
			}
			refused <- r.Progress(1.001)
			<-release
			return Response{Result: json.RawMessage(`{}`)}, nil
		}
	})
	id := taskID(t, w.post("/agent/task", w.envelope(nil)))
	if err := <-refused; err == nil {
		t.Error("progress 1.001 was taken")
	}
	if body := w.get("/agent/task/" + id).Body.String(); !strings.Contains(body, `"progress":0.5`) {
		t.Errorf("the task says %s, want progress 0.5", body)
	}
	close(release)
}
