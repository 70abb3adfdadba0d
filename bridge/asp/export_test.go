package asp

import (
	"context"

	protocol "github.com/parley-hub/parley/asp"
)

// CloseIdle does now what the hub does every minute.
func (b *Binding) CloseIdle(ctx context.Context) error { return b.reconciler.closeIdle(ctx) }

// StandIn has an agent speak as it would now.
func (b *Binding) StandIn(ctx context.Context, name string) (*protocol.Identity, error) {
	return b.standIns.ensure(ctx, name)
}

// HoldReconciler lets no session be reconciled until it is released.
func (b *Binding) HoldReconciler() (release func()) {
	for range cap(b.reconciler.workers) {
		b.reconciler.workers <- struct{}{}
	}
	return func() {
		for range cap(b.reconciler.workers) {
			<-b.reconciler.workers
		}
	}
}

// Queued reports whether a session waits for reconciliation because of a
// record in the journal.
func (b *Binding) Queued(session string) bool {
	b.reconciler.mu.Lock()
	defer b.reconciler.mu.Unlock()
	return b.reconciler.newest[session] > 0
}

// ReadAhead reads what the journal has of a session, as a list of sessions does.
func (b *Binding) ReadAhead(ctx context.Context, session string) error {
	_, err := b.store.Ledger(ctx, session)
	return err
}

// ForgetEvicted does now what the hub does every minute.
func (b *Binding) ForgetEvicted(ctx context.Context) { b.forgetEvicted(ctx) }

// KeepBusy does now what the hub does every minute.
func (b *Binding) KeepBusy() { b.keepBusy() }

// Evict drops a session from memory.
func (b *Binding) Evict(session string) { b.store.forget(session) }

// DeliverAnswers does what a worker does for the answers in a session.
func (b *Binding) DeliverAnswers(ctx context.Context, session string) error {
	l, err := b.server.Session(ctx, session, "")
	if err != nil {
		return err
	}
	return b.reconciler.deliverAnswers(ctx, l)
}

// Append has a session go on from a head to another state.
func (b *Binding) Append(ctx context.Context, session string, head protocol.Head, after *protocol.Ledger) error {
	return b.store.Append(ctx, session, head, &protocol.Record{Ledger: after})
}
