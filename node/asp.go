package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/asp"
	aspbridge "github.com/parley-hub/parley/bridge/asp"
	bridge "github.com/parley-hub/parley/bridge/samvad"
)

func (n *Node) bindASP(ctx context.Context) error {
	c := n.c.ASP
	if c.Off {
		return nil
	}
	key, err := n.shared(ctx, "asp tokens", 32)
	if err != nil {
		return err
	}
	n.asp, err = aspbridge.New(aspbridge.Config{Hub: n.hub, Keys: n.keys, Journal: n.journal, TokenKey: key, PublicURL: n.c.PublicURL, Root: bridge.Root,
		Domain: c.Domain, Organization: c.Organization, Open: c.Registration == "open", Expose: c.Expose, MinTrust: c.MinTrust,
		Timeouts: asp.Timeouts{Conversing: c.Conversing.Duration}, Idle: c.Idle.Duration, MaxAgents: n.c.Limits.Agents, Now: n.c.Now, Logger: n.log})
	if err != nil {
		return err
	}
	return n.hub.Bind(n.asp)
}

// ASP is the node's ASP binding, or nil where it is switched off.
func (n *Node) ASP() *aspbridge.Binding { return n.asp }

// aspIdentity reads what the configuration says of an agent.
func (n *Node) aspIdentity(a *ASPAgent) (id parley.Identity, card []byte, err error) {
	if n.asp == nil {
		return id, nil, errors.New("asp.off is set")
	}
	name := a.ID
	if a.Card != "" {
		if card, err = os.ReadFile(a.Card); err != nil {
			return id, nil, fmt.Errorf("card: %w", err)
		}
		c, err := asp.ParseCard(card)
		if err != nil {
			return id, nil, fmt.Errorf("card: %w", err)
		}
		if name != "" && name != c.AgentID {
			return id, nil, fmt.Errorf("id %q is not the card's, %q", name, c.AgentID)
		}
		name = c.AgentID
	}
	if id, err = n.asp.Identity(name); err != nil {
		return id, nil, err
	}
	return id, card, nil
}

// components are the parts of a trust score.
func (t *ASPTrust) components() *asp.TrustComponents {
	if t == nil {
		return nil
	}
	return &asp.TrustComponents{IdentityVerification: t.Identity, CommunicationHistory: t.History, CommitmentFulfillment: t.Commitments,
		BehavioralConsistency: t.Consistency, ResponseQuality: t.Quality, SecurityPosture: t.Security, EconomicReliability: t.Economic, PeerEndorsements: t.Peers}
}

// senderKeys are the cards by which an ASP message can be verified again.
func (n *Node) senderKeys(ctx context.Context, m *parley.Message) ([]admin.ExportKey, error) {
	if n.asp == nil || m.Origin.Protocol != aspbridge.Protocol {
		return nil, nil
	}
	key, card, err := n.asp.CardAt(ctx, m.Origin.Peer, m.Origin.Received)
	if err != nil || card == nil {
		return nil, err
	}
	return []admin.ExportKey{{KeyID: key, Algorithm: admin.AlgorithmASPCard, Public: card, By: "asp registry"}}, nil
}

// transcript finds the ASP session of a message.
func (n *Node) transcript(m *parley.Message) (session string, own bool, write func(context.Context, io.Writer) error) {
	if n.asp == nil {
		return "", false, nil
	}
	session, own = n.asp.SessionOf(m)
	if session == "" {
		return "", false, nil
	}
	return session, own, func(ctx context.Context, w io.Writer) error { return n.asp.Server().WriteTranscript(ctx, session, w) }
}

// enrollCard registers the card of an agent that an operator adds.
func (n *Node) enrollCard(ctx context.Context, id admin.NewIdentity) error {
	if n.asp == nil || id.Protocol != aspbridge.Protocol {
		return fmt.Errorf("cards are for agents of %s, which this hub does not serve", aspbridge.Protocol)
	}
	card, err := asp.ParseCard(id.Card)
	if err != nil {
		return err
	}
	if card.AgentID != id.ID {
		return fmt.Errorf("it is the card of %s", card.AgentID)
	}
	_, err = n.asp.Enroll(ctx, id.Card)
	return err
}
