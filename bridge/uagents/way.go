package uagents

import (
	"context"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	protocol "github.com/parley-hub/parley/uagents"
)

// mailboxIdle is the time after which an agent that did not list its mailbox counts as away: the library lists it
// each second.
const mailboxIdle = time.Minute

// way says what the hub sees of the way to an agent, for `parley doctor`: its registration, its mailbox, and the
// endpoints that the hub calls.
func (b *Binding) way(ctx context.Context, e *directory.Entry, id parley.Identity) hub.Way {
	var w hub.Way
	r := b.almanac.registered(id.ID)
	start := "start the agent with agentverse=\"" + b.public.String() + "\""
	switch {
	case r != nil && !r.Active:
		w.Warn("registration", start, "the agent told this hub's registry that it stopped; the registration ends at %s",
			hub.Stamp(r.Expires))
	case r != nil:
		w.OK("registration", "in this hub's registry until %s", hub.Stamp(r.Expires))
	case id.URL != "":
		w.Skip("registration", "not in this hub's registry; the endpoint is set here")
	case b.mailbox.has(id.ID):
		w.Warn("registration", start, "not in this hub's registry, so other agents do not find it there")
	}
	if b.usesMailbox(id, r) {
		w.How = "it fetches its messages from its mailbox at this hub"
		now := b.c.Now()
		items, listed := b.mailbox.state(id.ID, now)
		w.Heard("mailbox", start+" and mailbox=True", "asked for its messages", listed, now, mailboxIdle)
		if items > 0 {
			w.Warn("in the mailbox", "", "messages that it did not fetch yet: %d", items)
		} else {
			w.OK("in the mailbox", "no message")
		}
		return w
	}
	w.How = "the hub calls its endpoint"
	list, err := b.endpoints(ctx, id)
	setting := "agents." + e.Name + ".uagents.endpoint, or " + start + " and its endpoint"
	switch {
	case err == nil && len(list) > 0:
		if r == nil && id.URL == "" {
			w.OK("registration", "at %s (uagents.registry)", b.c.Registry)
		}
	case r != nil && slices.ContainsFunc(r.Endpoints, func(p protocol.Endpoint) bool {
		return b.isOwnPath(p.URL, pathMailbox)
	}):
		w.Fail("mailbox", "restart the agent; `parley doctor` shows whether guests have room for mailboxes",
			"it is registered with a mailbox at this hub, and has none")
	case err != nil && b.upstream != nil:
		w.Fail("registration", setting, "neither in this hub's registry nor at %s (uagents.registry): %s", b.c.Registry,
			causeText(err))
	default:
		w.How = "it has not told the hub where it takes messages"
		w.Fail("registration", setting, "not in this hub's registry, and no endpoint is set, so no message can get there")
	}
	for _, p := range list[:min(len(list), shownEndpoints)] {
		w.Addresses = append(w.Addresses, p.URL)
		if u, err := url.Parse(p.URL); err == nil && strings.HasSuffix(u.Path, pathMailbox) {
			w.How = "it fetches its messages from a mailbox at " + u.Host + ", which the hub calls"
		}
	}
	return w
}

// shownEndpoints is how many endpoints of an agent are checked.
const shownEndpoints = 4

func causeText(err error) string {
	e := protocol.AsError(err)
	if cause := e.Unwrap(); cause != nil {
		return e.Text + ": " + cause.Error()
	}
	return e.Text
}
