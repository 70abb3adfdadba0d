package agh

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/journal"
)

// Messages that one hub hands over to another through the journal, because the
// other hub hosts the recipient or has its connection.

// handoff is a message for a peer that is connected to another hub, as recorded.
type handoff struct {
	Peer string
	Raw  []byte

	// Set if the recipient is an agent that the other hub hosts:
	From      string `json:",omitzero"` // the forwarding hub
	Principal string `json:",omitzero"` // the sender's NATS user at that hub
	Guest     bool   `json:",omitzero"` // the user has no credentials
}

// handoffTTL is the longest time that a message waits for its peer to reconnect to
// the other hub.
const handoffTTL = 5 * time.Minute

// handOff hands a message over to the hub named node, for one of the peers connected
// to that hub, or for all of them if peer is "".
func (b *Binding) handOff(e *protocol.Envelope, node, peer string) error {
	raw := e.Raw()
	if raw == nil {
		var err error
		if raw, err = e.Encode(); err != nil {
			return err
		}
	}
	return b.putHandoff(b.ctx, e, node, handoff{Peer: peer, Raw: raw})
}

func (b *Binding) putHandoff(ctx context.Context, e *protocol.Envelope, node string, h handoff) error {
	until := b.now().Add(handoffTTL)
	if ends := time.Unix(e.ExpiresAt, 0); e.ExpiresAt != 0 && ends.Before(until) {
		until = ends
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	_, err := b.handoffs.Put(ctx, node+"/"+workKey(e.From+"\x00"+e.ID, h.Peer), h, until)
	return err
}

// forward hands a message over to the hub that hosts its recipient. That hub
// handles the message as if the sender were connected to it.
func (b *Binding) forward(ctx context.Context, a *protocol.Admission, x member) (protocol.Decision, error) {
	h := handoff{Peer: x.peer, Raw: a.Envelope.Raw(), From: b.members.node, Principal: a.Principal,
		Guest: b.anonymous[a.Principal]}
	if err := b.putHandoff(ctx, a.Envelope, x.node, h); err != nil {
		return protocol.Pass, protocol.Refuse(protocol.ErrBusy, "", err)
	}
	return protocol.Forward, nil
}

// sendElsewhere hands a message over to the hub that its recipient is connected to.
// It returns false if no other hub has the recipient.
func (b *Binding) sendElsewhere(e *protocol.Envelope) bool {
	x, ok := b.remoteHub(e.WorkspaceID, e.Channel, e.To)
	if !ok {
		return false
	}
	if err := b.handOff(e, x.node, x.peer); err != nil {
		b.c.Logger.Warn("an answer did not reach another hub", "workspace", e.WorkspaceID, "peer", e.To, "error", err)
	}
	return true
}

// takeForwarded takes a message from another hub's peer to an agent of this hub.
func (b *Binding) takeForwarded(row journal.Row[handoff], e *protocol.Envelope) {
	h := row.Value
	done := func(protocol.Result) { b.dropHandoff(row) }
	if h.Guest && !b.anonymous[h.Principal] {
		b.c.Logger.Warn("a guest of another hub is none here: the hubs' agh.users differ", "user", h.Principal,
			"hub", h.From)
		done(protocol.Result{})
		return
	}
	b.gateway.Forwarded(b.ctx, h.From, h.Principal, e.Raw(), done)
}

// ownScope gives the scope in which a forwarded message is recorded: a scope of the
// workspace in a partition of this hub. This hub then dispatches the message, since
// the other hubs may not know the agent. The error is [protocol.ErrReplay] if any
// scope of the workspace has the message.
func (b *Binding) ownScope(scope, key string) (own string, err error) {
	j := b.c.Journal
	for i := range maxScopes {
		s := scope
		if i > 0 {
			s += " " + strconv.Itoa(i)
		}
		if _, seen := j.Seen(s, key); seen {
			return "", protocol.ErrReplay
		}
		if own == "" && j.Owned(j.Partition(s)) {
			own = s
		}
	}
	if own == "" {
		return "", parley.Fail(parley.Unavailable, nil,
			"the hub that has the agent dispatches nothing just now; try again in a moment")
	}
	return own, nil
}

// maxScopes is the number of scopes of one workspace: with 64 partitions, a hub
// that owns one partition finds a scope in it for 98 of 100 workspaces.
const maxScopes = 256

// handoffQueue holds hand-offs for peers that are not listening, as peers that still
// reconnect after a restart of this hub. Hand-offs are published in the order of
// arrival, and stay in the journal until then.
type handoffQueue struct {
	mu      sync.Mutex
	byPeer  map[peerAddress][]queuedHandoff // each peer in it has a goroutine
	waiting int
}

// queuedHandoff is a message from another hub for a peer of this hub.
type queuedHandoff struct {
	row journal.Row[handoff]
	e   *protocol.Envelope
}

const (
	maxQueuedHandoffs = 1 << 14 // further ones are published at once
	listenEvery       = 100 * time.Millisecond
)

// receiveHandoff takes a message from another hub to a peer of this hub.
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
			b.publishHandoff(m) // a whois: the gateway answers
		}
		return
	}
	if e.To == "" && e.Kind == protocol.KindWhois || peer == "" {
		b.publishHandoff(m) // useless later
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

// publishWhenListening publishes a peer's hand-offs once the peer listens, until
// the queue is empty.
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
			if out, left = b.handoffQueue.due(to, b.gateway.Listens(to.workspaceID, to.channel, to.peer),
				b.now()); !left {
				return
			}
			for _, m := range out {
				b.publishHandoff(m)
			}
		}
	}
}

// due removes a peer's hand-offs from the queue if the peer listens; left is false
// if there were none. It drops expired ones: their requesters have given up.
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
	q.byPeer[to] = list // even if empty: later hand-offs queue behind these
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
	default:
		err = b.gateway.PublishTo(m.e, m.row.Value.Peer)
	}
	if err != nil {
		b.c.Logger.Warn("a message from another hub was not published", "workspace", m.e.WorkspaceID,
			"peer", m.row.Value.Peer, "error", err)
	}
	b.dropHandoff(m.row)
}

// dropHandoff removes a hand-off from the journal.
func (b *Binding) dropHandoff(row journal.Row[handoff]) {
	b.work.Go(func() {
		if err := b.handoffs.Delete(b.ctx, row.Key, row.Revision); err != nil {
			b.c.Logger.Debug("a hand-off stays in the journal until it expires", "error", err)
		}
	})
}
