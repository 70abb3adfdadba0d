package a2e

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/a2e"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/journal"
)

// inboxes hand messages to agents that call parley_inbox. Without a call at any hub,
// deliveries wait (Capabilities.Holds). The hub of a delivery records the message for
// an open call (calls.go), and the hub of that call finds it in the journal's state.
//
// A message stays recorded until a call has returned it: its answer was written, and
// the agent went on over the same connection. If the connection broke or the hub was
// killed, the agent's next call returns the message, at most once more: it is removed
// before the second answer is written.
type inboxes struct {
	b         *Binding
	messages  *journal.Table[inboxMessage] // messages that no call has returned
	announced *journal.Table[openCall]     // of all hubs
	node      string
	run       string // begins the ids of this process's calls
	room      int    // bytes for messages in an answer
	order     ordered

	mu      sync.Mutex
	calls   map[string][]*openCall        // by agent
	ended   map[string]time.Time          // when the last call of an agent without one ended, at most maxLeft
	byID    map[string]*openCall          // the same calls by id
	next    map[string]chan struct{}      // by agent: closed at its next call; set while a delivery waits
	holders map[string]map[string]*reader // the calls that have messages, by agent and key
	taken   map[string]bool               // by key: messages for a call here that any call has had
	freed   map[string]chan struct{}      // by key: closed when an untaken message is free for other calls
	closed  bool                          // no goroutine may start
	life    context.Context               // until shut
	stop    context.CancelFunc
}

// reader is one call of parley_inbox.
type reader struct {
	c      *protocol.ToolCall
	agent  string
	prefix string        // of the keys of the agent's messages
	queue  []inboxRow    // messages for the call, not taken yet; guarded by inboxes.mu
	more   chan struct{} // has a token when queue has grown
	left   chan struct{} // has a token when another call left its messages
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// disconnected reports whether the agent has no connection to the call's session.
func (r *reader) disconnected() bool {
	_, attached := r.c.Session.State()
	return !attached
}

// inboxMessage is the recorded form of a message for a call, or for the next call.
type inboxMessage struct {
	Hub     string          `json:"hub,omitempty"`  // of the call that the message is for, or that has it
	Call    string          `json:"call,omitempty"` // id of the openCall for which it was recorded
	Arrival json.RawMessage `json:"arrival"`
}

// UnmarshalJSON also reads records of earlier versions, which hold the arrival alone.
func (m *inboxMessage) UnmarshalJSON(data []byte) error {
	type fields inboxMessage
	err := json.Unmarshal(data, (*fields)(m))
	if err == nil && len(m.Arrival) == 0 {
		*m = inboxMessage{Arrival: bytes.Clone(data)}
	}
	return err
}

// inboxRow is a message that a call takes.
type inboxRow struct {
	journal.Row[inboxMessage]
	again bool // an earlier call had it
}

const (
	defaultBatch  = 32
	maxBatch      = 1000
	batchTime     = 20 * time.Millisecond // for messages that come together, without streaming
	callAgainTime = 3 * time.Second
	leastWait     = 100 * time.Millisecond // for messages in transit, if the call does not wait
	inboxTTL      = 7 * 24 * time.Hour
	frameHead     = 8 << 10 // bytes of an answer besides its messages
)

// frameSize is the number of bytes of a value in a frame, which is ASCII.
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
	x := &inboxes{b: b, messages: journal.NewTable[inboxMessage](b.c.Journal, "a2e.inbox", 0),
		announced: journal.NewTable[openCall](b.c.Journal, "a2e.asks", 0),
		node:      b.c.Journal.Node(), run: rand.Text(), calls: map[string][]*openCall{}, byID: map[string]*openCall{},
		next: map[string]chan struct{}{}, holders: map[string]map[string]*reader{}, taken: map[string]bool{},
		freed: map[string]chan struct{}{}}
	x.room = min(cmp.Or(b.c.Limits.Frame, protocol.DefaultMaxFrame), protocol.HardMaxFrame) - frameHead
	x.life, x.stop = context.WithCancel(context.Background())
	return x
}

// shut ends all calls; they return the messages that they have.
func (x *inboxes) shut() { x.stop() }

// close is called before the binding waits for its goroutines.
func (x *inboxes) close() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.closed = true
}

// ids gives the ids of an agent's messages.
func (x *inboxes) ids(ctx context.Context, agent string) (map[parley.ID]bool, error) {
	out := map[parley.ID]bool{}
	rows, err := x.messages.List(ctx, inboxPrefix(agent))
	for _, row := range rows {
		var a bridge.Arrival
		if json.Unmarshal(row.Value.Arrival, &a) == nil {
			out[a.ID] = true
		}
	}
	return out, err
}

// keep records a message until a call has returned it.
func (x *inboxes) keep(ctx context.Context, agent string, m inboxMessage) error {
	now := x.b.c.Now()
	_, err := x.messages.Replace(ctx, journal.Row[inboxMessage]{Key: inboxPrefix(agent) + x.order.key(now), Value: m,
		Until: now.Add(inboxTTL)})
	return err
}

// watchMessages follows the messages that hubs record.
func (x *inboxes) watchMessages(ctx context.Context) (stop func(), err error) {
	return x.messages.Watch(ctx, "", func(row journal.Row[inboxMessage]) {
		x.mu.Lock()
		defer x.mu.Unlock()
		if row.Revision == 0 {
			delete(x.taken, row.Key)
			return
		}
		m := inboxRow{Row: row}
		switch a := x.byID[m.Value.Call]; {
		case m.Value.Hub == "": // its call did not take the message
			for _, a := range x.byID {
				if a.r != nil && strings.HasPrefix(m.Key, a.r.prefix) {
					wake(a.r.left)
				}
			}
		case !x.ours(m) || x.taken[m.Key]:
		case a != nil:
			x.queueLocked(a.r, m)
		default:
			x.freeLocked(m)
		}
	})
}

// ours reports whether a message was recorded for a call of this process.
func (x *inboxes) ours(m inboxRow) bool { return strings.HasPrefix(m.Value.Call, x.run) }

func (x *inboxes) queueLocked(r *reader, m inboxRow) {
	r.queue = append(r.queue, m)
	wake(r.more)
}

// freeLocked gives a message that its call did not take to another call here, or frees
// it for any call; it returns before the change is recorded.
func (x *inboxes) freeLocked(m inboxRow) {
	for _, a := range x.byID {
		if a.r != nil && strings.HasPrefix(m.Key, a.r.prefix) && !a.r.disconnected() {
			x.queueLocked(a.r, m)
			return
		}
	}
	if x.closed {
		return // the next call of the agent finds the message
	}
	done := make(chan struct{})
	x.freed[m.Key] = done
	x.b.work.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		free := journal.Row[inboxMessage]{Key: m.Key, Revision: m.Revision,
			Value: inboxMessage{Arrival: m.Value.Arrival}, Until: x.b.c.Now().Add(inboxTTL)}
		_, err := x.messages.Replace(ctx, free)
		if err != nil && !errors.Is(err, journal.ErrConflict) { // the next call here has the message all the same
			x.b.c.Logger.Warn("a message waits for an A2E agent's next call", "error", err)
		}
		x.mu.Lock()
		defer x.mu.Unlock()
		delete(x.freed, m.Key)
		close(done)
	})
}

func (x *inboxes) holdLocked(agent, key string, r *reader) {
	if x.holders[agent] == nil {
		x.holders[agent] = map[string]*reader{}
	}
	x.holders[agent][key] = r
}

// take gives r a message, unless another call whose agent is connected has it, or it is
// for another open call. again reports that an earlier call had the message.
func (x *inboxes) take(m inboxRow, r *reader) (again, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	other := x.holders[r.agent][m.Key]
	if other == r || other != nil && !other.disconnected() || x.freed[m.Key] != nil {
		return false, false
	}
	again = m.Value.Hub != ""
	if x.ours(m) {
		if again = x.taken[m.Key]; !again && x.byID[m.Value.Call] != nil {
			return false, false // that call takes the message in a moment
		}
		x.taken[m.Key] = true
	}
	x.holdLocked(r.agent, m.Key, r)
	return again, true
}

// freeing gives a channel that is closed when a message is free; nil if the message is
// not being freed.
func (x *inboxes) freeing(key string) <-chan struct{} {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.freed[key]
}

// has reports whether r still has a message.
func (x *inboxes) has(r *reader, key string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.holders[r.agent][key] == r
}

// leave gives up messages of r, and wakes the agent's other calls. If the agent of r
// is disconnected, they may take all messages of r.
func (x *inboxes) leave(r *reader, list ...inboxRow) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, m := range list {
		if x.holders[r.agent][m.Key] == r {
			delete(x.holders[r.agent], m.Key)
		}
	}
	if len(x.holders[r.agent]) == 0 {
		delete(x.holders, r.agent)
	}
	for _, a := range x.calls[r.agent] {
		if a.r != nil && a.r != r {
			wake(a.r.left)
		}
	}
}

// remove deletes messages that r has returned, or returns for the second time.
func (x *inboxes) remove(r *reader, list []inboxRow) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var all sync.WaitGroup // the journal writes them together
	for _, m := range list {
		all.Go(func() {
			// After a change, the message belongs to a call at another hub.
			if err := x.messages.Delete(ctx, m.Key, m.Revision); err != nil && !errors.Is(err, journal.ErrConflict) {
				x.b.c.Logger.Warn("an A2E agent may get a message twice", "agent", r.agent, "error", err)
			}
		})
	}
	all.Wait()
	x.leave(r, list...)
}

// call serves parley_inbox.
func (x *inboxes) call(ctx context.Context, c *protocol.ToolCall) (any, error) {
	q := struct {
		Wait *float64 `json:"wait"`
		Max  int      `json:"max"`
	}{Max: defaultBatch}
	if err := jsonx.Decode(c.Arguments, &q); err != nil || q.Wait != nil && (*q.Wait < 0 || *q.Wait > 1e6) ||
		q.Max < 1 {
		return nil, badArguments("want {wait: seconds, max: 1 or more}", err)
	}
	wait := handOutTime(time.Until(c.Request.Deadline))
	if q.Wait != nil {
		wait = min(wait, max(leastWait, time.Duration(*q.Wait*float64(time.Second))))
	}
	x.b.sessions.inbox(c.Session.ID(), c.ID)
	agent := c.Identity.Name
	r := &reader{c: c, agent: agent, prefix: inboxPrefix(agent), more: make(chan struct{}, 1),
		left: make(chan struct{}, 1)}
	w := &batch{x: x, r: r, limit: min(q.Max, maxBatch)}
	// An agent that does not read delays events, but not the end of the hub.
	events, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(x.life, cancel)()
	waiting, cancel := context.WithTimeout(events, wait)
	defer cancel()
	a := x.begin(agent, r)
	w.takeWaiting(ctx, events, true)
	if !w.over() {
		x.offer(ctx, a, w.limit-len(w.messages), w.size, wait)
	}
	away := c.Session.Away()
	var enough <-chan time.Time
loop:
	for !w.over() {
		if enough == nil && len(w.messages) > 0 && !c.Streaming {
			enough = time.After(batchTime)
		}
		select {
		case <-r.more:
			w.takeQueued(events)
		case <-r.left:
			w.takeWaiting(ctx, events, false)
		case <-away:
			x.leave(r) // other calls look for the messages of this one
			away = nil
		case <-enough:
			break loop
		case <-c.Session.Draining(): // the agent has announced its end
			break loop
		case <-waiting.Done():
			break loop
		}
	}
	settling, cancel := context.WithTimeout(events, time.Until(c.Request.Deadline)/2) // the agent still waits
	defer cancel()
	x.settle(settling, a)
	x.end(a)
	if err := ctx.Err(); err != nil {
		x.leave(r, w.messages...)
		return nil, err
	}
	return map[string]any{"messages": w.answer(), "more": w.over()}, nil
}

// handOutTime is the part of its time in which a call hands out messages. The agent
// gives the call up by its own clock, which started before the request arrived, and
// ignores later answers.
func handOutTime(left time.Duration) time.Duration {
	return max(left-min(left/4, 3*time.Second), time.Millisecond)
}

// batch holds the messages that one call has taken.
type batch struct {
	x        *inboxes
	r        *reader
	limit    int
	messages []inboxRow
	size     int  // in the answer
	full     bool // the next message did not fit
}

// over reports whether the answer has no room for another message.
func (w *batch) over() bool { return w.full || len(w.messages) >= w.limit }

// fits reports whether the answer has room for a message, and otherwise marks the batch
// as full.
func (w *batch) fits(m inboxRow) bool {
	w.full = w.full || w.size+frameSize(m.Value.Arrival) > w.x.room
	return !w.over()
}

// takeQueued takes the messages that were recorded for this call.
func (w *batch) takeQueued(events context.Context) {
	for {
		w.x.mu.Lock()
		if len(w.r.queue) == 0 || !w.fits(w.r.queue[0]) {
			w.x.mu.Unlock()
			break
		}
		m := w.r.queue[0]
		w.r.queue = w.r.queue[1:]
		known := w.x.taken[m.Key]
		if !known {
			w.x.taken[m.Key] = true
			w.x.holdLocked(w.r.agent, m.Key, w.r)
		}
		w.x.mu.Unlock()
		if !known {
			w.add(events, m)
		}
	}
	if w.r.disconnected() {
		w.x.leave(w.r) // another call may have begun meanwhile
	}
}

// takeWaiting takes messages that no call has, the oldest first. At its begin a call
// also takes messages of calls at other hubs, because the agent has moved here.
func (w *batch) takeWaiting(ctx, events context.Context, begin bool) {
	found, err := w.x.messages.List(ctx, w.r.prefix)
	if err != nil {
		w.x.b.c.Logger.Warn("cannot read what is kept for an A2E agent", "agent", w.r.agent, "error", err)
	}
	slices.SortFunc(found, func(a, b journal.Row[inboxMessage]) int { return strings.Compare(a.Key, b.Key) })
	for _, row := range found {
		m := inboxRow{Row: row}
		if done := w.x.freeing(m.Key); done != nil { // later messages wait too
			select {
			case <-done:
			case <-ctx.Done():
				return
			}
			if m.Row, err = w.x.messages.Get(ctx, m.Key); err != nil || m.Revision == 0 {
				continue
			}
		}
		if !w.fits(m) {
			return
		}
		if !w.take(ctx, &m, begin) {
			continue
		}
		if m.Value.Hub != w.x.node {
			m.Value.Hub, m.Value.Call, m.Until = w.x.node, "", w.x.b.c.Now().Add(inboxTTL)
			if m.Row, err = w.x.messages.Replace(ctx, m.Row); err != nil { // another hub was faster
				w.x.leave(w.r, m)
				continue
			}
		}
		w.add(events, m)
	}
}

// take takes a message that was listed, if it is free. When the message has changed since, it reads it again: if it was
// freed meanwhile and this call passed it over, a delivery would take the room that the message needs.
func (w *batch) take(ctx context.Context, m *inboxRow, begin bool) bool {
	for m.Value.Hub == "" || m.Value.Hub == w.x.node || begin {
		var ok bool
		if m.again, ok = w.x.take(*m, w.r); !ok {
			return false
		}
		now, err := w.x.messages.Get(ctx, m.Key)
		if err == nil && now.Revision == m.Revision {
			return true
		}
		w.x.leave(w.r, *m)
		if err != nil || now.Revision == 0 { // it was returned just now
			return false
		}
		m.Row = now
	}
	return false
}

// add takes a message into the answer, and sends it as an event if the agent wants
// events. The event may be lost: the answer has the message too.
func (w *batch) add(events context.Context, m inboxRow) {
	w.messages = append(w.messages, m)
	w.size += frameSize(m.Value.Arrival)
	if w.r.c.Streaming {
		_ = w.r.c.Event(events, protocol.KindStatus, m.Value.Arrival)
	}
}

// answer gives the messages that the call returns, without those that another call of
// the agent has taken since.
func (w *batch) answer() []json.RawMessage {
	out := []json.RawMessage{}
	var first, again []inboxRow
	for _, m := range w.messages {
		if !w.x.has(w.r, m.Key) {
			continue
		}
		out = append(out, m.Value.Arrival)
		if m.again && !w.r.disconnected() {
			again = append(again, m)
		} else {
			first = append(first, m)
		}
	}
	if len(again) > 0 {
		w.x.remove(w.r, again)
	}
	if len(first) > 0 {
		w.r.c.OnReturned(func(returned bool) {
			if returned {
				w.x.remove(w.r, first)
			} else {
				w.x.leave(w.r, first...)
			}
		})
	}
	return out
}

// reply serves parley_reply.
func (x *inboxes) reply(ctx context.Context, c *protocol.ToolCall) (any, error) {
	var q struct {
		ID      parley.ID       `json:"id"`
		Content json.RawMessage `json:"content"`
		Error   string          `json:"error"`
		State   string          `json:"state"`
	}
	if err := jsonx.Decode(c.Arguments, &q); err != nil || q.ID.IsZero() || q.Error != "" && q.State != "" {
		return nil, badArguments("want {id, content}, {id, error} or {id, state, content}", err)
	}
	m := x.b.request(c.Request, parley.Response)
	switch {
	case q.Error != "":
		m.Kind, m.Error = parley.Failure, parley.Refuse(parley.HandlerFailed, "%s", bridge.Shorten(q.Error, 500))
	case q.State != "":
		m.Kind = parley.Event
		if err := m.State.UnmarshalText([]byte(q.State)); err != nil {
			return nil, badArguments("state: want accepted, working or needs-input", err)
		}
	}
	var err error
	if m.Parts, err = fromContent(q.Content); err != nil {
		return nil, badArguments("the content is not usable", err)
	}
	m.InReplyTo = q.ID
	s := x.b.submission(c.Request, m)
	s.Foreign = ""
	id, _, err := x.b.accept(ctx, c.Request, s)
	return map[string]any{"id": id}, err
}
