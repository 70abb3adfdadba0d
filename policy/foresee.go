package policy

import (
	"time"

	"github.com/parley-hub/parley"
)

// Foresee says what [Policy.Admit] would say of a message to one recipient now. It uses up no rate.
func (p *Policy) Foresee(m *parley.Message, to Recipient) *parley.Error {
	return p.judge(m, []Recipient{to}, (*limiter).wait)
}

// wait gives the time until there is one message of name's rate, and takes none.
func (l *limiter) wait(name string, now time.Time) time.Duration {
	if l.rate.PerSecond < 0 {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := l.byName[name]
	if !ok { // its bucket would be full
		return 0
	}
	have := e.Value.(*bucket).l.TokensAt(now)
	if have >= 1 {
		return 0
	}
	return time.Duration((1 - have) / l.rate.PerSecond * float64(time.Second))
}
