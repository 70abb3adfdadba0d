package policy

import (
	"container/list"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// limiter holds a token bucket per name, and forgets the least recently used one
// first. A bucket that has been idle until it is full again can be forgotten without
// effect; MaxSenders is large enough for that.
type limiter struct {
	rate Rate
	max  int

	mu     sync.Mutex
	byName map[string]*list.Element
	recent *list.List // of *bucket, the most recent first
}

type bucket struct {
	name string
	l    *rate.Limiter
}

func newLimiter(r Rate, limit int) *limiter {
	return &limiter{rate: r, max: limit, byName: map[string]*list.Element{}, recent: list.New()}
}

// take uses up one message of name's rate, or gives the time until there is one.
func (l *limiter) take(name string, now time.Time) time.Duration {
	if l.rate.PerSecond < 0 {
		return 0
	}
	l.mu.Lock()
	e, ok := l.byName[name]
	if ok {
		l.recent.MoveToFront(e)
	} else {
		if l.recent.Len() >= l.max {
			last := l.recent.Back()
			delete(l.byName, l.recent.Remove(last).(*bucket).name)
		}
		e = l.recent.PushFront(&bucket{name, rate.NewLimiter(rate.Limit(l.rate.PerSecond), l.rate.Burst)})
		l.byName[name] = e
	}
	b := e.Value.(*bucket)
	l.mu.Unlock()

	r := b.l.ReserveN(now, 1)
	if !r.OK() {
		return time.Hour
	}
	if wait := r.DelayFrom(now); wait > 0 {
		r.CancelAt(now)
		return wait
	}
	return 0
}
