package uagents

import (
	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
)

// connection says when an agent last fetched its mailbox: [hub.Capabilities.Connection].
func (b *Binding) connection(_ *directory.Entry, id parley.Identity) hub.Connection {
	if !b.usesMailbox(id, b.almanac.registered(id.ID)) {
		return hub.Connection{}
	}
	_, listed := b.mailbox.state(id.ID, b.c.Now())
	return hub.Connection{Text: "mailbox", Heard: listed}
}
