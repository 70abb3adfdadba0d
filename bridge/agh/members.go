package agh

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/journal"
)

// Members of channels: the peers that greeted or spoke in each channel, the hub that
// each is connected to, and whether it is present.

// peerAddress is a peer in a channel.
type peerAddress struct{ workspaceID, channel, peer string }

// member is a peer that greeted or spoke in a channel. It may be away now.
type member struct {
	peerAddress
	name       string    // in the directory
	node       string    // the hub that it is connected to
	seen       time.Time // its last message or greeting
	since      time.Time // it has received everything since; zero: unknown
	away       bool      // messages wait for the peer
	recordedAt time.Time // when its record was written
	expired    bool      // away for too long: its messages become dead letters
	guest      bool      // the peer of an anonymous user
}

// peerRecord of a member in the journal's state.
type peerRecord struct {
	Workspace, Channel, Peer, Name, Node string
	Seen                                 time.Time
	Greet                                []byte `json:",omitempty"` // the greeting's bytes, for peers of other hubs
	Guest                                bool   `json:",omitempty"`
}

// maxGreet is the size of the largest greeting that other hubs get, in bytes.
const maxGreet = 64 << 10

// members are the peers of each channel. A greeting costs the same for any number
// of them.
type members struct {
	rows  *journal.Table[peerRecord]
	node  string
	limit int

	mu        sync.Mutex
	guests    int // in byAddress
	byAddress map[peerAddress]*member
	byPeer    map[[2]string][]*member       // workspace, peer
	byChannel map[[2]string]map[string]bool // workspace, channel → peers
}

// writeEvery is the age at which the record of a greeting peer is written again.
const writeEvery = 10 * time.Minute

func (m *members) load(ctx context.Context) error {
	m.byAddress, m.byPeer, m.byChannel = map[peerAddress]*member{}, map[[2]string][]*member{},
		map[[2]string]map[string]bool{}
	for r, err := range m.rows.Range(ctx, "") {
		if err != nil {
			return fmt.Errorf("read the members of AGH channels: %w", err)
		}
		m.note(r.Value)
	}
	return nil
}

// note applies a member's record, which may be another hub's. back is true if the
// peer was not known to be present: messages may wait for it here.
func (m *members) note(r peerRecord) (back bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	at := peerAddress{r.Workspace, r.Channel, r.Peer}
	old := m.byAddress[at]
	back = old == nil || old.away
	if old == nil {
		old = m.add(at, r.Name, r.Guest)
	}
	if r.Seen.After(old.seen) {
		back = back || old.node != r.Node
		old.seen, old.node = r.Seen, r.Node
	}
	return back
}

// add makes a member; m.mu is held.
func (m *members) add(at peerAddress, name string, guest bool) *member {
	x := &member{peerAddress: at, name: name, node: m.node, guest: guest}
	m.byAddress[at] = x
	if guest {
		m.guests++
	}
	peer, channel := [2]string{at.workspaceID, at.peer}, [2]string{at.workspaceID, at.channel}
	m.byPeer[peer] = append(slices.Clone(m.byPeer[peer]), x)
	if m.byChannel[channel] == nil {
		m.byChannel[channel] = map[string]bool{}
	}
	m.byChannel[channel][at.peer] = true
	return x
}

func (m *members) drop(x *member) {
	delete(m.byAddress, x.peerAddress)
	if x.guest {
		m.guests--
	}
	peer, channel := [2]string{x.workspaceID, x.peer}, [2]string{x.workspaceID, x.channel}
	if m.byPeer[peer] = slices.DeleteFunc(slices.Clone(m.byPeer[peer]),
		func(o *member) bool { return o == x }); len(m.byPeer[peer]) == 0 {
		delete(m.byPeer, peer)
	}
	delete(m.byChannel[channel], x.peer)
	if len(m.byChannel[channel]) == 0 {
		delete(m.byChannel, channel)
	}
}

// key of a member's record: a hash, since workspaces may be long.
func (at peerAddress) key() string { return workKey(at.workspaceID+"\x00"+at.channel, at.peer) }

var errMembers = errors.New("too many peers are known")

// checkRoom reports whether a peer can be a member, errMembers if not. Guests have a
// quarter of the places.
func (m *members) checkRoom(at peerAddress, guest bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.checkRoomLocked(at, guest)
}

func (m *members) checkRoomLocked(at peerAddress, guest bool) error {
	if m.byAddress[at] == nil && (len(m.byAddress) >= m.limit || guest && m.guests >= max(1, m.limit/4)) {
		return errMembers
	}
	return nil
}

// noteSeen records a message of a peer. A greeting shows that the peer is connected
// here, and receives everything from now on, if not before. back is true if messages
// may wait for the peer.
func (m *members) noteSeen(ctx context.Context, at peerAddress, name string, guest bool, greet *protocol.Envelope,
	joined bool, now time.Time) (back bool, err error) {
	greeted := greet != nil
	m.mu.Lock()
	x := m.byAddress[at]
	if x == nil {
		if err := m.checkRoomLocked(at, guest); err != nil {
			m.mu.Unlock()
			return false, err
		}
		x = m.add(at, name, guest)
	}
	x.seen, x.expired, x.name = now, false, name
	if x.guest && !guest {
		x.guest = false
		m.guests--
	}
	if greeted {
		if x.away || joined || x.since.IsZero() || x.node != m.node {
			back, x.away, x.since = true, false, now
		}
		x.node = m.node
	}
	write := x.recordedAt.IsZero() || now.Sub(x.recordedAt) >= writeEvery || greeted
	if write {
		x.recordedAt = now
	}
	r := peerRecord{at.workspaceID, at.channel, at.peer, name, x.node, now, nil, x.guest}
	if greeted && len(greet.Raw()) <= maxGreet {
		r.Greet = greet.Raw()
	}
	m.mu.Unlock()
	if !write {
		return back, nil
	}
	_, err = m.rows.Put(ctx, at.key(), r, time.Time{})
	return back, err
}

// of lists the peers of a channel.
func (m *members) of(workspaceID, channel string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var names []string
	for peer := range m.byChannel[[2]string{workspaceID, channel}] {
		names = append(names, m.byAddress[peerAddress{workspaceID, channel, peer}].name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// nodes lists the other hubs with peers of a channel.
func (m *members) nodes(workspaceID, channel string, since time.Time) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for peer := range m.byChannel[[2]string{workspaceID, channel}] {
		if x := m.byAddress[peerAddress{workspaceID, channel, peer}]; x.node != m.node && x.seen.After(since) &&
			!slices.Contains(out, x.node) {
			out = append(out, x.node)
		}
	}
	return out
}

// memberships lists a peer's channels, the most recently used first.
func (m *members) memberships(workspaceID, peer string) []member {
	m.mu.Lock()
	list := m.byPeer[[2]string{workspaceID, peer}] // is replaced, not changed
	out := make([]member, len(list))
	for i, x := range list {
		out[i] = *x
	}
	m.mu.Unlock()
	if len(out) > 1 {
		slices.SortFunc(out, func(a, b member) int { return b.seen.Compare(a.seen) })
	}
	return out
}

// at gives the member record of a peer in a channel.
func (m *members) at(workspaceID, channel, peer string) (member, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if x := m.byAddress[peerAddress{workspaceID, channel, peer}]; x != nil {
		return *x, true
	}
	return member{}, false
}

func (m *members) channels() [][2]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out [][2]string
	for c := range m.byChannel {
		out = append(out, c)
	}
	return out
}

func (m *members) markAway(at peerAddress) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if x := m.byAddress[at]; x != nil {
		x.away = true
	}
}

// presentSince reports whether a peer has received everything since t.
func (m *members) presentSince(at peerAddress, t time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	x := m.byAddress[at]
	return x != nil && !x.since.IsZero() && !x.since.After(t) && !x.away
}

// sweep finds members that were not seen since a time. The first sweep expires them:
// their waiting messages become dead letters. The next sweep removes them.
func (m *members) sweep(before time.Time) (expired, forgotten []member) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, x := range m.byAddress {
		switch {
		case x.seen.After(before):
		case !x.expired:
			x.expired = true
			expired = append(expired, *x)
		default:
			m.drop(x)
			forgotten = append(forgotten, *x)
		}
	}
	return expired, forgotten
}

// Holds reports whether a peer is away: its messages wait until it greets.
func (b *Binding) Holds(e *directory.Entry, id parley.Identity) bool {
	workspaceID, peer, ok := split(id.ID)
	if !ok || peer[0] == channelMark[0] {
		return false
	}
	joined := b.members.memberships(workspaceID, peer)
	gone := len(joined) > 0
	for _, x := range joined {
		if b.here(x) {
			return false
		}
		gone = gone && x.expired
	}
	for _, x := range joined {
		b.members.markAway(x.peerAddress)
	}
	return !gone
}

// here reports whether a peer receives its hub's publications.
func (b *Binding) here(x member) bool {
	if x.node != b.members.node || b.c.URL != "" {
		return x.seen.After(b.fresh())
	}
	return b.gateway.Listens(x.workspaceID, x.channel, x.peer)
}

// groupMembers gives the agents in a channel; nil for a single peer.
func (b *Binding) groupMembers(_ *directory.Entry, id parley.Identity) []string {
	workspaceID, peer, ok := split(id.ID)
	if !ok || peer[0] != channelMark[0] {
		return nil
	}
	return b.inChannel(workspaceID, peer[1:])
}

func (b *Binding) inChannel(workspaceID, channel string) []string {
	names := b.members.of(workspaceID, channel)
	b.mu.Lock()
	for p, s := range b.hosted {
		if p.workspaceID == workspaceID && p.channel == channel && s.agent != Self {
			names = append(names, s.agent)
		}
	}
	b.mu.Unlock()
	slices.Sort(names)
	return slices.Compact(names)
}
