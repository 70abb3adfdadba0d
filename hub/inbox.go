package hub

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/delivery"
)

// inbox is an agent whose messages are read through the API. Messages wait while
// there is no reader.
type inbox struct {
	mu      sync.Mutex
	readers []chan delivery.Attempt
	left    time.Time // when the last reader left
	opened  time.Time
}

// inboxIdle is the time without a reader after which the hub says that nobody reads an inbox: readers that poll come
// again within it.
const inboxIdle = time.Minute

// way says who reads the inbox.
func (b *inbox) way(w *Way, now time.Time) {
	b.mu.Lock()
	readers, left := len(b.readers), b.left
	b.mu.Unlock()
	if readers > 0 {
		w.OK("reader", "%d read it now at this hub", readers)
		return
	}
	w.Heard("reader", "parley listen "+w.ID, "had a reader", left, now, inboxIdle)
}

func (b *inbox) isRead() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.readers) > 0
}

// put gives a message to the first reader that takes it.
func (b *inbox) put(a delivery.Attempt) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.readers {
		select {
		case r <- a:
			return true
		default:
		}
	}
	return false
}

// Inbox gives an agent of the directory an inbox, for Read.
func (h *Hub) Inbox(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.inboxes[name] == nil {
		h.inboxes[name] = &inbox{opened: h.c.Now()}
	}
}

// CloseInbox ends Inbox. Its readers get no more messages.
func (h *Hub) CloseInbox(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.inboxes, name)
}

// Read yields messages to an inbox as they are delivered, until ctx ends. A
// message that was yielded counts as delivered. Requests are answered through
// Accept, with InReplyTo.
func (h *Hub) Read(ctx context.Context, name string) (<-chan delivery.Attempt, error) {
	h.mu.Lock()
	b := h.inboxes[name]
	h.mu.Unlock()
	if b == nil {
		return nil, parley.Refuse(parley.UnknownAgent, "agent %q has no inbox here", name)
	}
	c := make(chan delivery.Attempt, 64)
	b.mu.Lock()
	b.readers = append(b.readers, c)
	b.mu.Unlock()
	context.AfterFunc(ctx, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.readers = slices.DeleteFunc(b.readers, func(r chan delivery.Attempt) bool { return r == c })
		b.left = h.c.Now()
		close(c)
	})
	h.deliver.Kick(name)
	return c, nil
}
