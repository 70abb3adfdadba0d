package agh

import (
	"slices"
	"sync"
	"time"

	protocol "github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/journal"
)

// Hubs on one journal host different agents as peers. This file records which hub
// hosts which agent; handoffs.go has the messages between the hubs.

// remoteAgents are the agents that other hubs on the same journal host as peers. An
// example: a peer of hub A sends a whois to the channel, and gives work to "weather",
// which only hub B hosts. B records each greeting of its agents in the journal. A
// publishes these greetings, forwards the whois and the work to B, and B sends back
// its agent's answers.
type remoteAgents struct {
	rows *journal.Table[peerRecord] // watched; a key is the hub's name, "/" and the peer's key

	mu   sync.Mutex
	hubs []string // that have hosted any, sorted
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

// find gives the hub that hosts a peer. Of several hubs it gives the first by name,
// so that all messages of a conversation go to the same hub.
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

// fresh is the time since which a present peer must have greeted.
func (b *Binding) fresh() time.Time { return b.now().Add(-2 * b.interval()) }

// recordGreeting records the greeting of an agent that this hub hosts, for the other
// hubs.
func (b *Binding) recordGreeting(e *protocol.Envelope) {
	if b.c.Alone || b.c.URL != "" || e.From == Self || len(e.Raw()) > maxGreet {
		return
	}
	at := peerAddress{e.WorkspaceID, e.Channel, e.From}
	r := peerRecord{Workspace: e.WorkspaceID, Channel: e.Channel, Peer: e.From, Node: b.members.node, Seen: b.now(),
		Greet: e.Raw()}
	b.work.Go(func() {
		_, err := b.remoteAgents.rows.Put(b.ctx, b.members.node+"/"+at.key(), r, b.now().Add(4*b.interval()))
		if err != nil && b.ctx.Err() == nil {
			b.c.Logger.Warn("other hubs do not hear of an agent", "workspace", at.workspaceID, "peer", at.peer,
				"error", err)
		}
	})
}

// remoteAgentSeen is called for each greeting of an agent that another hub hosts.
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

// relayGreeting publishes the greeting of another hub's peer to the peers of this hub.
func (b *Binding) relayGreeting(r peerRecord) {
	if b.c.URL != "" || r.Node == b.members.node || len(r.Greet) == 0 || !r.Seen.After(b.fresh()) {
		return
	}
	e, err := b.decode(r.Greet)
	if err == nil {
		err = b.router.Verifier.Limits.Fresh(e, b.now())
	}
	if err == nil {
		err = b.gateway.Publish(e)
	}
	if err != nil {
		b.c.Logger.Debug("a greeting from another hub is not passed on", "workspace", r.Workspace, "peer", r.Peer,
			"error", err)
	}
}

// remoteHub gives the other hub that a peer is connected to, or that hosts it.
func (b *Binding) remoteHub(workspaceID, channel, peer string) (member, bool) {
	x, ok := b.members.at(workspaceID, channel, peer)
	if ok && x.node != b.members.node && b.here(x) {
		return x, true
	}
	return b.hostingHub(workspaceID, channel, peer)
}

// hostingHub gives the other hub that hosts an agent; none if this hub does.
func (b *Binding) hostingHub(workspaceID, channel, peer string) (member, bool) {
	if peer == "" || b.router.Hosts(workspaceID, channel, peer) {
		return member{}, false
	}
	return b.remoteAgents.find(peerAddress{workspaceID, channel, peer}, b.members.node, b.fresh())
}
