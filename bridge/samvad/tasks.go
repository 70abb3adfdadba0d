package samvad

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
	protocol "github.com/parley-hub/parley/samvad"
)

// retention is how long the result of a task is kept (SAM-122 wants an hour).
const retention = 2 * time.Hour

// task is the record of an asynchronous request, by which the hub answers polls,
// over restarts. Its key is the id of the message. To call the sender back is a
// delivery of the reply.
type task struct {
	Agent    string // identity that was addressed
	From     string // identity of the sender
	To       string // its directory name
	Trace    string
	Callback string `json:",omitempty"`
	Status   protocol.TaskStatus
	Result   json.RawMessage `json:",omitempty"`
	Code     protocol.Code   `json:",omitempty"`
	Text     string          `json:",omitempty"`
}

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
	t := task{Agent: r.To, From: r.From, To: m.To, Trace: r.TraceID, Callback: r.CallbackURL, Status: protocol.TaskRunning}
	// First the row: finish needs it.
	if _, err := b.tasks.Put(ctx, m.ID.String(), t, time.Time{}); err != nil {
		return "", fmt.Errorf("record the task: %w", err)
	}
	b.setRunning(m.ID, true)
	// The answer may have been recorded before the task was known here.
	if _, open := b.c.Journal.Delivery(m.ID, m.To); !open {
		b.background(m.ID, func() error {
			if p, ok := b.c.Journal.Seen(scope(r.To), key(r.Envelope)); ok && !p.Reply.IsZero() {
				if reply, err := b.c.Journal.Read(b.ctx, p.Reply); err == nil {
					return b.finish(b.ctx, m.ID, reply.Message)
				}
			}
			return b.find(m.ID)
		})
	}
	return b.taskID(m.ID, r.To), nil
}

func (b *Binding) setRunning(id parley.ID, running bool) {
	b.tasksMu.Lock()
	defer b.tasksMu.Unlock()
	if running {
		b.running[id] = true
	} else {
		delete(b.running, id)
	}
}

func (b *Binding) isRunning(id parley.ID) bool {
	b.tasksMu.Lock()
	defer b.tasksMu.Unlock()
	return b.running[id]
}

// background finishes a task by f, which is repeated until it succeeds or the
// binding closes; after a restart, Start does it.
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
			b.c.Logger.Error("cannot record how a task ended; trying again", "message", id, "error", err)
			if !b.rest(pause) {
				return
			}
		}
	})
}

// pause before a failed call of the journal is repeated.
const pause = time.Second

func delivered(s journal.Step) bool { return s.State == parley.Delivered }

// Start takes up the tasks of an earlier process, and follows the journal for
// answers.
func (b *Binding) Start(ctx context.Context) error {
	adopt := func() {
		select {
		case b.owned <- struct{}{}:
		default:
		}
	}
	stop := b.c.Journal.Watch(func(r *journal.Record) {
		if m := r.Message; m != nil && m.Kind.Terminal() && r.Refused == nil {
			if b.isRunning(m.InReplyTo) {
				b.background(m.InReplyTo, func() error { return b.finish(b.ctx, m.InReplyTo, m) })
			}
		}
		// A hub that had the partition before may end attempts there yet.
		j := b.c.Journal
		if slices.ContainsFunc(r.Steps, delivered) && j.Owned(r.Position.Partition) && j.LivesElsewhere(r.Node, r.Time) {
			adopt()
		}
	})
	stopOwned := b.c.Journal.WatchOwned(func(_ int, owned bool) {
		if owned {
			adopt()
		}
	})
	b.work.Go(b.adoptOwned)
	before := b.stopWatch
	b.stopWatch = func() { before(); stopOwned(); stop() }
	if b.budget != nil {
		end, err := b.budget.start(ctx)
		if err != nil {
			return err
		}
		b.stopWatch = func() { before(); stopOwned(); stop(); end() }
		b.work.Go(func() {
			b.budget.run(b.ctx, func(err error) { b.c.Logger.Error("cannot keep a token budget; trying again", "error", err) })
		})
	}
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
		b.setRunning(id, true)
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
	b.setRunning(id, false)
	if ended {
		b.server.Limiter.Record(row.Value.Agent, row.Value.From, reply.Tokens(), b.c.Now())
	}
	return nil
}

// end gives a task the outcome that a terminal reply says.
func (t *task) end(reply *parley.Message) {
	r := toReply(t.Trace, reply)
	t.Status, t.Result = protocol.TaskDone, json.RawMessage(r.Result)
	if r.Err != nil {
		t.Status, t.Code, t.Text = protocol.TaskFailed, r.Err.Code, r.Err.Text
	}
}

// callsBack reports whether a request asks for its outcome at a callback URL.
func callsBack(request *parley.Message) bool {
	e, err := protocol.Decode(request.Origin.Raw)
	return err == nil && e.CallbackURL != ""
}

// Pauses between two attempts of a webhook: they double, and half of each
// depends on the message, so that a receiver that comes back is not met by all
// at once.
const (
	firstPause   = time.Second
	longestPause = 15 * time.Minute
)

func webhookPause(id parley.ID, attempt int) time.Duration {
	p := min(firstPause<<min(max(attempt-1, 0), 20), longestPause)
	return p/2 + p/2*time.Duration(id[len(id)-1])/255
}

// callBack makes one attempt of a webhook: delivery counts and repeats them,
// and keeps as a dead letter what is refused for good.
func (b *Binding) callBack(ctx context.Context, o hub.Outbound) hub.Outcome {
	e, err := protocol.Decode(o.Request.Origin.Raw)
	if err != nil {
		return hub.Outcome{Err: parley.Refuse(parley.Internal, "the request's envelope is not there any more").Because(err)}
	}
	// The receiver may poll the task at once.
	if err := b.finish(ctx, o.Request.ID, o.Message); err != nil {
		return hub.Outcome{Err: parley.Fail(parley.Unavailable, err, "the outcome of the task cannot be recorded"), Wait: pause}
	}
	again, after, err := b.server.Webhook.Once(ctx, b.client.Identity, e.CallbackURL, toReply(e.TraceID, o.Message))
	switch {
	case err == nil:
		return hub.Outcome{Losses: bridge.Losses(bridge.SAMVAD, o.Message, o.Recipient.Name)}
	case !again:
		return hub.Outcome{Err: parley.Refuse(parley.Rejected, "the webhook %.200s is not called again: %v", e.CallbackURL, err).Because(err)}
	}
	return hub.Outcome{Err: parley.Fail(parley.Unavailable, err, "the webhook %.200s did not take the result: %v", e.CallbackURL, err),
		Wait: max(after, webhookPause(o.Message.ID, o.Attempt))}
}

// taskStore is the binding as the protocol's server sees it.
type taskStore Binding

// refusedTask begins the keys of tasks that the server itself made, for requests
// with a payload that does not fit the schema (SAM-090). Their ids are 122 random
// bits.
const refusedTask = "refused/"

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
	out := protocol.Task{ID: taskID, Agent: t.Agent, Status: t.Status, Result: json.RawMessage(t.Result), TraceID: t.Trace, CallbackURL: t.Callback}
	if t.Status == protocol.TaskFailed {
		out.Err = &protocol.Error{Code: t.Code, Text: t.Text}
	}
	if d, open := b.c.Journal.Delivery(id, t.To); ours && open && t.Status == protocol.TaskRunning && d.State == parley.Waiting {
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
