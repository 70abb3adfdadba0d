package samvad

import (
	"context"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/sleep"
	protocol "github.com/parley-hub/parley/samvad"
)

// A pacer keeps the rate limits of agents elsewhere. For them the hub is one sender,
// however many agents it calls for, so a request that the agent would refuse waits here
// instead.
type pacer struct {
	now     func() time.Time
	limiter protocol.Limiter // counts requests, by identity of the agent

	mu    sync.Mutex
	until map[string]time.Time // end of the agents' Retry-After
}

const maxPaced = 4096

// next gives how long the next request to an agent must wait. At 0 it has counted
// the request, which may go now.
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
	// Tokens are for the agent to count.
	err := p.limiter.Allow(peer, "", protocol.RateLimit{RequestsPerMinute: shared(limit)}, now)
	if err == nil {
		return 0
	}
	return max(protocol.AsError(err).RetryAfter, time.Second)
}

// shared gives how many requests a minute an agent takes from the hub.
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

// postpone notes the Retry-After of an agent.
func (p *pacer) postpone(peer string, after time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.until == nil || len(p.until) >= maxPaced {
		p.until = map[string]time.Time{}
	}
	p.until[peer] = p.now().Add(after)
}

// paced makes an attempt when the agent's limits allow it. The request of a waiting
// caller waits here if its deadline allows; others are retried later, which does not
// count as an attempt.
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
			out = attempt()
			if out.Err == nil || out.Err.Code != parley.RateLimited {
				return out
			}
			wait = out.Wait
			b.pace.postpone(peer, wait)
		} else {
			err := parley.Fail(parley.RateLimited, nil,
				"%q takes no more requests of this hub now, by the limits on its card or its Retry-After",
				o.Recipient.Name)
			err.After = wait
			err = err.With(parley.ByPeer, parley.PeerRate, "its card or its Retry-After lets the hub wait "+
				wait.Round(time.Millisecond).String())
			out = hub.Outcome{Err: err, Wait: wait}
		}
		if end, ok := ctx.Deadline(); !o.Waits || !ok || time.Until(end) <= wait || sleep.For(ctx, wait) != nil {
			return out
		}
	}
}
