package node

import (
	"context"
	"fmt"
	"net"
	"net/url"

	samvadbridge "github.com/parley-hub/parley/bridge/samvad"
	bridge "github.com/parley-hub/parley/bridge/uagents"
)

var uagentsProtocol = Protocol{
	Name:    bridge.Protocol,
	Section: func(c *Config) any { return &c.UAgents },
	Agent:   func(a *Agent) any { return &a.UAgents },
	AgentID: func(a *Agent) string {
		if a.UAgents == nil {
			return ""
		}
		return a.UAgents.Address
	},
	HubAgent: true,
	Open:     openUAgents,
}

// UAgents configures uAgents.
type UAgents struct {
	Legacy       bool     `toml:"legacy" doc:"accept envelopes after their expiry, as the reference does, and keep them in mailboxes"`
	Nonce        bool     `toml:"nonce" doc:"accept a nonce without an expiry; the signature cannot tell the two apart"`
	Horizon      Duration `toml:"horizon" default:"\"24h\"" doc:"how far ahead an expiry may lie"`
	Registry     string   `toml:"registry" doc:"base URL of a registry that the hub asks about agents that are not registered here, e.g. \"https://agentverse.ai\""`
	Closed       bool     `toml:"closed" doc:"only agents of the directory may register and have mailboxes"`
	Lifetime     Duration `toml:"lifetime" default:"\"3h\"" doc:"lifetime of a registration; agents renew it after an hour"`
	Retention    Duration `toml:"retention" default:"\"24h\"" doc:"how long a mailbox keeps messages without an expiry"`
	UnsignedRate float64  `toml:"unsigned_rate" default:"20.0" doc:"unsigned messages a second; below zero: none (they need policy.assurance = \"unsigned\" too)"`
	Direct       bool     `toml:"direct" reload:"yes" doc:"the registry gives agents each other's own endpoints; messages that they send there are not recorded, limited or governed. Default: it gives them the hub's /submit"`
}

// UAgent is an agent's identity in uAgents.
type UAgent struct {
	Address  string `toml:"address" doc:"agent1q…"`
	Endpoint string `toml:"endpoint" doc:"where it takes envelopes; default: as it registered itself"`
	Direct   *bool  `toml:"direct" doc:"whether the registry gives others this agent's own endpoints; default: uagents.direct"`
}

// UAgents is the node's uAgents binding.
func (n *Node) UAgents() *bridge.Binding { return bindingOf[*bridge.Binding](n) }

func openUAgents(_ context.Context, n *Node) (*Binding, error) {
	var hosts []string
	if n.httpListen != nil {
		if local, err := url.Parse(localURL(n.httpListen.Addr(), false)); err == nil {
			hosts = []string{local.Host, net.JoinHostPort("localhost", local.Port())}
		}
	}
	u := n.c.UAgents
	b, err := bridge.New(bridge.Config{Hub: n.hub, Keys: n.keys, Journal: n.journal, Allow: n.guard.Prefixes,
		RootCAs: n.rootCAs, PublicURL: n.c.PublicURL, Direct: n.direct,
		Unnamed: n.read.PublicURL == "" && len(n.c.TLS.ACME) == 0,
		Hosts:   hosts, Root: samvadbridge.Root, Legacy: u.Legacy, AllowNonce: u.Nonce, Horizon: u.Horizon.Duration,
		Registry: u.Registry, Account: n.tokens.Account, Closed: u.Closed, Expose: n.live.Load().exposed(nil),
		Lifetime: u.Lifetime.Duration, Retention: u.Retention.Duration, UnsignedRate: u.UnsignedRate,
		MaxBody: n.k.body, Now: n.c.Now, Logger: n.log})
	if err != nil {
		return nil, err
	}
	return &Binding{Hub: b, Agent: func(name string, a *Agent) (e Enrolment, err error) {
		if a.UAgents == nil {
			return e, nil
		}
		if e.Identity, err = b.Identity(a.UAgents.Address, a.UAgents.Endpoint); err != nil {
			return e, fmt.Errorf("agents.%s.uagents: %w", name, err)
		}
		return e, nil
	}}, nil
}

// direct reports whether the registry gives other agents an agent's own endpoints.
func (n *Node) direct(name string) bool {
	c := n.live.Load()
	if u := c.Agents[name].UAgents; u != nil && u.Direct != nil {
		return *u.Direct
	}
	return c.UAgents.Direct
}
