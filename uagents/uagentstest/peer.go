package uagentstest

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/parley-hub/parley/internal/memhttp"
	"github.com/parley-hub/parley/uagents"
)

// Endpoint is the URL at which every [Peer] takes envelopes.
const Endpoint = "http://peer.test/submit"

// A Peer is an agent in memory. Its key comes from its name, so that its address is the
// same in each run.
type Peer struct {
	*uagents.Identity
	Now func() time.Time // clock of its envelopes and checks; nil: time.Now

	t testing.TB

	mu       sync.Mutex
	handler  uagents.Handler
	received []*uagents.Request
}

// NewPeer makes a peer with any name. What it opens is closed at the end of the test.
func NewPeer(t testing.TB, name string) *Peer {
	t.Helper()
	id, err := uagents.IdentityFromSeed("uagentstest "+name, 0)
	if err != nil {
		t.Fatal(err)
	}
	return &Peer{Identity: id, t: t}
}

// everywhere resolves every address to one endpoint.
type everywhere struct{}

func (everywhere) Resolve(_ context.Context, to string) (string, []uagents.Endpoint, error) {
	address := uagents.ParseIdentifier(to).Address
	if address == "" {
		return "", nil, uagents.ErrUnresolved
	}
	return address, []uagents.Endpoint{{URL: Endpoint, Weight: 1}}, nil
}

// Client gives a client that signs as the peer, and that reaches h, at the path /submit,
// for every address.
func (p *Peer) Client(h http.Handler) *uagents.Client {
	web, stop := memhttp.Client(h)
	p.t.Cleanup(stop)
	return &uagents.Client{Identity: p.Identity, Resolver: everywhere{}, HTTP: web, Now: p.Now}
}

// Handle lets the peer answer messages. Without it, the peer takes messages and answers
// nothing.
func (p *Peer) Handle(h uagents.Handler) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.handler = h
}

// Resolver finds the peer, for [uagents.Client.Resolver].
func (p *Peer) Resolver() uagents.Resolver { return uagents.Endpoints{p.Address(): {Endpoint}} }

// HTTP gives an HTTP client, for [uagents.Client.HTTP], that reaches the peer at every
// URL.
func (p *Peer) HTTP() *http.Client {
	server := &uagents.Server{Log: slog.New(slog.DiscardHandler), Now: p.Now,
		Resolve: uagents.Serve(&uagents.Agent{Address: p.Address(), Identity: p.Identity, Handler: p.handle})}
	web, stop := memhttp.Client(server)
	p.t.Cleanup(func() {
		stop()
		_ = server.Shutdown(context.Background()) // waits for the handler, which the test ends
	})
	return web
}

func (p *Peer) handle(ctx context.Context, r *uagents.Request) (uagents.Response, error) {
	p.mu.Lock()
	h := p.handler
	p.received = append(p.received, r)
	p.mu.Unlock()
	if h == nil {
		return uagents.Response{}, nil
	}
	return h(ctx, r)
}

// Received gives the messages so far, in the order of their arrival.
func (p *Peer) Received() []*uagents.Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.received)
}
