package samvad

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
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

// task is what the hub keeps of an asynchronous request: enough to answer the
// sender's questions, over restarts. It lives in the journal's state, under the
// id of the message. To call the sender back is a delivery of the reply.
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
	t := &task{Agent: r.To, From: r.From, To: m.To, Trace: r.TraceID, Callback: r.CallbackURL, Status: protocol.TaskRunning}
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
			b.tasksMu.Lock()
			t := b.open[m.InReplyTo]
			b.tasksMu.Unlock()
			if t != nil {
				b.background(func() { b.finish(m.InReplyTo, m) })
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
		if t.Status.Finished() {
			continue
		}
		b.tasksMu.Lock()
		b.open[id] = t
		b.tasksMu.Unlock()
		if _, open := b.c.Journal.Delivery(id, t.To); !open {
			b.background(func() { b.find(id) })
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

// finish keeps a task's outcome.
func (b *Binding) finish(id parley.ID, reply *parley.Message) {
	b.outcomes.RLock()
	defer b.outcomes.RUnlock()
	if t, ok := b.take(id); ok {
		t.end(reply)
		b.server.Limiter.Record(t.Agent, t.From, reply.Tokens(), b.c.Now())
		b.done(id, t)
	}
}

// end gives a task the outcome that a terminal reply says.
func (t *task) end(reply *parley.Message) {
	r := toReply(t.Trace, reply)
	t.Status, t.Result = protocol.TaskDone, json.RawMessage(r.Result)
	if r.Err != nil {
		t.Status, t.Code, t.Text = protocol.TaskFailed, r.Err.Code, r.Err.Text
	}
}

func (b *Binding) done(id parley.ID, t *task) {
	if err := b.keep(b.ctx, id, t); err != nil && b.ctx.Err() == nil {
		b.c.Logger.Error("cannot keep the outcome of a task; trying again", "message", id, "error", err)
		b.later(func() { b.done(id, t) })
	} // should the process end before, the next start looks it up
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
	// Who is called back may look at the task at once.
	if err := b.show(ctx, o.Request.ID, o.Message); err != nil {
		return hub.Outcome{Err: parley.Fail(parley.Unavailable, err, "the outcome of the task cannot be kept"), Wait: pause}
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

// show sees to it that a task shows how it ended.
func (b *Binding) show(ctx context.Context, id parley.ID, reply *parley.Message) error {
	b.outcomes.RLock()
	defer b.outcomes.RUnlock()
	v, err := b.state().Get(ctx, id.String())
	if errors.Is(err, journal.ErrNotFound) {
		return nil // who takes it over finds the reply
	}
	t := new(task)
	if err == nil {
		err = json.Unmarshal(v.Data, t)
	}
	if err != nil || t.Status.Finished() {
		return err
	}
	t.end(reply)
	return b.keep(ctx, id, t)
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
func (s *tasks) Put(ctx context.Context, t protocol.Task) error {
	kept := task{Agent: t.Agent, Trace: t.TraceID, Status: t.Status, Result: json.RawMessage(t.Result)}
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
