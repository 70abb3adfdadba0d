package agh

import (
	"cmp"
	"context"
	"sync"
	"time"
)

// WorkState is a state of the work lifecycle.
type WorkState string

// The states (work lifecycle page).
const (
	StateSubmitted  WorkState = "submitted"
	StateWorking    WorkState = "working"
	StateNeedsInput WorkState = "needs_input"
	StateCompleted  WorkState = "completed"
	StateFailed     WorkState = "failed"
	StateCanceled   WorkState = "canceled"
)

func (s WorkState) known() bool {
	return s == StateSubmitted || s == StateWorking || s == StateNeedsInput || s.Terminal()
}

// Terminal reports whether s ends the work for good.
func (s WorkState) Terminal() bool {
	return s == StateCompleted || s == StateFailed || s == StateCanceled
}

// event is a message as an input of the lifecycle.
type event string

// The events of the table. A trace is named by its state and a receipt by its
// status; say and capability are talk.
const (
	traceWorking    event = "trace working"
	traceNeedsInput event = "trace needs_input"
	traceCompleted  event = "trace completed"
	traceFailed     event = "trace failed"
	traceCanceled   event = "trace canceled"
	receiptRejected event = "receipt rejected"
	receiptCanceled event = "receipt canceled"
	receiptOther    event = "receipt accepted, duplicate, expired, unsupported"
	talk            event = "say, capability"
)

// lifecycle is the table of the work lifecycle page: from, event, to. Other
// transitions are refused; nothing leaves a terminal state. A receipt "accepted"
// does not change the state (RFC 003; the page's diagram says otherwise, but no
// implementation follows it).
var lifecycle = map[WorkState]map[event]WorkState{
	StateSubmitted: {
		traceWorking: StateWorking, traceNeedsInput: StateNeedsInput,
		traceCompleted: StateCompleted, traceFailed: StateFailed, traceCanceled: StateCanceled,
		receiptRejected: StateFailed, receiptCanceled: StateCanceled,
		receiptOther: StateSubmitted, talk: StateSubmitted,
	},
	StateWorking: {
		traceWorking: StateWorking, traceNeedsInput: StateNeedsInput,
		traceCompleted: StateCompleted, traceFailed: StateFailed, traceCanceled: StateCanceled,
		receiptRejected: StateFailed, receiptCanceled: StateCanceled,
		receiptOther: StateWorking, talk: StateWorking,
	},
	StateNeedsInput: {
		traceWorking: StateWorking, traceNeedsInput: StateNeedsInput,
		traceCompleted: StateCompleted, traceFailed: StateFailed, traceCanceled: StateCanceled,
		receiptRejected: StateFailed, receiptCanceled: StateCanceled,
		receiptOther: StateNeedsInput, talk: StateWorking,
	},
}

// eventOf gives the event of e. A trace "submitted" is no event.
func eventOf(e *Envelope) event {
	switch c := e.content.(type) {
	case *Trace:
		return event("trace " + string(c.State))
	case *Receipt:
		switch c.Status {
		case StatusRejected:
			return receiptRejected
		case StatusCanceled:
			return receiptCanceled
		}
		return receiptOther
	}
	return talk
}

// Advance applies a message to its work, w if there is one, and gives the new
// work, as a [Router] does. An error says why the lifecycle refuses the message;
// the work is then unchanged.
//
// Either participant may report any state. The container is checked first, so that a
// peer that reuses a work_id in another container gets a receipt.
func Advance(w Work, exists bool, e *Envelope) (Work, error) {
	if !exists {
		if e.Kind != KindSay && e.Kind != KindCapability {
			return w, refuse(ErrWorkUnknown, StepLifecycle, "work_id",
				"is not known, and only say and capability begin work")
		}
		if e.To == "" || e.To == e.From {
			return w, refuse(ErrWorkTarget, StepLifecycle, "to", "must name another peer: work has two")
		}
		return Work{WorkspaceID: e.WorkspaceID, WorkID: e.WorkID, Container: e.Container(), Initiator: e.From,
			Target: e.To, State: StateSubmitted}, nil
	}
	if w.Container != e.Container() {
		return w, refuse(ErrContainer, StepLifecycle, "work_id", "is used in another conversation")
	}
	if e.From != w.Initiator && e.From != w.Target {
		return w, refuse(ErrWorkActor, StepLifecycle, "from", "has no part in this work")
	}
	ev := eventOf(e)
	if ev == talk {
		other := w.Target
		if e.From == w.Target {
			other = w.Initiator
		}
		if e.To != other {
			return w, refuse(ErrWorkActor, StepLifecycle, "to", "must be the other peer of this work")
		}
	}
	if w.State.Terminal() {
		return w, refuse(ErrWorkClosed, StepLifecycle, "work_id", "is closed: its state is "+string(w.State))
	}
	next, ok := lifecycle[w.State][ev]
	if !ok {
		return w, refuse(ErrTransition, StepLifecycle, "body.state", "cannot follow "+string(w.State))
	}
	w.State = next
	return w, nil
}

// Work is one piece of work.
type Work struct {
	WorkspaceID string
	WorkID      string
	Container   Container
	Initiator   string
	Target      string
	State       WorkState
	Updated     time.Time
}

// Works stores work. A hub makes it durable, so that a restart does not reopen
// closed work.
type Works interface {
	// Work gives the work of a workspace, false if there is none.
	Work(ctx context.Context, workspaceID, workID string) (Work, bool, error)
	// Update runs step on the stored work of a message (zero and false if there is
	// none) and stores the result, atomically: step runs again after a concurrent
	// Update. If step fails, Update returns its error and stores nothing.
	Update(ctx context.Context, e *Envelope, step func(Work, bool) (Work, error)) (Work, error)
}

// WorkTable is a bounded [Works] in process. A full table drops the work that was
// closed first; if all work is open, the table refuses new work.
type WorkTable struct {
	Max          int // pieces of work in all; 0 means 65,536
	PerInitiator int // open work of one (workspace, initiator); 0 means an eighth of Max

	mu     sync.Mutex
	works  map[workKey]Work
	open   map[[2]string]int
	closed []workKey // in the order of their closing
}

type workKey struct{ workspaceID, workID string }

// Work implements [Works].
func (t *WorkTable) Work(_ context.Context, workspaceID, workID string) (Work, bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w, ok := t.works[workKey{workspaceID, workID}]
	return w, ok, nil
}

// Update implements [Works].
func (t *WorkTable) Update(_ context.Context, e *Envelope, step func(Work, bool) (Work, error)) (Work, error) {
	k := workKey{e.WorkspaceID, e.WorkID}
	t.mu.Lock()
	defer t.mu.Unlock()
	old, ok := t.works[k]
	w, err := step(old, ok)
	if err != nil {
		return w, err
	}
	owner := [2]string{e.WorkspaceID, w.Initiator}
	limit := cmp.Or(t.Max, 1<<16)
	if !ok {
		if t.open[owner] >= cmp.Or(t.PerInitiator, max(limit/8, 1)) || len(t.works) >= limit && len(t.closed) == 0 {
			return Work{}, refuse(ErrBusy, StepLifecycle, "work_id", "too much open work")
		}
		if len(t.works) >= limit {
			delete(t.works, t.closed[0])
			t.closed = t.closed[1:]
		}
		if t.works == nil {
			t.works, t.open = map[workKey]Work{}, map[[2]string]int{}
		}
		t.open[owner]++
	}
	t.works[k] = w
	if w.State.Terminal() && !(ok && old.State.Terminal()) {
		t.closed = append(t.closed, k)
		t.open[owner]--
		if t.open[owner] == 0 {
			delete(t.open, owner)
		}
	}
	return w, nil
}
