package aghtest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/parley-hub/parley/agh"
)

// ErrCut is the error of a [Bus] that was cut.
var ErrCut = errors.New("aghtest: the bus is cut")

// A Bus is an [agh.Transport] in memory that behaves like NATS: each subscription has
// its own queue, and publishers receive their own messages. The zero value is ready.
type Bus struct {
	mu          sync.Mutex
	subs        map[string][]*subscription
	published   []agh.Message
	reconnected []func()
	cut         bool
	peers       []*Peer
}

// meet adds a peer, and gives those that were there before.
func (b *Bus) meet(p *Peer) []*Peer {
	b.mu.Lock()
	defer b.mu.Unlock()
	before := slices.Clone(b.peers)
	b.peers = append(b.peers, p)
	return before
}

type subscription struct {
	queue chan agh.Message
	ended chan struct{}
}

// maxQueue is how many messages wait for one subscription. Publish waits while it is
// full.
const maxQueue = 1024

// Publish implements [agh.Transport].
func (b *Bus) Publish(ctx context.Context, subject, reply string, data []byte) error {
	b.mu.Lock()
	if b.cut {
		b.mu.Unlock()
		return ErrCut
	}
	m := agh.Message{Subject: subject, Reply: reply, Data: slices.Clone(data)}
	b.published = append(b.published, m)
	subs := slices.Clone(b.subs[subject])
	b.mu.Unlock()
	for _, s := range subs {
		select {
		case s.queue <- m:
		case <-s.ended:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Subscribe implements [agh.Transport]. A subscription also ends with ctx.
func (b *Bus) Subscribe(ctx context.Context, subject string, handle func(agh.Message)) (stop func() error, err error) {
	s := &subscription{queue: make(chan agh.Message, maxQueue), ended: make(chan struct{})}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.subs == nil {
		b.subs = map[string][]*subscription{}
	}
	b.subs[subject] = append(b.subs[subject], s)
	end := sync.OnceFunc(func() {
		close(s.ended)
		b.mu.Lock()
		defer b.mu.Unlock()
		b.subs[subject] = slices.DeleteFunc(b.subs[subject], func(o *subscription) bool { return o == s })
		if len(b.subs[subject]) == 0 {
			delete(b.subs, subject)
		}
	})
	go func() {
		defer end()
		for {
			select {
			case <-s.ended:
				return
			case <-ctx.Done():
				return
			case m := <-s.queue:
				handle(m)
			}
		}
	}()
	return func() error { end(); return nil }, nil
}

// OnReconnect implements [agh.Reconnecter].
func (b *Bus) OnReconnect(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reconnected = append(b.reconnected, f)
}

// Cut lets every Publish fail with [ErrCut], until Reconnect.
func (b *Bus) Cut() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cut = true
}

// Reconnect ends a cut, and tells the peers that the connection is back.
func (b *Bus) Reconnect() {
	b.mu.Lock()
	b.cut = false
	all := slices.Clone(b.reconnected)
	b.mu.Unlock()
	for _, f := range all {
		f()
	}
}

// Published gives the messages so far, in order.
func (b *Bus) Published() []agh.Message {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.published)
}

// Subjects gives the subjects that have a subscriber, sorted.
func (b *Bus) Subjects() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Sorted(maps.Keys(b.subs))
}
