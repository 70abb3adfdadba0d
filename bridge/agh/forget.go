package agh

import (
	"context"

	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
)

// Forget implements hub.Forgetter: it drops the last texts of peers from the state
// of work, and hand-offs that the other hub has not published.
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

// ForgetRecent drops the cached requests and work.
func (b *Binding) ForgetRecent() {
	b.mu.Lock()
	b.envelopes.byKey, b.envelopes.order = nil, nil
	b.mu.Unlock()
	b.works.rows.Uncache()
}

// forget drops the last texts of targets, otherwise kept with the state of work for
// 31 days.
func (w *works) forget(ctx context.Context, f *hub.Forgetting) (int, error) {
	return w.rows.Sweep(ctx, "", func(r *journal.Row[work]) journal.Fate {
		l := r.Value.Link
		if l == nil || len(l.Text) == 0 || !f.Message(l.Request) &&
			(f.Agent == "" || l.Target != f.Agent || !r.Value.Work.State.Terminal()) {
			return journal.Keep
		}
		silent := *l
		silent.Text, r.Value.Link = nil, &silent
		return journal.Write
	})
}

// forget drops a peer from all channels.
func (m *members) forget(workspaceID, peer string) (from []peerAddress) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, x := range m.byPeer[[2]string{workspaceID, peer}] {
		m.drop(x)
		from = append(from, x.peerAddress)
	}
	return from
}
