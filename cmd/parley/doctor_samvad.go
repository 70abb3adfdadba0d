package main

import (
	"context"
	"encoding/base64"
	"errors"
	"net/url"
	"slices"

	"github.com/parley-hub/parley/admin"
	bridge "github.com/parley-hub/parley/bridge/samvad"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/keyring"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/samvad"
)

// samvadHub checks the hub as an agent of SAMVAD.
func (d *doctor) samvadHub(ctx context.Context) {
	d.public(ctx)
	d.rotation(ctx)
}

// public checks the hub at its public URL.
func (d *doctor) public(ctx context.Context) {
	base := d.c.PublicURL
	switch {
	case base == "" && (d.hub == nil || d.Info.PublicURL == ""):
		d.Skip("public_url", "not set: peers reach the hub at its listener only")
		return
	case d.hub == nil:
		d.Skip("public_url", "no hub runs, so nothing answers there")
		return
	case base == "":
		base = d.Info.PublicURL
	}
	card := d.SAMVADCard(ctx, "public_url", base, nil)
	if card == nil {
		return
	}
	if slices.ContainsFunc(card.PublicKeys, func(k samvad.CardKey) bool {
		return k.Active && k.Key == d.Info.SAMVAD.Key
	}) {
		d.OK("public_url key", "the card there has this hub's key")
		return
	}
	d.Failed("public_url key", "public_url, or the proxy in front of the hub: another hub or program answers there",
		errors.New("the card there does not have this hub's key"))
}

// samvadWay is the way to an agent with a table of SAMVAD.
func samvadWay(_ *node.Config, a *node.Agent) *hub.Way {
	switch {
	case a.SAMVAD == nil:
		return nil
	case a.SAMVAD.URL == "":
		return &hub.Way{ID: a.SAMVAD.ID, How: "it calls the hub; the hub cannot call it"}
	}
	return &hub.Way{ID: a.SAMVAD.ID, How: "the hub calls it", Addresses: []string{a.SAMVAD.URL}}
}

// hubKeys opens the keyring for a check, and gives the identity as which the hub signs.
func (d *doctor) hubKeys(check string) (ring *keyring.Ring, identity string) {
	identity = d.Info.SAMVAD.Identity
	if identity == "" && d.c.PublicURL != "" {
		if u, err := url.Parse(d.c.PublicURL); err == nil {
			identity = "agent://" + u.Host
		}
	}
	if identity == "" {
		d.Skip(check, "the hub has no identity before it runs; set public_url, or start it")
		return nil, ""
	}
	if d.c.Engine.URL != "" {
		d.Skip(check, "no signed request was sent: only the hubs of a cluster have its private keys, and they give "+
			"them to no command; "+
			"`parley send --to AGENT TEXT` has a hub send a signed message, and shows its outcome")
		return nil, ""
	}
	ring, err := d.a.ring()
	if err != nil {
		d.Skip(check, "the hub's key is not at hand: %s", short(err.Error(), 200))
		return nil, ""
	}
	return ring, identity
}

// rotation tries every SAMVAD agent with the hub's next key, if that is being replaced:
// the report names agents that do not accept it before it signs.
func (d *doctor) rotation(ctx context.Context) {
	if d.NoSend || d.hub == nil || d.Info.SAMVAD.Next == "" {
		return
	}
	ring, identity := d.hubKeys("next key")
	if ring == nil {
		return
	}
	defer ring.Close()
	next := bridge.NextOf(ring, identity)
	if next == nil {
		return // the next key now signs
	}
	for a, err := range d.hub.AllAgents(ctx, admin.AgentFilter{}) {
		if err != nil {
			d.Failed("next key", "parley agents", err)
			return
		}
		for _, i := range a.Identities {
			if i.Protocol == bridge.Protocol && !i.StandIn && i.URL != "" {
				d.TryKey(ctx, "next key", a.Name, i.URL, i.ID, next)
			}
		}
	}
}

// enrolled gives an agent's SAMVAD keys, of the running hub, else of the configuration.
func (d *doctor) enrolled(ctx context.Context, name string) (keys []string) {
	if a := d.c.Agents[name]; a.SAMVAD != nil && a.SAMVAD.Key != "" {
		keys = append(keys, a.SAMVAD.Key)
	}
	if d.hub == nil {
		return keys
	}
	if mine, err := d.hub.AgentKeys(ctx, name); err == nil {
		for _, e := range mine.Enrolled {
			if e.Purpose == bridge.Protocol {
				keys = append(keys, base64.StdEncoding.EncodeToString(e.Public))
			}
		}
	}
	return keys
}

// signers gives the hub's keys; see [exam.Doctor].
func (d *doctor) signers(check string) (now, next samvad.Signer, done func()) {
	ring, identity := d.hubKeys(check)
	if ring == nil {
		return nil, nil, nil
	}
	now, err := bridge.SignerOf(ring, identity)
	if err != nil {
		ring.Close()
		d.Failed(check, "parley init makes the hub's keys", err)
		return nil, nil, nil
	}
	return now, bridge.NextOf(ring, identity), func() { ring.Close() }
}
