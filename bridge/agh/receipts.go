package agh

import (
	"time"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/agh"
)

// pendingReceipt is a request on its way to its receipt "accepted".
type pendingReceipt struct {
	request *protocol.Envelope
	made    chan struct{}      // closed when there is a receipt, or will be none
	receipt *protocol.Envelope // nil when somebody has taken it, to send it
	id      parley.ID          // of the request
	due     time.Time          // when it goes out if no answer brings it
	sent    chan struct{}      // closed when it has gone out, or will not
}

// receiptWaits is how long the receipt "accepted" waits for the answer, so that
// the answer of an agent that has it at once goes out together with it: two
// flushes less for each piece of work, also when many are under way.
const receiptWaits = 100 * time.Millisecond

// acknowledge makes the receipt "accepted" for a request that is recorded, and
// lets what answers it go out.
func (b *Binding) acknowledge(e *protocol.Envelope) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.accepting[e]
	if m == nil {
		return
	}
	delete(b.accepting, e)
	a := b.pendingReceipts[m.ID]
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
	a.receipt, a.id, a.due = out, m.ID, time.Now().Add(receiptWaits)
	close(a.made)
	// One clock is for all: those that an answer has taken with it are passed over.
	b.receipts = append(b.receipts, a)
	switch {
	case len(b.receipts) > 1:
	case b.receiptClock == nil:
		b.receiptClock = time.AfterFunc(receiptWaits, b.sendReceipts)
	default:
		b.receiptClock.Reset(receiptWaits)
	}
}

// sendReceipts sends the receipts that no answer has brought in time.
func (b *Binding) sendReceipts() {
	var due []*pendingReceipt
	b.mu.Lock()
	now := time.Now()
	for len(b.receipts) > 0 && (b.receipts[0].receipt == nil || !b.receipts[0].due.After(now)) {
		if b.receipts[0].receipt != nil {
			due = append(due, b.receipts[0])
		}
		b.receipts[0], b.receipts = nil, b.receipts[1:]
	}
	if len(b.receipts) > 0 {
		b.receiptClock.Reset(b.receipts[0].due.Sub(now))
	}
	b.mu.Unlock()
	for _, a := range due {
		if out := b.takeReceipt(a); out != nil {
			if _, err := b.gateway.Send(b.ctx, out); err != nil {
				b.c.Logger.Debug("a request was not acknowledged", "workspace", out.WorkspaceID, "error", err)
			}
			b.release(a.id)
		}
	}
}

// takeReceipt gives the receipt to who is to send it, nil if somebody has it.
func (b *Binding) takeReceipt(a *pendingReceipt) *protocol.Envelope {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := a.receipt
	a.receipt = nil
	return out
}

// release lets answers to a request go out: its receipt has, or will not.
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
