package hub

import (
	"slices"

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

// A GroupBinding has agents that stand for many: a notice to one is for each of
// its members too, who hear it when they can.
type GroupBinding interface {
	Binding
	// Members of an agent, as directory names; nil where it stands for itself.
	Members(e *directory.Entry, id parley.Identity) []string
}

// members are who hears a notice because of whom it is addressed to.
func (h *Hub) members(m *parley.Message) []string {
	e, ok := h.c.Directory.Agent(m.To)
	if !ok {
		return nil
	}
	b, id, ok := h.route(e, "")
	if !ok {
		return nil
	}
	g, ok := b.(GroupBinding)
	if !ok {
		return nil
	}
	names := slices.DeleteFunc(g.Members(e, id), func(n string) bool { return n == m.From || n == m.To })
	return h.Hearers(m, names)
}

// Kick lets deliveries to an agent go on that were held back.
func (h *Hub) Kick(name string) { h.deliver.Kick(name) }

// Addresses tells, by protocol, where an agent is reached: as itself, or as the
// stand-in that the hub keeps for it there.
func (h *Hub) Addresses(e *directory.Entry) map[string]string {
	out := map[string]string{}
	for _, b := range h.bindings {
		if ab, ok := b.(AddressBinding); ok {
			if at := ab.Address(e); at != "" {
				out[b.Protocol()] = at
			}
		}
	}
	return out
}

// Profile is what an agent's owner says of it, or nil.
func (h *Hub) Profile(e *directory.Entry) *Profile {
	for _, b := range h.bindings {
		if pb, ok := b.(ProfileBinding); ok {
			if p := pb.Profile(e); p != nil {
				return p
			}
		}
	}
	return nil
}

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
