package agh

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/parley-hub/parley"
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
	var gone []journal.Value
	for v, err := range b.handoffs.Range(ctx, "") {
		if err != nil {
			return n, err
		}
		var h handoff
		if json.Unmarshal(v.Data, &h) != nil {
			continue
		}
		e, err := b.decode(h.Raw)
		if err != nil {
			continue
		}
		is := func(peer string) bool {
			return f.Agent != "" && peer != "" && (peer == peerID(f.Agent) || f.Is(Protocol, e.WorkspaceID+"/"+peer))
		}
		id, own := recordOf(e)
		if is(e.From) || is(e.To) || is(h.Peer) || own && f.Message(id) ||
			!f.Conversation.IsZero() && b.conversation(e) == f.Conversation {
			gone = append(gone, v)
		}
	}
	for _, v := range gone {
		if err := b.handoffs.Delete(ctx, v.Key, 0); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// ForgetRecent drops the requests and the work that are cached.
func (b *Binding) ForgetRecent() {
	b.asked.mu.Lock()
	b.asked.byID, b.asked.order = nil, nil
	b.asked.mu.Unlock()
	b.works.mu.Lock()
	clear(b.works.held)
	b.works.mu.Unlock()
}

// forget drops the last words of targets, which are kept with the state of work
// for 31 days.
func (w *works) forget(ctx context.Context, f *hub.Forgetting) (n int, err error) {
	about := func(l *link) bool {
		return l != nil && len(l.Text) > 0 && (f.Agent != "" && l.Target == f.Agent || f.Message(l.Request))
	}
	for range 8 { // work may end meanwhile
		var list []journal.Value
		for v, err := range w.state.Range(ctx, "") {
			if err != nil {
				return n, err
			}
			var r row
			if json.Unmarshal(v.Data, &r) != nil || !about(r.Link) || !r.Work.State.Terminal() && !f.Message(r.Link.Request) {
				continue
			}
			c := *r.Link
			c.Text = nil
			r.Link = &c
			if v.Data, err = json.Marshal(r); err != nil {
				return n, err
			}
			list = append(list, v)
		}
		again := false
		for _, v := range list {
			_, err := w.state.Update(ctx, v.Key, v.Data, v.Until, v.Revision)
			if errors.Is(err, journal.ErrConflict) {
				again = true
				continue
			}
			if err != nil {
				return n, err
			}
			n++
		}
		if !again {
			return n, nil
		}
	}
	return n, parley.Fail(parley.Unavailable, nil, "the state of work changes all the time")
}
