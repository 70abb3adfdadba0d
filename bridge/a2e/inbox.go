package a2e

import (
	"cmp"
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
//
// A message that a call takes is kept in the journal's state until the call has
// returned it: its answer was written, and the agent went on over the connection
// that it was written to. What a call did not return, because the connection
// broke or the hub was killed, is in the agent's next call. An answer repeats a
// message at most once: the second time it is removed before it is written.
type inboxes struct {
	b    *Binding
	kept journal.State // what no call has returned
	room int           // for messages in an answer, in bytes

	mu      sync.Mutex
	readers map[string][]*reader          // open calls, by agent
	coming  map[string]chan struct{}      // by agent: closed at its next call; there while a delivery waits for that
	held    map[string]map[string]*reader // the calls that have what is kept, by agent and key
	count   uint64                        // of what was kept: the order within a moment
	life    context.Context               // ends with shut
	stop    context.CancelFunc
}

// reader is one call.
type reader struct {
	c     *protocol.ToolCall
	taken chan *handing
	left  chan struct{} // has a token when another call left what it had
	done  chan struct{} // closed when it takes no more
}

// gone reports whether the agent has no connection to the call's session.
func (r *reader) gone() bool {
	_, attached := r.c.Session.State()
	return !attached
}

// handing is one message on its way to a reader.
type handing struct {
	data   protocol.Value
	result chan error // nil: it is kept for the call
}

// keptMessage is a message that a call took, or that waits for one at any hub.
type keptMessage struct {
	Hub     string         `json:"hub,omitempty"` // whose call took it
	Arrival protocol.Value `json:"arrival"`

	key      string
	revision uint64
	again    bool // an earlier call had it
}

func readKept(v journal.Value) (m keptMessage) {
	if json.Unmarshal(v.Data, &m) != nil || len(m.Arrival) == 0 {
		m = keptMessage{Arrival: protocol.Value(v.Data)} // recorded by an earlier version
	}
	m.key, m.revision = v.Key, v.Revision
	return m
}

const (
	defaultBatch = 32
	maxBatch     = 1000
	gather       = 20 * time.Millisecond // for what comes together, without streaming
	comeBack     = 3 * time.Second
	shareEvery   = 100 * time.Millisecond // looks for what other hubs have kept
	keptFor      = 7 * 24 * time.Hour
	frameHead    = 8 << 10 // for what an answer has besides messages
)

var errBatchFull = errors.New("the inbox call has no room for the message")

// frameSize is what a value takes in a frame, which is ASCII.
func frameSize(v []byte) (n int) {
	for _, r := range string(v) {
		switch {
		case r < 0x80:
			n++
		case r < 0x10000:
			n += 6
		default:
			n += 12
		}
	}
	return n + 1 // and a comma
}

func newInboxes(b *Binding) *inboxes {
	x := &inboxes{b: b, kept: b.c.Journal.State("a2e.inbox"), readers: map[string][]*reader{},
		coming: map[string]chan struct{}{}, held: map[string]map[string]*reader{}}
	x.room = min(cmp.Or(b.c.Limits.Frame, protocol.DefaultMaxFrame), protocol.HardMaxFrame) - frameHead
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

// first gives an open call of an agent, one whose agent is connected before others;
// without one, what is closed at its next call.
func (x *inboxes) first(agent string, not []*reader) (found *reader, next <-chan struct{}) {
	x.mu.Lock()
	defer x.mu.Unlock()
	defer func() {
		if found != nil {
			return
		}
		if x.coming[agent] == nil {
			x.coming[agent] = make(chan struct{})
		}
		next = x.coming[agent]
	}()
	for _, r := range x.readers[agent] {
		if slices.Contains(not, r) {
			continue
		}
		if !r.gone() {
			return r, nil
		}
		if found == nil {
			found = r
		}
	}
	return found, nil
}

// deliver hands a message to an open call of its recipient. It returns when the
// message is kept until a call has returned it.
func (x *inboxes) deliver(ctx context.Context, o hub.Outbound) hub.Outcome {
	data, err := toArrival(o.Message, o.Attempt, x.b.c.Hub.ID())
	if err != nil {
		return hub.Outcome{Err: parley.Refuse(parley.InvalidContent, "the content cannot be said in A2E: %v", err)}
	}
	if frameSize(data) > x.room {
		return hub.Outcome{Err: parley.Refuse(parley.TooLarge, "the message is larger than a frame of A2E: %d bytes", frameSize(data))}
	}
	notKept := func(err error) hub.Outcome {
		return hub.Outcome{Err: parley.Fail(parley.Unavailable, err, "the message could not be kept"), Wait: time.Second}
	}
	if x.b.c.Shared {
		if _, err := x.keep(ctx, o.Recipient.Name, keptMessage{Arrival: data}, nil); err != nil {
			return notKept(err)
		}
		return hub.Outcome{Losses: bridge.Losses(bridge.Inbox, o.Message, o.Recipient.Name)}
	}
	h := &handing{data: data, result: make(chan error, 1)}
	var full []*reader
	for {
		r, next := x.first(o.Recipient.Name, full)
		switch {
		case r == nil && o.Waits: // it would be told of the end, and its agent asks again at once
			select {
			case <-next:
				continue
			case <-ctx.Done():
				return hub.Outcome{Err: parley.AsError(ctx.Err()), Wait: comeBack}
			}
		case r == nil:
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
		switch err := <-h.result; {
		case errors.Is(err, errBatchFull):
			full = append(full, r)
			continue
		case err != nil:
			return notKept(err)
		}
		return hub.Outcome{Losses: bridge.Losses(bridge.Inbox, o.Message, o.Recipient.Name)}
	}
}

// ids names the messages that are kept for an agent.
func (x *inboxes) ids(ctx context.Context, agent string) (map[parley.ID]bool, error) {
	out := map[parley.ID]bool{}
	for v, err := range x.kept.Range(ctx, keptPrefix(agent)) {
		if err != nil {
			return nil, err
		}
		var a arrival
		if json.Unmarshal(readKept(v).Arrival, &a) == nil {
			out[a.ID] = true
		}
	}
	return out, nil
}

// keep records a message until a call has returned it; by, unless nil, is the
// call that took it.
func (x *inboxes) keep(ctx context.Context, agent string, m keptMessage, by *reader) (keptMessage, error) {
	now := x.b.c.Now()
	data, err := json.Marshal(m)
	if err != nil {
		return m, err
	}
	x.mu.Lock()
	x.count++
	// Other hubs may keep something at the same time.
	m.key = fmt.Sprintf("%s%020d-%06d-%s", keptPrefix(agent), now.UnixNano(), x.count%1e6, rand.Text()[:12])
	if by != nil {
		x.holdLocked(agent, m.key, by)
	}
	x.mu.Unlock()
	if m.revision, err = x.kept.Create(ctx, m.key, data, now.Add(keptFor)); err != nil && by != nil {
		x.leave(agent, by, m)
	}
	return m, err
}

func (x *inboxes) holdLocked(agent, key string, r *reader) {
	if x.held[agent] == nil {
		x.held[agent] = map[string]*reader{}
	}
	x.held[agent][key] = r
}

// take gives r what is kept under key, unless a call has it whose agent is
// connected.
func (x *inboxes) take(agent, key string, r *reader) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if other := x.held[agent][key]; other == r || other != nil && !other.gone() {
		return false
	}
	x.holdLocked(agent, key, r)
	return true
}

// has reports whether r has what is kept under key still.
func (x *inboxes) has(agent, key string, r *reader) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.held[agent][key] == r
}

// leave lets other calls have messages of r, and makes them look: where the agent
// of r is gone, they may have all that r has.
func (x *inboxes) leave(agent string, r *reader, list ...keptMessage) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, m := range list {
		if x.held[agent][m.key] == r {
			delete(x.held[agent], m.key)
		}
	}
	if len(x.held[agent]) == 0 {
		delete(x.held, agent)
	}
	for _, o := range x.readers[agent] {
		if o == r {
			continue
		}
		select {
		case o.left <- struct{}{}:
		default:
		}
	}
}

// remove ends messages that r has returned, or returns for the second time.
func (x *inboxes) remove(agent string, r *reader, list []keptMessage) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var all sync.WaitGroup // the journal writes them together
	for _, m := range list {
		all.Go(func() {
			// Where it has changed, a call at another hub has it.
			if err := x.kept.Delete(ctx, m.key, m.revision); err != nil && !errors.Is(err, journal.ErrConflict) {
				x.b.c.Logger.Warn("an A2E agent may get a message twice", "agent", agent, "error", err)
			}
		})
	}
	all.Wait()
	x.leave(agent, r, list...)
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
	x.b.store.inbox(c.Session.ID(), c.ID)
	agent := c.Identity.Name
	r := &reader{c: c, taken: make(chan *handing), left: make(chan struct{}, 1), done: make(chan struct{})}
	w := &batch{x: x, r: r, agent: agent, limit: min(q.Max, maxBatch)}
	until := time.NewTimer(wait)
	defer until.Stop()
	// An agent that reads nothing holds events up: not the end of the hub.
	events, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(x.life, cancel)()
	x.mu.Lock()
	x.readers[agent] = append(x.readers[agent], r)
	if c := x.coming[agent]; c != nil {
		close(c)
		delete(x.coming, agent)
	}
	x.mu.Unlock()
	w.takeKept(ctx, events, true)
	x.b.c.Hub.Kick(agent)
	away := c.Session.Away()
	var enough <-chan time.Time
	var look <-chan time.Time
	if x.b.c.Shared {
		t := time.NewTicker(shareEvery)
		defer t.Stop()
		look = t.C
	}
loop:
	for len(w.messages) < w.limit && !w.full {
		if enough == nil && len(w.messages) > 0 && !c.Streaming {
			enough = time.After(gather)
		}
		select {
		case h := <-r.taken:
			w.takeNew(ctx, events, h)
		case <-r.left:
			w.takeKept(ctx, events, false)
		case <-look:
			w.takeKept(ctx, events, false)
		case <-away:
			x.leave(agent, r) // other calls look for what this one has
			away = nil
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
	x.mu.Unlock()
	close(r.done)
	if err := ctx.Err(); err != nil {
		x.leave(agent, r, w.messages...)
		return protocol.ToolResult{}, err
	}
	return protocol.ToolResult{Success: true, Data: map[string]any{"messages": w.answer(), "more": w.full || len(w.messages) >= w.limit}}, nil
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
	agent    string
	limit    int
	messages []keptMessage
	size     int  // in the answer
	full     bool // the next message did not fit
}

// fits reports whether a message fits the answer, and notes if not.
func (w *batch) fits(data []byte) bool {
	if w.size+frameSize(data) > w.x.room {
		w.full = true
	}
	return !w.full
}

// takeNew takes a message that was not kept before.
func (w *batch) takeNew(ctx, events context.Context, h *handing) {
	if !w.fits(h.data) {
		h.result <- errBatchFull
		return
	}
	m, err := w.x.keep(context.WithoutCancel(ctx), w.agent, keptMessage{Hub: w.x.b.c.Hub.ID(), Arrival: h.data}, w.r)
	h.result <- err
	if err == nil {
		if w.r.gone() {
			w.x.leave(w.agent, w.r) // another call may have begun meanwhile
		}
		w.add(events, m)
	}
}

// takeKept takes what is kept and no call has, the oldest first. At its begin a
// call takes as well what calls at other hubs have: the agent comes from there.
func (w *batch) takeKept(ctx, events context.Context, begin bool) {
	var found []keptMessage
	for v, err := range w.x.kept.Range(ctx, keptPrefix(w.agent)) {
		if err != nil {
			w.x.b.c.Logger.Warn("cannot read what is kept for an A2E agent", "agent", w.agent, "error", err)
			break
		}
		found = append(found, readKept(v))
	}
	slices.SortFunc(found, func(a, b keptMessage) int { return cmpText(a.key, b.key) })
	own := w.x.b.c.Hub.ID()
	for _, m := range found {
		if len(w.messages) >= w.limit || !w.fits(m.Arrival) {
			return
		}
		if m.Hub != "" && m.Hub != own && !begin || !w.x.take(w.agent, m.key, w.r) {
			continue
		}
		if v, err := w.x.kept.Get(ctx, m.key); err != nil || v.Revision != m.revision { // it was returned just now
			w.x.leave(w.agent, w.r, m)
			continue
		}
		m.again = m.Hub != ""
		if m.Hub != own {
			m.Hub = own
			data, err := json.Marshal(m)
			if err == nil {
				m.revision, err = w.x.kept.Update(ctx, m.key, data, w.x.b.c.Now().Add(keptFor), m.revision)
			}
			if err != nil { // another hub was faster
				w.x.leave(w.agent, w.r, m)
				continue
			}
		}
		w.add(events, m)
	}
}

// add notes a message for the answer, and sends it as an event where the agent
// wants events. Whether that reaches the agent does not matter: the answer has it.
func (w *batch) add(events context.Context, m keptMessage) {
	w.messages = append(w.messages, m)
	w.size += frameSize(m.Arrival)
	if w.r.c.Streaming {
		_ = w.r.c.Event(events, protocol.KindStatus, m.Arrival)
	}
}

// answer gives the messages that the call returns: those that no other call of
// the agent has taken since.
func (w *batch) answer() []protocol.Value {
	out := []protocol.Value{}
	var first, again []keptMessage
	for _, m := range w.messages {
		if !w.x.has(w.agent, m.key, w.r) {
			continue
		}
		out = append(out, m.Arrival)
		if m.again && !w.r.gone() {
			again = append(again, m)
		} else {
			first = append(first, m)
		}
	}
	if len(again) > 0 {
		w.x.remove(w.agent, w.r, again)
	}
	if len(first) > 0 {
		w.r.c.OnReturned(func(returned bool) {
			if returned {
				w.x.remove(w.agent, w.r, first)
			} else {
				w.x.leave(w.agent, w.r, first...)
			}
		})
	}
	return out
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
