package hub

import (
	"context"
	"errors"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/delivery"
)

// Ask records a request and waits for its terminal reply, a Response or a Failure,
// at most until its deadline. After an error the request was not accepted, or its
// reply could not be recorded.
func (h *Hub) Ask(ctx context.Context, s Submission) (*parley.Message, error) {
	c, err := h.Begin(ctx, s)
	if err != nil {
		return nil, err
	}
	return c.Reply(ctx)
}

// A Call is a recorded request whose caller waits. The caller calls either Reply or
// Stream, once.
type Call struct {
	h *Hub
	w *waiter
	a *recordedMessage
}

// Message is the request as it was recorded.
func (c *Call) Message() *parley.Message { return c.a.message }

// Reply waits for the terminal reply, as Ask does.
func (c *Call) Reply(ctx context.Context) (*parley.Message, error) {
	defer c.h.endWait(c.a)
	c.w.skipsEvents.Store(true)
	ctx, cancel := context.WithTimeout(ctx, c.patience())
	defer cancel()
	if len(c.a.claims) == 1 {
		c.h.firstAttempt(ctx, c.a, c.w)
	}
	for {
		m, err := c.h.nextReply(ctx, c.a, c.w)
		if err != nil || m.Kind.Terminal() {
			return m, err
		}
	}
}

// Stream yields the request's events as they are recorded, last its terminal reply.
// Leaving the loop, or the end of ctx, cancels the request.
func (c *Call) Stream(ctx context.Context) iter.Seq2[*parley.Message, error] {
	return func(yield func(*parley.Message, error) bool) {
		defer c.h.endWait(c.a)
		ctx, cancel := context.WithTimeout(ctx, c.patience())
		if len(c.a.claims) == 1 {
			done := make(chan struct{})
			go func() {
				defer close(done)
				c.h.firstAttempt(ctx, c.a, c.w)
			}()
			defer func() { cancel(); <-done }()
		} else {
			defer cancel()
		}
		for {
			m, err := c.h.nextReply(ctx, c.a, c.w)
			if err != nil {
				yield(nil, err)
				return
			}
			if !yield(m, nil) {
				if !m.Kind.Terminal() {
					c.h.callerGone(c.a)
				}
				return
			}
			if m.Kind.Terminal() {
				return
			}
		}
	}
}

// Begin records a request whose caller waits.
func (h *Hub) Begin(ctx context.Context, s Submission) (*Call, error) {
	if s.Message.Kind != parley.Request {
		return nil, parley.Refuse(parley.Malformed, "only a request has a reply to wait for")
	}
	h.verified(s.Message)
	if err := h.complete(s.Message, true); err != nil {
		return nil, err
	}
	c := &Call{h: h, w: newWaiter(h.c.Events, s.Message.Recipients()), a: &recordedMessage{message: s.Message}}
	c.w.asker = s.asker
	h.mu.Lock()
	if h.drained != nil && !h.awaitedLocked(s.Message.From) {
		h.mu.Unlock()
		return nil, errStopping()
	}
	h.waiters[s.Message.ID] = c.w
	if s.asker != nil {
		h.asking[s.asker.key()]++
	}
	h.mu.Unlock()
	a, err := h.submit(ctx, s, true)
	if err != nil {
		h.endWait(c.a)
		return nil, err
	}
	c.a = a
	if len(a.claims) == 1 {
		h.mu.Lock()
		c.w.claim = a.claims[0]
		ended := h.closing
		h.mu.Unlock()
		if ended {
			c.w.cancelAttempt()
		}
	}
	return c, nil
}

func (h *Hub) endWait(a *recordedMessage) {
	h.mu.Lock()
	defer h.mu.Unlock()
	w := h.waiters[a.message.ID]
	delete(h.waiters, a.message.ID)
	if w != nil && w.asker != nil {
		if key := w.asker.key(); h.asking[key] > 1 {
			h.asking[key]--
		} else {
			delete(h.asking, key)
		}
	}
	if h.drained != nil {
		h.checkDrainedLocked()
	}
}

// firstAttempt makes the attempt that was recorded with the request.
func (h *Hub) firstAttempt(ctx context.Context, a *recordedMessage, w *waiter) {
	if !w.attempted.CompareAndSwap(false, true) {
		return // the hub closed first
	}
	r := a.claims[0].Run(ctx, delivery.Attempt{Message: a.message, Position: a.position, Scope: a.scope, Sync: true})
	switch {
	case r.Reply != nil:
		w.push(r.Reply.Message)
	case r.Err != nil:
		w.end(r.Err)
	}
}

// nextReply waits for the next message about a request. When the caller's time is
// up, it ends the request.
func (h *Hub) nextReply(ctx context.Context, a *recordedMessage, w *waiter) (*parley.Message, error) {
	m, err := w.next(ctx)
	if err == nil {
		return m, nil
	}
	if ctx.Err() != nil {
		defer h.stopAttempt(a.message.ID, errGivenUp) // nobody waits for its outcome
		if reply := h.endUnanswered(context.WithoutCancel(ctx), a, err); reply != nil {
			return reply, nil
		}
	}
	return nil, parley.AsError(err)
}

// grace is how long a caller waits beyond the deadline: time to end the attempt in
// flight and to record its Failure.
const grace = 2 * time.Second

// patience is how long the caller waits from now on.
func (c *Call) patience() time.Duration {
	d := c.a.message.Deadline.Sub(c.h.c.Now())
	if len(c.a.claims) == 1 {
		d += grace
	}
	return d
}

// callerGone ends a request whose caller has gone.
func (h *Hub) callerGone(a *recordedMessage) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if h.stopAttempt(a.message.ID, errGivenUp) {
		return // the attempt ends, and is recorded, as cancelled
	}
	h.endUnanswered(ctx, a, context.Canceled)
}

// errGivenUp ends the attempt of a request whose sender gave it up.
var errGivenUp = errors.New("hub: the sender gave the request up")

// stopAttempt ends the attempt of a request that is in flight; false: there is none.
func (h *Hub) stopAttempt(request parley.ID, why error) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	stop := h.running[request]
	if stop != nil {
		stop(why)
	}
	return stop != nil
}

// waiter queues the messages about a request for its caller.
type waiter struct {
	to          []string // recipients of the request
	limit       int
	asker       *turn         // the handler's call that waits; nil: the caller is no handler
	skipsEvents atomic.Bool   // its caller reads the terminal reply alone
	attempted   atomic.Bool   // the recorded first attempt was made, or given up
	ready       chan struct{} // has a token while a message can be read
	space       chan struct{} // has a token after a message was read

	mu       sync.Mutex
	messages []*parley.Message
	bytes    int // of their content
	ended    *parley.Error

	claim *delivery.Claim // the lane that is held for its caller; set once, under Hub.mu
}

// cancelAttempt gives up the first attempt if the caller has not made it yet, so that
// its lane is free. Hub.mu must not be held: lanes call the hub.
func (w *waiter) cancelAttempt() {
	if w.attempted.CompareAndSwap(false, true) {
		w.claim.Release(nil)
		w.end(errStopping())
	}
}

// waiterBytes bounds the content queued for a caller that reads slowly.
const waiterBytes = 8 << 20

// waiter finds the caller that waits for the reply of a request, or nil.
func (h *Hub) waiter(request parley.ID) *waiter {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.waiters[request]
}

func newWaiter(limit int, to []string) *waiter {
	return &waiter{to: to, limit: limit, ready: make(chan struct{}, 1), space: make(chan struct{}, 1)}
}

// push adds a message. It cuts off a caller that reads too slowly, so that nothing
// else waits for that caller.
func (w *waiter) push(m *parley.Message) {
	if m.Kind == parley.Event && w.skipsEvents.Load() {
		return
	}
	w.mu.Lock()
	if (len(w.messages) >= w.limit || w.bytes >= waiterBytes) && !m.Kind.Terminal() {
		if w.ended == nil {
			w.ended = parley.Refuse(parley.Cancelled, "%d events were not read in time", len(w.messages))
		}
	} else if n := len(w.messages); n == 0 || !w.messages[n-1].Kind.Terminal() {
		w.messages = append(w.messages, m)
		w.bytes += m.ContentSize()
	}
	w.mu.Unlock()
	token(w.ready)
}

func (w *waiter) end(err *parley.Error) {
	w.mu.Lock()
	if w.ended == nil {
		w.ended = err
	}
	w.mu.Unlock()
	token(w.ready)
}

// next waits for the next message. Messages pushed before the end come before it.
func (w *waiter) next(ctx context.Context) (*parley.Message, error) {
	for {
		w.mu.Lock()
		if len(w.messages) > 0 {
			m := w.messages[0]
			w.messages = w.messages[1:]
			w.bytes -= m.ContentSize()
			w.mu.Unlock()
			token(w.space)
			return m, nil
		}
		err := w.ended
		w.mu.Unlock()
		if err != nil {
			return nil, err
		}
		select {
		case <-w.ready:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// room waits until the queue is less than half full: so a handler of this process
// sends events as fast as the caller reads them.
func (w *waiter) room(ctx context.Context) error {
	for !w.skipsEvents.Load() {
		w.mu.Lock()
		ok := len(w.messages) < (w.limit+1)/2 && w.bytes < waiterBytes/2 || w.ended != nil
		w.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-w.space:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func token(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
