package a2a

import (
	"context"
	"net/http"
	"net/url"
	"slices"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge/peerauth"
	"github.com/parley-hub/parley/internal/netguard"
)

// credentialsOf are those for calls of an agent: of the configuration, else those that
// were stored. They go to the origins that the operator enrolled alone (rule A2A-071).
func (b *Binding) credentialsOf(agent string) peerauth.Credentials {
	if c := b.settingsOf(agent).Credentials; !c.Empty() {
		return c
	}
	c, err := b.secrets.Get(agent)
	if err != nil {
		b.c.Logger.Error("the stored credentials for an agent cannot be read; store them again", "agent", agent,
			"error", err)
	}
	return c
}

// credentialsFor gives the credentials for calls of a peer. A peer at a former origin of its agent
// gets none: the hub only follows the tasks there that began before the agent moved.
func (b *Binding) credentialsFor(p *peer) peerauth.Credentials {
	e, ok := b.c.Hub.Directory().Agent(p.name)
	if !ok || !slices.ContainsFunc(e.Identities, func(i parley.Identity) bool {
		u, err := url.Parse(i.URL)
		return i.Protocol == Protocol && !i.StandIn && err == nil && netguard.Origin(u) == netguard.Origin(p.url)
	}) {
		return peerauth.Credentials{}
	}
	return b.credentialsOf(p.name)
}

// StoreCredentials keeps the credentials for calls of an agent, sealed, for all hubs on
// the journal. Those of the configuration win over them. Empty ones are forgotten.
func (b *Binding) StoreCredentials(ctx context.Context, agent string, c peerauth.Credentials) error {
	if err := b.secrets.Put(ctx, agent, c); err != nil {
		return err
	}
	b.disconnect(agent)
	return nil
}

// ForgetCredentials removes the stored credentials for an agent.
func (b *Binding) ForgetCredentials(ctx context.Context, agent string) error {
	return b.StoreCredentials(ctx, agent, peerauth.Credentials{})
}

// A connection sends requests to one agent elsewhere, with its credentials where they
// may go.
type connection struct {
	*peerauth.Client
	read *http.Client // for cards
}

// connect makes the connection to a peer.
func (b *Binding) connect(p *peer, c peerauth.Credentials) *connection {
	read := b.guard.Client(netguard.Options{Timeout: cardTimeout, MaxResponseBytes: 2 * maxRemoteCard,
		RootCAs: b.c.RootCAs, Certificate: c.Certificate})
	if b.c.Transport != nil {
		read.Transport = b.c.Transport(read.Transport)
	}
	return &connection{peerauth.NewClient(p.url, c, peerauth.Config{Allow: b.c.Allow, RootCAs: b.c.RootCAs,
		Transport: b.c.Transport, Exchange: exchangeCall, Now: b.c.Now}), read}
}

// cards reads a card, from the enrolled origin; redirects within it are followed.
func (n *connection) cards(r *http.Request) (*http.Response, error) {
	if err := n.Authorize(r); err != nil {
		return nil, err
	}
	return traced(r, n.read.Do)
}

// close gives up idle connections.
func (n *connection) close() {
	n.CloseIdleConnections()
	n.read.CloseIdleConnections()
}
