package samvad

import (
	"cmp"
	"sync"
	"time"
)

// DefaultMaxSenders is how many (agent, sender) pairs a [Limiter] keeps.
const DefaultMaxSenders = 100000

// A Limiter counts the requests of authenticated senders to agents: in a
// sliding minute, per agent and per sender, and tokens per UTC day (SAMVAD
// 1.2 §8-L4). Refused requests are not counted. One limiter serves any number
// of agents. The zero value is ready; it is safe for concurrent use and must
// not be copied.
//
// Only ask it about senders whose signature has been verified, so that others
// cannot fill it (SAM-060, SAM-064).
type Limiter struct {
	MaxSenders int // 0 = [DefaultMaxSenders]

	// Spent is called with the tokens that Record adds, for programs that keep
	// them over restarts; see Count.
	// It must not change once the limiter is used.
	Spent func(agent, sender string, tokens int, now time.Time)

	mu      sync.Mutex
	windows map[limitKey]*window
}

type limitKey struct{ agent, sender string } // sender "" is the agent's whole traffic

type window struct {
	at     []int64 // Unix nanoseconds of counted requests, oldest first, at most a minute old
	day    int64   // UTC day of tokens
	tokens int64
	used   int64 // Unix nanoseconds of the last use
}

const minute = int64(time.Minute)

// Allow counts a request if all limits let it pass: token budget, then all
// requests of the agent, then those of the sender. The error is an [*Error]
// with RetryAfter, wrapping [ErrTokenBudget] or [ErrRateLimited] (SAM-063).
func (l *Limiter) Allow(agent, sender string, limit RateLimit, now time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	t, day := now.UnixNano(), utcDay(now)
	one, all := l.window(limitKey{agent, sender}, t), l.window(limitKey{agent, ""}, t)
	if limit.TokensPerSenderPerDay > 0 && one.day == day && one.tokens >= int64(limit.TokensPerSenderPerDay) {
		return tooMany(ErrTokenBudget, time.Unix((day+1)*86400, 0).Sub(now))
	}
	if wait := all.wait(t, limit.RequestsPerMinute); wait > 0 {
		return tooMany(ErrRateLimited, wait)
	}
	if wait := one.wait(t, limit.RequestsPerSender); wait > 0 {
		return tooMany(ErrRateLimited, wait)
	}
	all.count(t, limit.RequestsPerMinute)
	one.count(t, limit.RequestsPerSender)
	return nil
}

// Record adds tokens that a handler used for a sender.
func (l *Limiter) Record(agent, sender string, tokens int, now time.Time) {
	if tokens <= 0 {
		return
	}
	l.Count(agent, sender, tokens, now)
	if l.Spent != nil {
		l.Spent(agent, sender, tokens, now)
	}
}

// Count adds tokens that a sender used before, or elsewhere, on the UTC day of now.
// It does not call Spent.
func (l *Limiter) Count(agent, sender string, tokens int, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w, day := l.window(limitKey{agent, sender}, now.UnixNano()), utcDay(now)
	if w.day != day {
		w.day, w.tokens = day, 0
	}
	w.tokens += int64(tokens)
}

func tooMany(is error, wait time.Duration) *Error {
	e := refuse(is, "", nil)
	e.RetryAfter = max(wait, time.Second)
	return e
}

func utcDay(t time.Time) int64 { return t.Unix() / 86400 }

// window gives the counters of a key. If there are too many, it evicts first those
// that count nothing any more, else the least recently used of a few.
func (l *Limiter) window(k limitKey, now int64) *window {
	w := l.windows[k]
	if w == nil {
		if l.windows == nil {
			l.windows = map[limitKey]*window{}
		}
		if len(l.windows) >= cmp.Or(l.MaxSenders, DefaultMaxSenders) {
			l.evict(now)
		}
		w = &window{}
		l.windows[k] = w
	}
	w.used = now
	return w
}

// evict looks at a few windows only: a full limiter must not become slow. An
// agent's own window goes last, for it bounds all its senders.
func (l *Limiter) evict(now int64) {
	const sample = 64
	var victim limitKey
	age, n := int64(-1), 0
	for k, w := range l.windows {
		idle := now - w.used
		if k.sender == "" {
			idle = 0
		}
		if idle > age {
			victim, age = k, idle
		}
		n++
		if n == sample {
			break
		}
	}
	delete(l.windows, victim)
}

// wait says how long until one more request fits, 0 if it does now. A request
// that lies exactly a minute back does not count any more.
func (w *window) wait(now int64, limit int) time.Duration {
	if limit <= 0 {
		return 0
	}
	old := 0
	for old < len(w.at) && now-w.at[old] >= minute {
		old++
	}
	if old > 0 {
		w.at = w.at[:copy(w.at, w.at[old:])]
	}
	if len(w.at) < limit {
		return 0
	}
	return time.Duration(w.at[len(w.at)-limit] + minute - now)
}

func (w *window) count(now int64, limit int) {
	if limit > 0 {
		w.at = append(w.at, now)
	}
}

// Limits bound what a verifier accepts. Zero means the default.
type Limits struct {
	MaxBody int64         // bytes; default 1 MiB
	Window  time.Duration // how old a timestamp may be; default 300 s
	Skew    time.Duration // how far in the future it may lie; default 60 s
}

func (l Limits) maxBody() int64 { return cmp.Or(l.MaxBody, 1<<20) }

// The defaults of [Limits] for timestamps.
const (
	DefaultWindow = 300 * time.Second
	DefaultSkew   = 60 * time.Second
)

func (l Limits) window() time.Duration { return cmp.Or(l.Window, DefaultWindow) }
func (l Limits) skew() time.Duration   { return cmp.Or(l.Skew, DefaultSkew) }
