package agh

import (
	"time"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/agh"
)

// pendingReceipt is a recorded request whose receipt "accepted" has not gone out.
type pendingReceipt struct {
	request *protocol.Envelope
	made    chan struct{}      // closed when the receipt is made, or will not be
	receipt *protocol.Envelope // nil once it is taken for sending
	sent    chan struct{}      // closed when it has gone out, or will not
}

// receiptDelay is how long a receipt waits for the answer: an agent that answers at
// once has both sent together, which saves two flushes for each piece of work.
const receiptDelay = 100 * time.Millisecond

// acknowledge makes the receipt "accepted" for a recorded request, and sends it
// unless an answer takes it along in time.
func (b *Binding) acknowledge(e *protocol.Envelope) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.accepting[e]
	if m == nil {
		return
	}
	delete(b.accepting, e)
	if len(e.ID) > maxFor {
		b.releaseLocked(m.ID)
		return
	}
	out := answerTo(e, messageID(m.ID, "a"))
	if err := out.SetContent(&protocol.Receipt{ForID: e.ID, Status: protocol.StatusAccepted}); err != nil {
		b.c.Logger.Debug("a request is not acknowledged", "workspace", e.WorkspaceID, "error", err)
		b.releaseLocked(m.ID)
		return
	}
	a := b.pendingReceipts[m.ID]
	a.receipt = out
	close(a.made)
	time.AfterFunc(receiptDelay, func() { b.sendReceipt(m.ID, a) })
}

// sendReceipt sends a receipt that no answer has taken along.
func (b *Binding) sendReceipt(request parley.ID, a *pendingReceipt) {
	out := b.takeReceipt(a)
	if out == nil || b.ctx.Err() != nil {
		return
	}
	if err := b.send(b.ctx, 1, out); err != nil {
		b.c.Logger.Debug("a request was not acknowledged", "workspace", out.WorkspaceID, "error", err)
	}
	b.release(request)
}

// takeReceipt gives the receipt to its sender, once; then nil.
func (b *Binding) takeReceipt(a *pendingReceipt) *protocol.Envelope {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := a.receipt
	a.receipt = nil
	return out
}

// release lets answers to a request go out: its receipt has gone out, or will not.
func (b *Binding) release(id parley.ID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.releaseLocked(id)
}

func (b *Binding) releaseLocked(id parley.ID) {
	a := b.pendingReceipts[id]
	if a == nil {
		return
	}
	delete(b.pendingReceipts, id)
	select {
	case <-a.made:
	default:
		close(a.made)
	}
	close(a.sent)
}

// maxFor is the longest message id that a receipt can name: beyond it work is
// answered without one.
const maxFor = 512 << 10
