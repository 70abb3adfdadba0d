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
type owed struct {
	mu      sync.Mutex
	byPeer  map[place][]handedOver // those with any have a goroutine
	waiting int
}

// handedOver is a message that another hub has for a peer of this one.
type handedOver struct {
	row journal.Row[handoff]
	e   *protocol.Envelope
}

const (
	maxOwed   = 1 << 14 // more is published at once, whoever listens
	lookEvery = 100 * time.Millisecond
)

// handed takes what another hub has for a peer of this one.
func (b *Binding) handed(row journal.Row[handoff]) {
	if row.Revision == 0 || b.now().After(row.Until) {
		return
	}
	e, err := b.decode(row.Value.Raw)
	if err != nil {
		return
	}
	peer, m := row.Value.Peer, handedOver{row, e}
	if e.To != "" && b.router.Hosts(e.WorkspaceID, e.Channel, e.To) {
		if row.Value.From != "" {
			b.takeForwarded(row, e)
		} else {
			b.publishHanded(m) // a whois, which the hub answers
		}
		return
	}
	if e.To == "" && e.Kind == protocol.KindWhois || peer == "" {
		b.publishHanded(m) // it is of use now or never
		return
	}
	to := place{e.WorkspaceID, e.Channel, peer}
	b.owed.mu.Lock()
	list, waits := b.owed.byPeer[to]
	if !waits && b.gateway.Listens(to.workspaceID, to.channel, to.peer) || b.owed.waiting >= maxOwed {
		b.owed.mu.Unlock()
		b.publishHanded(m)
		return
	}
	if b.owed.byPeer == nil {
		b.owed.byPeer = map[place][]handedOver{}
	}
	b.owed.byPeer[to] = append(list, m)
	b.owed.waiting++
	b.owed.mu.Unlock()
	if !waits {
		b.work.Go(func() { b.payOwed(to) })
	}
}

// payOwed publishes what is owed to a peer when it listens, until nothing is.
func (b *Binding) payOwed(to place) {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		select {
		case <-look.C:
		case <-b.ctx.Done():
			return
		}
		for out := []handedOver{{}}; len(out) > 0; {
			var left bool
			if out, left = b.owed.due(to, b.gateway.Listens(to.workspaceID, to.channel, to.peer), b.now()); !left {
				return
			}
			for _, m := range out {
				b.publishHanded(m)
			}
		}
	}
}

// due takes out what is to be published for a peer, which is all if it listens;
// left is false if nothing is, nor was just now. What is over ends with its note
// in the journal: nobody is to work on what was asked for till then.
func (o *owed) due(to place, listens bool, now time.Time) (out []handedOver, left bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	list := o.byPeer[to]
	had := len(list)
	list = slices.DeleteFunc(list, func(m handedOver) bool { return !now.Before(m.row.Until) })
	if listens {
		out, list = list, nil
	}
	o.waiting -= had - len(list)
	if len(list) == 0 && len(out) == 0 {
		delete(o.byPeer, to)
		return nil, false
	}
	o.byPeer[to] = list // while it is there, what comes meanwhile follows
	return out, true
}

func (b *Binding) publishHanded(m handedOver) {
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
