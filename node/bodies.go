package node

import (
	"container/list"
	"errors"
	"sync"
	"time"
)

// bodies bounds the bytes of large request bodies that are in memory at once.
// Bytes beyond the bound wait in their connections. The oldest body always
// goes on, so that bodies never wait for each other; if it is slow while others
// wait, it is cut off.
type bodies struct {
	limit int64

	mu      sync.Mutex
	room    *sync.Cond
	held    int64
	partial int64      // of held: the bytes of incomplete bodies
	reading *list.List // of *body, the oldest first
}

// slowAfter is how long a body may take while others wait.
const slowAfter = 2 * time.Second

var errCut = errors.New("the body was cut off: it was slow, and others waited for the memory that it held")

func newBodies(limit int64) *bodies {
	p := &bodies{limit: limit, reading: list.New()}
	p.room = sync.NewCond(&p.mu)
	return p
}

// hold waits for room and counts n more bytes of a body. False: the body was cut off.
func (p *bodies) hold(b *body, n int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b.at == nil && !b.cut {
		b.at = p.reading.PushBack(b)
	}
	for !b.cut && p.held+n > p.limit {
		oldest := p.reading.Front().Value.(*body)
		if oldest == b && p.held == p.partial {
			break // no request in work could make room
		}
		until := b.began.Add(b.within)
		if slow := oldest.began.Add(slowAfter); oldest != b && !oldest.waits && slow.Before(until) {
			until = slow
		}
		left := time.Until(until)
		if left <= 0 {
			if oldest.waits {
				oldest = b // b's own time is up
			}
			p.end(oldest)
			continue
		}
		b.waits = true
		wake := time.AfterFunc(left, p.room.Broadcast)
		p.room.Wait()
		wake.Stop()
		b.waits = false
	}
	if b.cut {
		return false
	}
	b.held += n
	p.held += n
	p.partial += n
	return true
}

// end cuts a body off; p.mu is held.
func (p *bodies) end(b *body) {
	b.cut = true
	p.leave(b)
	_ = b.rc.SetReadDeadline(b.began) // wakes a reader that waits for the connection
}

// leave removes a body from reading; p.mu is held.
func (p *bodies) leave(b *body) {
	if b.at != nil {
		p.reading.Remove(b.at)
		b.at = nil
		p.partial -= b.held
	}
	p.room.Broadcast()
}

// arrived notes that a body is complete.
func (p *bodies) arrived(b *body) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leave(b)
}

// release gives back the bytes that a body held.
func (p *bodies) release(b *body) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leave(b)
	p.held -= b.held
	b.held = 0
}
