package hub

import (
	"context"
	"slices"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/policy"
)

// groupMembers are the agents that get a notice because it is addressed to their group.
func (h *Hub) groupMembers(m *parley.Message) []string {
	e, ok := h.c.Directory.Agent(m.To)
	if !ok {
		return nil
	}
	b, id, ok := h.route(e, "")
	if !ok || b.can.Members == nil {
		return nil
	}
	names := slices.DeleteFunc(b.can.Members(e, id), func(n string) bool { return n == m.From || n == m.To })
	return h.Hearers(m, names)
}

// Kick resumes the deliveries that [Capabilities.Holds] held back.
func (h *Hub) Kick(name string) { h.deliver.Kick(name) }

// Addresses gives the addresses of an agent by protocol: its own, or its stand-in's.
func (h *Hub) Addresses(e *directory.Entry) map[string]string {
	out := map[string]string{}
	for protocol, b := range h.bindings {
		if b.can.Address == nil {
			continue
		}
		if at := b.can.Address(e); at != "" {
			out[protocol] = at
		}
	}
	return out
}

// Profile gives the profile that an agent's owner published, or nil.
func (h *Hub) Profile(e *directory.Entry) *Profile {
	for _, b := range h.bindings {
		if b.can.Profile == nil {
			continue
		}
		if p := b.can.Profile(e); p != nil {
			return p
		}
	}
	return nil
}

// Visible reports whether exposure and permission let a message of a protocol from an
// agent of the directory reach a skill of e. Lists of agents show only those.
func (h *Hub) Visible(protocol, from string, e *directory.Entry, skill string) bool {
	return h.policy.Load().Visible(protocol, from, policy.Recipient{Agent: &e.Agent, Native: e.Native()}, skill)
}

// holds reports whether messages to an agent wait without an attempt; see
// [Capabilities.Holds].
func (h *Hub) holds(e *directory.Entry) bool {
	l, _ := h.here(e.Name)
	b, id, ok := h.route(e, "")
	return l == nil && ok && b.can.Holds != nil && b.can.Holds(e, id)
}

// Hearers gives the names of the agents that policy lets m reach. m goes to many; the
// other names are left out.
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

// Pause holds back the deliveries to an agent, or resumes them.
func (h *Hub) Pause(ctx context.Context, name string, paused bool) error {
	return h.c.Directory.Pause(ctx, name, paused)
}

// PauseBy holds back the deliveries to an agent, and notes by whom and why.
func (h *Hub) PauseBy(ctx context.Context, name, by, reason string) error {
	return h.c.Directory.PauseBy(ctx, name, by, reason)
}

// here finds the handler or the inbox of an agent in this process.
func (h *Hub) here(name string) (*local, *inbox) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.local[name], h.inboxes[name]
}

// reachable reports whether a message of a kind can be sent to an agent. A handler
// in this process takes requests and notices only.
func (h *Hub) reachable(name string, k parley.Kind) bool {
	l, box := h.here(name)
	switch {
	case box != nil:
		return true
	case l != nil:
		return k == parley.Request || k == parley.Notice
	}
	e, ok := h.c.Directory.Agent(name)
	if !ok {
		return false
	}
	_, _, ok = h.route(e, "")
	return ok
}

// route picks the binding for a recipient: the protocol given, if the agent
// speaks it natively, else the first protocol that it speaks.
func (h *Hub) route(e *directory.Entry, protocol string) (*bound, parley.Identity, bool) {
	var binding *bound
	var identity parley.Identity
	for _, i := range e.Identities {
		b := h.bindings[i.Protocol]
		if b == nil || i.StandIn || b.can.Reaches != nil && !b.can.Reaches(i) {
			continue
		}
		if i.Protocol == protocol {
			return b, i, true
		}
		if binding == nil {
			binding, identity = b, i
		}
	}
	return binding, identity, binding != nil
}
