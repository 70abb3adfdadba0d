package uagentstest_test

import (
	"context"
	"errors"
	"iter"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"
	"github.com/decred/dcrd/dcrec/secp256k1/v4/ecdsa"
	"go.uber.org/goleak"

	"github.com/parley-hub/parley/uagents"
	"github.com/parley-hub/parley/uagents/uagentstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestForgeries: the verifier gives exactly the error that each forgery states.
func TestForgeries(t *testing.T) {
	clock := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	alice, me := uagentstest.NewPeer(t, "alice"), uagentstest.NewPeer(t, "me")
	alice.Now = func() time.Time { return clock }
	v := &uagents.Verifier{Self: me.Address(), Now: alice.Now}
	seen := map[string]bool{}
	for _, f := range alice.Forgeries(me.Address(), bern) {
		if _, err := v.Verify(t.Context(), f.Envelope); !errors.Is(err, f.Err) {
			t.Errorf("an envelope %s: %v, want %v", f.Name, err, f.Err)
		}
		if seen[f.Name] {
			t.Errorf("two forgeries are called %q", f.Name)
		}
		seen[f.Name] = true
	}
	if _, err := v.Verify(t.Context(), alice.Envelope(me.Address(), bern)); err != nil {
		t.Error(err)
	}
}

// TestPeer: a peer answers later in a bubble, and leaves no goroutine behind.
func TestPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		me, weather := uagentstest.NewPeer(t, "me"), uagentstest.NewPeer(t, "weather")
		weather.Handle(func(_ context.Context, r *uagents.Request) (uagents.Response, error) {
			time.Sleep(10 * time.Second)
			return uagents.Answer(r.Content), nil
		})
		client := &uagents.Client{Identity: me.Identity, HTTP: weather.HTTP(), Resolver: weather.Resolver()}
		begun := time.Now()
		reply, err := client.Ask(t.Context(), weather.Address(), bern)
		if err != nil || reply.Assurance != uagents.Signed || time.Since(begun) != 10*time.Second {
			t.Errorf("%+v, %v after %v", reply, err, time.Since(begun))
		}
		weather.Handle(nil)
		if _, err := client.Send(t.Context(), weather.Address(), bern); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if got := len(weather.Received()); got != 2 {
			t.Errorf("%d messages arrived", got)
		}
	})
}

// The following types are implementations with one fault each.
type (
	memory   struct{ uagents.Memory }
	resolver struct{ uagents.Resolver }
	almanac  struct {
		uagents.MemoryAlmanac
		fault string
	}
	mailbox struct {
		uagents.MemoryMailbox
		fault string
	}
	profiles struct {
		uagents.MemoryProfiles
		fault string
	}
	curve struct{ fault string }
)

func (memory) Seen(context.Context, string, time.Time) (bool, error) { return true, nil }

func (r resolver) Resolve(ctx context.Context, to string) (string, []uagents.Endpoint, error) {
	if a, e, err := r.Resolver.Resolve(ctx, to); err == nil {
		return a, e, nil
	}
	return to, nil, errors.New("no row")
}

func (a *almanac) Get(ctx context.Context, network, address string) (*uagents.Record, error) {
	if a.fault == "mixes networks" {
		network = "agent"
	}
	return a.MemoryAlmanac.Get(ctx, network, address)
}

func (a *almanac) Update(ctx context.Context, network, address string,
	change func(*uagents.Record) (*uagents.Record, error)) error {
	switch a.fault {
	case "hides errors":
		if a.MemoryAlmanac.Update(ctx, network, address, change) != nil {
			return errors.New("failed")
		}
		return nil
	case "no transaction":
		old, _ := a.Get(ctx, network, address)
		time.Sleep(time.Millisecond)
		next, err := change(old)
		if err != nil {
			return err
		}
		return a.MemoryAlmanac.Update(ctx, network, address, func(*uagents.Record) (*uagents.Record, error) {
			return next, nil
		})
	}
	return a.MemoryAlmanac.Update(ctx, network, address, change)
}

func (a *almanac) ByProtocol(ctx context.Context, digest string, limit int) ([]*uagents.Record, error) {
	if a.fault == "no limit" {
		limit = 1000
	}
	return a.MemoryAlmanac.ByProtocol(ctx, digest, limit)
}

func (m *mailbox) Put(ctx context.Context, address, key string, until time.Time, item uagents.MailboxItem) (bool,
	error) {
	if m.fault == "forgets keys" {
		key += item.UUID
	}
	return m.MemoryMailbox.Put(ctx, address, key, until, item)
}

func (m *mailbox) List(ctx context.Context, address string, offset, limit int, now time.Time) ([]uagents.MailboxItem,
	error) {
	switch m.fault {
	case "keeps the expired":
		now = time.Time{}
	case "no offset":
		offset = 0
	}
	return m.MemoryMailbox.List(ctx, address, offset, limit, now)
}

func (m *mailbox) Delete(ctx context.Context, address, id string) (bool, error) {
	ok, err := m.MemoryMailbox.Delete(ctx, address, id)
	return ok || m.fault == "always deletes", err
}

func (p *profiles) PutProfile(ctx context.Context, v *uagents.Profile) error {
	if p.fault == "shares handles" {
		v = new(*v)
		v.Handle = ""
	}
	return p.MemoryProfiles.PutProfile(ctx, v)
}

func (p *profiles) Listings(ctx context.Context) iter.Seq[uagents.Listing] {
	if p.fault == "finds nothing" {
		return func(func(uagents.Listing) bool) {}
	}
	return p.MemoryProfiles.Listings(ctx)
}

func (c curve) Sign(key *[32]byte, digest *[32]byte) (out [64]byte, err error) {
	hash := digest[:]
	if c.fault == "signs another digest" {
		hash = key[:]
	}
	sig := ecdsa.Sign(secp256k1.PrivKeyFromBytes(key[:]), hash)
	r, s := sig.R(), sig.S()
	r.PutBytesUnchecked(out[:32])
	s.PutBytesUnchecked(out[32:])
	return out, nil
}

func (c curve) Verify(public *[33]byte, digest *[32]byte, sig *[64]byte) bool {
	key, err := secp256k1.ParsePubKey(public[:])
	if err != nil {
		return c.fault == "takes any key"
	}
	var r, s secp256k1.ModNScalar
	over := r.SetByteSlice(sig[:32]) || s.SetByteSlice(sig[32:]) || r.IsZero() || s.IsZero()
	if over || c.fault == "refuses high s" && s.IsOverHalfOrder() {
		return false
	}
	return ecdsa.NewSignature(&r, &s).Verify(digest[:], key)
}

// TestChecks: the stores of package uagents pass, and each fault is found.
func TestChecks(t *testing.T) { synctest.Test(t, testChecks) } // for the order of concurrent calls

func testChecks(t *testing.T) {
	me := uagentstest.NewPeer(t, "me")
	for name, c := range map[string]struct {
		check  func(fault string) error
		faults map[string]string // and the rule that finds it
	}{
		"Memory": {func(f string) error {
			return uagentstest.TestMemory(func() uagents.Memory {
				if f != "" {
					return memory{uagents.NewMemory(0, nil)}
				}
				return uagents.NewMemory(0, nil)
			})
		}, map[string]string{"forgets": "a key is fresh once"}},
		"Resolver": {func(f string) error {
			r := me.Resolver()
			if f != "" {
				r = resolver{r}
			}
			return uagentstest.TestResolver(r, me.Address())
		}, map[string]string{"no sentinel": "ErrUnresolved"}},
		"AlmanacStore": {func(f string) error {
			return uagentstest.TestAlmanacStore(func() uagents.AlmanacStore { return &almanac{fault: f} })
		}, map[string]string{"mixes networks": "networks are", "hides errors": "a change that fails",
			"no transaction": "atomic", "no limit": "up to the limit"}},
		"MailboxStore": {func(f string) error {
			return uagentstest.TestMailboxStore(func() uagents.MailboxStore { return &mailbox{fault: f} })
		}, map[string]string{"forgets keys": "a key puts one item", "keeps the expired": "expired", "no offset": "in order",
			"always deletes": "deleted by its UUID"}},
		"ProfileStore": {func(f string) error {
			return uagentstest.TestProfileStore(func() uagents.ProfileStore { return &profiles{fault: f} })
		}, map[string]string{"shares handles": "belongs to one agent", "finds nothing": "searches"}},
		"Curve": {func(f string) error { return uagentstest.TestCurve(curve{f}) },
			map[string]string{"signs another digest": "RFC 6979", "takes any key": "refuses all others",
				"refuses high s": "high s"}},
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
