package agh

import (
	"errors"
	"slices"
	"sync"
	"time"

	protocol "github.com/parley-hub/parley/agh"
)

// Messages to peers that no hub knows yet, and whois requests that may be for further
// hubs: both wait for one greet interval.

// pending holds messages for peers that this hub does not know. Such a peer may be
// at another hub on the journal, or connect: peers greet once an interval, so that
// pending holds the messages for one interval. It keeps an undirected whois as long,
// for hubs whose peers become known in that time.
type pending struct {
	within time.Duration
	refuse func(pendingMessage) // called when within is over

	mu        sync.Mutex
	closed    bool
	byAddress map[peerAddress][]*pendingMessage
	bySender  map[string]int // messages in byAddress
	count     int
	bytes     int
	whois     []*pendingWhois // in order of arrival
}

// pendingMessage is not admitted yet: again repeats all checks.
type pendingMessage struct {
	user  string
	res   protocol.Result
	again func()
	timer *time.Timer
}

// pendingWhois is an accepted whois request or answer.
type pendingWhois struct {
	e     *protocol.Envelope
	until time.Time
	nodes []string // hubs that have got it
}

// Bounds: beyond them a message for an unknown peer is refused at once, and the
// oldest whois is forgotten.
const (
	maxPending      = 1 << 12
	maxPendingEach  = 1 << 8 // of one user
	maxPendingBytes = 16 << 20
	maxWhois        = 1 << 10
)

// add keeps a message, if there is room for it.
func (h *pending) add(to peerAddress, m pendingMessage) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	size := len(m.res.Envelope.Raw())
	if h.closed || h.count >= maxPending || h.bySender[m.user] >= maxPendingEach || h.bytes+size > maxPendingBytes {
		return false
	}
	if h.byAddress == nil {
		h.byAddress, h.bySender = map[peerAddress][]*pendingMessage{}, map[string]int{}
	}
	x := &m
	h.byAddress[to] = append(h.byAddress[to], x)
	h.bySender[m.user]++
	h.count++
	h.bytes += size
	x.timer = time.AfterFunc(h.within, func() {
		if h.take(to, x) != nil {
			h.refuse(*x)
		}
	})
	return true
}

// take removes and returns the messages for a peer, or only one of them.
func (h *pending) take(to peerAddress, only *pendingMessage) (out []*pendingMessage) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.byAddress[to] == nil {
		return nil
	}
	h.byAddress[to] = slices.DeleteFunc(h.byAddress[to], func(m *pendingMessage) bool {
		if only != nil && m != only {
			return false
		}
		m.timer.Stop()
		h.count--
		h.bytes -= len(m.res.Envelope.Raw())
		if h.bySender[m.user]--; h.bySender[m.user] == 0 {
			delete(h.bySender, m.user)
		}
		out = append(out, m)
		return true
	})
	if len(h.byAddress[to]) == 0 {
		delete(h.byAddress, to)
	}
	return out
}

// addWhois keeps a whois.
func (h *pending) addWhois(e *protocol.Envelope, now time.Time) *pendingWhois {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.expire(now)
	q := &pendingWhois{e, now.Add(h.within), nil}
	if len(e.Raw()) <= maxGreet && !h.closed {
		if len(h.whois) >= maxWhois {
			h.whois = h.whois[1:]
		}
		h.whois = append(h.whois, q)
	}
	return q
}

// notSentTo gives the nodes that have not got a whois, and records that they get it.
func (h *pending) notSentTo(q *pendingWhois, nodes []string) (out []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, node := range nodes {
		if !slices.Contains(q.nodes, node) {
			q.nodes, out = append(q.nodes, node), append(out, node)
		}
	}
	return out
}

// whoisFor gives the whois requests and answers for a peer of another hub: directed
// ones, and those for its whole channel that the hub has not got.
func (h *pending) whoisFor(at peerAddress, node string, now time.Time) (out []*protocol.Envelope) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.expire(now)
	h.whois = slices.DeleteFunc(h.whois, func(q *pendingWhois) bool {
		if q.e.WorkspaceID != at.workspaceID || q.e.Channel != at.channel || q.e.To != "" && q.e.To != at.peer ||
			slices.Contains(q.nodes, node) {
			return false
		}
		q.nodes = append(q.nodes, node)
		out = append(out, q.e)
		return q.e.To != ""
	})
	return out
}

// expire drops old whois messages; h.mu is locked.
func (h *pending) expire(now time.Time) {
	for len(h.whois) > 0 && !now.Before(h.whois[0].until) {
		h.whois = h.whois[1:]
	}
}

func (h *pending) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for _, list := range h.byAddress {
		for _, m := range list {
			m.timer.Stop()
		}
	}
	h.byAddress, h.bySender, h.whois = nil, nil, nil
}

// keepPending keeps a message to an unknown peer until some hub knows the peer.
func (b *Binding) keepPending(user string, res protocol.Result, again func()) bool {
	e := res.Envelope
	to := peerAddress{e.WorkspaceID, e.Channel, e.To}
	if !b.pending.add(to, pendingMessage{user: user, res: res, again: again}) {
		return false
	}
	if b.reachable(e.WorkspaceID, e.Channel, e.To) || b.router.Hosts(e.WorkspaceID, e.Channel, e.To) {
		b.retryPending(to) // the peer has become known meanwhile
	}
	return true
}

// retryPending receives the messages for a now known peer again.
func (b *Binding) retryPending(to peerAddress) {
	if list := b.pending.take(to, nil); len(list) > 0 {
		b.work.Go(func() {
			for _, m := range list {
				m.again()
			}
		})
	}
}

// peerSeenElsewhere sends the messages that wait for another hub's peer to that hub.
func (b *Binding) peerSeenElsewhere(r peerRecord) {
	at := peerAddress{r.Workspace, r.Channel, r.Peer}
	b.retryPending(at)
	if r.Node == b.members.node || !r.Seen.After(b.fresh()) {
		return
	}
	for _, e := range b.pending.whoisFor(at, r.Node, b.now()) {
		b.work.Go(func() {
			if err := b.handOff(e, r.Node, e.To); err != nil {
				b.c.Logger.Warn("a whois did not reach another hub", "workspace", e.WorkspaceID, "peer", e.From,
					"error", err)
			}
		})
	}
}

// refusePending refuses a message whose recipient did not become known in time.
func (b *Binding) refusePending(m pendingMessage) {
	e := m.res.Envelope
	subject, err := e.Subject()
	if err != nil {
		subject = e.Channel // the message has a valid subject: it arrived on one
	}
	b.refused(m.user, subject, e.Raw(), m.res)
}

// forwardWhois sends a whois request to the hubs whose peers may answer it, and a
// whois answer to the hub of the requester.
func (b *Binding) forwardWhois(e *protocol.Envelope, w *protocol.Whois) error {
	if e.To != "" {
		x, ok := b.remoteHub(e.WorkspaceID, e.Channel, e.To)
		if !ok && !b.router.Hosts(e.WorkspaceID, e.Channel, e.To) &&
			!b.gateway.Listens(e.WorkspaceID, e.Channel, e.To) {
			b.pending.addWhois(e, b.now()) // the peer may reconnect soon
			x, ok = b.remoteHub(e.WorkspaceID, e.Channel, e.To)
		}
		if ok {
			return b.handOff(e, x.node, x.peer)
		}
		return nil
	}
	var err error
	q := b.pending.addWhois(e, b.now())
	nodes := b.pending.notSentTo(q, b.members.nodes(e.WorkspaceID, e.Channel, b.fresh()))
	for _, node := range b.remoteAgents.inChannel(e.WorkspaceID, e.Channel, b.members.node, b.fresh()) {
		if !slices.Contains(nodes, node) { // only agents there: peers that join still need the whois
			nodes = append(nodes, node)
		}
	}
	for _, node := range nodes {
		err = errors.Join(err, b.handOff(e, node, ""))
	}
	return err
}
