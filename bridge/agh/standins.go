package agh

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/directory"
)

// Stand-ins: agents of other protocols that are exposed in AGH are peers of the
// configured channels, and the hub itself is the peer "parley".

// standIn is the peer that the hub keeps for an agent.
type standIn struct {
	agent string           // directory name, or Self
	entry *directory.Entry // from which the card was made
	card  *protocol.Card
}

// enqueue tells run that an agent may have to become a peer, or be one no longer.
func (b *Binding) enqueue(name string) {
	b.mu.Lock()
	b.changed[name] = true
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// populate hosts those of the agents that are exposed in AGH as peers of their channels, and unhosts the others.
func (b *Binding) populate(names []string, progress func(done int)) error {
	var first error
	unnoted := map[string]parley.Identity{}
	for i, name := range names {
		progress(i)
		e, _ := b.c.Hub.Directory().Agent(name)
		for _, c := range b.c.Channels {
			p := peerAddress{c.WorkspaceID, c.Channel, peerID(name)}
			if !c.has(e) {
				b.unhost(p, name)
			} else if err := b.host(p, e); err != nil {
				first = cmp.Or(first, fmt.Errorf("agent %q as peer %s of %s: %w", name, p.peer, p.channel, err))
			} else if _, ok := unnoted[name]; !ok && !hasStandIn(e) {
				unnoted[name] = Identity(p.workspaceID, p.peer)
			}
		}
	}
	first = cmp.Or(first, b.c.Hub.Directory().StandIns(b.ctx, unnoted))
	progress(len(names))
	return first
}

// has reports whether an agent is a peer of the channel. A stand-in that has retired stays: its messages are forwarded.
func (c *Channel) has(e *directory.Entry) bool {
	return e != nil && e.ExposedIn(Protocol) && (!slices.Contains(e.Native(), Protocol) || hasStandIn(e)) &&
		(len(c.Agents) == 0 || slices.Contains(c.Agents, e.Name))
}

// unhost ends the peer of an agent, if it is there.
func (b *Binding) unhost(p peerAddress, name string) {
	b.mu.Lock()
	hosted := b.hosted[p].agent == name && name != Self
	if hosted {
		delete(b.hosted, p)
	}
	b.mu.Unlock()
	if hosted {
		b.gateway.Unhost(p.workspaceID, p.channel, p.peer)
	}
}

// hasStandIn reports whether the directory has a stand-in of an agent here.
func hasStandIn(e *directory.Entry) bool {
	return slices.ContainsFunc(e.Identities,
		func(i parley.Identity) bool { return i.Protocol == Protocol && i.StandIn })
}

// host makes an agent a peer, with its skills as capabilities.
func (b *Binding) host(p peerAddress, e *directory.Entry) error {
	b.mu.Lock()
	was := b.hosted[p]
	b.mu.Unlock()
	if was.agent == e.Name && was.entry.SameCard(e) {
		return nil
	}
	catalog := make([]protocol.Capability, 0, len(e.Skills))
	for _, s := range e.Skills {
		c := protocol.Capability{ID: s.ID, Summary: cmp.Or(s.Description, s.Name, s.ID),
			Outcome: "Answers with a trace completed that holds the result, and a say."}
		if len(s.Input) > 0 {
			c.ContextNeeded = []string{"Content that fits this JSON Schema: " + string(s.Input)}
		}
		if len(s.Output) > 0 {
			c.ArtifactsExpected = []string{"A result that fits this JSON Schema: " + string(s.Output)}
		}
		catalog = append(catalog, c)
	}
	if len(catalog) == 0 {
		catalog = nil
	}
	card, err := protocol.NewCard(p.peer, cmp.Or(e.Title, e.Name), catalog)
	if err != nil {
		return err
	}
	stated := &protocol.Envelope{Ext: card.Ext}
	if err := stated.SetExt(ExtParley, map[string]string{"hub": b.c.Hub.ID(), "agent": e.Name}); err != nil {
		return err
	}
	card.Ext = stated.Ext
	if old := was.card; old != nil && old.DisplayName == card.DisplayName &&
		slices.Equal(old.Capability, card.Capability) && string(old.Ext) == string(card.Ext) {
		return nil
	}
	if err := b.gateway.Host(&protocol.Local{WorkspaceID: p.workspaceID, Channel: p.channel, Card: card,
		Catalog: catalog}); err != nil {
		return err
	}
	b.mu.Lock()
	b.hosted[p] = standIn{e.Name, e, card}
	b.mu.Unlock()
	b.retryPending(p)
	return nil
}

// speaker is the peer id that an agent speaks as in a channel: its own, or the hub's.
func (b *Binding) speaker(workspaceID, channel, agent string) (string, error) {
	if own := peerID(agent); b.agentAt(workspaceID, channel, own) == agent {
		return own, nil
	}
	if b.agentAt(workspaceID, channel, Self) == Self {
		return Self, nil
	}
	p := peerAddress{workspaceID, channel, Self}
	return Self, b.host(p, &directory.Entry{Agent: parley.Agent{Name: Self, Title: "Parley"}})
}

// agentAt gives the agent for which a peer stands in, "" if it is no stand-in.
func (b *Binding) agentAt(workspaceID, channel, peer string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.hosted[peerAddress{workspaceID, channel, peer}].agent
}
