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

// remoteAgents are the agents that other hubs on the same journal host as peers. An
// example: a peer of hub A asks who is in the channel, and gives work to
// "weather", which only hub B hosts. B records each greeting of its agents in the
// journal; A passes them on, forwards the question and the work to B, and B sends
// back what its agent answers.
type remoteAgents struct {
	rows *journal.Table[peerRecord] // followed; a key is the hub's name, "/" and that of the peer

	mu   sync.Mutex
	hubs []string // that have hosted any, sorted
}

func newRemoteAgents(j *journal.Journal) *remoteAgents {
	return &remoteAgents{rows: journal.NewTable[peerRecord](j, "agh.hostings", 0)}
}

func (a *remoteAgents) addHub(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if i, known := slices.BinarySearch(a.hubs, name); !known {
		a.hubs = slices.Insert(slices.Clone(a.hubs), i, name)
	}
}

func (a *remoteAgents) allHubs() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.hubs // is replaced, not changed
}

// find gives the hub that hosts a peer: of several the one whose name is first, so
// that all messages of a conversation go to the same.
func (a *remoteAgents) find(to peerAddress, self string, since time.Time) (member, bool) {
	key := to.key()
	for _, name := range a.allHubs() {
		if r := a.rows.Known(name + "/" + key); name != self && r.Value.Seen.After(since) {
			return member{peerAddress: to, node: name, seen: r.Value.Seen}, true
		}
	}
	return member{}, false
}

// inChannel lists the other hubs that host agents in a channel.
func (a *remoteAgents) inChannel(workspaceID, channel, self string, since time.Time) (out []string) {
	for _, r := range a.rows.All() {
		v := r.Value
		if v.Workspace == workspaceID && v.Channel == channel && v.Node != self && v.Seen.After(since) {
			out = append(out, v.Node)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// fresh is since when a peer must have been heard of to count as present.
func (b *Binding) fresh() time.Time { return b.now().Add(-2 * b.interval()) }

// recordGreeting records the greeting of an agent that this hub hosts, for the others.
func (b *Binding) recordGreeting(e *protocol.Envelope) {
	if b.c.URL != "" || e.From == Self || len(e.Raw()) > maxGreet {
		return
	}
	at := peerAddress{e.WorkspaceID, e.Channel, e.From}
	r := peerRecord{Workspace: e.WorkspaceID, Channel: e.Channel, Peer: e.From, Node: b.members.node, Seen: b.now(), Greet: e.Raw()}
	b.work.Go(func() {
		_, err := b.remoteAgents.rows.Put(b.ctx, b.members.node+"/"+at.key(), r, b.now().Add(4*b.interval()))
		if err != nil && b.ctx.Err() == nil {
			b.c.Logger.Warn("other hubs do not hear of an agent", "workspace", at.workspaceID, "peer", at.peer, "error", err)
		}
	})
}

// remoteAgentSeen is told of each greeting of an agent that another hub hosts.
func (b *Binding) remoteAgentSeen(_, row journal.Row[peerRecord]) {
	r := row.Value
	if row.Revision == 0 || r.Node == b.members.node {
		return
	}
	b.remoteAgents.addHub(r.Node)
	if !r.Seen.After(b.fresh()) {
		return
	}
	b.work.Go(func() { // the table waits for this function
		if !b.router.Hosts(r.Workspace, r.Channel, r.Peer) {
			b.relayGreeting(r)
		}
		b.peerSeenElsewhere(r)
	})
}

// forward hands a message of a peer of this hub to the hub that hosts the agent
// it is for, which takes it as if the peer were there.
func (b *Binding) forward(ctx context.Context, a *protocol.Admission, x member) (protocol.Decision, error) {
	h := handoff{Peer: x.peer, Raw: a.Envelope.Raw(), From: b.members.node, Principal: a.Principal, Guest: b.anonymous[a.Principal]}
	if err := b.putHandoff(ctx, a.Envelope, x, h); err != nil {
		return protocol.Pass, protocol.Refuse(protocol.ErrBusy, "", err)
	}
	return protocol.Forward, nil
}

// takeForwarded takes what a peer of another hub says to an agent of this one.
func (b *Binding) takeForwarded(row journal.Row[handoff], e *protocol.Envelope) {
	h := row.Value
	done := func(protocol.Result) { b.dropHandoff(row) }
	if h.Guest && !b.anonymous[h.Principal] {
		b.c.Logger.Warn("a guest of another hub is none here: the hubs' agh.users differ", "user", h.Principal, "hub", h.From)
		done(protocol.Result{})
		return
	}
	b.gateway.Forwarded(b.ctx, h.From, h.Principal, e.Raw(), done)
}

// ownScope gives the scope in which a forwarded message is recorded: one of the
// workspace's whose partition this hub has, so that it dispatches the message,
// whose agent no other hub need know. [protocol.ErrReplay] if the message is in
// any of them.
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
		return "", parley.Fail(parley.Unavailable, nil, "the hub that has the agent dispatches nothing just now; try again in a moment")
	}
	return own, nil
}

// maxScopes are the scopes of one workspace: with 64 partitions, a hub that has
// one of them finds it in 98 of 100 workspaces.
const maxScopes = 256

// sendElsewhere brings what a peer of this hub says to the hub that the other peer is
// connected to.
func (b *Binding) sendElsewhere(e *protocol.Envelope) bool {
	x, ok := b.remoteHub(e.WorkspaceID, e.Channel, e.To)
	if !ok {
		return false
	}
	if err := b.handOff(e, x); err != nil {
		b.c.Logger.Warn("an answer did not reach another hub", "workspace", e.WorkspaceID, "peer", e.To, "error", err)
	}
	return true
}
