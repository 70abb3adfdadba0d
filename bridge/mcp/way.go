package mcp

import (
	"context"

	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"

	"github.com/parley-hub/parley"
)

// way says how messages get to an agent.
func (b *Binding) way(ctx context.Context, e *directory.Entry, id parley.Identity) hub.Way {
	if IsCaller(id.ID) {
		return hub.Way{How: "it calls the hub, and reads its messages by parley_inbox"}
	}
	return b.outgoing.way(ctx, e.Name, id)
}

// way says how messages get to an attached server.
func (o *outgoing) way(ctx context.Context, agent string, id parley.Identity) hub.Way {
	w, s := hub.Way{How: "the hub calls its tools"}, o.state(agent)
	tunnel := IsTunnel(id.ID)
	if tunnel {
		w.How = `the hub calls its tools, through "parley mcp attach"`
	} else {
		w.Addresses = []string{id.URL}
	}
	switch {
	case s.open:
		w.OK("connection", "open, in revision %s of MCP", s.version)
	case tunnel:
		w.Fail("connection", "parley mcp attach "+agent+" -- COMMAND",
			"the server is not attached to this hub; its messages wait")
	case s.err != nil:
		w.Fail("connection", "", "the server cannot be reached: %s", faultText(s.err))
	default:
		w.Skip("connection", "the next call opens it")
	}
	if tunnel && o.sharesJournal() {
		w.Skip("other hubs", "each hub of the cluster delivers a part of the messages, through its own connection: run one "+
			"`parley mcp attach %s --url HUB` for each, at that hub's own address, and `parley doctor %[1]s` at each", agent)
	}
	o.toolsWay(ctx, &w, agent)
	if !tunnel {
		o.credentialsWay(&w, agent)
	}
	switch {
	case s.failed != nil:
		w.Warn("calls", "", "the last call failed: %s", faultText(s.failed))
	case s.called.IsZero():
		w.Skip("calls", "none since the hub started")
	default:
		w.OK("calls", "it answered the last one at %s", hub.Stamp(s.called))
	}
	o.mu.Lock()
	open := o.open[agent]
	o.mu.Unlock()
	if open >= maxCalls {
		w.Warn("load", "", "it works on %d calls of this hub, the most at once; further ones wait", open)
	} else {
		w.OK("load", "it works on %d calls of this hub, of at most %d", open, maxCalls)
	}
	return w
}

// sharesJournal reports whether other hubs deliver a part of the messages.
func (o *outgoing) sharesJournal() bool {
	j := o.b.c.Journal
	for p := range j.Partitions() {
		if !j.Owned(p) {
			return true
		}
	}
	return false
}

// toolsWay says which tools agents may call.
func (o *outgoing) toolsWay(ctx context.Context, w *hub.Way, agent string) {
	list, err := o.b.Tools(ctx, agent)
	switch {
	case err != nil:
		w.Fail("tools", "", "the hub cannot read what it knows of them: %s", err)
	case list.Digest != "":
		w.Warn("tools", "parley mcp approve "+agent, "%d are called as they were approved; the server now lists %d, which "+
			"differ", len(list.Approved), len(list.Offered))
	case len(list.Approved) == 0:
		w.Warn("tools", "", "none are known")
	default:
		w.OK("tools", "%d, as the server lists them", len(list.Approved))
	}
}

// credentialsWay says what the hub shows to a server.
func (o *outgoing) credentialsWay(w *hub.Way, agent string) {
	c := o.b.settingsOf(agent).Credentials
	if c.Empty() {
		var err error
		if c, err = o.b.secrets.Get(agent); err != nil {
			w.Fail("credentials", "store them again", "the stored ones cannot be read")
			return
		}
	}
	if c.Empty() {
		w.OK("credentials", "none")
	} else {
		w.OK("credentials", "%s", c.Kinds())
	}
}

// faultText says what happened in the network, or else what the error says.
func faultText(err error) string {
	if _, detail := bridge.NetworkFault(err); detail != "" {
		return detail
	}
	return shownText(err.Error(), maxErrorText)
}
