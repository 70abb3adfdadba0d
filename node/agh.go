package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/parley-hub/parley/admin"
	protocol "github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/agh/aghnats"
	bridge "github.com/parley-hub/parley/bridge/agh"
)

var aghProtocol = Protocol{
	Name:    bridge.Protocol,
	Section: func(c *Config) any { return &c.AGH },
	Agent:   func(a *Agent) any { return &a.AGH },
	Files:   func(c *Config) []*string { return []*string{&c.AGH.Credentials} },
	Listeners: func(c *Config) []Listener {
		const advice = "tokens can be read on the way; use 127.0.0.1, or a network that is trusted"
		return []Listener{{"listen.agh", c.Listen.AGH, false, advice}}
	},
	Export: func(t *AgentText, _ *admin.Agent, i admin.Identity) {
		if at := strings.LastIndexByte(i.ID, '/'); at > 0 { // see bridge.Identity; a peer id has no slash
			t.Line("agh.workspace", i.ID[:at])
			t.Line("agh.peer", i.ID[at+1:])
		}
	},
	Enable: "listen.agh, or agh.url",
	Skew:   func(*Config) time.Duration { return protocol.DefaultReplayAge },
	Open:   openAGH,
}

// AGH configures the peers of AGH Network, and the workspaces in which agents appear to
// them.
type AGH struct {
	// an operator's NATS to join instead of serving (listen.agh is then not used); default: none. Every
	// subscriber gets every message there: only that server's permissions can keep spoofed messages from peers
	URL string `toml:"url"`
	// NATS credentials file for agh.url; default: none
	Credentials string `toml:"credentials"`
	// name of the JetStream consumer by which the hub reads AGH_NETWORK_V0 at agh.url
	Durable string `toml:"durable"`
	// users that may connect to listen.agh; default: nobody
	Users map[string]AGHUser `toml:"users"`
	// where agents of the directory appear as peers; default: nowhere
	Workspaces map[string]AGHWorkspace `toml:"workspaces"`
	// accept verified handles and verify their proofs (RFC 004)
	Trust bool `toml:"trust"`
	// which keys may speak as a nickname, or as a handle; needs agh.trust; default: any key
	Pins map[string]AGHPin `toml:"pins"`
	// refuse verified handles that agh.pins does not name
	RequirePins bool `toml:"require_pins"`
	// accept and forward members that the envelope page does not name
	Lenient bool `toml:"lenient"`
	// do not send content that AGH daemons drop because it looks like a secret
	Screen bool `toml:"screen"`
	// how far ahead expires_at may lie, at most 720h
	MaxTTL Duration `toml:"max_ttl" default:"\"720h\""`
	// how long the hub remembers an absent peer, with its waiting messages
	Keep Duration `toml:"keep" default:"\"168h\""`
	// greetings and broadcast whois requests a second of one peer in a channel, six times as many at once;
	// below zero: no limit
	Broadcasts float64 `toml:"broadcast_rate" default:"5.0"`
	// how often peers greet; after two intervals one is absent
	Interval Duration `toml:"greet_interval" default:"\"30s\""`
}

// AGHUser may connect, by exactly one of token, password, nkey and anonymous.
type AGHUser struct {
	// NATS token
	Token string `toml:"token"`
	// file with the token, mode 0600
	TokenFile string `toml:"token_file"`
	// NATS password; the user is the name of the table
	Password string `toml:"password"`
	// public user nkey, U…
	NKey string `toml:"nkey"`
	// any client without credentials; for loopback addresses
	Anonymous bool `toml:"anonymous"`
	// peer ids that it may speak as; one that ends in * allows all with that prefix; default: none
	Peers []string `toml:"peers"`
	// workspaces that it may see and speak in; "*" alone means all; default: none
	Workspaces []string `toml:"workspaces"`
	// ids that it may speak as at once
	MaxPeers int `toml:"max_peers" default:"4096"`
}

// AGHPin lists the keys that may speak as a nickname or a verified handle.
type AGHPin struct {
	// Ed25519 public keys, 32 bytes in base64url, as proof.pubkey has them; the name of the table is a
	// nickname, or a handle in quotes
	Keys []string `toml:"keys"`
}

// AGHWorkspace is a workspace in which agents of the directory appear.
type AGHWorkspace struct {
	// channels in which they greet; default: none
	Channels []string `toml:"channels"`
	// which agents; none: all that are exposed in agh
	Agents []string `toml:"agents"`
}

// AGHAgent is an agent's identity in AGH.
type AGHAgent struct {
	// its workspace
	Workspace string `toml:"workspace"`
	// its peer id, or verified handle
	Peer string `toml:"peer"`
}

// AGH is the node's AGH binding, or nil where AGH is switched off.
func (n *Node) AGH() *bridge.Binding { return bindingOf[*bridge.Binding](n) }

func openAGH(_ context.Context, n *Node) (*Binding, error) {
	c := n.c.AGH
	if n.c.Listen.AGH == "" && c.URL == "" {
		return &Binding{Agent: enrolAGH}, nil
	}
	bc := bridge.Config{Hub: n.hub, Journal: n.journal, Listen: n.c.Listen.AGH, URL: c.URL, Durable: c.Durable,
		Trust: c.Trust, Lenient: c.Lenient, Screen: c.Screen, MaxTTL: c.MaxTTL.Duration, Keep: c.Keep.Duration,
		Interval: c.Interval.Duration, Node: n.c.Name, Alone: n.c.Engine.URL == "", BroadcastRate: c.Broadcasts,
		MaxConnections: n.conns.spare(n.c.Listen.AGH), Now: n.c.Now, Logger: n.log}
	if c.Credentials != "" {
		bc.Options = append(bc.Options, nats.UserCredentials(c.Credentials))
	}
	for _, name := range slices.Sorted(maps.Keys(c.Users)) {
		u := c.Users[name]
		token := u.Token
		if u.TokenFile != "" {
			b, err := secretFile(u.TokenFile)
			if err != nil {
				return nil, fmt.Errorf("agh.users.%s.token_file: %w", name, err)
			}
			if token != "" {
				return nil, fmt.Errorf("agh.users.%s: token and token_file exclude each other", name)
			}
			token = string(b)
		}
		bc.Users = append(bc.Users, aghnats.User{Name: name, Token: token, Password: u.Password, NKey: u.NKey,
			Anonymous: u.Anonymous, Peers: u.Peers, Workspaces: u.Workspaces, MaxPeers: u.MaxPeers})
	}
	pins, err := c.pins()
	if err != nil {
		return nil, err
	}
	bc.Pins, bc.RequirePins = pins, c.RequirePins
	for _, ws := range slices.Sorted(maps.Keys(c.Workspaces)) {
		for _, channel := range c.Workspaces[ws].Channels {
			bc.Channels = append(bc.Channels, bridge.Channel{WorkspaceID: ws, Channel: channel,
				Agents: c.Workspaces[ws].Agents})
		}
	}
	b, err := bridge.New(bc)
	if err != nil {
		return nil, fmt.Errorf("agh: %w", err)
	}
	return &Binding{
		Hub:   b,
		Agent: enrolAGH,
		Addresses: func(a *Addresses) {
			if b.Addr() != "" {
				a.AGH = "nats://" + b.Addr()
			}
		},
	}, nil
}

func enrolAGH(name string, a *Agent) (e Enrolment, err error) {
	if a.AGH == nil {
		return e, nil
	}
	_, _, handle := protocol.SplitHandle(a.AGH.Peer)
	if !protocol.ValidWorkspaceID(a.AGH.Workspace) || !protocol.ValidPeerID(a.AGH.Peer) && !handle {
		return e, fmt.Errorf("agents.%s.agh: want a workspace, and a peer id or verified handle", name)
	}
	e.Identity = bridge.Identity(a.AGH.Workspace, a.AGH.Peer)
	return e, nil
}

// pins are the keys that may speak as nicknames and handles.
func (c *AGH) pins() (protocol.Keys, error) {
	if !c.Trust && (len(c.Pins) > 0 || c.RequirePins) {
		return nil, errors.New("agh.pins and agh.require_pins decide about verified handles: they need agh.trust = " +
			"true")
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
