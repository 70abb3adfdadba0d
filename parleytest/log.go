package parleytest

import (
	"slices"
	"sync"

	"github.com/parley-hub/parley"
)

// log keeps messages, and wakes those that wait for more.
type log struct {
	mu   sync.Mutex
	list []*parley.Message
	more chan struct{} // closed by the next message
}

func (l *log) add(m *parley.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, m)
	if l.more != nil {
		close(l.more)
		l.more = nil
	}
}

func (l *log) all() []*parley.Message {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.list)
}

// wait gives the messages so far, and a channel that is closed by the next.
func (l *log) wait() ([]*parley.Message, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.more == nil {
		l.more = make(chan struct{})
	}
	return slices.Clone(l.list), l.more
}
