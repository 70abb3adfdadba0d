package asp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"testing"
	"time"
)

// withGuests makes all agents but alice guests.
func withGuests(s *Server) { s.Guest = func(agent string) bool { return agent != aliceID } }

// All guests together have one agent's share of the memory for proofs, so that they
// cannot fill it.
func TestProofsOfGuestsShareOneOwner(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 7, 14, 30, 0, 0, time.UTC)
	m := NewMemory(160, func() time.Time { return now })
	s := &Server{Store: &proofStore{Store: NewMemoryStore(MemoryLimits{}, nil), proofs: m}}
	withGuests(s)
	s.init()
	r := httptest.NewRequestWithContext(t.Context(), "GET", "/", nil)
	use := func(agent, thumbprint string, i int) error {
		p := &Proof{Thumbprint: thumbprint, JTI: fmt.Sprint(i), Until: now.Add(time.Minute)}
		return s.remember(r, agent, p, s.store)
	}
	for i := range 10 {
		if err := use(bobID, fmt.Sprint("guest-key-", i), i); err != nil {
			t.Fatal(i, err)
		}
	}
	if err := use(carolID, "another-guest-key", 0); !errors.Is(err, ErrFull) {
		t.Errorf("the 11th proof of guests, with room for ten: %v", err)
	}
	if err := use(aliceID, "alice-key", 0); err != nil {
		t.Errorf("an agent that is no guest: %v", err)
	}
}

type proofStore struct {
	Store
	proofs Memory
}

func (s *proofStore) Seen(ctx context.Context, key string, until time.Time) (bool, error) {
	return s.proofs.Seen(ctx, key, until)
}

// The rate limiters are bounded, also when all of them were used just now.
func TestLimitersAreBounded(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 7, 14, 30, 0, 0, time.UTC)
	s := &Server{MaxLive: 8}
	s.init()
	e, err := Draft{Performative: Propose, SessionID: "019cc8aa-0001-7def-8a12-000000000001",
		Body: invitation("inv")}.Sign(testIdentity(t, aliceID, "org_acme"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		a, at := &Agent{ID: fmt.Sprint("agent://a.example/x/", i)}, now.Add(time.Duration(i)*time.Millisecond)
		if err := s.gate(e, a, at); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(s.limiters); n > 8 {
		t.Errorf("%d limiters, of at most 8", n)
	}
}

// The inbox of an agent is dropped after its last stream.
func TestInboxesAreForgotten(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, stop := context.WithCancel(t.Context())
	body := w.inboxOf(t, ctx, w.bob)
	stop()
	_ = body.Close()
	w.http.Close() // waits for the handler
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := len(w.inboxes); n != 0 {
		t.Errorf("%d inboxes are left", n)
	}
}

// A refused DELEGATE does not break the inbox stream of its target, although a store may
// list the session for that agent.
func TestInboxOfRefusedDelegation(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(s *Server) {
		s.Heartbeat, s.Store = time.Millisecond, &listsForAll{NewMemoryStore(MemoryLimits{}, nil)}
	})
	w.invite()
	line, err := bufio.NewReader(w.inboxOf(t, t.Context(), w.carol)).ReadString('\n')
	if err != nil || line != "event: heartbeat\n" {
		t.Errorf("%q, %v: the inbox of an agent in no session", line, err)
	}
}

func (w *world) inboxOf(t *testing.T, ctx context.Context, c *Client) io.ReadCloser {
	t.Helper()
	token, err := c.access(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.start(ctx, "GET", "/v1/asp/agents/"+c.Identity.ID()+"/inbox", "", nil, token, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp.Body
}

// listsForAll lists each session for each agent.
type listsForAll struct{ Store }

func (s *listsForAll) Ledgers(ctx context.Context, q LedgerQuery, after string, limit int) ([]*Ledger, error) {
	q.Participant = ""
	return s.Store.Ledgers(ctx, q, after, limit)
}

// Guests get a quarter of the streams; the rest is for other agents.
func TestStreamsOfGuests(t *testing.T) {
	t.Parallel()
	s := &Server{MaxStreams: 8}
	withGuests(s)
	s.init()
	for i := range 2 {
		if _, err := s.stream(bobID); err != nil {
			t.Fatal(i, err)
		}
	}
	if _, err := s.stream(carolID); !errors.Is(err, ErrFull) {
		t.Errorf("a third stream of guests: %v", err)
	}
	for i := range 6 {
		if _, err := s.stream(aliceID); err != nil {
			t.Error(i, err)
		}
	}
}

// Unauthenticated WebSockets take no streams from authenticated ones. When there are too
// many, the oldest is closed.
func TestWebSocketsWithoutAuthentication(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(s *Server) { s.MaxStreams = 1 })
	id := w.conversing()
	silent := w.dial(t, id)
	w.auth(t, w.dial(t, id), w.alice, id, nil)
	for range maxUnproved {
		w.dial(t, id)
	}
	if code := silent.closed(); code != -1 {
		t.Errorf("the oldest was not cut off, but closed with %d", code)
	}
}

// An evicted agent can register again by proof of its key, and no other agent can take
// its id.
func TestEvicted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	if err := w.Evict(ctx, bobID); err != nil {
		t.Fatal(err)
	}
	other, err := GenerateIdentity(bobID, "org_widgets")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.client(other).Register(ctx, other.Card(), nil); !errors.Is(err, ErrAgentExists) {
		t.Errorf("with another key: %v", err)
	}
	a, err := w.store.Agent(ctx, bobID)
	if err != nil {
		t.Fatal(err)
	}
	if keys, err := a.Keys(ctx, bobID); err != nil || len(keys) != 1 {
		t.Errorf("%d keys of the one that was evicted, %v", len(keys), err)
	}
	if err := w.bob.Register(ctx, w.bob.Identity.Card(), nil); err != nil {
		t.Errorf("with its own key: %v", err)
	}
	if err := w.Unregister(ctx, bobID); err != nil {
		t.Fatal(err)
	}
	if err := w.bob.Register(ctx, w.bob.Identity.Card(), nil); !errors.Is(err, ErrAgentExists) {
		t.Errorf("one that the operator removed: %v", err)
	}
}

// The hook is called for each authenticated request, and for no other.
func TestAuthenticatedHook(t *testing.T) {
	t.Parallel()
	var heard []string
	w := newWorld(t, func(s *Server) {
		s.Authenticated = func(_ context.Context, agent string) { heard = append(heard, agent) }
	})
	heard = nil
	if _, err := w.alice.access(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(heard); got != fmt.Sprint([]string{aliceID}) {
		t.Errorf("a token: %s", got)
	}
	w.clock.add(2 * time.Hour) // the token expires
	heard = nil
	token, _, err := w.issueToken(aliceID, w.bob.Identity.proof.thumbprint, w.clock.now())
	if err != nil {
		t.Fatal(err)
	}
	proof, err := w.bob.Identity.HTTPProof("GET", w.http.URL+"/v1/asp/sessions", token, w.clock.now())
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequestWithContext(t.Context(), "GET", w.http.URL+"/v1/asp/sessions", nil)
	r.Header.Set("Authorization", "DPoP "+token)
	r.Header.Set("DPoP", proof)
	out := httptest.NewRecorder()
	w.ServeHTTP(out, r)
	if out.Code != 401 || len(heard) != 0 {
		t.Errorf("a proof of another key: %d, %v", out.Code, heard)
	}
}
