package agh

import (
	"sync"
	"time"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/agh"
)

// pendingReceipt is a request whose receipt "accepted" has not gone out.
type pendingReceipt struct {
	request  *protocol.Envelope
	admitted chan struct{} // closed when the router is done with the request
	admit    func()
	taken    bool          // the goroutine that takes the receipt sends it
	sent     chan struct{} // closed when it has gone out, or will not
}

// receiptDelay is how long a receipt waits for the answer: an agent that answers at
// once has both sent together, which saves two flushes for each piece of work.
const receiptDelay = 100 * time.Millisecond

// maxFor is the longest message id that a receipt can name: beyond it work is
// answered without one.
const maxFor = 512 << 10

// expectReceipt holds back answers to a request until its receipt has gone out.
func (b *Binding) expectReceipt(request parley.ID, e *protocol.Envelope) {
	if len(e.ID) > maxFor {
		return
	}
	a := &pendingReceipt{request: e, admitted: make(chan struct{}), sent: make(chan struct{})}
	a.admit = sync.OnceFunc(func() { close(a.admitted) })
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pendingReceipts[request] = a
}

func (b *Binding) pendingReceipt(request parley.ID) *pendingReceipt {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.pendingReceipts[request]
}

// acknowledge sends the receipt "accepted" for a recorded request, unless an answer
// takes it along in time.
func (b *Binding) acknowledge(e *protocol.Envelope) {
	l, ok := e.Note.(*link)
	if !ok {
		return
	}
	if a := b.pendingReceipt(l.Request); a != nil {
		a.admit()
		time.AfterFunc(receiptDelay, func() { b.sendReceipt(l.Request, a) })
	}
}

// sendReceipt sends a receipt that no answer has taken along.
func (b *Binding) sendReceipt(request parley.ID, a *pendingReceipt) {
	out := b.takeReceipt(request, a)
	if out == nil || b.ctx.Err() != nil {
		return
	}
	if err := b.send(b.ctx, 1, out); err != nil {
		b.c.Logger.Debug("a request was not acknowledged", "workspace", out.WorkspaceID, "error", err)
	}
	b.release(request)
}

// takeReceipt makes the receipt for its sender, once; then it gives nil.
func (b *Binding) takeReceipt(request parley.ID, a *pendingReceipt) *protocol.Envelope {
	b.mu.Lock()
	taken := a.taken
	a.taken = true
	b.mu.Unlock()
	if taken {
		return nil
	}
	out := answerTo(a.request, messageID(request, "a"))
	if err := out.SetContent(&protocol.Receipt{ForID: a.request.ID, Status: protocol.StatusAccepted}); err != nil {
		b.c.Logger.Debug("a request is not acknowledged", "workspace", out.WorkspaceID, "error", err)
		b.release(request)
		return nil
	}
	return out
}

// release lets answers to a request go out: its receipt has gone out, or will not.
func (b *Binding) release(request parley.ID) {
	b.mu.Lock()
	a := b.pendingReceipts[request]
	delete(b.pendingReceipts, request)
	b.mu.Unlock()
	if a != nil {
		a.admit()
		close(a.sent)
	}
}
