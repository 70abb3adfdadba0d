package uagentstest

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/parley-hub/parley/internal/checks"
	"github.com/parley-hub/parley/uagents"
)

// Each error of these functions names every rule that was broken. Each open gives an
// empty store. The clock of a store must be that of the system.

const (
	agent   = "agent1qvg94auggu6jhg3ccfwpjvlkp0n9zglupzqjcnlup6qj09u96lwvvnvhwr4"
	network = "agent"
)

// TestMemory checks memories; open gives an empty one each time.
func TestMemory(open func() uagents.Memory) error {
	return checks.CheckMemory(func() checks.Memory { return open() },
		func(i int) string { return fmt.Sprintf("%s %064x", agent, i) })
}

// TestResolver checks a resolver that finds the given addresses.
func TestResolver(r uagents.Resolver, known ...string) error {
	one := func(ctx context.Context, address string) error {
		got, endpoints, err := r.Resolve(ctx, address)
		if err != nil || got != address || len(endpoints) == 0 {
			return fmt.Errorf("%s resolves to %q with %d endpoints, %w", address, got, len(endpoints), err)
		}
		for _, e := range endpoints {
			u, err := url.Parse(e.URL)
			if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || e.Weight <= 0 {
				return fmt.Errorf("%s has the endpoint %q of weight %v", address, e.URL, e.Weight)
			}
		}
		return nil
	}
	return checks.Run(
		checks.Check{Name: "each known address has endpoints", Run: func(ctx context.Context) error {
			for _, a := range known {
				if err := one(ctx, a); err != nil {
					return err
				}
			}
			return nil
		}},
		checks.Check{Name: "an unknown agent is ErrUnresolved", Run: func(ctx context.Context) error {
			if got, _, err := r.Resolve(ctx, agent); !errors.Is(err, uagents.ErrUnresolved) {
				return fmt.Errorf("%q resolves to %q, %w", agent, got, err)
			}
			return nil
		}},
		checks.Check{Name: "what is no identifier is an error", Run: func(ctx context.Context) error {
			for _, to := range []string{"", "agent1", "not an address"} {
				if got, _, err := r.Resolve(ctx, to); err == nil {
					return fmt.Errorf("%q resolves to %q", to, got)
				}
			}
			return nil
		}},
		checks.Check{Name: "calls may be concurrent", Run: func(ctx context.Context) error {
			return checks.Together(8*len(known), func(i int) error { return one(ctx, known[i%len(known)]) })
		}},
	)
}

// alike compares values by their JSON.
func alike(what string, got, want any) error {
	a, err := json.Marshal(got)
	if err != nil {
		return err
	}
	b, err := json.Marshal(want)
	if err != nil {
		return err
	}
	if string(a) != string(b) {
		return fmt.Errorf("%s is %s, want %s", what, a, b)
	}
	return nil
}

// patient repeats a call while the store is too busy to take it.
func patient(ctx context.Context, call func() error) error {
	for {
		err := call()
		if !errors.Is(err, uagents.ErrBusy) || ctx.Err() != nil {
			return err
		}
	}
}

// TestAlmanacStore checks stores of the registry; open gives an empty one each time.
func TestAlmanacStore(open func() uagents.AlmanacStore) error {
	digest := "proto:" + strings.Repeat("0a", 32)
	record := func(address string, n uint64) *uagents.Record {
		return &uagents.Record{Network: network, Address: address, Active: true, Registered: n, Protocols: []string{digest},
			Endpoints: []uagents.Endpoint{{URL: "https://agent.test/submit", Weight: 1}}, Metadata: []byte(`{"a":1}`),
			Expires: time.Now().Add(time.Hour).UTC().Truncate(time.Second)}
	}
	set := func(ctx context.Context, s uagents.AlmanacStore, r *uagents.Record) error {
		return s.Update(ctx, r.Network, r.Address, func(*uagents.Record) (*uagents.Record, error) { return r, nil })
	}
	has := func(ctx context.Context, s uagents.AlmanacStore, network string, want *uagents.Record) error {
		got, err := s.Get(ctx, network, agent)
		if err != nil {
			return err
		}
		if got != nil {
			got = new(*got)
			got.Expires = got.Expires.UTC()
		}
		return alike("the record", got, want)
	}
	named := func(ctx context.Context, s uagents.AlmanacStore, limit, want int) error {
		list, err := s.ByProtocol(ctx, digest, limit)
		if err != nil || len(list) != want {
			return fmt.Errorf("ByProtocol with limit %d gives %d records, %w; want %d", limit, len(list), err, want)
		}
		return nil
	}
	return checks.Run(
		checks.Check{Name: "an unknown agent, name or manifest is nil", Run: func(ctx context.Context) error {
			s := open()
			d, err := s.Domain(ctx, network, "unknown.agent")
			if d != nil || err != nil {
				return fmt.Errorf("the name is %v, %w", d, err)
			}
			m, err := s.Manifest(ctx, digest)
			if m != nil || err != nil {
				return fmt.Errorf("the manifest is %v, %w", m, err)
			}
			return has(ctx, s, network, nil)
		}},
		checks.Check{Name: "a record is kept as it was written last", Run: func(ctx context.Context) error {
			s := open()
			first, second := record(agent, 1), record(agent, 2)
			return errors.Join(set(ctx, s, first), has(ctx, s, network, first), set(ctx, s, second),
				has(ctx, s, network, second))
		}},
		checks.Check{Name: "networks are kept apart", Run: func(ctx context.Context) error {
			s := open()
			return errors.Join(set(ctx, s, record(agent, 1)), has(ctx, s, "test-agent", nil))
		}},
		checks.Check{Name: "a change that fails changes nothing", Run: func(ctx context.Context) error {
			s, r, refused := open(), record(agent, 1), errors.New("refused")
			if err := set(ctx, s, r); err != nil {
				return err
			}
			if err := s.Update(ctx, network, agent, func(old *uagents.Record) (*uagents.Record, error) {
				return record(agent, 2), refused
			}); !errors.Is(err, refused) {
				return fmt.Errorf("Update gave %w, want the error of change", err)
			}
			return has(ctx, s, network, r)
		}},
		checks.Check{Name: "an update is atomic", Run: func(ctx context.Context) error {
			s := open()
			const calls = 16
			if err := checks.Together(calls, func(int) error {
				return patient(ctx, func() error {
					return s.Update(ctx, network, agent, func(old *uagents.Record) (*uagents.Record, error) {
						if old == nil {
							return record(agent, 1), nil
						}
						return record(agent, old.Registered+1), nil
					})
				})
			}); err != nil {
				return err
			}
			got, err := s.Get(ctx, network, agent)
			if err != nil || got == nil || got.Registered != calls {
				return fmt.Errorf("after %d updates the record is %+v, %w", calls, got, err)
			}
			return nil
		}},
		checks.Check{Name: "records are found by protocol, up to the limit", Run: func(ctx context.Context) error {
			s := open()
			for i := range 3 {
				id, err := uagents.IdentityFromSeed("agent of a check", i)
				if err != nil {
					return err
				}
				if err := set(ctx, s, record(id.Address(), 1)); err != nil {
					return err
				}
			}
			return errors.Join(named(ctx, s, 10, 3), named(ctx, s, 2, 2))
		}},
		checks.Check{Name: "a dropped protocol finds the agent no more", Run: func(ctx context.Context) error {
			s, r := open(), record(agent, 2)
			r.Protocols = nil
			return errors.Join(set(ctx, s, record(agent, 1)), named(ctx, s, 10, 1), set(ctx, s, r), named(ctx, s, 10, 0))
		}},
		checks.Check{Name: "a manifest is kept under its digest", Run: func(ctx context.Context) error {
			m, err := uagents.ChatProtocol().Manifest("")
			if err != nil {
				return err
			}
			m = m.Bound()
			s := open()
			if err := errors.Join(s.PutManifest(ctx, m), s.PutManifest(ctx, m)); err != nil {
				return err
			}
			got, err := s.Manifest(ctx, m.Digest())
			if err != nil || got == nil || got.Digest() != m.Digest() || len(got.Models()) != len(m.Models()) {
				return fmt.Errorf("the manifest is %v, %w", got, err)
			}
			return nil
		}},
	)
}

// TestMailboxStore checks stores of mailboxes; open gives an empty one each time.
func TestMailboxStore(open func() uagents.MailboxStore) error {
	now := time.Now()
	other, later := "agent1q0000", now.Add(time.Hour)
	item := func(i int) uagents.MailboxItem {
		return uagents.MailboxItem{UUID: fmt.Sprintf("00000000-0000-4000-8000-%012d", i),
			Envelope: fmt.Appendf(nil, `{"n":%d}`, i), ReceivedAt: now, ExpiresAt: later}
	}
	put := func(ctx context.Context, s uagents.MailboxStore, key string, i uagents.MailboxItem, want bool) error {
		prior, err := s.Put(ctx, agent, key, later, i)
		if err != nil || prior != want {
			return fmt.Errorf("putting %q gave prior=%v, %w; want %v", key, prior, err, want)
		}
		return nil
	}
	listed := func(ctx context.Context, s uagents.MailboxStore, address string, offset, limit int, want ...int) error {
		items, err := s.List(ctx, address, offset, limit, now)
		if err != nil {
			return err
		}
		var got []string
		for _, i := range items {
			got = append(got, i.UUID+string(i.Envelope))
		}
		var expected []string
		for _, i := range want {
			expected = append(expected, item(i).UUID+string(item(i).Envelope))
		}
		if !slices.Equal(got, expected) {
			return fmt.Errorf("List from %d, at most %d: %q, want %q", offset, limit, got, expected)
		}
		return nil
	}
	filled := func(ctx context.Context, n int) (uagents.MailboxStore, error) {
		s := open()
		errs := []error{s.Create(ctx, agent)}
		for i := range n {
			errs = append(errs, put(ctx, s, fmt.Sprint("key ", i), item(i), false))
		}
		return s, errors.Join(errs...)
	}
	return checks.Run(
		checks.Check{Name: "a mailbox is there once it was made", Run: func(ctx context.Context) error {
			s := open()
			before, err1 := s.Has(ctx, agent)
			err2 := s.Create(ctx, agent)
			after, err3 := s.Has(ctx, agent)
			elsewhere, err4 := s.Has(ctx, other)
			if before || !after || elsewhere {
				err4 = errors.Join(err4, fmt.Errorf("Has was %v before, %v after, %v for another agent", before, after, elsewhere))
			}
			return errors.Join(err1, err2, err3, err4)
		}},
		checks.Check{Name: "items are listed in order of arrival", Run: func(ctx context.Context) error {
			s, err := filled(ctx, 3)
			return errors.Join(err, listed(ctx, s, agent, 0, 10, 0, 1, 2), listed(ctx, s, agent, 1, 1, 1),
				listed(ctx, s, agent, 3, 10))
		}},
		checks.Check{Name: "making a mailbox again keeps its items", Run: func(ctx context.Context) error {
			s, err := filled(ctx, 1)
			return errors.Join(err, s.Create(ctx, agent), listed(ctx, s, agent, 0, 10, 0))
		}},
		checks.Check{Name: "mailboxes are kept apart", Run: func(ctx context.Context) error {
			s, err := filled(ctx, 1)
			return errors.Join(err, s.Create(ctx, other), listed(ctx, s, other, 0, 10))
		}},
		checks.Check{Name: "a key puts one item, even after it was deleted", Run: func(ctx context.Context) error {
			s, err := filled(ctx, 1)
			if err := errors.Join(err, put(ctx, s, "key 0", item(1), true), listed(ctx, s, agent, 0, 10, 0)); err != nil {
				return err
			}
			if ok, err := s.Delete(ctx, agent, item(0).UUID); err != nil || !ok {
				return fmt.Errorf("Delete gave %v, %w", ok, err)
			}
			return errors.Join(put(ctx, s, "key 0", item(2), true), listed(ctx, s, agent, 0, 10))
		}},
		checks.Check{Name: "of concurrent puts with one key one counts", Run: func(ctx context.Context) error {
			s, err := filled(ctx, 0)
			if err != nil {
				return err
			}
			var fresh atomic.Int64
			err = checks.Together(8, func(i int) error {
				return patient(ctx, func() error {
					prior, err := s.Put(ctx, agent, "key", later, item(i))
					if !prior && err == nil {
						fresh.Add(1)
					}
					return err
				})
			})
			list, lerr := s.List(ctx, agent, 0, 10, now)
			if fresh.Load() != 1 || len(list) != 1 {
				lerr = errors.Join(lerr, fmt.Errorf("%d puts counted, and %d items are there", fresh.Load(), len(list)))
			}
			return errors.Join(err, lerr)
		}},
		checks.Check{Name: "an item is found and deleted by its UUID", Run: func(ctx context.Context) error {
			s, err := filled(ctx, 2)
			if err != nil {
				return err
			}
			got, err := s.Get(ctx, agent, item(1).UUID, now)
			if err != nil || got == nil || string(got.Envelope) != string(item(1).Envelope) {
				return fmt.Errorf("Get gave %+v, %w", got, err)
			}
			for _, want := range []bool{true, false} {
				if ok, err := s.Delete(ctx, agent, item(1).UUID); err != nil || ok != want {
					return fmt.Errorf("Delete gave %v, %w; want %v", ok, err, want)
				}
			}
			if got, err := s.Get(ctx, agent, item(1).UUID, now); got != nil || err != nil {
				return fmt.Errorf("Get after Delete gave %+v, %w", got, err)
			}
			return listed(ctx, s, agent, 0, 10, 0)
		}},
		checks.Check{Name: "an expired item is gone", Run: func(ctx context.Context) error {
			s, err := filled(ctx, 1)
			if err != nil {
				return err
			}
			after := later.Add(time.Second)
			list, err := s.List(ctx, agent, 0, 10, after)
			got, gerr := s.Get(ctx, agent, item(0).UUID, after)
			if len(list) > 0 || got != nil {
				err = errors.Join(err, fmt.Errorf("List gives %d items, Get %+v", len(list), got))
			}
			return errors.Join(err, gerr)
		}},
	)
}

// TestProfileStore checks stores of profiles; open gives an empty one each time.
func TestProfileStore(open func() uagents.ProfileStore) error {
	at := time.Unix(1767225600, 0).UTC()
	profile := func(address, account, handle string) *uagents.Profile {
		return &uagents.Profile{Address: address, Account: account, Handle: handle, Name: "Weather", Created: at, Updated: at}
	}
	a, b, c := profile("agent1a", "user1", "a"), profile("agent1b", "user1", ""), profile("agent1c", "user2", "c")
	filled := func(ctx context.Context) (uagents.ProfileStore, error) {
		s := open()
		return s, errors.Join(s.PutProfile(ctx, b), s.PutProfile(ctx, a), s.PutProfile(ctx, c))
	}
	has := func(ctx context.Context, s uagents.ProfileStore, address string, want *uagents.Profile) error {
		got, err := s.Profile(ctx, address)
		return errors.Join(err, alike("the profile", got, want))
	}
	account := func(ctx context.Context, s uagents.ProfileStore, account string, want ...*uagents.Profile) error {
		got, err := s.Profiles(ctx, account)
		if len(got)+len(want) == 0 {
			return err
		}
		return errors.Join(err, alike("the account "+account, got, want))
	}
	return checks.Run(
		checks.Check{Name: "a profile is kept as it was put last", Run: func(ctx context.Context) error {
			s, err := filled(ctx)
			next := profile(a.Address, a.Account, "other")
			return errors.Join(err, has(ctx, s, a.Address, a), s.PutProfile(ctx, next), has(ctx, s, a.Address, next),
				has(ctx, s, "agent1z", nil))
		}},
		checks.Check{Name: "an account's profiles are sorted by address", Run: func(ctx context.Context) error {
			s, err := filled(ctx)
			return errors.Join(err, account(ctx, s, "user1", a, b), account(ctx, s, "user2", c), account(ctx, s, "user3"))
		}},
		checks.Check{Name: "a handle belongs to one agent", Run: func(ctx context.Context) error {
			s, err := filled(ctx)
			if err != nil {
				return err
			}
			if err := s.PutProfile(ctx, profile(b.Address, b.Account, c.Handle)); !errors.Is(err, uagents.ErrHandle) {
				return fmt.Errorf("a second agent takes the handle: %w", err)
			}
			return has(ctx, s, b.Address, b)
		}},
		checks.Check{Name: "a removed profile is gone, and its handle free", Run: func(ctx context.Context) error {
			s, err := filled(ctx)
			return errors.Join(err, s.RemoveProfile(ctx, a.Address), has(ctx, s, a.Address, nil),
				account(ctx, s, "user1", b), s.PutProfile(ctx, profile("agent1d", "user2", a.Handle)))
		}},
		checks.Check{Name: "searches find public profiles", Run: func(ctx context.Context) error {
			s, err := filled(ctx)
			hidden := profile("agent1e", "user1", "")
			hidden.Metadata = json.RawMessage(`{"is_public":false}`)
			if err := errors.Join(err, s.PutProfile(ctx, hidden)); err != nil {
				return err
			}
			var found []string // among others that the store may know
			for l := range s.Listings(ctx) {
				if slices.Contains([]string{a.Address, b.Address, c.Address, hidden.Address}, l.Address) {
					found = append(found, l.Address)
				}
			}
			slices.Sort(found)
			return alike("the list", found, []string{a.Address, b.Address, c.Address})
		}},
	)
}

// TestCurve checks an implementation of secp256k1 against the one of package uagents.
func TestCurve(c uagents.Curve) error {
	key := sha256.Sum256([]byte("key of a check"))
	plain, err := uagents.IdentityFromKey(key[:])
	if err != nil {
		return err
	}
	public := [33]byte(plain.Public())
	own := plain.WithCurve(c)
	digest := sha256.Sum256([]byte("a message"))
	order, _ := new(big.Int).SetString("fffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141", 16)
	return checks.Run(
		checks.Check{Name: "signatures are those of RFC 6979, with low s", Run: func(context.Context) error {
			for i := range 32 {
				d := sha256.Sum256([]byte{byte(i)})
				want, err := plain.SignDigest(d)
				if err != nil {
					return err
				}
				if got, err := own.SignDigest(d); err != nil || got != want {
					return fmt.Errorf("the signature of %x is %s, %w; want %s", d, got, err, want)
				}
			}
			return nil
		}},
		checks.Check{Name: "Verify takes good signatures, and high s", Run: func(context.Context) error {
			sig, err := c.Sign(&key, &digest)
			if err != nil {
				return err
			}
			high := sig
			new(big.Int).Sub(order, new(big.Int).SetBytes(sig[32:])).FillBytes(high[32:])
			if !c.Verify(&public, &digest, &sig) || !c.Verify(&public, &digest, &high) {
				return errors.New("a good signature is refused")
			}
			return nil
		}},
		checks.Check{Name: "Verify refuses all others", Run: func(context.Context) error {
			sig, err := c.Sign(&key, &digest)
			if err != nil {
				return err
			}
			bad := map[string]func(public *[33]byte, digest *[32]byte, sig *[64]byte){
				"another digest":        func(_ *[33]byte, d *[32]byte, _ *[64]byte) { d[0] ^= 1 },
				"another r":             func(_ *[33]byte, _ *[32]byte, s *[64]byte) { s[5] ^= 1 },
				"another s":             func(_ *[33]byte, _ *[32]byte, s *[64]byte) { s[40] ^= 1 },
				"an r of 0":             func(_ *[33]byte, _ *[32]byte, s *[64]byte) { clear(s[:32]) },
				"an s of 0":             func(_ *[33]byte, _ *[32]byte, s *[64]byte) { clear(s[32:]) },
				"an r of the order":     func(_ *[33]byte, _ *[32]byte, s *[64]byte) { order.FillBytes(s[:32]) },
				"an s of the order":     func(_ *[33]byte, _ *[32]byte, s *[64]byte) { order.FillBytes(s[32:]) },
				"a key of zeros":        func(p *[33]byte, _ *[32]byte, _ *[64]byte) { clear(p[:]) },
				"a key off the curve":   func(p *[33]byte, _ *[32]byte, _ *[64]byte) { *p = [33]byte{2, 32: 5} },
				"the key of its mirror": func(p *[33]byte, _ *[32]byte, _ *[64]byte) { p[0] ^= 1 },
			}
			for what, change := range bad {
				p, d, s := public, digest, sig
				change(&p, &d, &s)
				if c.Verify(&p, &d, &s) {
					return fmt.Errorf("%s verifies", what)
				}
			}
			return nil
		}},
		checks.Check{Name: "calls may be concurrent", Run: func(context.Context) error {
			return checks.Together(16, func(i int) error {
				d := sha256.Sum256([]byte{byte(i)})
				sig, err := c.Sign(&key, &d)
				if err == nil && !c.Verify(&public, &d, &sig) {
					err = errors.New("a good signature is refused")
				}
				return err
			})
		}},
	)
}
