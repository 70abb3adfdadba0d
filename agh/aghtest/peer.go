package aghtest

import (
	"context"
	"crypto/sha256"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/parley-hub/parley/agh"
)

// Where the peers of this package are, unless the fields of their client say otherwise.
const (
	Workspace = "ws"
	Channel   = "builders"
)

// A Peer is a joined client on a [Bus]. It leaves at the end of the test. It knows the
// peers of its kind that this package joined before; others learn of it by its greeting,
// as on a network.
type Peer struct {
	*agh.Client

	t testing.TB

	mu       sync.Mutex
	handler  func(ctx context.Context, r *agh.Request) error
	received []*agh.Request
}

// NewPeer joins a plain peer, which is known by its id alone.
func NewPeer(t testing.TB, b *Bus, id string) *Peer {
	t.Helper()
	return join(t, b, &agh.Client{PeerID: id})
}

// NewVerifiedPeer joins a peer that signs. Its key comes from its nickname, so that its
// handle is the same in each run. Plain peers do not understand handles.
func NewVerifiedPeer(t testing.TB, b *Bus, nickname string) *Peer {
	t.Helper()
	return join(t, b, &agh.Client{Identity: identity(t, nickname, nickname)})
}

func identity(t testing.TB, nickname, key string) *agh.Identity {
	t.Helper()
	seed := sha256.Sum256([]byte("aghtest " + key))
	id, err := agh.IdentityFromSeed(nickname, seed[:])
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func join(t testing.TB, b *Bus, c *agh.Client) *Peer {
	t.Helper()
	p := &Peer{Client: c, t: t}
	c.Transport, c.WorkspaceID, c.Channel, c.Handler = b, Workspace, Channel, p.handle
	ctx, leave := context.WithCancel(context.Background())
	t.Cleanup(leave)
	if err := c.Join(ctx); err != nil {
		t.Fatal(err)
	}
	for _, other := range b.meet(p) {
		if (other.Identity == nil) == (p.Identity == nil) {
			p.find(ctx, other.ID())
		}
	}
	return p
}

// find waits until the two peers know each other.
func (p *Peer) find(ctx context.Context, id string) {
	p.t.Helper()
	ctx, stop := context.WithTimeout(ctx, 10*time.Second)
	defer stop()
	for v, err := range p.Whois(ctx, "", id, false) {
		if err != nil {
			p.t.Fatal(err)
		}
		if v.Envelope.From == id {
			return
		}
	}
	p.t.Fatalf("peer %q does not answer", id)
}

// Handle lets the peer answer messages; an error of h fails the test. Without it, the peer
// hears them and says nothing.
func (p *Peer) Handle(h func(ctx context.Context, r *agh.Request) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.handler = h
}

func (p *Peer) handle(ctx context.Context, r *agh.Request) {
	p.mu.Lock()
	h := p.handler
	p.received = append(p.received, r)
	p.mu.Unlock()
	if h == nil {
		return
	}
	if err := h(ctx, r); err != nil && ctx.Err() == nil {
		p.t.Errorf("aghtest: %s: %v", p.ID(), err)
	}
}

// Received gives the messages so far, in the order of their arrival.
func (p *Peer) Received() []*agh.Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.received)
}
