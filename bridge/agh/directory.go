package agh

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/policy"
)

// Peers and channels as agents of the directory: a peer is added when it first
// speaks, and removed when it has been away for too long.

// greeted makes the sender of a greeting a member, and delivers its missed messages.
func (b *Binding) greeted(ctx context.Context, e *protocol.Envelope, card *protocol.Card, guest, joined bool) error {
	at := peerAddress{e.WorkspaceID, e.Channel, e.From}
	name, err := b.introduceSender(ctx, at, card, guest)
	if err != nil {
		return err
	}
	back, err := b.members.noteSeen(ctx, at, name, guest, e, joined, b.now())
	if back {
		b.c.Hub.Kick(name)
	}
	b.retryPending(at)
	return err
}

// introduceSender is introduce for a peer that becomes a member, if there is room.
func (b *Binding) introduceSender(ctx context.Context, at peerAddress, card *protocol.Card, guest bool) (string,
	error) {
	if err := b.members.checkRoom(at, guest); err != nil {
		return "", err
	}
	return b.introduce(ctx, at.workspaceID, at.channel, at.peer, card, guest)
}

// introduce adds a peer and its channel to the directory, unless they are there,
// and gives the peer's name. A guest's entry is charged to the guests' budget.
func (b *Binding) introduce(ctx context.Context, workspaceID, channel, peer string, card *protocol.Card,
	guest bool) (string, error) {
	if err := b.openChannel(ctx, workspaceID, channel, guest); err != nil {
		return "", err
	}
	id := Identity(workspaceID, peer)
	dir := b.c.Hub.Directory()
	entry, known := dir.Lookup(Protocol, id.ID)
	source := sourceOf(guest)
	if known && entry.Source == directory.FromGuest && !guest {
		// The peer belongs to a user with credentials from now on.
		if err := dir.Remove(ctx, entry.Name); err != nil {
			return "", err
		}
		b.c.Hub.Guests().Drop(policy.Registration, guestKey(id.ID))
		known = false
	}
	if known && guest {
		b.c.Hub.Guests().Use(policy.Registration, guestKey(id.ID))
	}
	if known && (card == nil || entry.Source != source) {
		return entry.Name, nil
	}
	a := parley.Agent{Title: peer, Identities: []parley.Identity{id},
		Skills: []parley.SkillSpec{{ID: "say", Name: "Talk", Description: "Anything that is said to it.",
			Default: true}}}
	if card != nil {
		a.Title = cmp.Or(card.DisplayName, peer)
		for _, c := range card.Capability {
			if c != "say" && len(c) <= 64 && len(a.Skills) < 256 {
				a.Skills = append(a.Skills, parley.SkillSpec{ID: c})
			}
		}
	}
	if known {
		if entry.Title == a.Title && slices.EqualFunc(entry.Skills, a.Skills,
			func(x, y parley.SkillSpec) bool { return x.ID == y.ID }) {
			return entry.Name, nil
		}
		a.Name = entry.Name
	} else {
		name, valid := agentName(workspaceID, peer)
		if _, taken := dir.Agent(name); taken || !valid {
			name = directory.GuestName(Protocol, id.ID, "")
		}
		a.Name = name
	}
	if guest {
		if err := b.admitGuest(ctx, &a, known); err != nil {
			return "", err
		}
	}
	_, err := dir.Put(ctx, a, source)
	if err != nil && guest && !known {
		b.c.Hub.Guests().Drop(policy.Registration, guestKey(id.ID))
	}
	return a.Name, err
}

// ChannelName gives the directory name of a channel. A notice to it goes to all
// members.
func ChannelName(workspaceID, channel string) string {
	name := "agh/" + workspaceID + "/" + channel
	if parley.CheckName(name) != nil {
		name = directory.GuestName(Protocol, workspaceID+"/"+channelMark+channel, "")
	}
	return name
}

var errChannels = errors.New("too many channels are open")

func (b *Binding) openChannel(ctx context.Context, workspaceID, channel string, guest bool) error {
	key, most := [2]string{workspaceID, channel}, cmp.Or(b.c.MaxChannels, 8192)
	if guest {
		most = max(1, most/4)
	}
	b.mu.Lock()
	_, ok := b.channels[key]
	full := len(b.channels) >= most
	b.mu.Unlock()
	if ok {
		return nil
	}
	if full {
		return errChannels
	}
	_, err := b.c.Hub.Directory().Put(ctx, parley.Agent{Name: ChannelName(workspaceID, channel),
		Title:      "channel " + channel + " of " + workspaceID,
		Identities: []parley.Identity{Identity(workspaceID, channelMark+channel)}}, directory.FromCode)
	if err == nil {
		b.mu.Lock()
		b.channels[key] = true
		b.mu.Unlock()
	}
	return err
}

// nameOf is the directory name of a peer, "" if it has none.
func (b *Binding) nameOf(workspaceID, channel, peer string) string {
	if name := b.agentAt(workspaceID, channel, peer); name != "" || peer == "" {
		return name
	}
	if e, ok := b.c.Hub.Directory().Lookup(Protocol, Identity(workspaceID, peer).ID); ok {
		return e.Name
	}
	return ""
}

// dropAbsent removes peers that were away for too long.
func (b *Binding) dropAbsent(ctx context.Context) {
	expired, forgotten := b.members.sweep(b.now().Add(-b.keep()))
	for _, x := range expired {
		b.c.Hub.Kick(x.name)
	}
	for _, x := range forgotten {
		err := b.members.rows.Delete(ctx, x.key(), 0)
		e, ok := b.c.Hub.Directory().Agent(x.name)
		if ok && registered(e) && len(b.members.memberships(x.workspaceID, x.peer)) == 0 {
			err = errors.Join(err, b.c.Hub.Directory().Remove(ctx, x.name))
			b.c.Hub.Guests().Drop(policy.Registration, guestKey(Identity(x.workspaceID, x.peer).ID))
		}
		if err != nil {
			b.c.Logger.Warn("cannot forget a peer", "workspace", x.workspaceID, "peer", x.peer, "error", err)
		}
	}
}
