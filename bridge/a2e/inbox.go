package a2e

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	protocol "github.com/parley-hub/parley/a2e"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/journal"
)

// inboxes hand messages to agents that ask for them with parley_inbox. While
// nobody asks, deliveries wait in the journal (Binding.Holds).
type inboxes struct {
	b    *Binding
	owed journal.State // messages that a session had and its agent did not

	mu      sync.Mutex
	readers map[string][]*reader // open calls, by agent
	answers map[string][]*handing
	reading map[string]bool // agents whose owed messages are being handed out
	life    context.Context // ends with shut
	stop    context.CancelFunc
}

// reader is one open call.
type reader struct {
	c     *protocol.ToolCall
	taken chan *handing
	done  chan struct{} // closed when it takes no more
}

// handing is one message on its way to a reader.
type handing struct {
	data   protocol.Value
	result chan error // nil: it is among the frames of the session
}

const (
	defaultBatch = 32
	maxBatch     = 1000
	gather       = 20 * time.Millisecond // for what comes together, without streaming
	comeBack     = 3 * time.Second
	shareEvery   = 100 * time.Millisecond // looks for what other hubs have kept
)

var errNotAnswered = errors.New("the inbox call was not answered")

func newInboxes(b *Binding) *inboxes {
	x := &inboxes{b: b, owed: b.c.Journal.State("a2e.inbox"), readers: map[string][]*reader{}, answers: map[string][]*handing{},
		reading: map[string]bool{}}
	x.life, x.stop = context.WithCancel(context.Background())
	return x
}

// open reports whether an agent has an open call.
func (x *inboxes) open(agent string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.readers[agent]) > 0
}

// shut ends all calls: what is at work is answered with what there is.
func (x *inboxes) shut() { x.stop() }

func (x *inboxes) first(agent string, not []*reader) *reader {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, r := range x.readers[agent] {
		if !slices.Contains(not, r) {
			return r
		}
	}
	return nil
}

// deliver hands a message to an open call of its recipient. It returns when the
// message is among the frames that the hub keeps for the agent's session.
func (x *inboxes) deliver(ctx context.Context, o hub.Outbound) hub.Outcome {
	data, err := toArrival(o.Message, o.Attempt, x.b.c.Hub.ID())
	if err != nil {
		return hub.Outcome{Err: parley.Refuse(parley.InvalidContent, "the content cannot be said in A2E: %v", err)}
	}
	if x.b.c.Shared {
		if err := x.owe(ctx, o.Recipient.Name, []json.RawMessage{json.RawMessage(data)}); err != nil {
			return hub.Outcome{Err: parley.Fail(parley.Unavailable, err, "the message could not be kept")}
		}
		return hub.Outcome{Losses: bridge.Losses(bridge.Inbox, o.Message, o.Recipient.Name)}
	}
	h := &handing{data: data, result: make(chan error, 1)}
	var full []*reader
	for {
		r := x.first(o.Recipient.Name, full)
		if r == nil {
			return hub.Outcome{Err: parley.Fail(parley.Unavailable, nil, "agent %q does not ask for its messages just now", o.Recipient.Name), Wait: comeBack}
		}
		select {
		case r.taken <- h:
		case <-r.done:
			full = append(full, r)
			continue
		case <-ctx.Done():
			return hub.Outcome{Err: parley.AsError(ctx.Err()), Wait: comeBack}
		}
		select {
		case err = <-h.result:
		case <-ctx.Done():
			err = ctx.Err()
		}
		if err == nil {
			err = x.b.store.settle(ctx, r.c.Session.ID())
		}
		if err != nil {
			return hub.Outcome{Err: parley.Fail(parley.Unavailable, err, "the agent's session ended"), Wait: time.Second}
		}
		return hub.Outcome{Losses: bridge.Losses(bridge.Inbox, o.Message, o.Recipient.Name)}
	}
}

// call serves parley_inbox.
func (x *inboxes) call(ctx context.Context, c *protocol.ToolCall) (protocol.ToolResult, error) {
	q := struct {
		Wait *float64 `json:"wait"`
		Max  int      `json:"max"`
	}{Max: defaultBatch}
	if err := jsonx.Decode(c.Arguments, &q); err != nil || q.Wait != nil && (*q.Wait < 0 || *q.Wait > 1e6) || q.Max < 1 {
		return protocol.ToolResult{}, badArguments("want {wait: seconds, max: 1 or more}", err)
	}
	wait := handsOut(time.Until(c.Request.Deadline))
	if q.Wait != nil {
		wait = min(wait, time.Duration(*q.Wait*float64(time.Second)))
	}
	x.b.store.inbox(c.Session.ID(), c.ID, c.Streaming)
	r := &reader{c: c, taken: make(chan *handing), done: make(chan struct{})}
	w := &batch{x: x, r: r, limit: min(q.Max, maxBatch)}
	until := time.NewTimer(wait)
	defer until.Stop()
	x.debts(ctx, w)
	agent := c.Identity.Name
	// An agent that reads nothing holds events up: not the end of the hub.
	events, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(x.life, cancel)()
	x.mu.Lock()
	x.readers[agent] = append(x.readers[agent], r)
	x.mu.Unlock()
	x.b.c.Hub.Kick(agent)
	var enough <-chan time.Time
	if len(w.messages) > 0 && !c.Streaming {
		enough = time.After(gather)
	}
	var look <-chan time.Time
	if x.b.c.Shared {
		t := time.NewTicker(shareEvery)
		defer t.Stop()
		look = t.C
	}
loop:
	for len(w.messages) < w.limit {
		select {
		case h := <-r.taken:
			w.take(events, h)
			if enough == nil && !c.Streaming {
				enough = time.After(gather)
			}
		case <-look:
			if x.debts(ctx, w); enough == nil && len(w.messages) > 0 && !c.Streaming {
				enough = time.After(gather)
			}
		case <-enough:
			break loop
		case <-until.C:
			break loop
		case <-x.life.Done():
			break loop
		case <-c.Session.Draining(): // the agent has said that it goes
			break loop
		case <-ctx.Done():
			break loop
		}
	}
	x.mu.Lock()
	x.readers[agent] = slices.DeleteFunc(x.readers[agent], func(o *reader) bool { return o == r })
	if len(x.readers[agent]) == 0 {
		delete(x.readers, agent)
	}
	if len(w.waiting) > 0 {
		x.answers[c.Session.ID()+c.ID] = w.waiting
	}
	x.mu.Unlock()
	close(r.done)
	if err := ctx.Err(); err != nil {
		x.answered(c.Session.ID(), c.ID, false)
		return protocol.ToolResult{}, err
	}
	if w.messages == nil {
		w.messages = []protocol.Value{}
	}
	return protocol.ToolResult{Success: true, Data: map[string]any{"messages": w.messages, "more": len(w.messages) >= w.limit}}, nil
}

// handsOut is for how much of its time a call hands out messages: who gives a
// call up does so by its own clock, which began before the request arrived, and
// passes over what comes for it later.
func handsOut(left time.Duration) time.Duration {
	return max(left-min(left/4, 3*time.Second), time.Millisecond)
}

// batch is what one call has taken.
type batch struct {
	x        *inboxes
	r        *reader
	limit    int
	messages []protocol.Value
	waiting  []*handing // for the answer to be out
}

// take passes a message on: as an event at once, or in the answer.
func (w *batch) take(ctx context.Context, h *handing) {
	if w.r.c.Streaming {
		err := w.r.c.Event(ctx, protocol.KindStatus, h.data)
		h.result <- err
		if err != nil {
			return
		}
	} else {
		w.waiting = append(w.waiting, h)
	}
	w.messages = append(w.messages, h.data)
}

// answered is told that an inbox call was answered.
func (x *inboxes) answered(session, request string, ok bool) {
	x.mu.Lock()
	list := x.answers[session+request]
	delete(x.answers, session+request)
	x.mu.Unlock()
	for _, h := range list {
		if ok {
			h.result <- nil
		} else {
			h.result <- errNotAnswered
		}
	}
}

// owe keeps messages that a session which ended had not brought to its agent.
func (x *inboxes) owe(ctx context.Context, agent string, owed []json.RawMessage) error {
	now := x.b.c.Now()
	prefix := owedPrefix(agent) + fmt.Sprintf("%020d", now.UnixNano())
	var errs []error
	for i, v := range owed {
		// Others, here and on other nodes, may keep something at the same time.
		_, err := x.owed.Create(ctx, fmt.Sprintf("%s-%06d-%s", prefix, i, rand.Text()[:12]), v, now.Add(7*24*time.Hour))
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// debts hands out what earlier sessions of the agent did not bring to it, the
// oldest first.
func (x *inboxes) debts(ctx context.Context, w *batch) {
	agent := w.r.c.Identity.Name
	x.mu.Lock()
	busy := x.reading[agent]
	x.reading[agent] = true
	x.mu.Unlock()
	if busy {
		return
	}
	var owed []journal.Value
	for v, err := range x.owed.Range(ctx, owedPrefix(agent)) {
		if err != nil {
			x.b.c.Logger.Warn("cannot read what an A2E agent is owed", "agent", agent, "error", err)
			break
		}
		owed = append(owed, v)
	}
	slices.SortFunc(owed, func(a, b journal.Value) int { return cmpText(a.Key, b.Key) })
	var out sync.WaitGroup
	session := w.r.c.Session.ID()
	for _, v := range owed {
		if len(w.messages) >= w.limit {
			break
		}
		h := &handing{data: protocol.Value(v.Data), result: make(chan error, 1)}
		w.take(ctx, h)
		out.Add(1)
		x.b.work.Go(func() {
			defer out.Done()
			if <-h.result != nil {
				return
			}
			ctx, cancel := context.WithTimeout(x.b.ctx, time.Minute)
			defer cancel()
			if x.b.store.settle(ctx, session) == nil {
				if err := x.owed.Delete(ctx, v.Key, v.Revision); err != nil {
					x.b.c.Logger.Warn("an A2E agent may get a message twice", "agent", agent, "error", err)
				}
			}
		})
	}
	x.b.work.Go(func() {
		out.Wait()
		x.mu.Lock()
		defer x.mu.Unlock()
		delete(x.reading, agent)
	})
}

func cmpText(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// reply serves parley_reply.
func (x *inboxes) reply(ctx context.Context, c *protocol.ToolCall) (protocol.ToolResult, error) {
	var q struct {
		ID      parley.ID      `json:"id"`
		Content protocol.Value `json:"content"`
		Error   string         `json:"error"`
		State   string         `json:"state"`
	}
	if err := jsonx.Decode(c.Arguments, &q); err != nil || q.ID.IsZero() || q.Error != "" && q.State != "" {
		return protocol.ToolResult{}, badArguments("want {id, content}, {id, error} or {id, state, content}", err)
	}
	m := x.b.request(c.Request, parley.Response)
	switch {
	case q.Error != "":
		m.Kind, m.Error = parley.Failure, parley.Refuse(parley.HandlerFailed, "%s", clip(q.Error, 500))
	case q.State != "":
		m.Kind = parley.Event
		if err := m.State.UnmarshalText([]byte(q.State)); err != nil {
			return protocol.ToolResult{}, badArguments("state: want accepted, working or needs-input", err)
		}
	}
	var err error
	if m.Parts, err = fromContent(q.Content); err != nil {
		return protocol.ToolResult{}, badArguments("the content is not usable", err)
	}
	m.InReplyTo = q.ID
	s := x.b.submission(c.Request, m)
	s.Foreign = ""
	s.Key.ID = s.Scope + "\n" + s.Key.ID // kept in the scope of the request, where other sessions reply too
	sent, err := x.b.c.Hub.Accept(ctx, s)
	var prior *hub.Prior
	if errors.As(err, &prior) {
		return protocol.ToolResult{Success: true, Data: map[string]any{"id": prior.Of.Message}}, nil
	}
	if err != nil {
		return protocol.ToolResult{}, x.b.refusal(err, c.Request, "")
	}
	return protocol.ToolResult{Success: true, Data: map[string]any{"id": sent.ID}}, nil
}
