package a2a

import (
	"context"
	"errors"
	"sync"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// live passes records about tasks to their subscribers while they are recorded: one watch of
// the journal for all. It never waits for a subscriber.
type live struct {
	mu sync.RWMutex
	of map[parley.ID]*subscription // by request; the first of a list
}

func newLive() *live { return &live{of: map[parley.ID]*subscription{}} }

// A subscription queues the records of one request and about it, in order.
type subscription struct {
	live    *live
	request parley.ID
	streams bool // its client reads updates as they come
	next    *subscription
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

// errSlow ends a stream whose reader takes its updates too slowly. It may subscribe again.
var errSlow = errors.New("a2a: the reader of a stream is too slow")

// subscribe queues everything that is recorded about a request from now on, until end. streams: the
// client reads updates as they come.
func (l *live) subscribe(request parley.ID, streams bool) *subscription {
	s := &subscription{live: l, request: request, streams: streams, wake: make(chan struct{}, 1)}
	l.mu.Lock()
	defer l.mu.Unlock()
	s.next = l.of[request]
	l.of[request] = s
	return s
}

func (s *subscription) end() {
	l := s.live
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of[s.request] == s {
		if s.next == nil {
			delete(l.of, s.request)
		} else {
			l.of[s.request] = s.next
		}
		return
	}
	for p := l.of[s.request]; p != nil; p = p.next {
		if p.next == s {
			p.next = s.next
			return
		}
	}
}

// streaming reports whether a client reads updates of a request here.
func (l *live) streaming(request parley.ID) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	for s := l.of[request]; s != nil; s = s.next {
		if s.streams {
			return true
		}
	}
	return false
}

// recorded gets every record of the journal.
func (l *live) recorded(r *journal.Record) {
	m := r.Message
	if m == nil || r.Refused != nil {
		return
	}
	id := m.InReplyTo
	if m.Kind == parley.Request {
		id = m.ID
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	for s := l.of[id]; s != nil; s = s.next {
		s.push(r)
	}
}

func (s *subscription) push(r *journal.Record) {
	size := journal.ContentSize(r)
	s.mu.Lock()
	if len(s.queue) >= maxQueued || s.bytes+size > maxQueuedBytes && len(s.queue) > 0 {
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

// take waits for records. It fails with errSlow, or the context's error.
func (s *subscription) take(ctx context.Context) ([]*journal.Record, error) {
	for {
		s.mu.Lock()
		list, lost := s.queue, s.lost
		s.queue, s.bytes = nil, 0
		s.mu.Unlock()
		switch {
		case lost:
			return nil, errSlow
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
