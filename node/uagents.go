package node

import (
	"crypto/x509"
	"net"
	"net/url"

	samvadbridge "github.com/parley-hub/parley/bridge/samvad"
	uagentsbridge "github.com/parley-hub/parley/bridge/uagents"
)

func (n *Node) bindUAgents(roots *x509.CertPool) (err error) {
	var hosts []string
	if n.httpListen != nil {
		if local, err := url.Parse(localURL(n.httpListen.Addr(), false)); err == nil {
			hosts = []string{local.Host, net.JoinHostPort("localhost", local.Port())}
		}
	}
	u := n.c.UAgents
	n.uagents, err = uagentsbridge.New(uagentsbridge.Config{Hub: n.hub, Keys: n.keys, Journal: n.journal, Guard: n.guard, RootCAs: roots,
		PublicURL: n.c.PublicURL, Unnamed: n.read.PublicURL == "" && len(n.c.TLS.ACME) == 0, Direct: n.direct, Hosts: hosts,
		Root: samvadbridge.Root, Legacy: u.Legacy, AllowNonce: u.Nonce, Horizon: u.Horizon.Duration, Registry: u.Registry, Account: n.tokens.Account,
		Closed: u.Closed, Expose: n.exposed(nil), Lifetime: u.Lifetime.Duration, Retention: u.Retention.Duration, UnsignedRate: u.UnsignedRate,
		MaxBody: n.k.body, Now: n.c.Now, Logger: n.log})
	if err != nil {
		return err
	}
	return n.hub.Bind(n.uagents)
}

// direct reports whether the configuration has other agents told the own
// endpoints of an agent.
func (n *Node) direct(name string) bool {
	c := n.live.Load()
	if u := c.Agents[name].UAgents; u != nil && u.Direct != nil {
		return *u.Direct
	}
	return c.UAgents.Direct
}

// UAgents is the node's uAgents binding.
func (n *Node) UAgents() *uagentsbridge.Binding { return n.uagents }
