package node

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/nats-io/nats.go"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/agh/aghnats"
	bridge "github.com/parley-hub/parley/bridge/agh"
)

// AGH is the node's AGH binding, nil where AGH is switched off.
func (n *Node) AGH() *bridge.Binding { return n.agh }

// bindAGH makes the AGH binding, if the configuration asks for one.
func (n *Node) bindAGH() error {
	c := n.c.AGH
	if n.c.Listen.AGH == "" && c.URL == "" {
		return nil
	}
	bc := bridge.Config{Hub: n.hub, Journal: n.journal, Listen: n.c.Listen.AGH, URL: c.URL, Durable: c.Durable, Trust: c.Trust, Lenient: c.Lenient,
		Screen: c.Screen, MaxTTL: c.MaxTTL.Duration, Keep: c.Keep.Duration, Interval: c.Interval.Duration, Node: n.c.Name,
		BroadcastRate: c.Broadcasts, MaxConnections: n.aghConns, Now: n.c.Now, Logger: n.log}
	if c.Credentials != "" {
		bc.Options = append(bc.Options, nats.UserCredentials(c.Credentials))
	}
	for _, name := range slices.Sorted(maps.Keys(c.Users)) {
		u := c.Users[name]
		token := u.Token
		if u.TokenFile != "" {
			b, err := secretFile(u.TokenFile)
			if err != nil {
				return fmt.Errorf("agh.users.%s.token_file: %w", name, err)
			}
			if token != "" {
				return fmt.Errorf("agh.users.%s: token and token_file exclude each other", name)
			}
			token = string(b)
		}
		bc.Users = append(bc.Users, aghnats.User{Name: name, Token: token, Password: u.Password, NKey: u.NKey, Anonymous: u.Anonymous,
			Peers: u.Peers, Workspaces: u.Workspaces, MaxPeers: u.MaxPeers})
	}
	pins, err := c.pins()
	if err != nil {
		return err
	}
	bc.Pins, bc.RequirePins = pins, c.RequirePins
	for _, ws := range slices.Sorted(maps.Keys(c.Workspaces)) {
		for _, channel := range c.Workspaces[ws].Channels {
			bc.Places = append(bc.Places, bridge.Place{WorkspaceID: ws, Channel: channel, Agents: c.Workspaces[ws].Agents})
		}
	}
	if n.agh, err = bridge.New(bc); err != nil {
		return fmt.Errorf("agh: %w", err)
	}
	return n.hub.Bind(n.agh)
}

// pins are the keys that may speak as nicknames and handles.
func (c *AGH) pins() (protocol.Keys, error) {
	if !c.Trust && (len(c.Pins) > 0 || c.RequirePins) {
		return nil, errors.New("agh.pins and agh.require_pins decide about verified handles: they need agh.trust = true")
	}
	pins := protocol.StaticKeys{}
	for name, pin := range c.Pins {
		_, fingerprint, handle := protocol.SplitHandle(name)
		if !handle && !protocol.ValidNickname(name) {
			return nil, fmt.Errorf("agh.pins.%s: want a nickname ([a-z0-9_-]{1,32}) or a verified handle", name)
		}
		if len(pin.Keys) == 0 {
			return nil, fmt.Errorf("agh.pins.%s: names no keys", name)
		}
		for _, text := range pin.Keys {
			key, err := protocol.PublicKey(text)
			if err != nil {
				return nil, fmt.Errorf("agh.pins.%s: %q: %w", name, text, err)
			}
			if _, own, _ := protocol.SplitHandle(protocol.Handle("x", key)); handle && own != fingerprint {
				return nil, fmt.Errorf("agh.pins.%s: the key %s has the fingerprint %s", name, text, own)
			}
			pins[name] = append(pins[name], key)
		}
	}
	return pins, nil
}

// identity of an agent of the configuration.
func (a *AGHAgent) identity() (parley.Identity, error) {
	_, _, handle := protocol.SplitHandle(a.Peer)
	if !protocol.ValidWorkspaceID(a.Workspace) || !protocol.ValidPeerID(a.Peer) && !handle {
		return parley.Identity{}, errors.New("want a workspace, and a peer id or verified handle")
	}
	return bridge.Identity(a.Workspace, a.Peer), nil
}
