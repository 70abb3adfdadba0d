package a2a

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/sleep"
	"github.com/parley-hub/parley/journal"
)

// A task elsewhere often outlives the attempt that began it: the agent works for long, or
// asks for input. Deliver then hands it to a follower, which reads its stream, or asks
// for its state with growing pauses, and records what happens as messages of the agent.
// The row of the request has the task before its delivery counts as made. So another
// process goes on after a restart: [Binding.adopt].

// Pauses between two questions about a task: a part of the time that it has taken so far.
const (
	shortestPoll = 100 * time.Millisecond
	longestPoll  = 15 * time.Second
	maxMisses    = 3   // answers in a row without the task; then its request ends
	maxAgentID   = 512 // bytes of the ids that agents give
	maxArtifacts = 1024
	pollHistory  = 20 // messages of a task
)

// A taskFollower follows the task of one request until that has its answer. One goroutine at
// a time runs it.
type taskFollower struct {
	b    *Binding
	p    *peer
	id   parley.ID
	conv parley.ID
	ctx  context.Context // ends with the request's deadline
	stop context.CancelFunc
	in   chan protocol.Event // answers to inputs; nil: look at the task
	// begun is closed when the task is known.
	begun chan struct{}

	again bool      // an earlier attempt may have reached the agent
	hand  *handover // nil: no attempt waits
	over  bool      // the request has its answer, or is closed

	artifacts   []*protocol.Artifact // of the task, as far as they were seen
	size        int64                // of their content
	live        bool                 // they come from the stream that the message opened
	stale       bool                 // the task is to be read, before anything else
	interrupted bool                 // the agent waits for input
	deaf        bool                 // the agent has no subscription for the task now
	misses      int

	mu   sync.Mutex // guards the fields below
	w    *sentRequest
	kept bool // the row is written
	cut  context.CancelFunc
	r    *remote
}

// newFollower makes a follower of a request.
func (b *Binding) newFollower(p *peer, m *parley.Message, w *sentRequest) *taskFollower {
	f := &taskFollower{b: b, p: p, id: m.ID, conv: m.Conversation, w: w, in: make(chan protocol.Event, 16),
		begun: make(chan struct{})}
	left := w.Until.Add(-rowRetention).Sub(b.c.Now())
	trace := parley.Trace{Parent: w.Hop, State: m.Trace.State}
	f.ctx, f.stop = context.WithTimeout(withTrace(b.ctx, trace), max(left, 0))
	return f
}

// reserve notes that an agent gets one more request; false: it has too many.
func (b *Binding) reserve(f *taskFollower) bool {
	b.outMu.Lock()
	defer b.outMu.Unlock()
	if f.p.tasks >= maxTasks {
		f.stop()
		return false
	}
	if old := b.followed[f.id]; old != nil { // of an attempt that has ended
		old.stop()
		old.p.tasks--
	}
	f.p.tasks++
	b.followed[f.id] = f
	return true
}

// unfollow ends a follower.
func (b *Binding) unfollow(f *taskFollower) {
	f.stop()
	b.outMu.Lock()
	defer b.outMu.Unlock()
	if b.followed[f.id] == f {
		delete(b.followed, f.id)
		f.p.tasks--
	}
}

// adoptTask follows a task that another attempt or process began.
func (b *Binding) adoptTask(id parley.ID, w *sentRequest) *taskFollower {
	b.outMu.Lock()
	f := b.followed[id]
	b.outMu.Unlock()
	if f != nil {
		return f
	}
	p, err := b.peerOf(w.To, w.URL)
	if err != nil {
		b.c.Logger.Error("the record of a task elsewhere has no URL", "message", id, "agent", w.To, "error", err)
		return nil
	}
	row := *w
	f = b.newFollower(p, &parley.Message{ID: id}, &row)
	f.kept = true
	close(f.begun)
	b.outMu.Lock()
	if other := b.followed[id]; other != nil {
		b.outMu.Unlock()
		f.stop()
		return other
	}
	b.followed[id] = f // a task that is there already is no question of limits
	p.tasks++
	b.outMu.Unlock()
	b.goOn(f)
	return f
}

// named waits a little for the name of the task of a request that is being sent; false: it
// has none yet.
func (b *Binding) named(ctx context.Context, id parley.ID) bool {
	b.outMu.Lock()
	f := b.followed[id]
	b.outMu.Unlock()
	if f == nil {
		return true
	}
	t := time.NewTimer(b.patience)
	defer t.Stop()
	select {
	case <-f.begun:
		return true
	case <-f.ctx.Done():
		return true
	case <-t.C:
	case <-ctx.Done():
	}
	return false
}

// following gives the follower of a request's task; nil: no task is known.
func (b *Binding) following(ctx context.Context, id parley.ID) (*taskFollower, error) {
	b.outMu.Lock()
	f := b.followed[id]
	b.outMu.Unlock()
	if f != nil && f.task() != "" {
		return f, nil
	}
	row, err := b.sent.Get(ctx, id.String())
	if err != nil || row.Value.Task == "" {
		return nil, err
	}
	return b.adoptTask(id, &row.Value), nil
}

func (f *taskFollower) task() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.w.Task
}

func (f *taskFollower) contextID() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.w.Context
}

// countInput counts an input that is sent, so that the agent's next question is a new one.
func (f *taskFollower) countInput() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.w.Inputs++
}

// use notes with which card the agent is called.
func (f *taskFollower) use(r *remote) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.r = r
}

func (f *taskFollower) declares() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.r != nil && f.r.declares
}

// answers reports whether an agent's answer to an input ends the request. A task that goes on does
// not: it may be older than the events that the follower has seen, so it is only a reason to poll.
func (f *taskFollower) answers(e protocol.Event) bool {
	if t, ok := e.(*protocol.Task); ok {
		return t.Status.State.Terminal() || string(t.ID) != f.task()
	}
	return e != nil
}

// add gives the follower the agent's answer to an input, or nil as a reason to poll the task. It
// ends the stream that the follower reads, unless the answer is the task, which that stream shows.
func (f *taskFollower) add(e protocol.Event) {
	select {
	case f.in <- e:
	default: // it has reasons enough
	}
	if e != nil && !f.answers(e) {
		return
	}
	f.mu.Lock()
	cut := f.cut
	f.mu.Unlock()
	if cut != nil {
		cut()
	}
}

// open reports whether the request still waits for its answer, and this hub for it.
func (f *taskFollower) open() bool {
	d, open := f.b.c.Journal.Delivery(f.id, f.w.To)
	return open && d.State != parley.Dead && f.b.c.Journal.Owned(d.Position.Partition)
}

// keep writes the row, with the task even if the agent names it meanwhile.
func (f *taskFollower) keep(ctx context.Context) error {
	for {
		f.mu.Lock()
		w := *f.w
		w.Told, w.Artifacts = slices.Clone(w.Told), maps.Clone(w.Artifacts)
		f.mu.Unlock()
		if _, err := f.b.sent.Put(ctx, f.id.String(), w, w.Until); err != nil {
			return err
		}
		f.mu.Lock()
		f.kept = f.w.Task == w.Task
		kept := f.kept
		f.mu.Unlock()
		if kept {
			return nil
		}
	}
}

// rekeep writes the row again, if there is one. Its content is a help only: a failure is
// logged.
func (f *taskFollower) rekeep(ctx context.Context) {
	f.mu.Lock()
	kept := f.kept
	f.mu.Unlock()
	if !kept {
		return
	}
	if err := f.keep(ctx); err != nil && f.b.ctx.Err() == nil {
		f.b.c.Logger.Error("cannot record the task of a request elsewhere", "message", f.id, "agent", f.w.To, "error", err)
	}
}

// failed is the outcome of a request whose call got no task and no answer.
func (f *taskFollower) failed(ctx context.Context, err error) hub.Outcome {
	out := failedCall(f.w.To, err)
	if out.Err != nil && f.again {
		out.Unknown = true // the earlier attempt may have arrived
	}
	f.mu.Lock()
	kept := f.kept
	f.mu.Unlock()
	if kept && !out.Unknown {
		f.b.dropRow(context.WithoutCancel(ctx), f.id)
	}
	return out
}

// quietStream is how long a stream may tell nothing: then the task is read, because some
// agents leave streams open after the end.
const quietStream = time.Minute

// read observes a stream until it ends, or a reason comes to look at the task. The error
// is for a stream without any event.
func (f *taskFollower) read(ctx context.Context, open func(context.Context) iter.Seq2[protocol.Event, error]) error {
	stream, cut := context.WithCancel(ctx)
	defer cut()
	f.mu.Lock()
	f.cut = cut
	f.mu.Unlock()
	var quiet *time.Timer
	if f.task() != "" { // else the agent may take its time
		quiet = time.AfterFunc(quietStream, cut)
	}
	defer func() {
		if quiet != nil {
			quiet.Stop()
		}
	}()
	some := false
	for e, err := range open(stream) {
		switch {
		case err != nil && !some:
			return err
		case err != nil && stream.Err() != nil:
			return nil
		case notTheProtocol(err):
			f.end(ctx, &parley.Message{Kind: parley.Failure, Error: failedCall(f.w.To, err).Failure})
			return nil
		case err != nil:
			f.p.note(f.b.c.Now(), err)
			return nil
		}
		some = true
		if quiet == nil {
			quiet = time.AfterFunc(quietStream, cut)
		} else {
			quiet.Reset(quietStream)
		}
		if f.observe(ctx, e) || f.stale {
			return nil
		}
	}
	if !some {
		return fmt.Errorf("%w: the stream ended without an event", errAnswer)
	}
	return nil
}

// observe takes in what the agent said. It reports whether the request is over.
func (f *taskFollower) observe(ctx context.Context, e protocol.Event) (over bool) {
	info := protocol.TaskInfo{}
	if e != nil {
		info = e.TaskInfo()
	}
	if m, ok := e.(*protocol.Message); ok {
		f.b.keepContext(ctx, f.w.To, f.conv, bounded(m.ContextID))
		reply := fromMessage(m, f.declares())
		reply.Kind = parley.Response
		return f.end(ctx, reply)
	}
	if err := f.learn(ctx, info); err != nil {
		return f.end(ctx, &parley.Message{Kind: parley.Failure, Error: notUnderstood(f.w.To, err)})
	}
	switch e := e.(type) {
	case *protocol.Task:
		return f.snapshot(ctx, e)
	case *protocol.TaskStatusUpdateEvent:
		return f.status(ctx, &e.Status, nil)
	case *protocol.TaskArtifactUpdateEvent:
		return f.artifact(ctx, e)
	}
	return false
}

func bounded(id string) string {
	if len(id) > maxAgentID {
		return ""
	}
	return id
}

// learn notes the task and its context, as soon as the agent names them.
func (f *taskFollower) learn(ctx context.Context, info protocol.TaskInfo) error {
	task, contextID := string(info.TaskID), bounded(info.ContextID)
	f.mu.Lock()
	known := f.w.Task
	switch {
	case task == "" || len(task) > maxAgentID:
		f.mu.Unlock()
		return fmt.Errorf("%w: an event without the id of its task", errAnswer)
	case known != "" && known != task:
		f.mu.Unlock()
		return fmt.Errorf("%w: an event of another task", errAnswer)
	case known == "":
		f.w.Task, f.w.Context = task, cmp.Or(contextID, f.w.Context)
	}
	f.mu.Unlock()
	if known != "" {
		return nil
	}
	// A request that is cancelled now has its answer, which stops the follower: the cancel that
	// comes next finds the task by its row.
	ctx = context.WithoutCancel(ctx)
	f.b.keepContext(ctx, f.w.To, f.conv, contextID)
	f.rekeep(ctx)
	close(f.begun)
	return nil
}

// snapshot takes in a task as it is.
func (f *taskFollower) snapshot(ctx context.Context, t *protocol.Task) (over bool) {
	if len(t.Artifacts) > 0 || len(f.artifacts) == 0 {
		f.artifacts, f.size = t.Artifacts, 0
		for _, a := range t.Artifacts {
			if a != nil {
				f.size += sizeOf(a.Parts)
			}
		}
	}
	f.stale = false
	terminal := t.Status.State.Terminal()
	if f.w.Streams || !terminal {
		for _, m := range t.History[max(0, len(t.History)-maxTold):] {
			if m == nil || m.Role != protocol.MessageRoleAgent || m.ID == "" {
				continue
			}
			if f.tellStatus(ctx, &protocol.TaskStatus{State: protocol.TaskStateWorking, Message: m}) {
				return true
			}
		}
	}
	if !terminal {
		for _, a := range t.Artifacts {
			if a != nil && f.tellParts(ctx, a) {
				return true
			}
		}
	}
	return f.status(ctx, &t.Status, t)
}

// status takes in a status: of a task that was read, else of an event.
func (f *taskFollower) status(ctx context.Context, s *protocol.TaskStatus, t *protocol.Task) (over bool) {
	if !s.State.Terminal() {
		f.interrupted = false
		f.mu.Lock()
		same := f.w.State == string(s.State)
		f.w.State = string(s.State)
		f.mu.Unlock()
		// A state may lose its message when the input comes: that is nothing new.
		if !(same && s.Message == nil) && f.tellStatus(ctx, s) {
			return true
		}
		if s.State == protocol.TaskStateInputRequired || s.State == protocol.TaskStateAuthRequired {
			f.interrupted = true
			if f.hand != nil {
				f.hand.pause()
			}
		}
		return false
	}
	if t == nil && s.State == protocol.TaskStateCompleted && !f.live {
		f.stale = true // the task has what was before this stream
		return false
	}
	ended := &protocol.Task{Artifacts: f.artifacts, Status: *s}
	if t != nil {
		ended.Metadata = t.Metadata
	}
	return f.end(ctx, fromTask(ended, f.declares()))
}

// artifact takes in a piece of an artifact.
func (f *taskFollower) artifact(ctx context.Context, e *protocol.TaskArtifactUpdateEvent) (over bool) {
	if e.Artifact == nil || e.Artifact.ID == "" || len(e.Artifact.ID) > maxAgentID {
		return f.end(ctx, &parley.Message{Kind: parley.Failure, Error: notUnderstood(f.w.To,
			fmt.Errorf("%w: an artifact without an id", errAnswer))})
	}
	if !f.live {
		// A stream that was opened later may repeat pieces that the task has already.
		return f.look(ctx)
	}
	at := slices.IndexFunc(f.artifacts, func(a *protocol.Artifact) bool { return a != nil && a.ID == e.Artifact.ID })
	f.size += sizeOf(e.Artifact.Parts)
	now := *e.Artifact
	switch {
	case at < 0:
		f.artifacts = append(slices.Clip(f.artifacts), &now)
	case e.Append:
		old := f.artifacts[at]
		now.Parts = append(slices.Clip(old.Parts), e.Artifact.Parts...)
		now.Name, now.Description = cmp.Or(now.Name, old.Name), cmp.Or(now.Description, old.Description)
		if now.Metadata == nil {
			now.Metadata = old.Metadata
		}
		f.artifacts = slices.Clone(f.artifacts)
		f.artifacts[at] = &now
	default:
		f.size -= sizeOf(f.artifacts[at].Parts)
		f.artifacts = slices.Clone(f.artifacts)
		f.artifacts[at] = &now
		f.mu.Lock()
		if t, ok := f.w.Artifacts[string(now.ID)]; ok {
			f.w.Artifacts[string(now.ID)] = toldParts{Round: t.Round + 1}
		}
		f.mu.Unlock()
		f.rekeep(ctx)
	}
	if f.size > f.b.c.MaxAnswer || len(f.artifacts) > maxArtifacts {
		return f.end(ctx, &parley.Message{Kind: parley.Failure, Error: failedCall(f.w.To, errLarge).Failure})
	}
	return f.tellParts(ctx, &now)
}

// end records how the request ended, or gives that to the attempt.
func (f *taskFollower) end(ctx context.Context, reply *parley.Message) bool {
	f.over = true
	f.compose(reply)
	if f.give(hub.Outcome{Answered: true, Parts: reply.Parts, Failure: reply.Error, Reply: reply}) {
		return true // see leave
	}
	f.expectEnd()
	f.submit(ctx, reply, journal.Key{})
	return true
}

// expectEnd notes that the answer is about to be recorded: then the row, if there is one, is removed.
func (f *taskFollower) expectEnd() {
	f.mu.Lock()
	kept := f.kept
	f.mu.Unlock()
	if kept {
		f.b.expectEnd(f.id)
	}
}

// compose makes a message one of the agent about the request.
func (f *taskFollower) compose(m *parley.Message) {
	m.From, m.InReplyTo = f.w.To, f.id
	m.Origin = parley.Origin{Protocol: Protocol, Peer: f.w.Peer, Verdict: parley.Verdict{Assurance: parley.Session,
		Checks: []parley.Check{{Name: "transport", OK: true,
			Detail: "A2A answers are not signed; the connection answers for them"}}}}
	m.Trace = parley.Trace{Parent: f.w.Hop}
	if task := f.task(); task != "" {
		m.Trace.Foreign = map[string]string{"a2a.taskId": task}
	}
}

// submit records a message of the agent about the request. It tries again until the hub
// takes it, and reports whether the request is over.
func (f *taskFollower) submit(ctx context.Context, m *parley.Message, key journal.Key) (over bool) {
	f.compose(m)
	for {
		try := *m
		_, err := f.b.c.Hub.Accept(ctx, hub.Submission{Message: &try, Key: key})
		if _, told := errors.AsType[*hub.Prior](err); err == nil || told {
			return false
		}
		e := parley.AsError(err)
		switch {
		case ctx.Err() != nil:
			return true
		case e.Code == parley.Conflict: // it ended otherwise
			f.over = true
			return true
		case e.Retryable:
			if sleep.For(ctx, max(e.After, retryPause)) != nil {
				return true
			}
			continue
		case m.Kind == parley.Response:
			m = &parley.Message{Kind: parley.Failure, Error: parley.Refuse(e.Code,
				"the answer is not one that the hub can record").Because(err).Stated()}
			f.compose(m)
			continue
		}
		f.b.c.Logger.Error("what an agent says about a request cannot be recorded", "message", f.id, "agent", f.w.To,
			"kind", m.Kind, "error", err)
		return false
	}
}

// follow follows a task until its request is over, or another hub's.
func (f *taskFollower) follow(ctx context.Context) {
	began := f.b.c.Now()
	for f.open() {
		wait := time.Duration(0)
		r, err := f.b.remoteOf(ctx, f.p, false)
		if err == nil {
			f.use(r)
			f.subscribe(ctx, r)
			if f.over {
				return
			}
			if wait = f.poll(ctx, r); f.over {
				return
			}
		}
		t := time.NewTimer(max(wait, min(max(f.b.c.Now().Sub(began)/8, shortestPoll), longestPoll)))
		select {
		case <-t.C:
		case e := <-f.in:
			began, f.deaf, f.interrupted = f.b.c.Now(), false, false
			if f.answers(e) && f.observe(ctx, e) {
				t.Stop()
				return
			}
		case <-ctx.Done():
			t.Stop()
			return
		}
		t.Stop()
	}
}

// subscribe reads the stream of a task, if the agent has one and the hub may open it.
func (f *taskFollower) subscribe(ctx context.Context, r *remote) {
	// A server of the Python SDK for 0.3 applies each event to the task once more for each
	// subscriber.
	if r.Version != V1 || !r.Card.Capabilities.Streaming || f.deaf || f.interrupted {
		return
	}
	select {
	case f.p.streams <- struct{}{}:
		defer func() { <-f.p.streams }()
	default:
		return
	}
	f.live = false
	err := f.read(ctx, func(ctx context.Context) iter.Seq2[protocol.Event, error] {
		return r.transport.SubscribeToTask(ctx, r.params(), &protocol.SubscribeToTaskRequest{Tenant: r.Interface.Tenant,
			ID: protocol.TaskID(f.task())})
	})
	status, ok := errors.AsType[*statusError](err)
	f.deaf = errors.Is(err, protocol.ErrTaskNotFound) || errors.Is(err, protocol.ErrUnsupportedOperation) ||
		errors.Is(err, protocol.ErrMethodNotFound) || notTheProtocol(err) ||
		ok && (status.status == http.StatusNotFound || status.status == http.StatusMethodNotAllowed)
}

// look reads the task now. A failure is no matter: it is read again.
func (f *taskFollower) look(ctx context.Context) (over bool) {
	f.mu.Lock()
	r := f.r
	f.mu.Unlock()
	if r != nil {
		f.poll(ctx, r)
	}
	return f.over
}

// poll asks for the state of a task. wait is when to ask again, if the agent said so.
func (f *taskFollower) poll(ctx context.Context, r *remote) (wait time.Duration) {
	select {
	case f.p.polls <- struct{}{}:
		defer func() { <-f.p.polls }()
	case <-ctx.Done():
		return 0
	}
	history := pollHistory
	t, err := r.transport.GetTask(ctx, r.params(), &protocol.GetTaskRequest{Tenant: r.Interface.Tenant,
		ID: protocol.TaskID(f.task()), HistoryLength: &history})
	if ctx.Err() != nil {
		return 0
	}
	f.p.note(f.b.c.Now(), err)
	if err == nil {
		f.misses = 0
		f.observe(ctx, t)
		return 0
	}
	if movedAway(err) {
		_, _ = f.b.peerCard(ctx, f.p, true) // a failure is logged, and asked for again
	}
	out := failedCall(f.w.To, err)
	if status, ok := errors.AsType[*statusError](err); out.Err != nil || ok && status.is == nil ||
		errors.Is(err, protocol.ErrUnauthenticated) || errors.Is(err, protocol.ErrUnauthorized) {
		return out.Wait // the agent cannot be asked now; or not as the hub asks, until an operator mends it
	}
	lost := errors.Is(err, protocol.ErrTaskNotFound)
	if lost || movedAway(err) || errors.Is(err, protocol.ErrInternalError) {
		// Another process of the agent may not know the task yet, or may be restarting.
		if f.misses++; f.misses < maxMisses {
			return 0
		}
	}
	if lost {
		out.Failure = parley.Refuse(parley.OutcomeUnknown,
			"%q took the request and does not know its task any more", f.w.To).
			With(parley.ByPeer, parley.PeerGone, "it answered that there is no such task").Because(err)
	}
	f.end(ctx, &parley.Message{Kind: parley.Failure, Error: out.Failure})
	return 0
}
