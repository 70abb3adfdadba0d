package samvad

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"time"

	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/internal/netguard"
)

// A Guard gives the prefixes of the network addresses that may be called
// besides those of the public internet. It is asked for each connection, so
// that the list can change. Nil allows the public internet only.
type Guard interface{ Prefixes() []netip.Prefix }

// AllowPrefixes is the [Guard] of a fixed list. An IPv4 prefix stands for its
// IPv4-mapped IPv6 form too.
func AllowPrefixes(list ...netip.Prefix) Guard { return fixed(list) }

type fixed []netip.Prefix

func (f fixed) Prefixes() []netip.Prefix { return f }

// netguardOf makes the guard of a field, such as "Client.Guard". Errors about blocked
// addresses say how to set the field; those of the hub's own guard name its
// configuration.
func netguardOf(g Guard, field string) *netguard.Guard {
	if own, ok := g.(*netguard.Guard); ok {
		return own
	}
	var list func() []netip.Prefix
	if g != nil {
		list = g.Prefixes
	}
	return netguard.Live(list, func(prefix string) string {
		return fmt.Sprintf("set %s to samvad.AllowPrefixes(netip.MustParsePrefix(%q))", field, prefix)
	})
}

// Defaults of [CardStore].
const (
	DefaultCardTimeout = 8 * time.Second
	DefaultMaxCardTTL  = 300 * time.Second // a card is kept for its cardTTL, at most this
	DefaultMaxCards    = 10000
	DefaultMaxFetches  = 256
	maxCardBody        = 256 << 10
	maxCardKeys        = 64
	justFetched        = time.Second
	refreshEvery       = 10 * time.Second // between two forced fetches of one card
)

// A CardStore is a [Keys] that takes keys from the cards that agents publish
// at the https origin of their identity. A card whose id is not the sender's
// is refused (SAM-075); failures are not kept; concurrent look-ups of one
// agent share one fetch. It is safe for concurrent use and must not be copied.
type CardStore struct {
	// HTTP fetches cards. Nil: a client of Guard, which refuses internal addresses
	// (after resolution) and redirects to other origins (SAM-076).
	HTTP  *http.Client
	Guard Guard

	Now        func() time.Time
	Timeout    time.Duration // of a fetch; 0 = [DefaultCardTimeout]
	MaxCards   int           // kept at once; 0 = [DefaultMaxCards]
	MaxFetches int           // at once; 0 = [DefaultMaxFetches]

	once sync.Once
	http *http.Client

	mu       sync.Mutex
	cards    map[string]*cardEntry
	fetching int
}

type cardEntry struct {
	keys    []Key
	expires time.Time
	fetched time.Time
	forced  time.Time // when a refresh was last forced
	pending *fetch
}

type fetch struct {
	done chan struct{}
	keys []Key
	err  error
}

func (s *CardStore) now() time.Time { return nowOf(s.Now) }

// Keys implements [Keys].
func (s *CardStore) Keys(ctx context.Context, id string) ([]Key, error) { return s.get(ctx, id, false) }

// Refresh implements [Refresher]: it fetches the card again, unless that was
// done within RefreshEvery.
func (s *CardStore) Refresh(ctx context.Context, id string) ([]Key, error) {
	return s.get(ctx, id, true)
}

func (s *CardStore) get(ctx context.Context, id string, force bool) ([]Key, error) {
	origin, err := AgentOrigin(id)
	if err != nil {
		return nil, because(ErrUnknownKey, err)
	}
	now := s.now()
	s.mu.Lock()
	e := s.cards[id]
	// A card that was just fetched, or for which a fetch was just forced, is not
	// fetched again because of one more unknown keyid.
	if e != nil && now.Before(e.expires) &&
		(!force || now.Sub(e.fetched) < justFetched || now.Sub(e.forced) < refreshEvery) {
		defer s.mu.Unlock()
		return e.keys, nil
	}
	if e == nil || e.pending == nil {
		if s.fetching >= cmp.Or(s.MaxFetches, DefaultMaxFetches) {
			s.mu.Unlock()
			return nil, because(ErrBusy, errors.New("too many card fetches at once"))
		}
		if e == nil {
			e = s.admit(id)
		}
		f := &fetch{done: make(chan struct{})}
		e.pending = f
		s.fetching++
		if force {
			e.forced = now
		}
		s.mu.Unlock()
		s.run(ctx, id, origin+cardPath, e, f)
		return f.keys, f.err
	}
	f := e.pending
	s.mu.Unlock()
	select {
	case <-f.done:
		return f.keys, f.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// admit makes room for a new entry, in place of any other; the store is locked.
// Cards that are being fetched stay; MaxFetches bounds them.
func (s *CardStore) admit(id string) *cardEntry {
	if len(s.cards) >= cmp.Or(s.MaxCards, DefaultMaxCards) {
		for k, e := range s.cards {
			if e.pending == nil {
				delete(s.cards, k)
				break
			}
		}
	}
	if s.cards == nil {
		s.cards = map[string]*cardEntry{}
	}
	e := &cardEntry{}
	s.cards[id] = e
	return e
}

// run fetches a card for all callers that wait for f. So the fetch ends with its own
// timeout, not with the context of one caller.
func (s *CardStore) run(ctx context.Context, id, u string, e *cardEntry, f *fetch) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cmp.Or(s.Timeout, DefaultCardTimeout))
	defer cancel()
	keys, ttl, err := s.fetch(ctx, id, u)
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fetching--
	e.pending = nil
	f.keys, f.err = keys, err
	if err != nil {
		// Failures are not kept, and a card that cannot be fetched any more
		// must not keep a revoked key alive beyond its time.
		if !now.Before(e.expires) && s.cards[id] == e {
			delete(s.cards, id)
		}
	} else {
		e.keys, e.fetched, e.expires = keys, now, now.Add(ttl)
	}
	close(f.done)
}

func (s *CardStore) client() *http.Client {
	if s.HTTP != nil {
		return s.HTTP
	}
	s.once.Do(func() {
		s.http = netguardOf(s.Guard, "CardStore.Guard").
			Client(netguard.Options{Timeout: cmp.Or(s.Timeout, DefaultCardTimeout), MaxResponseBytes: maxCardBody})
	})
	return s.http
}

func (s *CardStore) fetch(ctx context.Context, id, u string) ([]Key, time.Duration, error) {
	fail := func(err error) ([]Key, time.Duration, error) {
		return nil, 0, because(ErrUnknownKey, fmt.Errorf("card of %s: %w", clip(id), err))
	}
	target, err := url.Parse(u)
	if err != nil {
		return fail(err)
	}
	if err := netguardOf(s.Guard, "CardStore.Guard").CheckURL(target); err != nil {
		return fail(err)
	}
	b, err := getCard(ctx, s.client(), u)
	if err != nil {
		return fail(err)
	}
	var c struct {
		ID              string    `json:"id"`
		ProtocolVersion string    `json:"protocolVersion"`
		PublicKeys      []CardKey `json:"publicKeys"`
		CardTTL         *int64    `json:"cardTTL"`
	}
	if err := jsonx.Decode(b, &c); err != nil {
		return fail(err)
	}
	if c.ID != id {
		return fail(fmt.Errorf("its id is %q", clip(c.ID)))
	}
	if len(c.PublicKeys) > maxCardKeys {
		return fail(fmt.Errorf("%d keys", len(c.PublicKeys)))
	}
	ttl := DefaultMaxCardTTL
	if c.CardTTL != nil {
		if *c.CardTTL < 0 {
			return fail(errors.New("negative cardTTL"))
		}
		if *c.CardTTL < int64(ttl/time.Second) {
			ttl = time.Duration(*c.CardTTL) * time.Second
		}
	}
	return cardKeys(c.PublicKeys, c.ProtocolVersion), ttl, nil
}

// getCard fetches a card document, at most 256 KiB.
func getCard(ctx context.Context, c *http.Client, u string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	resp, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer closeBody(resp.Body)
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d", resp.StatusCode)
	}
	b, err := netguard.ReadAll(resp.Body, maxCardBody)
	if errors.Is(err, netguard.ErrTooLarge) {
		err = ErrTooLarge
	}
	return b, err
}

// closeBody reads a short rest, so that the connection can be reused, and closes.
func closeBody(b io.ReadCloser) {
	_, _ = io.CopyN(io.Discard, b, 4096)
	_ = b.Close()
}
