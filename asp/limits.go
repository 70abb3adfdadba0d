package asp

import (
	"cmp"
	"time"

	"golang.org/x/time/rate"
)

// Limits of one message, "Encoding and size limits". The zero value of each
// means the value named.
type Limits struct {
	Message int // raw frame in bytes, inclusive: 1 MiB
	Body    int // canonical JSON of content.body in bytes, inclusive: 512 KiB
	Context int // context objects in one message: 64 (project)
}

func (l Limits) message() int { return cmp.Or(l.Message, 1<<20) }
func (l Limits) body() int    { return cmp.Or(l.Body, 512<<10) }
func (l Limits) context() int { return cmp.Or(l.Context, 64) }

// Timeouts end sessions without progress. Only the invitation's is the vendor's;
// the others are the project's. The zero value of each means the value named.
type Timeouts struct {
	Invitation time.Duration // 30 s in INVITED → FAILED
	Introduced time.Duration // 300 s without a message → FAILED
	Conversing time.Duration // 3600 s without a message → FAILED
	Agreeing   time.Duration // 300 s after the COMMIT → CONVERSING
	Escalated  time.Duration // 24 h → FAILED
	Executing  time.Duration // 7 days, when the commitment names no deadline → FAILED
}

// after gives when state s, entered or last used at t, times out. EXECUTING
// ends at the deadline of its commitment.
func (o Timeouts) after(s State, t, deadline time.Time) time.Time {
	switch s {
	case Invited:
		return t.Add(cmp.Or(o.Invitation, 30*time.Second))
	case Introduced:
		return t.Add(cmp.Or(o.Introduced, 300*time.Second))
	case Conversing:
		return t.Add(cmp.Or(o.Conversing, 3600*time.Second))
	case Agreeing:
		return t.Add(cmp.Or(o.Agreeing, 300*time.Second))
	case Escalated:
		return t.Add(cmp.Or(o.Escalated, 24*time.Hour))
	case Executing:
		if !deadline.IsZero() {
			return deadline
		}
		return t.Add(cmp.Or(o.Executing, 7*24*time.Hour))
	}
	return time.Time{}
}

// Rates are invitations per minute and agent, by trust level (project).
type Rates struct {
	Low  int // levels 0 and 1; 0: 10
	High int // levels above; 0: 60
}

type limiter struct {
	invites, messages *rate.Limiter
	used              time.Time
}

// gate is step 18.
func (s *Server) gate(e *Envelope, agent *Agent, now time.Time) error {
	invitation := e.IsInvitation()
	if invitation && agent.Score() < s.MinTrust {
		return refuse("insufficient_trust_score", "").at(18)
	}
	if !invitation && s.Messages == 0 {
		return nil
	}
	s.mu.Lock()
	l := s.limiters[agent.ID]
	if l == nil {
		if len(s.limiters) >= cmp.Or(s.MaxLive, 10_000) {
			s.forgetLimiters(now)
		}
		perMinute := cmp.Or(s.Invites.Low, 10)
		if s.levels().Level(agent.Score()) > 1 {
			perMinute = cmp.Or(s.Invites.High, 60)
		}
		l = &limiter{invites: rate.NewLimiter(rate.Limit(float64(perMinute)/60), perMinute),
			messages: rate.NewLimiter(s.Messages, int(max(s.Messages, 1)))}
		s.limiters[agent.ID] = l
	}
	l.used = now
	s.mu.Unlock()
	for _, r := range []struct {
		use   bool
		limit *rate.Limiter
	}{{invitation, l.invites}, {s.Messages > 0, l.messages}} {
		if !r.use || r.limit.AllowN(now, 1) {
			continue
		}
		err := refuse("rate_limited", "").at(18)
		after := int64(1/float64(r.limit.Limit())) + 1
		err.Details = map[string]any{
			"limit":      r.limit.Burst(),
			"remaining":  0,
			"retryAfter": after,
			"reset":      now.Unix() + after,
		}
		return err
	}
	return nil
}

// forgetLimiters makes room for one more: those that are full again go, else
// the one not used for longest of those looked at.
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
