package agh

import (
	"context"

	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
)

// Forget implements hub.Forgetter: what peers said while they worked
// goes from the state of work that has ended, and what another hub was handed
// and has not published.
func (b *Binding) Forget(ctx context.Context, f hub.Forgetting) (n int, err error) {
	b.ForgetRecent()
	if n, err = b.works.forget(ctx, &f); err != nil {
		return n, err
	}
	k, err := b.handoffs.Sweep(ctx, "", func(r *journal.Row[handoff]) journal.Fate {
		e, err := b.decode(r.Value.Raw)
		if err != nil {
			return journal.Keep
		}
		is := func(peer string) bool {
			return f.Agent != "" && peer != "" && (peer == peerID(f.Agent) || f.Is(Protocol, e.WorkspaceID+"/"+peer))
		}
		id, own := recordOf(e)
		if is(e.From) || is(e.To) || is(r.Value.Peer) || own && f.Message(id) ||
			!f.Conversation.IsZero() && b.conversation(e) == f.Conversation {
			return journal.Remove
		}
		return journal.Keep
	})
	return n + k, err
}

// ForgetRecent drops the requests and the work that are cached.
func (b *Binding) ForgetRecent() {
	b.envelopes.forget()
	b.works.rows.Uncache()
}
