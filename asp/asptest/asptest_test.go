package asptest_test

import (
	"context"
	"crypto/ed25519"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/asp/asptest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestForgeries: the verifier gives exactly the error that each forgery states.
func TestForgeries(t *testing.T) {
	clock := func() time.Time { return time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC) }
	alice := asptest.NewServer(t, func(s *asp.Server) { s.Now = clock }).Peer("agent://test.example/services/alice")
	v, seen := &asp.Verifier{Keys: alice.Keys(), Now: clock}, map[string]bool{}
	for _, f := range alice.Forgeries() {
		if _, err := v.Verify(t.Context(), f.Envelope, asp.Transport{}); !errors.Is(err, f.Err) {
			t.Errorf("an envelope %s: %v, want %v", f.Name, err, f.Err)
		}
		if seen[f.Name] {
			t.Errorf("two forgeries are called %q", f.Name)
		}
		seen[f.Name] = true
	}
	if _, err := v.Verify(t.Context(), alice.Sign(asp.Draft{Performative: asp.Inform,
		Body: asp.Information{Topic: "x"}}).Raw(), asp.Transport{}); err != nil {
		t.Error(err)
	}
}

// TestPeers: peers talk in a bubble, and leave no goroutine behind.
func TestPeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hub := asptest.NewServer(t)
		weather, me := hub.Peer("agent://test.example/services/weather"), hub.Peer("agent://test.example/services/me")
		weather.Handle(func(ctx context.Context, s *asp.Session, m *asp.Message) error {
			if m.Performative != asp.Query {
				return nil
			}
			time.Sleep(10 * time.Second)
			_, err := s.Send(ctx, asp.Inform, asp.Information{Topic: "late"}, asp.InReplyTo(m))
			return err
		})
		s := me.Meet(t.Context(), weather.ID())
		begun := time.Now()
		answer, err := s.Ask(t.Context(), asp.Question{QueryType: "forecast"})
		if err != nil || !strings.Contains(string(answer.Body), "late") || time.Since(begun) < 10*time.Second {
			t.Fatalf("%+v, %v after %v", answer, err, time.Since(begun))
		}
		if err := s.Close(t.Context(), "done"); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if got := weather.Received(); len(got) != 3 {
			t.Errorf("%d messages arrived", len(got))
		}
	})
}

// The following types are implementations with one fault each.
type (
	keys  struct{ fault string }
	store struct {
		asp.Store
		fault string
	}
	documents struct {
		fault string
		mu    sync.Mutex
		saved map[string][]byte
	}
)

func (k keys) Keys(_ context.Context, id string) ([]asp.Key, error) {
	if id != "alice" && k.fault != "vouches for all" {
		return nil, nil
	}
	one := asp.Key{Signing: ed25519.NewKeyFromSeed(make([]byte, 32)).Public().(ed25519.PublicKey)}
	two := one
	two.NotBefore = time.Unix(1767225600, 0)
	if k.fault == "newest first" {
		one, two = two, one
	}
	return []asp.Key{one, two}, nil
}

func (s *store) Append(ctx context.Context, session string, expect asp.Head, r *asp.Record) error {
	switch s.fault {
	case "any head":
		if l, err := s.Store.Ledger(ctx, session); err == nil {
			expect = l.Head
		}
	case "forgets proofs":
		r = new(*r)
		r.Proof = ""
	case "uses proofs up":
		if fresh, err := s.Store.Seen(ctx, r.Proof+" early", time.Now().Add(time.Hour)); r.Proof != "" && !fresh {
			return errors.Join(err, asp.ErrReplay)
		}
	}
	return s.Store.Append(ctx, session, expect, r)
}

func (s *store) Message(ctx context.Context, session, id string) (*asp.Record, error) {
	r, err := s.Store.Message(ctx, session, id)
	if s.fault == "no sentinel" && err != nil {
		return nil, errors.New("no row")
	}
	return r, err
}

func (s *store) Records(ctx context.Context, session string, from int64, limit int) ([]*asp.Record, error) {
	list, err := s.Store.Records(ctx, session, from, limit)
	if s.fault == "newest first" {
		slices.Reverse(list)
	}
	return list, err
}

func (s *store) Ledgers(ctx context.Context, q asp.LedgerQuery, after string, limit int) ([]*asp.Ledger, error) {
	if s.fault == "lists all" {
		q = asp.LedgerQuery{}
	}
	return s.Store.Ledgers(ctx, q, after, limit)
}

func (s *store) PutAgent(ctx context.Context, a *asp.Agent) error {
	if old, err := s.Store.Agent(ctx, a.ID); s.fault == "any revision" && err == nil {
		a.Revision = old.Revision + 1
	}
	return s.Store.PutAgent(ctx, a)
}

func (s *store) Agents(ctx context.Context, q asp.AgentQuery, after string, limit int) ([]*asp.Agent, error) {
	if s.fault == "no capability" {
		q.Capability = ""
	}
	return s.Store.Agents(ctx, q, after, limit)
}

func (d *documents) Load(_ context.Context, session string) ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fault == "one for all" {
		session = ""
	}
	b, ok := d.saved[session]
	if !ok && d.fault != "empty is found" {
		return nil, asp.ErrNotFound
	}
	return b, nil
}

func (d *documents) Save(_ context.Context, session string, b []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fault == "one for all" {
		session = ""
	}
	if d.fault != "keeps the caller's bytes" {
		b = slices.Clone(b)
	}
	d.saved[session] = b
	return nil
}

// TestChecks: the types of package asp pass, and each fault is found.
func TestChecks(t *testing.T) {
	for name, c := range map[string]struct {
		check  func(fault string) error
		faults map[string]string // and the rule that finds it
	}{
		"Memory": {func(f string) error {
			return asptest.TestMemory(func() asp.Memory { return asp.NewMemory(map[string]int{"too small": 1600}[f], nil) })
		}, map[string]string{"too small": "many keys"}},
		"Keys": {func(f string) error { return asptest.TestKeys(keys{f}, "alice") },
			map[string]string{"vouches for all": "an unknown agent", "newest first": "oldest first"}},
		"Store": {func(f string) error {
			return asptest.TestStore(func() asp.Store {
				return &store{asp.NewMemoryStore(asp.MemoryLimits{}, nil), f}
			})
		}, map[string]string{"any head": "ErrConflict and changes nothing", "forgets proofs": "used once",
			"uses proofs up": "used once", "no sentinel": "ErrNotFound", "newest first": "in order",
			"lists all": "sessions are listed", "any revision": "next revision only", "no capability": "agents are found"}},
		"ClientStore": {func(f string) error {
			if f == "" {
				return asptest.TestClientStore(func() asp.ClientStore { return asp.Dir(t.TempDir()) })
			}
			return asptest.TestClientStore(func() asp.ClientStore { return &documents{fault: f, saved: map[string][]byte{}} })
		}, map[string]string{"one for all": "kept apart", "empty is found": "ErrNotFound",
			"keeps the caller's bytes": "bytes again"}},
	} {
		if err := c.check(""); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for fault, rule := range c.faults {
			if err := c.check(fault); err == nil || !strings.Contains(err.Error(), rule) {
				t.Errorf("%s, %s: %v, want the rule %q", name, fault, err, rule)
			}
		}
	}
}
