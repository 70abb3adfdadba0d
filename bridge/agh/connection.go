package agh

import (
	"fmt"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
)

// connection says where a peer is present, or since when it is away: [hub.Capabilities.Connection].
func (b *Binding) connection(_ *directory.Entry, id parley.Identity) hub.Connection {
	workspaceID, peer, ok := split(id.ID)
	if !ok {
		return hub.Connection{}
	}
	if peer[0] == channelMark[0] {
		return hub.Connection{Text: fmt.Sprintf("a channel of %d agents", len(b.inChannel(workspaceID, peer[1:])))}
	}
	var last time.Time
	for _, x := range b.members.memberships(workspaceID, peer) {
		if b.here(x) {
			return hub.Connection{Text: "present in channel " + x.channel, Heard: x.seen}
		}
		if x.seen.After(last) {
			last = x.seen
		}
	}
	if last.IsZero() {
		return hub.Connection{Text: "it has not greeted"}
	}
	return hub.Connection{Text: "away", Since: last, Heard: last}
}
