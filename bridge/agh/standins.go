package agh

import (
	"cmp"
	"errors"
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
	agent string // directory name, or Self
	card  *protocol.Card
}

// populate hosts the agents that are exposed in AGH as peers of their channels, and
// unhosts all others.
func (b *Binding) populate() error {
	want := map[peerAddress]*directory.Entry{}
	for _, e := range b.c.Hub.Directory().All() {
		// A stand-in that has retired stays: its messages are forwarded.
		if !e.ExposedIn(Protocol) || slices.Contains(e.Native(), Protocol) && !hasStandIn(e) {
			continue
		}
		for _, p := range b.c.Channels {
			if len(p.Agents) == 0 || slices.Contains(p.Agents, e.Name) {
				want[peerAddress{p.WorkspaceID, p.Channel, peerID(e.Name)}] = e
			}
		}
	}
	b.mu.Lock()
	var gone []peerAddress
	for p, s := range b.hosted {
		if want[p] == nil && s.agent != Self {
			gone = append(gone, p)
			delete(b.hosted, p)
		}
	}
	b.mu.Unlock()
	for _, p := range gone {
		b.gateway.Unhost(p.workspaceID, p.channel, p.peer)
	}
	var first error
	for p, e := range want {
		if err := b.host(p, e); err != nil && first == nil {
			first = fmt.Errorf("agent %q as peer %s of %s: %w", e.Name, p.peer, p.channel, err)
			continue
		}
		if hasStandIn(e) {
			continue
		}
		id := Identity(p.workspaceID, p.peer)
		if err := b.c.Hub.Directory().StandIn(b.ctx, e.Name, id); err != nil && !errors.Is(err, directory.ErrUnknown) &&
			first == nil {
			first = fmt.Errorf("note the stand-in for %s: %w", e.Name, err)
		}
	}
	return first
}

// hasStandIn reports whether the directory has a stand-in of an agent here.
func hasStandIn(e *directory.Entry) bool {
	return slices.ContainsFunc(e.Identities,
		func(i parley.Identity) bool { return i.Protocol == Protocol && i.StandIn })
}

// host makes an agent a peer, with its skills as capabilities.
func (b *Binding) host(p peerAddress, e *directory.Entry) error {
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
	b.mu.Lock()
	old := b.hosted[p].card
	b.mu.Unlock()
	if old != nil && old.DisplayName == card.DisplayName && slices.Equal(old.Capability, card.Capability) &&
		string(old.Ext) == string(card.Ext) {
		return nil
	}
	if err := b.gateway.Host(&protocol.Local{WorkspaceID: p.workspaceID, Channel: p.channel, Card: card,
		Catalog: catalog}); err != nil {
		return err
	}
	b.mu.Lock()
	b.hosted[p] = standIn{e.Name, card}
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
