package node

import (
	"context"
	"encoding/base64"
	"time"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/bridge/asp"
	"github.com/parley-hub/parley/internal/connect"
	"github.com/parley-hub/parley/internal/inspect"
	"github.com/parley-hub/parley/internal/netguard"
	"github.com/parley-hub/parley/keyring"
)

// workbench is what the admin API does with the protocols.
func (n *Node) workbench() admin.Workbench {
	return admin.Workbench{Inspect: n.inspect, Doctor: n.doctor, Read: n.readAgent, Paste: n.paste,
		Joins:  connect.Joins(),
		Losses: foretold}
}

// readAgent reads what an agent says of itself, where the guard allows that.
func (n *Node) readAgent(ctx context.Context, a admin.NewAgent) (admin.AgentReading, error) {
	client := n.guard.Client(netguard.Options{RootCAs: n.rootCAs})
	defer client.CloseIdleConnections()
	return (&connect.Reader{Guard: n.guard, Client: client, Version: n.c.Version}).Read(ctx, a)
}

// paste gives the lines to enter at an agent's side.
func (n *Node) paste(name string, ids []admin.Identity) []admin.Paste {
	c := n.live.Load()
	h := &connect.Hub{Info: n.info(), A2EPath: c.A2E.Path, AGH: connect.AGH{URL: c.AGH.URL, Listen: c.Listen.AGH}}
	for user, u := range c.AGH.Users {
		h.AGH.Users = append(h.AGH.Users, connect.AGHUser{Name: user, Peers: u.Peers, Workspaces: u.Workspaces})
	}
	return h.Paste(name, ids)
}

// inspect explains a pasted message, with the keys and cards that the hub knows.
func (n *Node) inspect(ctx context.Context, i admin.Inspection) (*admin.Inspected, error) {
	o := inspect.Options{Keys: i.Keys, Card: i.Card, Self: i.Self, Now: i.At, Base: n.c.PublicURL, Recorded: i.Recorded,
		Known: func(protocol, sender string) ([]string, []byte) { return n.knownKeys(ctx, protocol, sender, i.At) }}
	v, err := inspect.Inspect(ctx, i.Input, i.Protocol, o)
	if err != nil {
		return nil, err
	}
	if i.Vector {
		if v.Vector, err = inspect.Vector(ctx, i.Input, i.Protocol, o); err != nil {
			return nil, err
		}
	}
	if !i.SignedBytes {
		v.SignedBytes = nil
	}
	return v, nil
}

// knownKeys gives the keys that an operator enrolled for a sender, or the card with them.
func (n *Node) knownKeys(ctx context.Context, protocol, sender string, at time.Time) (keys []string, card []byte) {
	if protocol == asp.Protocol {
		if b := n.ASP(); b != nil {
			_, card, _ = b.CardAt(ctx, sender, at) // a card that cannot be read is not known
		}
		return nil, card
	}
	e, ok := n.directory.Lookup(protocol, sender)
	if !ok {
		return nil, nil
	}
	for _, k := range n.keys.Enrolled(e.Name, protocol) {
		if k.Algorithm == keyring.Ed25519 {
			keys = append(keys, base64.StdEncoding.EncodeToString(k.Public))
		}
	}
	return keys, nil
}
