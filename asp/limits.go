package asp

import (
	"cmp"
	"time"

	"golang.org/x/time/rate"
)

// Limits of one message, "Encoding and size limits"; bytes are inclusive.
const (
	maxMessage = 1 << 20   // bytes of the raw frame
	maxBody    = 512 << 10 // bytes of the canonical JSON of content.body
	maxContext = 64        // context objects (project)
)

// Timeouts end sessions without progress.
type Timeouts struct {
	Conversing time.Duration // 0: 3600 s without a message → FAILED
}

// stateTimeouts are the default timeouts. INVITED is the vendor's, the others are the
// project's.
var stateTimeouts = map[State]time.Duration{
	Invited:    30 * time.Second,   // → FAILED
	Introduced: 300 * time.Second,  // without a message → FAILED
	Conversing: 3600 * time.Second, // see Timeouts
	Agreeing:   300 * time.Second,  // after the COMMIT → CONVERSING
	Escalated:  24 * time.Hour,     // → FAILED
	Executing:  7 * 24 * time.Hour, // where the commitment names no deadline → FAILED
}

// after gives the time at which state s, entered or last used at t, times out.
// EXECUTING ends at the deadline of its commitment.
func (o Timeouts) after(s State, t, deadline time.Time) time.Time {
	wait, ends := stateTimeouts[s]
	switch {
	case !ends:
		return time.Time{}
	case s == Executing && !deadline.IsZero():
		return deadline
	case s == Conversing:
		wait = cmp.Or(o.Conversing, wait)
	}
	return t.Add(wait)
}

// Rates are invitations per minute and agent, by trust level (project).
type Rates struct {
	Low  int // levels 0 and 1; 0: 10
	High int // levels above; 0: 60
}

// limiter limits the invitations of one agent.
type limiter struct {
	*rate.Limiter
	used time.Time
}

// gate is step 18.
func (s *Server) gate(e *Envelope, agent *Agent, now time.Time) error {
	if !e.IsInvitation() {
		return nil
	}
	s.mu.Lock()
	l := s.limiters[agent.ID]
	if l == nil {
		if len(s.limiters) >= cmp.Or(s.MaxLive, 10_000) {
			s.forgetLimiters(now)
		}
		perMinute := cmp.Or(s.Invites.Low, 10)
		if trustLevel(agent.Score()) > 1 {
			perMinute = cmp.Or(s.Invites.High, 60)
		}
		l = &limiter{Limiter: rate.NewLimiter(rate.Limit(float64(perMinute)/60), perMinute)}
		s.limiters[agent.ID] = l
	}
	l.used = now
	s.mu.Unlock()
	if l.AllowN(now, 1) {
		return nil
	}
	err := refuse("rate_limited", "").at(18)
	after := int64(1/float64(l.Limit())) + 1
	err.Details = map[string]any{"limit": l.Burst(), "remaining": 0, "retryAfter": after, "reset": now.Unix() + after}
	return err
}

// forgetLimiters makes room for another limiter. It samples some: it drops those
// that are full again, or else the least recently used.
func (s *Server) forgetLimiters(now time.Time) {
	oldest, looked := "", 0
	for id, l := range s.limiters {
		if now.Sub(l.used) > time.Minute {
			delete(s.limiters, id)
		} else if oldest == "" || l.used.Before(s.limiters[oldest].used) {
			oldest = id
		}
		looked++
		if looked == 256 {
			break
		}
	}
	if len(s.limiters) >= cmp.Or(s.MaxLive, 10_000) {
		delete(s.limiters, oldest)
	}
}
