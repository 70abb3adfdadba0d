package node

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/parley-hub/parley"
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
