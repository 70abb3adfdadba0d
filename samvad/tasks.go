package samvad

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/parley-hub/parley/internal/jsonx"
)

// TaskStatus is the state of a task (task-status schema).
type TaskStatus string

// The states of a task: pending, running, then done or failed.
const (
	TaskPending TaskStatus = "pending"
	TaskRunning TaskStatus = "running"
	TaskDone    TaskStatus = "done"
	TaskFailed  TaskStatus = "failed"
)

// Finished reports whether the state is final.
func (s TaskStatus) Finished() bool { return s == TaskDone || s == TaskFailed }

// A Task is the state of an asynchronous request. Its id is the capability to
// read it: 122 random bits.
type Task struct {
	ID       string
	Agent    string // identity of the agent that works on it
	Status   TaskStatus
	Progress *float64        // 0 to 1, if known
	Result   json.RawMessage // of a done task: a JSON object
	Err      *Error          // of a failed task: Code and Text

	TraceID string // of the request

	Replaced bool // in Result, as decoded, U+FFFD stands for halves of surrogate pairs
}

type wireTask struct {
	TaskID   string          `json:"taskId"`
	Status   TaskStatus      `json:"status"`
	Progress *float64        `json:"progress,omitzero"`
	Result   json.RawMessage `json:"result,omitzero"`
	Error    *wireError      `json:"error,omitzero"`
}

// Encode writes the status document, with exactly the members of the schema
// (SAM-121).
func (t *Task) Encode() ([]byte, error) {
	w := wireTask{TaskID: t.ID, Status: t.Status, Progress: t.Progress}
	if w.Progress != nil && !(*w.Progress >= 0 && *w.Progress <= 1) {
		w.Progress = nil
	}
	switch t.Status {
	case TaskDone:
		w.Result = t.Result
		if isNull(w.Result) {
			w.Result = json.RawMessage("{}")
		}
	case TaskFailed:
		e := t.Err
		if e == nil {
			e = refuse(ErrUnavailable, "", nil)
		}
		w.Error = e.wire()
	}
	return jsonx.Encode(&w)
}

// Tasks keeps tasks: results for at least an hour after they are done
// (SAM-122). It must be safe for concurrent use. A store that outlives the
// process must fail the tasks that were open when the process ended (SAM-124).
type Tasks interface {
	// Put creates or replaces a task.
	Put(ctx context.Context, t Task) error
	// Get gives a task of an agent; the error wraps [ErrNotFound] if there is
	// none.
	Get(ctx context.Context, agent, id string) (Task, error)
}

// Defaults of [MemoryTasks].
const (
	DefaultMaxTasks = 100000
	maxTaskBytes    = 256 << 20 // of results
	taskRetention   = time.Hour // after a task is finished
)

// MemoryTasks is a [Tasks] in this process. The zero value is ready; it must
// not be copied.
type MemoryTasks struct {
	Max int // tasks kept; 0 = [DefaultMaxTasks]
	Now func() time.Time

	mu    sync.Mutex
	tasks map[string]Task
	done  []doneTask // in the order in which they were finished
	bytes int
}

type doneTask struct {
	id string
	at time.Time
}

// Put implements [Tasks]. New tasks are refused with [ErrBusy] while the store
// is full of tasks that are unfinished or must still be kept.
func (m *MemoryTasks) Put(_ context.Context, t Task) error {
	now := nowOf(m.Now)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expire(now)
	old, exists := m.tasks[t.ID]
	if !exists {
		if len(m.tasks) >= cmp.Or(m.Max, DefaultMaxTasks) || m.bytes >= maxTaskBytes {
			return because(ErrBusy, fmt.Errorf("task store is full (%d tasks, %d bytes)", len(m.tasks), m.bytes))
		}
		if m.tasks == nil {
			m.tasks = map[string]Task{}
		}
	}
	if t.Status.Finished() && !old.Status.Finished() {
		m.done = append(m.done, doneTask{t.ID, now})
	}
	m.bytes += len(t.Result) - len(old.Result)
	m.tasks[t.ID] = t
	return nil
}

func (m *MemoryTasks) expire(now time.Time) {
	n := 0
	for n < len(m.done) && now.Sub(m.done[n].at) >= taskRetention {
		m.bytes -= len(m.tasks[m.done[n].id].Result)
		delete(m.tasks, m.done[n].id)
		n++
	}
	m.done = m.done[n:]
}

// Get implements [Tasks].
func (m *MemoryTasks) Get(_ context.Context, agent, id string) (Task, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t, ok := m.tasks[id]
	if !ok || t.Agent != agent {
		return Task{}, ErrNotFound
	}
	return t, nil
}
