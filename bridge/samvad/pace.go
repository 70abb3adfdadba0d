package samvad

import (
	"context"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
	protocol "github.com/parley-hub/parley/samvad"
)

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
func (p *pacer) postpone(peer string, after time.Duration) {
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
			b.pace.postpone(peer, wait)
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
