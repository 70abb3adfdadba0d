package mcp

import (
	"context"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
)

// outgoing makes calls of attached servers.
type outgoing struct{ b *Binding }

func newOutgoing(b *Binding) *outgoing { return &outgoing{b: b} }

func (o *outgoing) start(context.Context) error { return nil }

// deliver sends a message to an attached server.
func (o *outgoing) deliver(context.Context, hub.Outbound) hub.Outcome { return hub.Outcome{} }

// resumes reports whether another attempt to send a message finds out, or does not mind, what became of the earlier one.
func (o *outgoing) resumes(message parley.ID) bool { return false }

// way says how messages get to an agent.
func (b *Binding) way(context.Context, *directory.Entry, parley.Identity) hub.Way { return hub.Way{} }

// Forget implements hub.Forgetter.
func (b *Binding) Forget(ctx context.Context, f hub.Forgetting) (int, error) {
	n, err := b.inbox.forget(ctx, f)
	if err != nil {
		return n, err
	}
	more, err := b.servers.forget(ctx, f)
	return n + more, err
}
