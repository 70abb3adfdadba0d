package mcp

import (
	"context"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
)

// connection says since when a server is connected, or gone: [hub.Capabilities.Connection].
func (b *Binding) connection(e *directory.Entry, id parley.Identity) hub.Connection {
	if IsCaller(id.ID) {
		return hub.Connection{Text: "reads its messages by parley_inbox"}
	}
	v := b.servers.known(e.Name)
	if v == nil {
		return hub.Connection{Text: "not attached yet"}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	c := hub.Connection{Text: "no connection is open", Since: v.since, Heard: v.called}
	if v.link != nil && v.link.identity.ID == id.ID && v.link.ctx.Err() == nil {
		c.Text = "connected"
	}
	return c
}

// noteLink notes when a connection opened, and when it ends; v.mu is held.
func (v *server) noteLink(l *link, now func() time.Time) {
	v.since = now()
	context.AfterFunc(l.ctx, func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		if v.link == l || v.link == nil {
			v.since = now()
		}
	})
}
