package a2e

import (
	"context"
	"sync"
	"time"
)

// lifetime is the context of one request: it ends at the deadline, with the
// answer, or with the session, whose own bookkeeping tells it so. A context of
// the standard library would add a timer, an entry in its parent and several
// allocations to every request.
type lifetime struct {
	deadline time.Time

	mu    sync.Mutex
	err   error
	done  chan struct{} // made when somebody asks for it
	after map[int]func()
	next  int
}

func (l *lifetime) Deadline() (time.Time, bool) { return l.deadline, true }

// Value knows nothing: a session's context carries no values.
func (l *lifetime) Value(any) any { return nil }

func (l *lifetime) Done() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done == nil {
		l.done = make(chan struct{})
		if l.err != nil {
			close(l.done)
		}
	}
	return l.done
}

func (l *lifetime) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// AfterFunc is what package context looks for in a parent that it does not
// know, instead of starting a goroutine for each child.
func (l *lifetime) AfterFunc(f func()) (stop func() bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		go f()
		return func() bool { return false }
	}
	if l.after == nil {
		l.after = map[int]func(){}
	}
	l.next++
	id := l.next
	l.after[id] = f
	return func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		_, waits := l.after[id]
		delete(l.after, id)
		return waits
	}
}

// end ends it, once.
func (l *lifetime) end(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return
	}
	l.err = err
	if l.done != nil {
		close(l.done)
	}
	for _, f := range l.after {
		go f()
	}
	l.after = nil
}

var _ context.Context = (*lifetime)(nil)
