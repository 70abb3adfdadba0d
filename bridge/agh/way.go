package agh

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/agh/aghnats"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
)

// way says what the hub sees of the way to a peer or a channel, for `parley doctor`: NATS, the user and the pins by
// which the peer may speak, and its presence.
func (b *Binding) way(ctx context.Context, e *directory.Entry, id parley.Identity) hub.Way {
	var w hub.Way
	workspaceID, peer, ok := split(id.ID)
	if !ok {
		w.Fail("peer", "parley agents remove "+e.Name+", and add it with --agh WORKSPACE/PEER", "%q names no peer", id.ID)
		return w
	}
	if b.c.URL != "" {
		w.How = "it is a peer at the NATS of agh.url"
		for _, s := range aghnats.Servers(b.c.URL) {
			w.Addresses = append(w.Addresses, s.Shown)
		}
		if err := b.gateway.Connected(); err != nil {
			w.Fail("NATS", "agh.url and agh.credentials; is the server running?", "the hub is not connected: %v", err)
		} else {
			w.OK("NATS", "the hub is connected")
		}
	} else {
		w.How = "it connects to the hub's NATS"
		w.OK("NATS", "peers connect to %s (listen.agh)", b.Addr())
	}
	if peer[0] == channelMark[0] {
		w.How = "it is a channel: a notice goes to its members"
		w.OK("members", "%d agents", len(b.inChannel(workspaceID, peer[1:])))
		return w
	}
	if b.c.URL == "" {
		b.userWay(&w, e.Name, workspaceID, peer)
	}
	b.trustWay(ctx, &w, peer)
	b.presenceWay(&w, workspaceID, peer)
	return w
}

// userWay checks that a user of the configuration may speak as a peer.
func (b *Binding) userWay(w *hub.Way, name, workspaceID, peer string) {
	i := slices.IndexFunc(b.c.Users, func(u aghnats.User) bool { return u.May(workspaceID, peer) })
	if i < 0 {
		w.Fail("user", fmt.Sprintf("[agh.users.%q]: token_file, peers = [%q], workspaces = [%q]",
			strings.ReplaceAll(name, "/", "-"), peer, workspaceID),
			"no user of agh.users may speak as %s in %s, so it cannot connect", peer, workspaceID)
		return
	}
	w.OK("user", "%s may speak as %s", b.c.Users[i].Name, peer)
}

// trustWay checks the settings for a verified handle.
func (b *Binding) trustWay(ctx context.Context, w *hub.Way, peer string) {
	nickname, _, handle := protocol.SplitHandle(peer)
	switch {
	case !handle:
	case !b.c.Trust:
		w.Fail("trust", "agh.trust = true", "%s is a verified handle, and the hub accepts none", peer)
	default:
		for _, id := range []string{peer, nickname} {
			if b.c.Pins == nil {
				break
			}
			if keys, err := b.c.Pins.Keys(ctx, id); err == nil && len(keys) > 0 {
				w.OK("trust", "agh.pins.%s pins its key", id)
				return
			}
		}
		if b.c.RequirePins {
			w.Fail("trust", fmt.Sprintf("[agh.pins.%q]: keys = [its public key]", nickname),
				"agh.require_pins is set, and no pin names %s", peer)
			return
		}
		w.OK("trust", "its handle names its key; agh.pins has no pin for it")
	}
}

// presenceWay says where a peer is present, and when it was last heard of.
func (b *Binding) presenceWay(w *hub.Way, workspaceID, peer string) {
	fix := fmt.Sprintf("start the peer; it must greet in a channel every %s", b.interval())
	joined := b.members.memberships(workspaceID, peer)
	if len(joined) == 0 {
		w.Fail("presence", fix, "no peer %s spoke or greeted in workspace %s", peer, workspaceID)
		return
	}
	for _, x := range joined {
		if !b.here(x) {
			continue
		}
		where := "in channel " + x.channel
		if x.node != b.members.node {
			where += " at the hub " + x.node
		}
		w.OK("presence", "present %s; last heard of at %s", where, hub.Stamp(x.seen))
		return
	}
	if !slices.ContainsFunc(joined, func(x member) bool { return !x.expired }) {
		w.Fail("presence", fix, "away since %s, longer than agh.keep: its messages become dead letters",
			hub.Stamp(joined[0].seen))
		return
	}
	w.Warn("presence", fix, "away; last heard of at %s in channel %s. Its messages wait until it greets, at most %s",
		hub.Stamp(joined[0].seen), joined[0].channel, b.keep())
}
