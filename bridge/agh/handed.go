package agh

import (
	"slices"
	"sync"
	"time"

	protocol "github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/journal"
)

// owed is what other hubs handed over for peers that do not listen here just
// now: this hub was started again, and they have not come back to it yet. It is
// published in the order in which it came, and until then it is in the journal.
type handoffQueue struct {
	mu      sync.Mutex
	byPeer  map[peerAddress][]queuedHandoff // those with any have a goroutine
	waiting int
}

// queuedHandoff is a message that another hub has for a peer of this one.
type queuedHandoff struct {
	row journal.Row[handoff]
	e   *protocol.Envelope
}

const (
	maxQueuedHandoffs = 1 << 14 // more is published at once, whoever listens
	listenEvery       = 100 * time.Millisecond
)

// receiveHandoff takes what another hub has for a peer of this one.
func (b *Binding) receiveHandoff(row journal.Row[handoff]) {
	if row.Revision == 0 || b.now().After(row.Until) {
		return
	}
	e, err := b.decode(row.Value.Raw)
	if err != nil {
		return
	}
	peer, m := row.Value.Peer, queuedHandoff{row, e}
	if e.To != "" && b.router.Hosts(e.WorkspaceID, e.Channel, e.To) {
		if row.Value.From != "" {
			b.takeForwarded(row, e)
		} else {
			b.publishHandoff(m) // a whois, which the hub answers
		}
		return
	}
	if e.To == "" && e.Kind == protocol.KindWhois || peer == "" {
		b.publishHandoff(m) // it is of use now or never
		return
	}
	to := peerAddress{e.WorkspaceID, e.Channel, peer}
	b.handoffQueue.mu.Lock()
	list, waits := b.handoffQueue.byPeer[to]
	if !waits && b.gateway.Listens(to.workspaceID, to.channel, to.peer) || b.handoffQueue.waiting >= maxQueuedHandoffs {
		b.handoffQueue.mu.Unlock()
		b.publishHandoff(m)
		return
	}
	if b.handoffQueue.byPeer == nil {
		b.handoffQueue.byPeer = map[peerAddress][]queuedHandoff{}
	}
	b.handoffQueue.byPeer[to] = append(list, m)
	b.handoffQueue.waiting++
	b.handoffQueue.mu.Unlock()
	if !waits {
		b.work.Go(func() { b.publishWhenListening(to) })
	}
}

// publishWhenListening publishes what is owed to a peer when it listens, until nothing is.
func (b *Binding) publishWhenListening(to peerAddress) {
	look := time.NewTicker(listenEvery)
	defer look.Stop()
	for {
		select {
		case <-look.C:
		case <-b.ctx.Done():
			return
		}
		for out := []queuedHandoff{{}}; len(out) > 0; {
			var left bool
			if out, left = b.handoffQueue.due(to, b.gateway.Listens(to.workspaceID, to.channel, to.peer), b.now()); !left {
				return
			}
			for _, m := range out {
				b.publishHandoff(m)
			}
		}
	}
}

// due takes out what is to be published for a peer, which is all if it listens;
// left is false if nothing is, nor was just now. What is over ends with its note
// in the journal: nobody is to work on what was asked for till then.
func (q *handoffQueue) due(to peerAddress, listens bool, now time.Time) (out []queuedHandoff, left bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	list := q.byPeer[to]
	had := len(list)
	list = slices.DeleteFunc(list, func(m queuedHandoff) bool { return !now.Before(m.row.Until) })
	if listens {
		out, list = list, nil
	}
	q.waiting -= had - len(list)
	if len(list) == 0 && len(out) == 0 {
		delete(q.byPeer, to)
		return nil, false
	}
	q.byPeer[to] = list // while it is there, what comes meanwhile follows
	return out, true
}

func (b *Binding) publishHandoff(m queuedHandoff) {
	var err error
	w, whois := m.e.Content().(*protocol.Whois)
	switch {
	case whois && w.Type == protocol.WhoisResponse && b.router.Hosts(m.e.WorkspaceID, m.e.Channel, m.e.From):
		// An agent that both hubs host has answered here.
	case whois && w.Type == protocol.WhoisRequest:
		err = b.gateway.PublishQuestion(m.e)
	case m.e.To == "":
		err = b.gateway.PublishTo(m.e, m.row.Value.Peer)
	default:
		err = b.gateway.Publish(m.e)
	}
	if err != nil {
		b.c.Logger.Warn("what another hub handed over was not published", "workspace", m.e.WorkspaceID, "peer", m.row.Value.Peer, "error", err)
	}
	b.dropHandoff(m.row)
}

// dropHandoff ends the note of a message that was handed over.
func (b *Binding) dropHandoff(row journal.Row[handoff]) {
	b.work.Go(func() {
		if err := b.handoffs.Delete(b.ctx, row.Key, row.Revision); err != nil {
			b.c.Logger.Debug("a message that was handed over stays noted until it expires", "error", err)
		}
	})
}
