package mcp

import (
	"context"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
)

// Forget implements hub.Forgetter.
func (b *Binding) Forget(ctx context.Context, f hub.Forgetting) (n int, err error) {
	for _, forget := range []func(context.Context, hub.Forgetting) (int, error){b.inbox.forget, b.servers.forget,
		b.outgoing.forget} {
		k, err := forget(ctx, f)
		if n += k; err != nil {
			return n, err
		}
	}
	return n, nil
}

// forget removes the rows of messages that were erased. Calls in progress go on.
func (o *outgoing) forget(ctx context.Context, f hub.Forgetting) (int, error) {
	return o.sent.Sweep(ctx, "", func(r *journal.Row[sentCall]) journal.Fate {
		if id, err := parley.ParseID(r.Key); err == nil && f.Message != nil && f.Message(id) {
			return journal.Remove
		}
		return journal.Keep
	})
}
