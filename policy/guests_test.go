package policy_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/policy"
)

// clock is a clock that tests set.
type clock struct{ now time.Time }

func (c *clock) get() time.Time { return c.now }

func newClock() *clock { return &clock{time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)} }

// A source that registers too many guests evicts its own entries. It evicts no entries of other sources and no entries
// in use.
func TestGuestsOfOneSourceEvictTheirOwn(t *testing.T) {
	c := newClock()
	g := policy.NewGuests(policy.GuestConfig{Registrations: 40, Share: 0.25, Now: c.get})
	evicted := map[string]bool{}
	keep := func(source, key string) *parley.Error {
		c.now = c.now.Add(time.Millisecond)
		return g.Keep(policy.GuestEntry{Kind: policy.Registration, Key: key, Source: source, Bytes: 100,
			Evict: func() { evicted[key] = true }})
	}
	if err := keep("192.0.2.1", "other"); err != nil {
		t.Fatal(err)
	}
	if err := keep("192.0.2.9", "used"); err != nil {
		t.Fatal(err)
	}
	g.Use(policy.Registration, "used")
	for i := range 100 {
		if err := keep("192.0.2.9", fmt.Sprint("flood-", i)); err != nil {
			t.Fatalf("registration %d: %v", i, err)
		}
	}
	if evicted["other"] || evicted["used"] || len(evicted) != 91 {
		t.Errorf("evicted %d, want 91; of another source: %v, in use: %v", len(evicted), evicted["other"],
			evicted["used"])
	}
	if s := g.Stats(); s.Registrations != 11 || s.Evicted != 91 {
		t.Errorf("%+v, want 11 registrations and 91 evicted", s)
	}
}

// If all entries are in use, a new entry is refused until one of them is idle.
func TestGuestsInUseStay(t *testing.T) {
	c := newClock()
	g := policy.NewGuests(policy.GuestConfig{Mailboxes: 2, Share: 1, Now: c.get})
	box := func(key string) *parley.Error {
		return g.Keep(policy.GuestEntry{Kind: policy.Mailbox, Key: key, Source: "192.0.2.1"})
	}
	for _, key := range []string{"a", "b"} {
		if err := box(key); err != nil {
			t.Fatal(err)
		}
		g.Use(policy.Mailbox, key)
	}
	err := box("c")
	if err == nil || err.Code != parley.RateLimited || !err.Retryable || err.After <= 0 {
		t.Fatalf("a third mailbox: %v, want a retryable RateLimited", err)
	}
	if s := g.Stats(); s.Mailboxes != 2 || s.Refused != 1 {
		t.Errorf("after a refusal: %+v, want 2 mailboxes and 1 refused", s)
	}
	c.now = c.now.Add(time.Hour)
	if err := box("c"); err != nil {
		t.Errorf("a third mailbox after an hour without use: %v", err)
	}
	g.Drop(policy.Mailbox, "c")
	g.Drop(policy.Mailbox, "b")
	if s := g.Stats(); s.Mailboxes != 0 || s.Memory != 0 {
		t.Errorf("after all mailboxes were dropped: %+v", s)
	}
}

// All kinds of entries share one memory budget. Each source has at most its share.
func TestGuestMemory(t *testing.T) {
	g := policy.NewGuests(policy.GuestConfig{Memory: 1 << 20, Share: 0.5, Now: newClock().get})
	keep := func(kind policy.Kind, key, source string, n int64) *parley.Error {
		return g.Keep(policy.GuestEntry{Kind: kind, Key: key, Source: source, Bytes: n})
	}
	if err := keep(policy.Registration, "huge", "192.0.2.1", 600<<10); err == nil {
		t.Error("Keep accepted more than a source's share")
	}
	for i := range 50 {
		if err := keep(policy.Manifest, fmt.Sprint(i), fmt.Sprintf("192.0.2.%d", i%5), 100<<10); err != nil {
			t.Fatal(err)
		}
		if m := g.Stats().Memory; m > 1<<20 {
			t.Fatalf("%d bytes are kept, more than the budget", m)
		}
	}
	if err := keep(policy.Registration, "grows", "192.0.2.77", 1<<10); err != nil {
		t.Fatal(err)
	}
	if err := g.Grow(policy.Registration, "grows", 2<<20); err == nil {
		t.Error("Grow accepted more than the budget")
	}
	if err := g.Grow(policy.Registration, "grows", 1<<10); err != nil && g.Stats().Memory+1<<10 <= 1<<20 {
		t.Errorf("Grow within the budget: %v", err)
	}
}

// The bytes recorded for guests are bounded in a burst and in a day. One source cannot use up the bytes of others.
func TestGuestDisk(t *testing.T) {
	c := newClock()
	const day = 120 << 20
	g := policy.NewGuests(policy.GuestConfig{Disk: day, Share: 0.25, Now: c.get})
	flood := func(source string) (written int) {
		for g.Write(source, 10<<10) == nil {
			written += 10 << 10
		}
		return written
	}
	first := flood("192.0.2.1")
	if first > 850<<10 || first < 256<<10 {
		t.Errorf("one source wrote %d bytes in a burst, want 256 to 850 KiB", first)
	}
	if err := g.Write("192.0.2.2", 1000); err != nil {
		t.Errorf("Write of another source: %v", err)
	}
	total := first + flood("192.0.2.2") + flood("192.0.2.3") + flood("192.0.2.4") + flood("192.0.2.5")
	if total > 1<<20+50<<10 {
		t.Errorf("all sources wrote %d bytes in a burst, more than the bound", total)
	}
	err := g.Write("192.0.2.6", 1)
	if err == nil || err.After <= 0 {
		t.Fatalf("Write after the budget is used up: %v, want an error with After", err)
	}
	c.now = c.now.Add(err.After)
	if err := g.Write("192.0.2.6", 1); err != nil {
		t.Errorf("Write after the time given in the refusal: %v", err)
	}
	total = 0
	for range 24 * 60 {
		c.now = c.now.Add(time.Minute)
		total += flood("192.0.2.1")
	}
	if total > day+2<<20 {
		t.Errorf("%d bytes in a day, more than the bound", total)
	}
}

// Only the answers to a source that sends too many requests are delayed.
func TestGuestPace(t *testing.T) {
	c := newClock()
	g := policy.NewGuests(policy.GuestConfig{Requests: 10, Now: c.get})
	for i := range 20 {
		if d := g.Pace("192.0.2.1", 0); d != 0 {
			t.Fatalf("request %d of the burst is delayed by %s", i, d)
		}
	}
	if d := g.Pace("192.0.2.1", 0); d <= 0 || d > time.Second {
		t.Errorf("the request after the burst is delayed by %s, want up to 1s", d)
	}
	if d := g.Pace("192.0.2.1", 100<<20); d < 9*time.Second || d > 11*time.Second {
		t.Errorf("a very large request is delayed by %s, want about 10s", d)
	}
	if d := g.Pace("192.0.2.2", 0); d != 0 {
		t.Errorf("a request of another source is delayed by %s", d)
	}
}

// A source is an IPv4 address or an IPv6 network of 64 bits, without port and zone.
func TestSource(t *testing.T) {
	for address, want := range map[string]string{
		"192.0.2.7:80": "192.0.2.7", "192.0.2.7": "192.0.2.7", "[2001:db8:1:2:3::4]:80": "2001:db8:1:2::/64",
		"2001:db8:1:2:9::9": "2001:db8:1:2::/64", "[::ffff:192.0.2.7]:1": "192.0.2.7", "[fe80::1%eth0]:1": "fe80::/64",
		"pipe": "", "": "",
	} {
		if got := policy.Source(address); got != want {
			t.Errorf("Source(%q) = %q, want %q", address, got, want)
		}
	}
}

// Vouch affects only the caller of its context, and calls that caller's function once.
func TestVouch(t *testing.T) {
	calls := 0
	one, other := policy.NewCaller("192.0.2.1", func() { calls++ }), policy.NewCaller("192.0.2.2", nil)
	ctx := policy.WithCaller(context.Background(), one)
	policy.Vouch(context.Background())
	policy.Vouch(ctx)
	policy.Vouch(ctx)
	if !one.Vouched() || other.Vouched() || calls != 1 || policy.SourceOf(ctx) != "192.0.2.1" ||
		policy.SourceOf(context.Background()) != "" {
		t.Errorf("vouched: caller %v, other caller %v; calls: %d; source: %q", one.Vouched(), other.Vouched(), calls,
			policy.SourceOf(ctx))
	}
}
