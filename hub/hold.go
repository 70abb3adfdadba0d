package hub

import (
	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/policy"
)

// A HoldingBinding knows of single agents that they cannot take anything just
// now: what arrives for them waits, without an attempt and without using up a
// try, until [Hub.Kick].
type HoldingBinding interface {
	Binding
	Holds(e *directory.Entry, id parley.Identity) bool
}

// Kick lets deliveries to an agent go on that were held back.
func (h *Hub) Kick(name string) { h.deliver.Kick(name) }

// Visible reports whether a message of a protocol, from an agent of the
// directory to a skill of e, would pass exposure and permission: what lists of
// agents may show.
func (h *Hub) Visible(protocol, from string, e *directory.Entry, skill string) bool {
	return h.policy.Load().Visible(protocol, from, policy.Recipient{Agent: &e.Agent, Native: e.Native()}, skill)
}

// holds asks the binding of an agent.
func (h *Hub) holds(e *directory.Entry) bool {
	h.mu.Lock()
	_, local := h.local[e.Name]
	h.mu.Unlock()
	b, id, ok := h.route(e, "")
	if local || !ok {
		return false
	}
	hb, ok := b.(HoldingBinding)
	return ok && hb.Holds(e, id)
}

// Hearers tells who of names may hear m, which is to go to many: one who may
// not is no reason to keep it from the others.
func (h *Hub) Hearers(m *parley.Message, names []string) []string {
	var out []string
	for _, name := range names {
		e, ok := h.c.Directory.Agent(name)
		if ok && h.policy.Load().Permits(m, policy.Recipient{Agent: &e.Agent, Native: e.Native()}) {
			out = append(out, name)
		}
	}
	return out
}
