package asp

import (
	"context"

	protocol "github.com/parley-hub/parley/asp"
)

// CloseIdle closes idle sessions, as the hub does every minute.
func (b *Binding) CloseIdle(ctx context.Context) error { return b.reconciler.closeIdle(ctx) }

// StandIn gives the identity with which the hub now sends the messages of an agent.
func (b *Binding) StandIn(ctx context.Context, name string) (*protocol.Identity, error) {
	return b.standIns.ensure(ctx, name)
}

// HoldReconciler stops all reconciliation until release.
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

// Reconcile does the hub's work in a session, as a worker does.
func (b *Binding) Reconcile(ctx context.Context, session string) error {
	return b.reconciler.reconcile(ctx, session)
}

// Queued reports whether a session waits for reconciliation because of a
// record in the journal.
func (b *Binding) Queued(session string) bool {
	b.reconciler.mu.Lock()
	defer b.reconciler.mu.Unlock()
	return b.reconciler.newest[session] > 0
}

// ReadAhead loads a session from the journal, as a list of sessions does.
func (b *Binding) ReadAhead(ctx context.Context, session string) error {
	_, err := b.store.Ledger(ctx, session)
	return err
}

// ForgetEvicted forgets evicted guests, as the hub does every minute.
func (b *Binding) ForgetEvicted(ctx context.Context) { b.forgetEvicted(ctx) }

// KeepBusy marks the guests in live sessions as used, as the hub does every minute.
func (b *Binding) KeepBusy() { b.keepBusy() }

// Evict drops a session from memory.
func (b *Binding) Evict(session string) { b.store.forget(session) }

// DeliverAnswers submits the answers in a session, as a worker does.
func (b *Binding) DeliverAnswers(ctx context.Context, session string) error {
	l, err := b.server.Session(ctx, session, "")
	if err != nil {
		return err
	}
	return b.reconciler.deliverAnswers(ctx, l)
}

// Append appends a record behind a head.
func (b *Binding) Append(ctx context.Context, session string, head protocol.Head, after *protocol.Ledger) error {
	return b.store.Append(ctx, session, head, &protocol.Record{Ledger: after})
}
