package samvad

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/directory"
	protocol "github.com/parley-hub/parley/samvad"
)

// The hub reads the cards of agents elsewhere: for their specializations, models and
// rate limits, and for their skills where the directory declares none.

const (
	// cardWait is how long the first call of an agent waits for its card, for its
	// rate limits.
	cardWait = 3 * time.Second
	// cardRetry is the pause after a card could not be read.
	cardRetry = time.Minute
)

// A cachedCard is the card of an agent elsewhere, as it was last read.
type cachedCard struct {
	card  *protocol.Card // nil: it has not been read
	err   error          // why the last read failed
	until time.Time      // it is not read again before
	read  chan struct{}  // closed at the end of the read in flight; nil where there is none
}

// addressed gives the identity of an agent elsewhere that has a URL.
func addressed(e *directory.Entry) (parley.Identity, bool) {
	for _, i := range e.Identities {
		if i.Protocol == Protocol && !i.StandIn && i.URL != "" {
			return i, e.Source != directory.FromCode
		}
	}
	return parley.Identity{}, false
}

// remoteCard gives the card of an agent elsewhere; nil where it is not known. If none
// was read yet, it waits for one up to the time given. It gives an old card and reads
// a new one in the background, so that no caller waits for an agent that is down.
// again ignores the pause after a failure: the agent may have started since.
func (b *Binding) remoteCard(ctx context.Context, e *directory.Entry, wait time.Duration, again bool) *protocol.Card {
	id, ok := addressed(e)
	if !ok {
		return nil
	}
	b.mu.Lock()
	r := b.cards[e.Name]
	if r == nil {
		r = &cachedCard{}
		b.cards[e.Name] = r
	}
	due := !b.c.Now().Before(r.until) || again && r.card == nil
	if due && r.read == nil && b.ctx.Err() == nil {
		r.read = make(chan struct{})
		kept := context.WithoutCancel(ctx) // others may wait for it too
		b.work.Go(func() {
			ctx, cancel := context.WithCancel(kept)
			defer cancel()
			defer context.AfterFunc(b.ctx, cancel)()
			card, err := b.readCard(ctx, e.Name, id.URL)
			b.noteCard(e.Name, r, card, err)
		})
	}
	card, read := r.card, r.read
	b.mu.Unlock()
	if card != nil || read == nil || wait == 0 {
		return card
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	select {
	case <-read:
	case <-ctx.Done():
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	return r.card
}

// noteCard ends a read. Without a card the one before stays.
func (b *Binding) noteCard(name string, r *cachedCard, card *protocol.Card, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(r.read)
	r.read, r.err = nil, err
	if card == nil {
		r.until = b.c.Now().Add(cardRetry)
		return
	}
	ttl := protocol.DefaultCardTTL
	if card.CardTTL != nil {
		ttl = max(*card.CardTTL, int(cardRetry/time.Second))
	}
	r.card, r.until = card, b.c.Now().Add(min(time.Duration(ttl)*time.Second, protocol.DefaultMaxCardTTL))
	delete(b.standIns, name)
}

func (b *Binding) readCard(ctx context.Context, name, at string) (*protocol.Card, error) {
	fetch, ok := b.mayFetch(ctx)
	if !ok {
		return nil, nil
	}
	card, err := b.client.Card(fetch, at)
	if err != nil {
		b.c.Logger.Warn("cannot read an agent's card", "agent", name, "url", at, "error", err)
	}
	return card, err
}

// cardError says why the card of an agent elsewhere could not be read.
func (b *Binding) cardError(name string) error {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if r := b.cards[name]; r != nil {
		return r.err
	}
	return nil
}

// cardHops is the key of the hubs that were asked for a card, as messages list their
// hops: two hubs that each have an agent at the other would ask each other for ever.
// They are in the context because net/http and the protocol's client and server,
// which know no hops, lie between the request and the fetch.
type cardHops struct{}

// cardContext is the context of a request, with its hops.
func cardContext(r *http.Request) context.Context {
	hops := bridge.HopsIn(r.Header.Get(bridge.ProvenanceHeader))
	if len(hops) == 0 {
		return r.Context()
	}
	return context.WithValue(r.Context(), cardHops{}, hops)
}

// mayFetch reports whether this hub may ask another for a card, and gives the
// context for that, with this hub among the hops.
func (b *Binding) mayFetch(ctx context.Context) (context.Context, bool) {
	hops, _ := ctx.Value(cardHops{}).([]string)
	if slices.Contains(hops, b.c.Hub.ID()) || len(hops) >= parley.MaxHops {
		return ctx, false
	}
	return context.WithValue(ctx, cardHops{}, append(slices.Clone(hops), b.c.Hub.ID())), true
}

// hopsTransport sends the hops of the context along.
type hopsTransport struct{ http.RoundTripper }

func (t hopsTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if hops, ok := r.Context().Value(cardHops{}).([]string); ok && r.Method == http.MethodGet {
		r = r.Clone(r.Context())
		r.Header.Set(bridge.ProvenanceHeader, `card; hops="`+strings.Join(hops, " ")+`"`)
	}
	return t.RoundTripper.RoundTrip(r)
}
