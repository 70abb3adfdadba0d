package node

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"time"

	"github.com/parley-hub/parley/admin"
	samvadbridge "github.com/parley-hub/parley/bridge/samvad"
	bridge "github.com/parley-hub/parley/bridge/uagents"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/uagents"
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
	Export: func(t *AgentText, a *admin.Agent, i admin.Identity) {
		t.Line("uagents.address", i.ID)
		if a.Source == directory.FromOperator {
			t.Line("uagents.endpoint", i.URL)
		}
	},
	HubAgent: true,
	Address:  "uagents.endpoint",
	Skew:     uagentsSkew,
	Open:     openUAgents,
}

// UAgents configures uAgents.
type UAgents struct {
	// accept envelopes after their expiry, as the reference does, and keep them in mailboxes
	Legacy bool `toml:"legacy"`
	// accept a nonce without an expiry; the signature cannot tell the two apart
	Nonce bool `toml:"nonce"`
	// how far ahead an expiry may lie
	Horizon Duration `toml:"horizon" default:"\"24h\""`
	// base URL of a registry that the hub asks about agents that are not registered here, e.g.
	// "https://agentverse.ai"; default: none
	Registry string `toml:"registry"`
	// only agents of the directory may register and have mailboxes
	Closed bool `toml:"closed"`
	// lifetime of a registration; agents renew it after an hour
	Lifetime Duration `toml:"lifetime" default:"\"3h\""`
	// how long a mailbox keeps messages without an expiry
	Retention Duration `toml:"retention" default:"\"24h\""`
	// unsigned messages a second; below zero: none (they need policy.assurance = "unsigned" too)
	UnsignedRate float64 `toml:"unsigned_rate" default:"20.0"`
	// the registry gives agents each other's own endpoints; messages that they send there are not recorded,
	// limited or governed. Default: it gives them the hub's /submit
	Direct bool `toml:"direct" reload:"yes"`
}

// UAgent is an agent's identity in uAgents.
type UAgent struct {
	// its address, agent1q…
	Address string `toml:"address"`
	// where it takes envelopes; default: as it registered itself
	Endpoint string `toml:"endpoint"`
	// whether the registry gives others this agent's own endpoints; default: uagents.direct
	Direct *bool `toml:"direct"`
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

// uagentsSkew: the token with which an agent reads its mailbox is the strictest about clocks.
func uagentsSkew(*Config) time.Duration { return uagents.DefaultSkew }
