package a2e

import (
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
)

// maxLeft bounds the agents of which the hub knows when their last call ended.
const maxLeft = 1 << 16

// connection says since when an agent takes its messages, or left: [hub.Capabilities.Connection]. Of a host the attempts
// alone tell.
func (b *Binding) connection(e *directory.Entry, id parley.Identity) hub.Connection {
	if id.URL != "" {
		return hub.Connection{Text: "the hub connects to its host"}
	}
	x := b.inboxes
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, a := range x.calls[e.Name] {
		if a.r != nil && a.r.c != nil && a.r.c.Session != nil {
			s := a.r.c.Session
			return hub.Connection{Text: "connected", Since: s.Opened(), Heard: s.Heard()}
		}
	}
	for _, a := range x.calls[e.Name] {
		if x.lives(a) {
			return hub.Connection{Text: "at the hub " + a.Node, Since: a.Since}
		}
	}
	left := x.ended[e.Name]
	return hub.Connection{Text: "does not call parley_inbox", Since: left, Heard: left}
}

// noteEnded notes that an agent's last call ended; x.mu is held.
func (x *inboxes) noteEnded(agent string, now time.Time) {
	if x.ended == nil || len(x.ended) >= maxLeft {
		x.ended = map[string]time.Time{}
	}
	x.ended[agent] = now
}
