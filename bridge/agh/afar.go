package agh

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/journal"
)

// afar are the agents that other hubs on the same journal host as peers. An
// example: a peer of hub A asks who is in the channel, and gives work to
// "weather", which only hub B hosts. B notes each greeting of its agents in the
// journal; A passes them on, hands the question and the work to B, and B hands
// back what its agent says.
type afar struct {
	mu      sync.Mutex
	byPlace map[place]map[string]time.Time // the hubs that host it, and when they last said so
	count   int
}

// maxAfar bounds what is known of the agents of other hubs.
const maxAfar = 1 << 16

// note takes the word of a hub that it hosts an agent.
func (a *afar) note(r memberRecord) {
	at := place{r.Workspace, r.Channel, r.Peer}
	a.mu.Lock()
	defer a.mu.Unlock()
	nodes := a.byPlace[at]
	if _, known := nodes[r.Node]; !known {
		if a.count >= maxAfar {
			return
		}
		a.count++
	}
	if nodes == nil {
		if a.byPlace == nil {
			a.byPlace = map[place]map[string]time.Time{}
		}
		nodes = map[string]time.Time{}
		a.byPlace[at] = nodes
	}
	if r.Seen.After(nodes[r.Node]) {
		nodes[r.Node] = r.Seen
	}
}

// at gives the hub that hosts a peer: of several the one whose name is first, so
// that all messages of a conversation go to the same.
func (a *afar) at(to place, since time.Time) (member, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	x := member{place: to}
	for node, seen := range a.byPlace[to] {
		if seen.After(since) && (x.node == "" || node < x.node) {
			x.node, x.seen = node, seen
		}
	}
	return x, x.node != ""
}

// nodes lists the hubs that host agents in a channel.
func (a *afar) nodes(workspaceID, channel string, since time.Time) (out []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for at, nodes := range a.byPlace {
		if at.workspaceID != workspaceID || at.channel != channel {
			continue
		}
		for node, seen := range nodes {
			if seen.After(since) && !slices.Contains(out, node) {
				out = append(out, node)
			}
		}
	}
	slices.Sort(out)
	return out
}

// forget drops what was not heard of since.
func (a *afar) forget(since time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for at, nodes := range a.byPlace {
		for node, seen := range nodes {
			if !seen.After(since) {
				delete(nodes, node)
				a.count--
			}
		}
		if len(nodes) == 0 {
			delete(a.byPlace, at)
		}
	}
}

// fresh is since when a peer must have been heard of to count as present.
func (b *Binding) fresh() time.Time { return b.now().Add(-2 * b.interval()) }

// greetedHere notes the greeting of an agent that this hub hosts, for the others.
func (b *Binding) greetedHere(e *protocol.Envelope) {
	if b.c.URL != "" || e.From == Self || len(e.Raw()) > maxGreet {
		return
	}
	at := place{e.WorkspaceID, e.Channel, e.From}
	v, err := json.Marshal(memberRecord{Workspace: e.WorkspaceID, Channel: e.Channel, Peer: e.From, Node: b.members.node, Seen: b.now(), Greet: e.Raw()})
	if err != nil {
		return // texts and times: cannot happen
	}
	b.work.Go(func() {
		if _, err := b.hostings.Put(b.ctx, b.members.node+"/"+at.key(), v, b.now().Add(4*b.interval())); err != nil && b.ctx.Err() == nil {
			b.c.Logger.Warn("other hubs do not hear of an agent", "workspace", at.workspaceID, "peer", at.peer, "error", err)
		}
	})
}

// hostedElsewhere takes the word of another hub that it hosts an agent.
func (b *Binding) hostedElsewhere(v journal.Value) {
	var r memberRecord
	if v.Deleted || json.Unmarshal(v.Data, &r) != nil || r.Node == b.members.node || !r.Seen.After(b.fresh()) {
		return
	}
	b.afar.note(r)
	if !b.router.Hosts(r.Workspace, r.Channel, r.Peer) {
		b.greetedElsewhere(r)
	}
	b.heardElsewhere(r)
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
func (b *Binding) takeForwarded(v journal.Value, h handoff, e *protocol.Envelope) {
	done := func(protocol.Result) { b.dropHandoff(v) }
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

// away brings what a peer of this hub says to the hub that the other peer is
// connected to.
func (b *Binding) away(e *protocol.Envelope) bool {
	x, ok := b.elsewhere(e.WorkspaceID, e.Channel, e.To)
	if !ok {
		return false
	}
	if err := b.handOff(e, x); err != nil {
		b.c.Logger.Warn("an answer did not reach another hub", "workspace", e.WorkspaceID, "peer", e.To, "error", err)
	}
	return true
}
