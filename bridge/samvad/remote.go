package samvad

import (
	"context"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	protocol "github.com/parley-hub/parley/samvad"
)

// What an agent elsewhere says of itself on its card: its skills where nobody
// declared them here, its specializations and models, and how much it takes. The
// hub calls it in its own name for everybody, so all of that is one sender there;
// a request that the agent would refuse waits here instead.

const (
	// cardWait is how long the first call of an agent waits for its card, which
	// says how much it takes.
	cardWait = 3 * time.Second
	// cardRetry is after how long a card that could not be read again is tried.
	cardRetry = time.Minute
)

// A remote is the card of an agent elsewhere, as it was last read.
type remote struct {
	card  *protocol.Card // nil: it has not been read
	until time.Time      // it is not read again before
	read  chan struct{}  // closed when the reading that goes on has ended; nil where none goes on
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

// remoteCard gives the card of an agent elsewhere; nil where it is not known. A
// caller without one waits for it, at most that long; what is old is read again
// meanwhile, so that nobody waits for an agent that is away. With again, a card
// that could not be read just now is tried once more: the agent may have started
// since.
func (b *Binding) remoteCard(ctx context.Context, e *directory.Entry, wait time.Duration, again bool) *protocol.Card {
	id, ok := addressed(e)
	if !ok {
		return nil
	}
	b.mu.Lock()
	r := b.remotes[e.Name]
	if r == nil {
		r = &remote{}
		b.remotes[e.Name] = r
	}
	due := !b.c.Now().Before(r.until) || again && r.card == nil
	if due && r.read == nil && b.ctx.Err() == nil {
		r.read = make(chan struct{})
		kept := context.WithoutCancel(ctx) // others may wait for it too
		b.work.Go(func() {
			ctx, cancel := context.WithCancel(kept)
			defer cancel()
			defer context.AfterFunc(b.ctx, cancel)()
			b.noteCard(e.Name, r, b.readCard(ctx, e.Name, id.URL))
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

// noteCard ends a reading. Without a card the one before stays.
func (b *Binding) noteCard(name string, r *remote, card *protocol.Card) {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(r.read)
	r.read = nil
	if card == nil {
		r.until = b.c.Now().Add(cardRetry)
		return
	}
	ttl := protocol.DefaultCardTTL
	if card.CardTTL != nil {
		ttl = max(*card.CardTTL, int(cardRetry/time.Second))
	}
	r.card, r.until = card, b.c.Now().Add(min(time.Duration(ttl)*time.Second, protocol.DefaultMaxCardTTL))
	delete(b.hosted, name)
}

func (b *Binding) readCard(ctx context.Context, name, at string) *protocol.Card {
	fetch, ok := b.mayFetch(ctx)
	if !ok {
		return nil
	}
	card, err := b.client.Card(fetch, at)
	if err != nil {
		b.c.Logger.Warn("cannot read an agent's card", "agent", name, "url", at, "error", err)
		return nil
	}
	return card
}

// A pacer knows how much agents elsewhere take of this hub.
type pacer struct {
	now     func() time.Time
	limiter protocol.Limiter // of what was sent, by identity of the agent

	mu    sync.Mutex
	until map[string]time.Time // what agents asked for with Retry-After
}

const maxPaced = 4096

// next says how long the next request to an agent must wait; 0: it is counted,
// and may go now.
func (p *pacer) next(peer string, limit *protocol.RateLimit) time.Duration {
	now := p.now()
	p.mu.Lock()
	until := p.until[peer]
	p.mu.Unlock()
	if wait := until.Sub(now); wait > 0 {
		return wait
	}
	if limit == nil {
		return 0
	}
	// Tokens are what the agent counts, and nobody else.
	err := p.limiter.Allow(peer, "", protocol.RateLimit{RequestsPerMinute: shared(limit)}, now)
	if err == nil {
		return 0
	}
	return max(protocol.AsError(err).RetryAfter, time.Second)
}

// shared is how many requests a minute an agent takes of the hub.
func shared(limit *protocol.RateLimit) int {
	switch all, one := limit.RequestsPerMinute, limit.RequestsPerSender; {
	case all <= 0:
		return one
	case one <= 0:
		return all
	default:
		return min(all, one)
	}
}

// refused notes when an agent wants to be asked again.
func (p *pacer) refused(peer string, after time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.until == nil || len(p.until) >= maxPaced {
		p.until = map[string]time.Time{}
	}
	p.until[peer] = p.now().Add(after)
}

// paced makes an attempt when the agent takes one. The request of a waiting caller
// waits here where there is time for that; other messages are postponed, which uses
// up no try.
func (b *Binding) paced(ctx context.Context, o hub.Outbound, attempt func() hub.Outcome) hub.Outcome {
	var limit *protocol.RateLimit
	if card := b.remoteCard(ctx, o.Recipient, cardWait, false); card != nil {
		limit = card.RateLimit
	}
	peer := o.Identity.ID + " " + o.Identity.URL
	for {
		wait := b.pace.next(peer, limit)
		var out hub.Outcome
		if wait == 0 {
			if out = attempt(); out.Err == nil || out.Err.Code != parley.RateLimited {
				return out
			}
			wait = out.Wait
			b.pace.refused(peer, wait)
		} else {
			err := parley.Fail(parley.RateLimited, nil, "%q takes no more requests of this hub now, by the limits on its card or the time that it asked for", o.Recipient.Name)
			err.After = wait
			out = hub.Outcome{Err: err, Wait: wait}
		}
		if end, ok := ctx.Deadline(); !o.Waits || !ok || time.Until(end) <= wait {
			return out
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return out
		}
	}
}
