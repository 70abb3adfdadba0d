package follow

import (
	"context"
	"errors"
	"sync"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// A Subscription queues the records of one request and about it, in order.
type Subscription struct {
	of      *Requests
	request parley.ID
	streams bool
	next    *Subscription
	wake    chan struct{} // has a token while there is something to take

	mu    sync.Mutex
	queue []*journal.Record
	bytes int
	lost  bool // a record did not fit
}

// Bounds of one subscription's queue.
const (
	maxQueued      = 1024
	maxQueuedBytes = 4 << 20
)

// ErrSlow: a subscriber takes its records too slowly. It may subscribe again.
var ErrSlow = errors.New("follow: the reader of a request is too slow")

// Subscribe queues everything that is recorded about a request from now on, until End. The request
// need not be recorded yet. streams: a client reads the updates as they come.
func (r *Requests) Subscribe(request parley.ID, streams bool) *Subscription {
	s := &Subscription{of: r, request: request, streams: streams, wake: make(chan struct{}, 1)}
	r.mu.Lock()
	defer r.mu.Unlock()
	s.next = r.of[request]
	r.of[request] = s
	return s
}

// End ends the subscription. Further calls do nothing.
func (s *Subscription) End() {
	r := s.of
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of[s.request] == s {
		if s.next == nil {
			delete(r.of, s.request)
		} else {
			r.of[s.request] = s.next
		}
		return
	}
	for p := r.of[s.request]; p != nil; p = p.next {
		if p.next == s {
			p.next = s.next
			return
		}
	}
}

// Streaming reports whether a client reads the updates of a request here.
func (r *Requests) Streaming(request parley.ID) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for s := r.of[request]; s != nil; s = s.next {
		if s.streams {
			return true
		}
	}
	return false
}

// recorded gets every record of the journal. It never waits for a subscriber.
func (r *Requests) recorded(record *journal.Record) {
	m := record.Message
	if m == nil || record.Refused != nil {
		return
	}
	id := m.InReplyTo
	if m.Kind == parley.Request {
		id = m.ID
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	for s := r.of[id]; s != nil; s = s.next {
		s.push(record)
	}
}

func (s *Subscription) push(r *journal.Record) {
	size := journal.ContentSize(r)
	s.mu.Lock()
	if len(s.queue) >= s.of.c.Queue || s.bytes+size > maxQueuedBytes && len(s.queue) > 0 {
		s.lost, s.queue, s.bytes = true, nil, 0
	}
	if !s.lost {
		s.queue = append(s.queue, r)
		s.bytes += size
	}
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Take waits for records, at least one. It fails with [ErrSlow], or the context's error.
func (s *Subscription) Take(ctx context.Context) ([]*journal.Record, error) {
	for {
		s.mu.Lock()
		list, lost := s.queue, s.lost
		s.queue, s.bytes = nil, 0
		s.mu.Unlock()
		switch {
		case lost:
			return nil, ErrSlow
		case len(list) > 0:
			return list, nil
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
