package agh

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// paces limits the broadcasts of each peer that are not recorded: greetings, and
// undirected whois requests, which every peer may answer.
type paces struct {
	mu sync.Mutex
	by map[paceKey]*pace
}

// paceKey is a peer of a principal, or all peers of the principal.
type paceKey struct {
	principal string
	peerKey
}

type pace struct {
	*rate.Limiter
	used time.Time
}

const (
	defaultBroadcasts = 5.0
	broadcastsAtOnce  = 6   // seconds' worth
	answersAsOne      = 100 // so many answers of hosted peers count as one more broadcast
	anonymousPeers    = 40  // all peers of an anonymous principal share the rate of so many
	maxPaces          = 1 << 14
)

// pace refuses a broadcast of a peer that made too many. A whois costs more if
// many peers of this node may answer it.
func (r *Router) pace(e *Envelope, in Inbound) error {
	perSecond := r.Broadcasts
	switch w, whois := e.content.(*Whois); {
	case e.To != "" || perSecond < 0, whois && w.Type != WhoisRequest, !whois && e.Kind != KindGreet:
		return nil
	case perSecond == 0:
		perSecond = defaultBroadcasts
	}
	cost := 1
	if e.Kind == KindWhois {
		cost += len(r.channel(e.WorkspaceID, e.Channel)) / answersAsOne
	}
	now := r.Verifier.now()
	peer := paceKey{in.Principal, peerKey{channelKey{e.WorkspaceID, e.Channel}, e.From}}
	all := paceKey{principal: in.Principal}
	if !r.paces.allow(peer, perSecond, cost, now) ||
		in.Anonymous && !r.paces.allow(all, anonymousPeers*perSecond, cost, now) {
		return refuse(ErrRate, StepRouting, "from", "too many greetings or questions for all; say less often")
	}
	return nil
}

func (p *paces) allow(k paceKey, perSecond float64, cost int, now time.Time) bool {
	burst := max(1, int(broadcastsAtOnce*perSecond))
	p.mu.Lock()
	defer p.mu.Unlock()
	x := p.by[k]
	if x == nil {
		if len(p.by) >= maxPaces {
			p.forget()
		}
		if p.by == nil {
			p.by = map[paceKey]*pace{}
		}
		x = &pace{Limiter: rate.NewLimiter(rate.Limit(perSecond), burst)}
		p.by[k] = x
	}
	x.used = now
	return x.AllowN(now, min(cost, burst))
}

// forget drops the least recently used of a sample of the peers.
func (p *paces) forget() {
	var oldest paceKey
	looked := 0
	for k, x := range p.by {
		if looked == 0 || x.used.Before(p.by[oldest].used) {
			oldest = k
		}
		looked++
		if looked == 64 {
			break
		}
	}
	delete(p.by, oldest)
}
