package faults

import (
	"context"
	"encoding/base64"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/samvad"
)

// remote is a SAMVAD agent elsewhere. It runs in the test's process and outlives the
// hub that calls it.
type remote struct {
	url      string
	identity *samvad.Identity
	trusted  atomic.Pointer[samvad.StaticKeys]
	delay    func() time.Duration
	before   atomic.Value // func(), called before each answer

	mu    sync.Mutex
	calls map[string]int // by span, which is the id of the hub's message
}

// startRemote runs it on a real socket. trust sets later whom it trusts.
func startRemote(t *testing.T, delay func() time.Duration) *remote {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &remote{url: "http://" + l.Addr().String(), identity: newIdentity(t, "agent://remote.test"), delay: delay,
		calls: map[string]int{}}
	r.trusted.Store(&samvad.StaticKeys{})
	card := &samvad.Card{
		ID: r.identity.ID(), Name: "Remote", Version: "1.0.0", Description: "Echoes.", URL: r.url,
		PublicKeys: []samvad.CardKey{samvad.CardKeyOf(r.identity, true)},
		Skills: []samvad.Skill{{ID: "echo", Name: "Echo", Description: "Echoes.",
			InputSchema: []byte(`{"type":"object"}`), OutputSchema: []byte(`{"type":"object"}`),
			Modes: []samvad.Mode{samvad.ModeSync, samvad.ModeAsync, samvad.ModeStream}, Trust: samvad.TrustPublic}},
		RateLimit: &samvad.RateLimit{RequestsPerMinute: 1_000_000, RequestsPerSender: 1_000_000},
	}
	s := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: &samvad.Server{
		Verifier: &samvad.Verifier{Keys: r},
		Agent:    &samvad.Agent{Card: card.Complete(), Identity: r.identity, Handler: r.handle},
	}}
	served := make(chan struct{})
	go func() { defer close(served); _ = s.Serve(l) }() // ends with Close
	t.Cleanup(func() { _ = s.Close(); <-served })
	return r
}

// Keys implements samvad.Keys.
func (r *remote) Keys(ctx context.Context, id string) ([]samvad.Key, error) {
	return r.trusted.Load().Keys(ctx, id)
}

// trust enrols the hub's key, which is in the cards of its stand-ins.
func (r *remote) trust(t *testing.T, c *http.Client, hub, agentBase string) {
	t.Helper()
	card, err := (&samvad.Client{HTTP: c}).Card(t.Context(), agentBase)
	if err != nil {
		t.Fatal(err)
	}
	key, err := samvad.ParseKey(card.PublicKeys[0].Key)
	if err != nil {
		t.Fatal(err)
	}
	r.trusted.Store(&samvad.StaticKeys{hub: {key}})
}

func (r *remote) handle(ctx context.Context, req *samvad.Request) (samvad.Response, error) {
	r.mu.Lock()
	r.calls[req.SpanID]++
	r.mu.Unlock()
	if before, ok := r.before.Load().(func()); ok {
		before()
	}
	if r.delay != nil {
		t := time.NewTimer(r.delay())
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return samvad.Response{}, ctx.Err()
		}
	}
	return samvad.Response{Result: req.Payload}, nil
}

// seen gives how often each message arrived.
func (r *remote) seen() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make(map[string]int, len(r.calls))
	for k, v := range r.calls {
		out[k] = v
	}
	return out
}

// agent is its entry in a hub's configuration.
func (r *remote) agent() node.Agent {
	return node.Agent{Title: "Remote", Expose: []string{"all"},
		SAMVAD: &node.SAMVADAgent{ID: r.identity.ID(), URL: r.url,
			Key: base64.StdEncoding.EncodeToString(r.identity.Public())}}
}
