package samvad

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/journal"
	protocol "github.com/parley-hub/parley/samvad"
)

// retention is how long the result of a task is kept (SAM-122 wants an hour).
const retention = 2 * time.Hour

// task is what the hub keeps of an asynchronous request: enough to answer the
// sender's questions and to call it back, over restarts. It lives in the
// journal's state, under the id of the message.
type task struct {
	Agent    string // identity that was addressed
	To       string // its directory name
	Trace    string
	Span     string `json:",omitempty"`
	Callback string `json:",omitempty"`
	Status   protocol.TaskStatus
	Result   json.RawMessage `json:",omitempty"`
	Code     protocol.Code   `json:",omitempty"`
	Text     string          `json:",omitempty"`
	Called   bool            `json:",omitempty"` // the callback was delivered, or given up
	Tries    int             `json:",omitempty"`
}

func (b *Binding) state() journal.State { return b.c.Journal.State("samvad-tasks") }

// taskID is the capability to read a task: the message's id and 128 bits of a
// MAC over it and the agent.
func (b *Binding) taskID(m parley.ID, agent string) string {
	mac := hmac.New(sha256.New, b.taskKey)
	mac.Write(m[:])
	mac.Write([]byte(agent))
	return base64.RawURLEncoding.EncodeToString(append(m[:], mac.Sum(nil)[:16]...))
}

func (b *Binding) messageOf(taskID, agent string) (parley.ID, bool) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(taskID)
	if err != nil || len(raw) != 32 {
		return parley.ID{}, false
	}
	m := parley.ID(raw[:16])
	return m, hmac.Equal([]byte(b.taskID(m, agent)), []byte(taskID))
}

// accept takes over an asynchronous request that was recorded.
func (b *Binding) accept(ctx context.Context, r *protocol.Request) (string, error) {
	m, ok := r.State.(*parley.Message)
	if !ok {
		return "", protocol.ErrUnavailable
	}
	t := &task{Agent: r.To, To: m.To, Trace: r.TraceID, Callback: r.CallbackURL, Status: protocol.TaskRunning}
	// Kept first: who finishes it must find it kept, and has it to itself.
	if err := b.keep(ctx, m.ID, t); err != nil {
		return "", fmt.Errorf("keep the task: %w", err)
	}
	b.tasksMu.Lock()
	b.open[m.ID] = t
	b.tasksMu.Unlock()
	// The answer may have been recorded before the task was known here.
	if _, open := b.c.Journal.Delivery(m.ID, m.To); !open {
		b.background(func() {
			if p, ok := b.c.Journal.Seen(scope(r.To), key(r.Envelope)); ok && !p.Reply.IsZero() {
				if reply, err := b.c.Journal.Read(b.ctx, p.Reply); err == nil {
					b.finish(m.ID, reply.Message)
					return
				}
			}
			b.find(m.ID)
		})
	}
	return b.taskID(m.ID, r.To), nil
}

func (b *Binding) keep(ctx context.Context, id parley.ID, t *task) error {
	v, err := json.Marshal(t)
	if err != nil {
		return err
	}
	until := time.Time{}
	if t.Status.Finished() {
		until = b.c.Now().Add(retention)
	}
	_, err = b.state().Put(ctx, id.String(), v, until)
	return err
}

// background runs f unless the binding is closing.
func (b *Binding) background(f func()) {
	b.work.Add(1)
	go func() {
		defer b.work.Done()
		select {
		case b.slots <- struct{}{}:
			defer func() { <-b.slots }()
			f()
		case <-b.ctx.Done():
		}
	}()
}

// later runs f in the background after a pause.
func (b *Binding) later(f func()) {
	b.work.Add(1)
	go func() {
		defer b.work.Done()
		t := time.NewTimer(pause)
		defer t.Stop()
		select {
		case <-t.C:
			b.background(f)
		case <-b.ctx.Done():
		}
	}()
}

// pause before the journal is asked again to keep what it could not.
const pause = time.Second

// Start takes up the tasks of an earlier process, and follows the journal for
// answers.
func (b *Binding) Start(ctx context.Context) error {
	stop := b.c.Journal.Watch(func(r *journal.Record) {
		if m := r.Message; m != nil && m.Kind.Terminal() && r.Refused == nil {
			b.tasksMu.Lock()
			t := b.open[m.InReplyTo]
			b.tasksMu.Unlock()
			if t != nil {
				b.background(func() { b.finish(m.InReplyTo, m) })
			}
		}
	})
	before := b.stopWatch
	b.stopWatch = func() { before(); stop() }
	for v, err := range b.state().Range(ctx, "") {
		if err != nil {
			return fmt.Errorf("read the tasks: %w", err)
		}
		if strings.HasPrefix(v.Key, refusedTask) {
			continue
		}
		id, err := parley.ParseID(v.Key)
		t := new(task)
		if err == nil {
			err = json.Unmarshal(v.Data, t)
		}
		if err != nil {
			return fmt.Errorf("the task %q is damaged: %w", v.Key, err)
		}
		switch {
		case !t.Status.Finished():
			b.tasksMu.Lock()
			b.open[id] = t
			b.tasksMu.Unlock()
			if _, open := b.c.Journal.Delivery(id, t.To); !open {
				b.background(func() { b.find(id) })
			}
		case t.Callback != "" && !t.Called:
			b.background(func() { b.call(id, t) })
		}
	}
	return nil
}

// find looks the answer of a task up in the journal: the process ended between
// its record and the task's.
func (b *Binding) find(id parley.ID) {
	for p := range b.c.Journal.Partitions() {
		for r, err := range b.c.Journal.Records(b.ctx, p, journal.From{Time: id.Time().Add(-time.Minute)}) {
			if err != nil {
				if b.ctx.Err() == nil {
					b.c.Logger.Error("cannot look for the answer of a task", "message", id, "error", err)
					if parley.AsError(err).Retryable {
						b.later(func() { b.find(id) })
					}
				}
				return
			}
			if m := r.Message; m != nil && m.InReplyTo == id && m.Kind.Terminal() {
				b.finish(id, m)
				return
			}
		}
	}
	if t, _ := b.take(id); t != nil {
		t.Status, t.Code, t.Text = protocol.TaskFailed, protocol.CodeAgentUnavailable, "The agent was stopped before the task was finished."
		b.done(id, t)
	}
}

func (b *Binding) take(id parley.ID) (*task, bool) {
	b.tasksMu.Lock()
	defer b.tasksMu.Unlock()
	t, ok := b.open[id]
	delete(b.open, id)
	return t, ok
}

// finish keeps a task's outcome and calls its sender back.
func (b *Binding) finish(id parley.ID, reply *parley.Message) {
	t, ok := b.take(id)
	if !ok {
		return
	}
	t.Status, t.Span = protocol.TaskDone, reply.ID.String()
	if reply.Kind == parley.Failure {
		e := toError(reply.Error)
		t.Status, t.Code, t.Text = protocol.TaskFailed, e.Code, e.Text
	} else if v, _, err := toResult(reply.Parts); err == nil {
		t.Result = json.RawMessage(v)
	} else {
		t.Status, t.Code, t.Text = protocol.TaskFailed, protocol.CodeAgentUnavailable, "The agent answered with something that is not JSON."
	}
	b.done(id, t)
}

func (b *Binding) done(id parley.ID, t *task) {
	if err := b.keep(b.ctx, id, t); err != nil {
		if b.ctx.Err() == nil {
			b.c.Logger.Error("cannot keep the outcome of a task; trying again", "message", id, "error", err)
			b.later(func() { b.done(id, t) })
		}
		return // should the process end before, the next start looks it up
	}
	if t.Callback != "" {
		b.call(id, t)
	}
}

// call delivers the webhook of a finished task.
func (b *Binding) call(id parley.ID, t *task) {
	r := &protocol.Reply{TraceID: t.Trace, SpanID: t.Span, Result: jsonx.Value(t.Result)}
	if t.Status == protocol.TaskFailed {
		r.Result, r.Err = nil, &protocol.Error{Code: t.Code, Text: t.Text}
	}
	err := b.server.Webhook.Send(b.ctx, b.client.Identity, t.Callback, r)
	if b.ctx.Err() != nil {
		return // the next start tries again
	}
	t.Called = true
	t.Tries++
	if err != nil {
		b.c.Logger.Warn("a webhook was given up", "message", id, "url", t.Callback, "error", err)
	}
	if err := b.keep(b.ctx, id, t); err != nil && b.ctx.Err() == nil {
		b.c.Logger.Error("cannot keep that a webhook was delivered", "message", id, "error", err)
	}
}

// tasks answers what senders ask about their tasks.
type tasks Binding

// refusedTask begins the keys of tasks that the server itself made, for
// requests that it refuses after it has promised a task: their payload did
// not fit (SAM-090). Their ids are 122 random bits.
const refusedTask = "refused/"

// Get implements samvad.Tasks.
func (s *tasks) Get(ctx context.Context, agent, taskID string) (protocol.Task, error) {
	b := (*Binding)(s)
	id, ours := b.messageOf(taskID, agent)
	key := id.String()
	if !ours {
		if len(taskID) != 36 {
			return protocol.Task{}, protocol.ErrNotFound
		}
		key = refusedTask + taskID
	}
	v, err := b.state().Get(ctx, key)
	if errors.Is(err, journal.ErrNotFound) {
		return protocol.Task{}, protocol.ErrNotFound
	}
	t := new(task)
	if err == nil {
		err = json.Unmarshal(v.Data, t)
	}
	if err != nil {
		return protocol.Task{}, fmt.Errorf("read the task: %w", err)
	}
	if t.Agent != agent {
		return protocol.Task{}, protocol.ErrNotFound
	}
	out := protocol.Task{ID: taskID, Agent: t.Agent, Status: t.Status, Result: jsonx.Value(t.Result), TraceID: t.Trace, CallbackURL: t.Callback}
	if t.Status == protocol.TaskFailed {
		out.Err = &protocol.Error{Code: t.Code, Text: t.Text}
	}
	if d, open := b.c.Journal.Delivery(id, t.To); ours && open && t.Status == protocol.TaskRunning && d.State == parley.Waiting {
		out.Status = protocol.TaskPending
	}
	return out, nil
}

// Put implements samvad.Tasks, for the tasks that the server makes itself.
func (s *tasks) Put(ctx context.Context, t protocol.Task) error {
	kept := task{Agent: t.Agent, Trace: t.TraceID, Status: t.Status, Result: json.RawMessage(t.Result), Called: true}
	if t.Err != nil {
		kept.Code, kept.Text = t.Err.Code, t.Err.Text
	}
	v, err := json.Marshal(kept)
	if err != nil {
		return err
	}
	b := (*Binding)(s)
	_, err = b.state().Put(ctx, refusedTask+t.ID, v, b.c.Now().Add(retention))
	return err
}
