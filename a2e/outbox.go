package a2e

import (
	"context"
	"slices"
	"time"
)

// outFrame is one line that a session owes its agent, without its end.
type outFrame struct {
	seq  uint64 // 0: not in the store
	line []byte
	at   time.Time // when the frame was written

	returned func(bool) // see Request.OnReturned; may be nil
}

// outbox holds frames in order until a transport has written them, across changes of
// transport (A2E §7.1). It keeps written frames a little longer, within bounds, for a
// stream that broke after the write. Its owner locks it.
type outbox struct {
	waiting []outFrame // from head on
	head    int
	bytes   int // of waiting

	sent      []outFrame
	sentBytes int

	// unproved are told whether the agent read the frames that stream has written.
	unproved []func(bool)

	stream *stream       // the transport that writes; nil when there is none
	room   chan struct{} // closed at the next write; nil when no sender waits
}

// stream is one attached transport: the newest replaces the one before.
type stream struct {
	ctx  context.Context
	wake chan struct{} // holds a token when frames wait
	gone chan struct{} // closed when replaced

	// write, unless nil, writes waiting frames from the caller's goroutine, for as long
	// as the agent reads; it does nothing while another goroutine writes.
	write func()
}

func newStream(ctx context.Context) *stream {
	return &stream{ctx: ctx, wake: make(chan struct{}, 1), gone: make(chan struct{})}
}

func (o *outbox) len() int { return len(o.waiting) - o.head }

// takeAll takes the waiting frames.
func (o *outbox) takeAll() []outFrame {
	all := slices.Clone(o.waiting[o.head:])
	o.waiting, o.head, o.bytes = nil, 0, 0
	o.forget(len(o.sent))
	o.makeRoom()
	return all
}

// waits reports whether a line is still to be written.
func (o *outbox) waits(line []byte) bool {
	return slices.ContainsFunc(o.waiting[o.head:], func(f outFrame) bool { return &f.line[0] == &line[0] })
}

// push appends a frame; the caller wakes the transport.
func (o *outbox) push(f outFrame) {
	o.waiting = append(o.waiting, f)
	o.bytes += len(f.line)
}

// pushFront puts frames before all others.
func (o *outbox) pushFront(fs ...outFrame) {
	if len(fs) == 0 {
		return
	}
	o.waiting = append(append([]outFrame(nil), fs...), o.waiting[o.head:]...)
	o.head = 0
	for _, f := range fs {
		o.bytes += len(f.line)
	}
	if o.stream != nil {
		poke(o.stream.wake)
	}
}

// attach makes st the transport; the previous one ends. st writes the last frames of
// the previous one again. The caller calls unread with false.
func (o *outbox) attach(st *stream) (unread []func(bool)) {
	if o.stream != nil {
		close(o.stream.gone)
	}
	o.stream = st
	o.rewind()
	if o.len() > 0 {
		poke(st.wake)
	}
	return o.takeUnproved()
}

func (o *outbox) takeUnproved() []func(bool) {
	fs := o.unproved
	o.unproved = nil
	return fs
}

// takeReturned takes the callbacks of all frames, written or not.
func (o *outbox) takeReturned() []func(bool) {
	fs := o.takeUnproved()
	waiting := o.waiting[o.head:]
	for i := range waiting {
		if f := &waiting[i]; f.returned != nil {
			fs = append(fs, f.returned)
			f.returned = nil
		}
	}
	return fs
}

func (o *outbox) rewind() {
	back := o.sent
	o.sent, o.sentBytes = nil, 0
	o.pushFront(back...)
}

// detach ends st, unless it was replaced before.
func (o *outbox) detach(st *stream) bool {
	if o.stream != st {
		return false
	}
	o.stream = nil
	return true
}

// first gives up to len(into) frames that wait.
func (o *outbox) first(into []outFrame) int { return copy(into, o.waiting[o.head:]) }

// written moves n frames from waiting to sent.
func (o *outbox) written(n int, now time.Time, keep int) {
	for range n {
		f := o.waiting[o.head]
		o.waiting[o.head] = outFrame{}
		o.head++
		o.bytes -= len(f.line)
		f.at = now
		if f.returned != nil {
			o.unproved = append(o.unproved, f.returned)
			f.returned = nil
		}
		o.sent = append(o.sent, f)
		o.sentBytes += len(f.line)
	}
	if o.head == len(o.waiting) {
		o.waiting, o.head = o.waiting[:0], 0
		if cap(o.waiting) > 16 {
			o.waiting = nil
		}
	}
	drop := 0
	for drop < len(o.sent)-1 && o.sentBytes > keep {
		o.sentBytes -= len(o.sent[drop].line)
		drop++
	}
	o.forget(drop)
	o.makeRoom()
}

func (o *outbox) makeRoom() {
	if o.room != nil {
		close(o.room)
		o.room = nil
	}
}

func (o *outbox) forget(n int) {
	if n == 0 {
		return
	}
	if n == len(o.sent) {
		o.sent, o.sentBytes = nil, 0
		return
	}
	clear(o.sent[:n])
	o.sent = o.sent[n:]
	if cap(o.sent) > 4*len(o.sent)+16 {
		o.sent = append([]outFrame(nil), o.sent...)
	}
}

// expire forgets the frames that were written before the given time.
func (o *outbox) expire(before time.Time) {
	n := 0
	for n < len(o.sent) && o.sent[n].at.Before(before) {
		o.sentBytes -= len(o.sent[n].line)
		n++
	}
	o.forget(n)
}

// whenRoom gives a channel that is closed at the next write.
func (o *outbox) whenRoom() <-chan struct{} {
	if o.room == nil {
		o.room = make(chan struct{})
	}
	return o.room
}
