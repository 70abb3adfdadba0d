package a2a

import (
	"context"
	"errors"
	"iter"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge/follow"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/index"
)

// A follower follows one task: what was recorded about it is read once, then records come live.
// Each record counts once, by its position.
type follower struct {
	b        *Binding
	id       parley.ID // of the request
	streams  bool      // the client reads updates as they come
	sub      *follow.Subscription
	progress progress
	task     *protocol.Task // nil once a stream has sent it
	last     uint64         // sequence of the last record that counted
	since    journal.Position
	reply    *parley.Message // the terminal one
	until    parley.ID       // load ends with this message; zero: it reads all
}

// follow begins to follow a request, which need not be recorded yet.
func (b *Binding) follow(id parley.ID, streams bool) *follower {
	return &follower{b: b, id: id, streams: streams, sub: b.requests.Subscribe(id, streams)}
}

func (f *follower) end() { f.sub.End() }

func (f *follower) start(request *journal.Record) {
	f.progress, f.task = begin(request.Message, request.Time)
	f.last = request.Position.Sequence
}

// apply counts a record, and gives the updates that it makes.
func (f *follower) apply(r *journal.Record) []protocol.Event {
	if r.Position.Sequence <= f.last {
		return nil
	}
	f.last = r.Position.Sequence
	if r.Message.Kind.Terminal() && !f.progress.state.Terminal() {
		f.reply = r.Message
	}
	if f.task == nil {
		return f.progress.events(r.Message, r.Time)
	}
	return f.progress.add(f.task, r.Message, r.Time)
}

// next waits for records, and applies them. If the queue overflowed, it reads the task again.
func (f *follower) next(ctx context.Context, c *call) error {
	list, err := f.sub.Take(ctx)
	switch {
	case errors.Is(err, follow.ErrSlow):
		f.end()
		again, err := f.b.open(ctx, c, protocol.TaskID(f.id.String()), f.streams)
		if err != nil {
			return err
		}
		again.since = f.since
		*f = *again
		return nil
	case err != nil:
		return err
	case f.last == 0: // the request comes before everything about it
		f.start(list[0])
	}
	for _, record := range list {
		f.apply(record)
	}
	return nil
}

// settled reports whether the task has ended or waits for its client, and did not so before the
// client's message.
func (f *follower) settled() bool {
	return f.progress.state.Terminal() || interrupted(f.progress.state) && f.last >= f.since.Sequence
}

// stream yields the task, then its updates, until over reports true.
func (f *follower) stream(ctx context.Context, history *int, over func() bool,
	yield func(protocol.Event, error) bool) {
	if !yield(cut(f.task, history), nil) {
		return
	}
	f.task = nil
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(f.b.ctx, cancel)()
	for !over() {
		list, err := f.sub.Take(ctx)
		if err != nil {
			return // the client has gone, the hub stops, or the client is too slow
		}
		for _, r := range list {
			for _, e := range f.apply(r) {
				if !yield(e, nil) {
					return
				}
			}
			if over() {
				return
			}
		}
	}
}

// find finds the request of a task. A task of another caller or agent is not found (rule A2A-040).
func (b *Binding) find(ctx context.Context, c *call, task protocol.TaskID) (index.Message, error) {
	id, err := parley.ParseID(string(task))
	if err != nil {
		return index.Message{}, protocol.ErrTaskNotFound
	}
	m, err := b.requests.Find(ctx, id, follow.By{From: c.caller.Name, To: c.agent, Protocol: Protocol})
	return m, taskError(err)
}

// taskError is the error of a task for one of its request.
func taskError(err error) error {
	if errors.Is(err, follow.ErrNotFound) {
		return protocol.ErrTaskNotFound
	}
	return err
}

// known finds the request of a task that is still there.
func (b *Binding) known(ctx context.Context, c *call, task protocol.TaskID) (index.Message, error) {
	m, err := b.find(ctx, c, task)
	if err == nil {
		_, err = b.requests.Request(ctx, m)
	}
	return m, taskError(err)
}

// open reads a task of the caller, and follows it.
func (b *Binding) open(ctx context.Context, c *call, task protocol.TaskID, streams bool) (*follower, error) {
	id, err := parley.ParseID(string(task))
	if err != nil {
		return nil, protocol.ErrTaskNotFound
	}
	f := b.follow(id, streams) // first: so nothing is missing between the index and the queue
	m, err := b.find(ctx, c, task)
	if err == nil {
		err = f.load(ctx, m, true, nil)
	}
	if err != nil {
		f.end()
		return nil, err
	}
	return f, nil
}

// read reads a task of the caller as it is.
func (b *Binding) read(ctx context.Context, c *call, task protocol.TaskID) (*follower, error) {
	m, err := b.find(ctx, c, task)
	if err != nil {
		return nil, err
	}
	f := &follower{b: b}
	return f, f.load(ctx, m, true, nil)
}

// load reads what the index has of a task, without the pieces of its result unless pieces are wanted,
// and takes their bytes from room.
func (f *follower) load(ctx context.Context, m index.Message, pieces bool, room *int) error {
	for r, err := range f.b.requests.Load(ctx, m, pieces, room) {
		switch {
		case err != nil:
			return taskError(err)
		case f.last == 0: // the request comes first
			f.start(r)
		default:
			f.apply(r)
			if r.Message.ID == f.until {
				return nil
			}
		}
	}
	return nil
}

// GetTask implements a2asrv.RequestHandler.
func (s service) GetTask(ctx context.Context, r *protocol.GetTaskRequest) (*protocol.Task, error) {
	f, err := s.b.read(ctx, callOf(ctx), r.ID)
	if err != nil {
		return nil, err
	}
	return cut(f.task, r.HistoryLength), nil
}

// Bounds of a page of tasks (A2A 1.0, section 3.1.4).
const (
	usualPage = 50
	maxPage   = 100
)

// ListTasks implements a2asrv.RequestHandler. A page size of 0 is one that was not given.
func (s service) ListTasks(ctx context.Context, r *protocol.ListTasksRequest) (*protocol.ListTasksResponse, error) {
	c := callOf(ctx)
	size := r.PageSize
	if size == 0 {
		size = usualPage
	}
	f := index.RequestFilter{From: c.caller.Name, To: c.agent, Protocol: Protocol, Cursor: r.PageToken, Limit: size}
	if r.Status != protocol.TaskStateUnspecified {
		f.Keep = func(l *index.LastRecord) bool { return stateOf(l) == r.Status }
	}
	if r.ContextID != "" {
		f.Conversation = s.b.c.Hub.Conversation(Protocol, scope(c.agent, c.caller.Name), r.ContextID, c.agent,
			c.caller.Name)
	}
	if r.StatusTimestampAfter != nil {
		f.Changed = *r.StatusTimestampAfter
	}
	if err := s.b.requests.Indexed(ctx); err != nil {
		return nil, err
	}
	page, err := s.b.c.Index.Requests(ctx, f)
	if errors.Is(err, index.ErrFilter) {
		return nil, invalidParams("pageToken", "it is not one that this hub gave")
	}
	if err != nil {
		return nil, parley.Fail(parley.Unavailable, err, "the index cannot be read now")
	}
	out := &protocol.ListTasksResponse{Tasks: []*protocol.Task{}, TotalSize: page.Total, PageSize: size,
		NextPageToken: page.Next}
	room := follow.MaxBytes
	for i := range page.Requests {
		f := &follower{b: s.b}
		if err := f.load(ctx, page.Requests[i].Message, r.IncludeArtifacts, &room); errors.Is(err, protocol.ErrTaskNotFound) {
			continue // its content was erased
		} else if err != nil {
			return nil, err
		}
		t := cut(f.task, r.HistoryLength)
		if !r.IncludeArtifacts {
			t.Artifacts = nil
		}
		out.Tasks = append(out.Tasks, t)
	}
	return out, nil
}

// cancelWait is how long CancelTask waits for the task to end.
const cancelWait = 5 * time.Second

// CancelTask implements a2asrv.RequestHandler. The task is cancelled when its agent confirms, or
// was never told of it.
func (s service) CancelTask(ctx context.Context, r *protocol.CancelTaskRequest) (*protocol.Task, error) {
	c := callOf(ctx)
	f, err := s.b.open(ctx, c, r.ID, false)
	if err != nil {
		return nil, err
	}
	defer f.end()
	ended := func() (*protocol.Task, error) {
		if f.progress.state != protocol.TaskStateCanceled { // rule A2A-043
			return nil, protocol.ErrTaskNotCancelable
		}
		return cut(f.task, nil), nil
	}
	if f.progress.state.Terminal() {
		return ended()
	}
	raw, now := c.body, s.b.c.Now()
	_, err = s.b.c.Hub.Accept(ctx, hub.Submission{Scope: scope(c.agent, c.caller.Name), At: &f.since,
		Message: &parley.Message{Kind: parley.Cancel, From: c.caller.Name, To: c.agent, InReplyTo: f.id,
			Origin: parley.Origin{Protocol: Protocol, Peer: c.caller.Peer, Raw: raw, Received: now,
				Verdict: c.caller.Verdict}}})
	refused := err != nil
	if refused && parley.CodeOf(err) != parley.Conflict { // a conflict: the task has just ended
		return nil, err
	}
	waiting, stop := s.b.bounded(ctx, cancelWait)
	defer stop()
	for !f.progress.state.Terminal() {
		err := f.next(waiting, c)
		if ctx.Err() != nil {
			return nil, parley.AsError(ctx.Err())
		}
		if err != nil {
			break // it goes on: its agent has not confirmed yet
		}
	}
	if f.progress.state.Terminal() && refused {
		return ended()
	}
	return cut(f.task, nil), nil
}

// SubscribeToTask implements a2asrv.RequestHandler. An error comes first or not at all. The
// stream is open until the task ends.
func (s service) SubscribeToTask(ctx context.Context, r *protocol.SubscribeToTaskRequest) iter.Seq2[protocol.Event,
	error] {
	return func(yield func(protocol.Event, error) bool) {
		c := callOf(ctx)
		f, err := s.b.open(ctx, c, r.ID, true)
		if err != nil {
			yield(nil, err)
			return
		}
		defer f.end()
		over := func() bool { return f.progress.state.Terminal() }
		if over() {
			yield(nil, errEnded())
			return
		}
		f.stream(ctx, nil, over, yield)
	}
}

// stateOf is the state of a task by the record that gave it.
func stateOf(l *index.LastRecord) protocol.TaskState {
	switch l.Kind {
	case parley.Input:
		return protocol.TaskStateWorking
	case parley.Response:
		return protocol.TaskStateCompleted
	case parley.Failure:
		return failureState(&parley.Error{Code: l.Code})
	case parley.Event:
		switch {
		case l.State == parley.Working:
			return protocol.TaskStateWorking
		case l.State == parley.NeedsInput && l.Act == authRequired:
			return protocol.TaskStateAuthRequired
		case l.State == parley.NeedsInput:
			return protocol.TaskStateInputRequired
		}
	}
	return protocol.TaskStateSubmitted
}
