package agh

import (
	"sync"
	"time"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/agh"
)

// pendingReceipt is a request whose receipt "accepted" is not sent yet.
type pendingReceipt struct {
	request  *protocol.Envelope
	admitted chan struct{} // closed when the router is done with the request
	admit    func()
	taken    bool          // the goroutine that takes the receipt sends it
	sent     chan struct{} // closed when the receipt is sent, or will not be
}

// receiptDelay is how long a receipt waits for the answer: sending both together
// saves two flushes for each piece of work.
const receiptDelay = 100 * time.Millisecond

// maxFor is the longest message id that a receipt can name: work under a longer id
// gets no receipt.
const maxFor = 512 << 10

// expectReceipt holds back answers to a request until its receipt is sent.
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
// is sent with it in time.
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

// sendReceipt sends a receipt that was not sent with an answer.
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

// takeReceipt makes the receipt for the caller to send. Later calls give nil.
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

// release lets answers to a request be sent: its receipt is sent, or will not be.
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
