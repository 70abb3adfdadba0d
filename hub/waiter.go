package hub

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/delivery"
)

// waiter holds what comes about a request until its caller reads it.
type waiter struct {
	to      []string // recipients of the request
	limit   int
	streams atomic.Bool   // its caller reads events as they come
	began   atomic.Bool   // the attempt that was recorded with the request, or that it will never be
	ready   chan struct{} // has a token while something is there to read
	space   chan struct{} // has a token after something was read

	mu       sync.Mutex
	messages []*parley.Message
	bytes    int // of their content
	ended    *parley.Error

	held *delivery.Claim // the lane that is held for its caller; set once, under Hub.mu
}

// dismiss gives up the attempt of a caller that has not come to it, so that
// nobody waits for its lane. Hub.mu must not be held: lanes ask the hub.
func (w *waiter) dismiss() {
	if w.began.CompareAndSwap(false, true) {
		w.held.Release()
		w.end(errStopping())
	}
}

// waiterBytes bounds the content that waits for a caller who reads slowly.
const waiterBytes = 8 << 20

func contentSize(m *parley.Message) (n int) {
	for _, p := range m.Parts {
		n += len(p.Data)
	}
	return n
}

func newWaiter(limit int, to []string) *waiter {
	return &waiter{to: to, limit: limit, ready: make(chan struct{}, 1), space: make(chan struct{}, 1)}
}

// push adds a message. A caller that has let too many events lie is cut off:
// it is the one that is slow, and nobody else waits for it.
func (w *waiter) push(m *parley.Message) {
	w.mu.Lock()
	if (len(w.messages) >= w.limit || w.bytes >= waiterBytes) && !m.Kind.Terminal() {
		if w.ended == nil {
			w.ended = parley.Refuse(parley.Cancelled, "%d events were not read in time", len(w.messages))
		}
	} else if n := len(w.messages); n == 0 || !w.messages[n-1].Kind.Terminal() {
		w.messages = append(w.messages, m)
		w.bytes += contentSize(m)
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

// next waits for the next message. What was pushed before the end is given
// before the end is.
func (w *waiter) next(ctx context.Context) (*parley.Message, error) {
	for {
		w.mu.Lock()
		if len(w.messages) > 0 {
			m := w.messages[0]
			w.messages = w.messages[1:]
			w.bytes -= contentSize(m)
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

// room waits until fewer than half of the places and bytes are taken: the pace at which
// a caller reads is the pace at which a handler in this process may speak.
func (w *waiter) room(ctx context.Context) error {
	for {
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
}

func token(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
