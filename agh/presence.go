package agh

import (
	"cmp"
	"container/list"
	"slices"
	"sync"
	"time"
)

// PresenceState tells how recently a peer greeted.
type PresenceState string

// The states. A peer is gone two greet intervals after its last greeting.
const (
	PresenceLocal    PresenceState = "local"
	PresenceActive   PresenceState = "active"   // at most one interval ago
	PresenceInactive PresenceState = "inactive" // more than one, less than two
)

// Peer is one entry of a channel's presence.
type Peer struct {
	WorkspaceID string
	Channel     string
	Card        *Card
	State       PresenceState
	LastSeen    time.Time // zero for local peers
}

// PeerEvent is a remote peer coming or going.
type PeerEvent struct {
	WorkspaceID string
	Channel     string
	PeerID      string
	Joined      bool // otherwise it left
}

// Presence remembers the remote peers that greeted. Greeting, expiry and
// look-up cost the same however many peers there are; expiry is noticed with
// the next call.
type Presence struct {
	Interval time.Duration // greet interval; 0 means 30 s
	Max      int           // peers in all, each channel counting; 0 means 65,536
	PerOwner int           // peers of one owner; 0 means a quarter of Max
	MaxCard  int           // bytes of a card's texts; 0 means 65,536

	mu       sync.Mutex
	channels map[channelKey]map[string]*list.Element // by peer
	owned    map[string]int
	order    list.List // of *presenceEntry, oldest greeting first
}

type channelKey struct{ workspaceID, channel string }

type peerKey struct {
	channelKey
	peerID string
}

type presenceEntry struct {
	key   peerKey
	owner string
	card  *Card
	seen  time.Time
}

func (p *Presence) interval() time.Duration { return cmp.Or(p.Interval, 30*time.Second) }

// Refresh records a peer as present now. With keep a known card is not replaced.
// The owner vouches for the peer and has a bounded share of Max. The error is
// [ErrBusy] if Max or the share is used up, or the card is too large.
func (p *Presence) Refresh(owner, workspaceID, channel string, card *Card, keep bool, now time.Time) ([]PeerEvent,
	error) {
	if card.size() > cmp.Or(p.MaxCard, 1<<16) {
		return nil, refuse(ErrBusy, StepRouting, "body.peer_card", "is too large to keep")
	}
	k := peerKey{channelKey{workspaceID, channel}, card.PeerID}
	p.mu.Lock()
	defer p.mu.Unlock()
	events := p.expire(now)
	if el, ok := p.channels[k.channelKey][k.peerID]; ok {
		entry := el.Value.(*presenceEntry)
		entry.seen = now
		if !keep {
			entry.card = card
		}
		p.order.MoveToBack(el)
		return events, nil
	}
	limit := cmp.Or(p.Max, 1<<16)
	if p.order.Len() >= limit || p.owned[owner] >= cmp.Or(p.PerOwner, max(limit/4, 1)) {
		return events, refuse(ErrBusy, StepRouting, "from", "too many peers are present")
	}
	if p.channels == nil {
		p.channels, p.owned = map[channelKey]map[string]*list.Element{}, map[string]int{}
	}
	entry := &presenceEntry{key: k, owner: owner, card: card, seen: now}
	p.owned[owner]++
	if p.channels[k.channelKey] == nil {
		p.channels[k.channelKey] = map[string]*list.Element{}
	}
	p.channels[k.channelKey][k.peerID] = p.order.PushBack(entry)
	return append(events, PeerEvent{workspaceID, channel, card.PeerID, true}), nil
}

// expire forgets peers that did not greet for two intervals. p.mu is held.
func (p *Presence) expire(now time.Time) []PeerEvent {
	var events []PeerEvent
	for el := p.order.Front(); el != nil; el = p.order.Front() {
		entry := el.Value.(*presenceEntry)
		if now.Sub(entry.seen) < 2*p.interval() {
			break
		}
		p.remove(el)
		events = append(events, PeerEvent{entry.key.workspaceID, entry.key.channel, entry.key.peerID, false})
	}
	return events
}

func (p *Presence) remove(el *list.Element) {
	entry := p.order.Remove(el).(*presenceEntry)
	k := entry.key
	p.owned[entry.owner]--
	if p.owned[entry.owner] == 0 {
		delete(p.owned, entry.owner)
	}
	delete(p.channels[k.channelKey], k.peerID)
	if len(p.channels[k.channelKey]) == 0 {
		delete(p.channels, k.channelKey)
	}
}

// Expire forgets the peers that are gone and returns them.
func (p *Presence) Expire(now time.Time) []PeerEvent {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.expire(now)
}

// Forget drops one peer at once.
func (p *Presence) Forget(workspaceID, channel, peerID string) {
	k := peerKey{channelKey{workspaceID, channel}, peerID}
	p.mu.Lock()
	defer p.mu.Unlock()
	if el, ok := p.channels[k.channelKey][k.peerID]; ok {
		p.remove(el)
	}
}

// Peer gives one present peer.
func (p *Presence) Peer(workspaceID, channel, peerID string, now time.Time) (Peer, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	el, ok := p.channels[channelKey{workspaceID, channel}][peerID]
	if !ok {
		return Peer{}, false
	}
	return p.peer(el.Value.(*presenceEntry), now)
}

// Channel lists the present peers of a channel by id.
func (p *Presence) Channel(workspaceID, channel string, now time.Time) []Peer {
	p.mu.Lock()
	defer p.mu.Unlock()
	var peers []Peer
	for _, el := range p.channels[channelKey{workspaceID, channel}] {
		if peer, ok := p.peer(el.Value.(*presenceEntry), now); ok {
			peers = append(peers, peer)
		}
	}
	sortPeers(peers)
	return peers
}

func (p *Presence) peer(entry *presenceEntry, now time.Time) (Peer, bool) {
	peer := Peer{WorkspaceID: entry.key.workspaceID, Channel: entry.key.channel, Card: entry.card,
		LastSeen: entry.seen, State: PresenceActive}
	age := now.Sub(entry.seen)
	if age > p.interval() {
		peer.State = PresenceInactive
	}
	return peer, age < 2*p.interval()
}

// Len gives the number of peers remembered.
func (p *Presence) Len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.order.Len()
}

func sortPeers(peers []Peer) {
	slices.SortFunc(peers, func(a, b Peer) int { return cmp.Compare(a.Card.PeerID, b.Card.PeerID) })
}

func (c *Card) size() int {
	n := len(c.PeerID) + len(c.DisplayName) + len(c.Ext)
	for _, l := range [][]string{c.Profiles, c.Capability, c.Artifacts, c.TrustModes} {
		for _, s := range l {
			n += len(s) + 16
		}
	}
	return n
}
