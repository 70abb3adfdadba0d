package samvadtest

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/parley-hub/parley/internal/memhttp"
	"github.com/parley-hub/parley/samvad"
)

// KID is the id of the key of every [Peer].
const KID = "key-current"

// A Peer is an agent in memory, with a key of its own.
type Peer struct {
	*samvad.Identity
	Now func() time.Time // clock of its signatures and checks; nil: time.Now

	t testing.TB

	mu       sync.Mutex
	skills   map[string]samvad.Handler
	received []*samvad.Request
}

// NewPeer makes a peer with an identity of the form "agent://alice.test". What it opens
// is closed at the end of the test.
func NewPeer(t testing.TB, id string) *Peer {
	t.Helper()
	i, err := samvad.NewIdentity(id, KID)
	if err != nil {
		t.Fatal(err)
	}
	return &Peer{Identity: i, t: t, skills: map[string]samvad.Handler{}}
}

// Keys are what a verifier must know to accept the peer.
func (p *Peer) Keys() samvad.StaticKeys { return samvad.StaticKeys{p.ID(): {p.Key()}} }

// Client gives a client that signs as the peer, and that reaches h at every URL.
func (p *Peer) Client(h http.Handler) *samvad.Client {
	web, stop := memhttp.Client(h)
	p.t.Cleanup(stop)
	return &samvad.Client{Identity: p, HTTP: web, Now: p.Now}
}

// Skill lets the peer answer calls of a skill, in all modes and with any content. It
// must be called before HTTP.
func (p *Peer) Skill(id string, h samvad.Handler) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.skills[id] = h
}

// HTTP gives an HTTP client, for [samvad.Client.HTTP], that reaches the peer at every
// URL. The peer accepts the senders whose keys it is given.
func (p *Peer) HTTP(senders samvad.Keys) *http.Client {
	p.mu.Lock()
	defer p.mu.Unlock()
	card := &samvad.Card{ID: p.ID(), Name: p.ID(), Version: "1.0.0", Description: "A peer in a test.",
		URL: "http://peer.test", PublicKeys: []samvad.CardKey{samvad.CardKeyOf(p, true)},
		RateLimit: &samvad.RateLimit{RequestsPerMinute: 1 << 30, RequestsPerSender: 1 << 30}}
	handlers := map[string]samvad.Handler{}
	for id, h := range p.skills {
		handlers[id] = h
		card.Skills = append(card.Skills, samvad.Skill{ID: id, Name: id, Description: "A skill in a test.",
			InputSchema: json.RawMessage("{}"), OutputSchema: json.RawMessage("{}"), Trust: samvad.TrustPublic,
			Modes: []samvad.Mode{samvad.ModeSync, samvad.ModeAsync, samvad.ModeStream}})
	}
	server := &samvad.Server{Verifier: &samvad.Verifier{Keys: senders, Now: p.Now}, Agent: &samvad.Agent{
		Card: card.Complete(), Identity: p,
		Handler: func(ctx context.Context, r *samvad.Request) (samvad.Response, error) {
			p.mu.Lock()
			p.received = append(p.received, r)
			p.mu.Unlock()
			return handlers[r.Envelope.Skill](ctx, r)
		}}}
	web, stop := memhttp.Client(server)
	p.t.Cleanup(func() {
		stop()
		over, cancel := context.WithCancel(context.Background())
		cancel() // tasks are cut off
		_ = server.Close(over)
	})
	return web
}

// Received gives the requests that reached a skill so far, in the order of their arrival.
func (p *Peer) Received() []*samvad.Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.received)
}
