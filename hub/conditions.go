package hub

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
)

// A Connection is what a binding knows of an agent's connection without asking the agent. For an agent with a mailbox,
// for example, Text is "mailbox", and Heard the time when it last fetched its messages.
type Connection struct {
	Text  string    // a few words for people; may be empty
	Since time.Time // the state has lasted since then: it connected, or it left; zero: not known
	Heard time.Time // last sign of life; zero: none is known
}

// An IdentityCondition is the state of one identity of an agent.
type IdentityCondition struct {
	parley.Identity
	Condition
	Text  string // see [Connection]
	Heard time.Time
}

// Conditions gives the state of each identity of an agent: its handler or its inbox, its own identities, and those that
// the hub keeps for it. A stand-in is ready as long as the hub is. A pause holds the agent, not one of its identities,
// so it is in [Hub.Condition] alone. The agent is not asked; compare [Hub.Ways].
func (h *Hub) Conditions(e *directory.Entry) []IdentityCondition {
	var list []IdentityCondition
	l, box := h.here(e.Name)
	if e.Source == directory.FromCode {
		c := IdentityCondition{Identity: parley.Identity{Protocol: "go", ID: e.Name}, Condition: h.attempted(e, "go"),
			Text: "its handlers run in a hub's process"}
		if l != nil {
			c.Text = fmt.Sprintf("runs here, %d at work", len(l.calls))
		}
		list = append(list, c)
	}
	native := e.Native()
	for _, i := range e.Identities {
		c := IdentityCondition{Identity: i, Condition: Condition{State: Ready}}
		b := h.bindings[i.Protocol]
		switch {
		case i.StandIn && slices.Contains(native, i.Protocol):
			c.Text = "retired: the hub forwards its messages"
		case i.StandIn:
			c.Text = "answers for it"
		case b == nil && box != nil:
			c.Condition, c.Text, c.Heard = box.condition()
		case b == nil:
			c.State, c.Since = Unreachable, h.begun
			c.Err = parley.Fail(parley.Unavailable, nil, "this hub does not speak %s", i.Protocol).
				With(parley.ByHub, parley.NoAddress, "")
		default:
			h.own(&c, b, e, i)
		}
		list = append(list, c)
	}
	return append(list, h.standIns(e)...)
}

// own fills in the condition of an identity of the agent's own.
func (h *Hub) own(c *IdentityCondition, b *bound, e *directory.Entry, i parley.Identity) {
	var known Connection
	if b.can.Connection != nil {
		known = b.can.Connection(e, i)
	}
	c.Text, c.Heard = known.Text, known.Heard
	switch {
	case b.can.Reaches != nil && !b.can.Reaches(i):
		if c.Text == "" {
			c.Text = "it calls the hub; the hub cannot call it"
		}
	case b.can.Holds != nil && b.can.Holds(e, i):
		c.Condition = h.notConnected(e, known)
	default:
		if c.Condition = h.attempted(e, i.Protocol); c.State == Ready {
			c.Since = known.Since
		}
	}
}

// notConnected is the condition of an agent that is not connected. Without a time of the binding's it left before this
// hub started, or was never here.
func (h *Hub) notConnected(e *directory.Entry, known Connection) Condition {
	c := Condition{State: NotConnected, Since: known.Since}
	if c.Since.IsZero() {
		c.Since = h.begun
		if e.Added.After(c.Since) {
			c.Since = e.Added
		}
	}
	return c
}

// attempted is the condition that the attempts by one way to an agent showed. Failures before the start, and those of
// other hubs, are not known by way: they count for the first one.
func (h *Hub) attempted(e *directory.Entry, protocol string) Condition {
	v := h.deliver.Health(e.Name)
	if h.ways(e) > 1 {
		first, _, _ := h.route(e, "")
		if by := h.deliver.HealthBy(e.Name, protocol); !v.Failing() || v.Here || first.Protocol() != protocol {
			v = by
		}
	}
	c := condition(v, h.c.Now())
	if c.State == Unreachable && e.Source == directory.FromCode {
		c.State = Failing // it is in this process
	}
	return c
}

// ways counts the ways by which the hub sends to an agent.
func (h *Hub) ways(e *directory.Entry) (n int) {
	if l, box := h.here(e.Name); l != nil || box != nil {
		return 1
	}
	for _, i := range e.Identities {
		if b := h.bindings[i.Protocol]; b != nil && !i.StandIn && (b.can.Reaches == nil || b.can.Reaches(i)) {
			n++
		}
	}
	return n
}

// condition of an inbox, with who reads it.
func (b *inbox) condition() (c Condition, text string, heard time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := len(b.readers); n > 0 {
		return Condition{State: Ready}, fmt.Sprintf("inbox, %d read it at this hub", n), time.Time{}
	}
	since := b.left
	if since.IsZero() {
		since = b.opened
	}
	return Condition{State: NoReader, Since: since}, "inbox", b.left
}

// StandInAddress gives the address that the stand-in of an agent has in a protocol, also before it is exposed there;
// "" if it is not known before.
func (h *Hub) StandInAddress(protocol string, e *directory.Entry) string {
	b := h.bindings[protocol]
	switch {
	case b == nil:
		return ""
	case b.can.StandInAddress != nil:
		return b.can.StandInAddress(e.Name)
	case b.can.Address != nil:
		return b.can.Address(e)
	}
	return ""
}

// Native gives the protocol by which the hub sends to an agent: "go" or "api" for one at this hub, "" if there is none.
func (h *Hub) Native(e *directory.Entry) (protocol string, id parley.Identity) {
	if l, box := h.here(e.Name); l != nil || e.Source == directory.FromCode {
		return "go", parley.Identity{}
	} else if box != nil {
		return "api", parley.Identity{}
	}
	if b, id, ok := h.route(e, ""); ok {
		return b.Protocol(), id
	}
	return "", parley.Identity{}
}

// standIns gives the stand-ins of an agent that have no identity in the directory: their address is made of its name.
func (h *Hub) standIns(e *directory.Entry) (list []IdentityCondition) {
	native := e.Native()
	for _, protocol := range slices.Sorted(maps.Keys(h.bindings)) {
		if _, has := e.Identity(protocol); has || !e.ExposedIn(protocol) || slices.Contains(native, protocol) {
			continue
		}
		if at := h.StandInAddress(protocol, e); at != "" {
			list = append(list, IdentityCondition{Identity: parley.Identity{Protocol: protocol, ID: at, StandIn: true},
				Condition: Condition{State: Ready}, Text: "answers for it"})
		}
	}
	return list
}

// Worst gives the worst state of an agent: its own, or if that is ready, of one of several ways to it.
func (h *Hub) Worst(e *directory.Entry) AgentState {
	state := h.Condition(e).State
	if state != Ready || h.ways(e) < 2 {
		return state
	}
	for _, c := range h.Conditions(e) {
		if c.State != Ready && h.bindings[c.Protocol] != nil {
			return c.State
		}
	}
	return Ready
}
