package samvad

import (
	"context"
	"strings"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
)

// way says how messages get to an agent, for `parley doctor`. An agent without a URL only calls: its key must be known.
func (b *Binding) way(_ context.Context, e *directory.Entry, id parley.Identity) hub.Way {
	if id.URL != "" {
		return hub.Way{How: "the hub calls it", Addresses: []string{id.URL}}
	}
	w := hub.Way{How: "it calls the hub; the hub cannot call it"}
	var ids []string
	for _, k := range b.c.Keys.Enrolled(e.Name, Protocol) {
		ids = append(ids, k.KeyID)
	}
	if len(ids) == 0 {
		w.Warn("key", "parley keys enroll "+e.Name+" --key KEY",
			"none is enrolled: its messages need the proof of a card at the https origin of %s", id.ID)
	} else {
		w.OK("key", "enrolled: %s", strings.Join(ids, ", "))
	}
	return w
}
