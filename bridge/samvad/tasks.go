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
	"github.com/parley-hub/parley/internal/sleep"
	"github.com/parley-hub/parley/journal"
	protocol "github.com/parley-hub/parley/samvad"
)

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

// startTask makes the task of a recorded asynchronous request.
func (b *Binding) startTask(ctx context.Context, r *protocol.Request, m *parley.Message) error {
	t := task{Agent: r.To, From: r.From, To: m.To, Trace: r.TraceID, Callback: r.CallbackURL,
		Status: protocol.TaskRunning}
	// First the row: finish needs it.
	if _, err := b.tasks.Put(ctx, m.ID.String(), t, time.Time{}); err != nil {
		return fmt.Errorf("record the task: %w", err)
	}
	b.running.Store(m.ID, true)
	// The answer may have been recorded, and its callback made, before the task was
	// known here. Then the sender learns of the task when it has its outcome.
	if _, open := b.c.Journal.Delivery(m.ID, m.To); !open && b.finishEarly(ctx, r, m.ID) != nil {
		b.background(m.ID, func() error { return b.find(m.ID) })
	}
	r.Accept(b.taskID(m.ID, r.To))
	return nil
}

// finishEarly finishes a task by the answer that its replay key leads to.
func (b *Binding) finishEarly(ctx context.Context, r *protocol.Request, id parley.ID) error {
	p, ok := b.c.Journal.Seen(scope(r.To), key(r.Envelope))
	if !ok || p.Reply.IsZero() {
		return errors.New("samvad: the answer is not known by its request")
	}
	reply, err := b.c.Journal.Read(ctx, p.Reply)
	if err != nil {
		return err
	}
	return b.finish(ctx, id, reply.Message)
}

// background calls f, which finishes a task, until it succeeds or the binding
// closes. After a restart, followTasks finishes the task.
func (b *Binding) background(id parley.ID, f func() error) {
	b.work.Go(func() {
		for {
			select {
			case b.slots <- struct{}{}:
			case <-b.ctx.Done():
				return
			}
			err := f()
			<-b.slots
			if err == nil || b.ctx.Err() != nil {
				return
			}
			b.c.Logger.Error("cannot keep the outcome of a task; trying again", "message", id, "error", err)
			if sleep.For(b.ctx, pause) != nil {
				return
			}
		}
	})
}

// followTasks finishes each task when its answer is recorded, and goes on with the
// tasks of an earlier process.
func (b *Binding) followTasks(ctx context.Context) error {
	b.stops = append(b.stops, b.c.Journal.Watch(func(r *journal.Record) {
		m := r.Message
		if m == nil || !m.Kind.Terminal() || r.Refused != nil {
			return
		}
		if _, running := b.running.Load(m.InReplyTo); running {
			b.background(m.InReplyTo, func() error { return b.finish(b.ctx, m.InReplyTo, m) })
		}
	}))
	for row, err := range b.tasks.Range(ctx, "") {
		if strings.HasPrefix(row.Key, refusedTask) {
			continue
		}
		var id parley.ID
		if err == nil {
			id, err = parley.ParseID(row.Key)
		}
		if err != nil {
			return fmt.Errorf("read the task %q: %w", row.Key, err)
		}
		if row.Value.Status.Finished() {
			continue
		}
		b.running.Store(id, true)
		if _, open := b.c.Journal.Delivery(id, row.Value.To); !open {
			b.background(id, func() error { return b.find(id) })
		}
	}
	return nil
}

// find finishes a task with the answer in the journal: an earlier process ended
// after it recorded the answer and before it recorded the outcome of the task.
func (b *Binding) find(id parley.ID) error {
	for p := range b.c.Journal.Partitions() {
		for r, err := range b.c.Journal.Records(b.ctx, p, journal.From{Time: id.Time().Add(-time.Minute)}) {
			if err != nil {
				if parley.AsError(err).Retryable || b.ctx.Err() != nil {
					return err
				}
				b.c.Logger.Error("cannot look for the answer of a task", "message", id, "error", err)
				return nil
			}
			if m := r.Message; m != nil && m.InReplyTo == id && m.Kind.Terminal() {
				return b.finish(b.ctx, id, m)
			}
		}
	}
	return b.finish(b.ctx, id, &parley.Message{Kind: parley.Failure,
		Error: parley.Refuse(parley.Unavailable, "The agent was stopped before the task was finished.")})
}

// finish records the outcome of a task, unless it has one or was forgotten. Of
// several hubs that try, one counts the tokens.
func (b *Binding) finish(ctx context.Context, id parley.ID, reply *parley.Message) error {
	ended := false
	row, err := b.tasks.Change(ctx, id.String(), func(r *journal.Row[task]) (write bool, err error) {
		ended = r.Revision != 0 && !r.Value.Status.Finished()
		if ended {
			r.Value.end(reply)
			r.Until = b.c.Now().Add(retention)
		}
		return ended, nil
	})
	if err != nil {
		return err
	}
	b.running.Delete(id)
	if ended {
		b.server.Limiter.Record(row.Value.Agent, row.Value.From, reply.Tokens(), b.c.Now())
	}
	return nil
}

// end gives a task the outcome of its reply.
func (t *task) end(reply *parley.Message) {
	r := toReply(t.Trace, reply)
	t.Status, t.Result = protocol.TaskDone, json.RawMessage(r.Result)
	if r.Err != nil {
		t.Status, t.Code, t.Text = protocol.TaskFailed, r.Err.Code, r.Err.Text
	}
}

// taskStore gives the protocol's server the tasks of the binding.
type taskStore Binding

// Get implements samvad.Tasks.
func (s *taskStore) Get(ctx context.Context, agent, taskID string) (protocol.Task, error) {
	b := (*Binding)(s)
	id, ours := b.messageOf(taskID, agent)
	key := id.String()
	if !ours {
		if len(taskID) != 36 {
			return protocol.Task{}, protocol.ErrNotFound
		}
		key = refusedTask + taskID
	}
	row, err := b.tasks.Get(ctx, key)
	if err != nil {
		return protocol.Task{}, fmt.Errorf("read the task: %w", err)
	}
	t := &row.Value
	if row.Revision == 0 || t.Agent != agent {
		return protocol.Task{}, protocol.ErrNotFound
	}
	out := protocol.Task{ID: taskID, Agent: t.Agent, Status: t.Status, Result: t.Result, TraceID: t.Trace}
	if t.Status == protocol.TaskFailed {
		out.Err = &protocol.Error{Code: t.Code, Text: t.Text}
	}
	if d, open := b.c.Journal.Delivery(id, t.To); ours && open && t.Status == protocol.TaskRunning &&
		d.State == parley.Waiting {
		out.Status = protocol.TaskPending
	}
	return out, nil
}

// Put implements samvad.Tasks, for the tasks that the server makes itself.
func (s *taskStore) Put(ctx context.Context, t protocol.Task) error {
	v := task{Agent: t.Agent, Trace: t.TraceID, Status: t.Status, Result: json.RawMessage(t.Result)}
	if t.Err != nil {
		v.Code, v.Text = t.Err.Code, t.Err.Text
	}
	b := (*Binding)(s)
	_, err := b.tasks.Put(ctx, refusedTask+t.ID, v, b.c.Now().Add(retention))
	return err
}
