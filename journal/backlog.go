package journal

import (
	"bytes"
	"time"
	"unique"

	"github.com/parley-hub/parley"
)

// A Backlog counts the deliveries to one recipient that are not settled, and its dead letters.
type Backlog struct {
	Open    int
	Dead    int
	Oldest  time.Time // of the open ones
	Expires time.Time // the first of the open ones; zero: none of them does
}

// Backlogs gives the backlogs of recipients, in one pass over all deliveries. A recipient without any is missing.
func (j *Journal) Backlogs(of []string) map[string]Backlog {
	counts := make(map[unique.Handle[string]]*backlogCount, len(of))
	for _, name := range of {
		counts[unique.Make(name)] = &backlogCount{}
	}
	for _, p := range j.parts {
		p.count(counts)
	}
	out := map[string]Backlog{}
	for to, c := range counts {
		if c.open+c.dead == 0 {
			continue
		}
		b := Backlog{Open: c.open, Dead: c.dead, Expires: fromNanos(c.expires)}
		if c.open > 0 {
			b.Oldest = c.oldest.Time()
		}
		out[to.Value()] = b
	}
	return out
}

type backlogCount struct {
	open, dead int
	oldest     parley.ID
	expires    int64
}

func (p *partition) count(counts map[unique.Handle[string]]*backlogCount) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	for t, d := range p.open {
		c := counts[t.to]
		switch {
		case c == nil:
			continue
		case d.state == parley.Dead:
			c.dead++
			continue
		}
		if c.open == 0 || bytes.Compare(t.message[:], c.oldest[:]) < 0 {
			c.oldest = t.message
		}
		if d.expires != 0 && (c.expires == 0 || d.expires < c.expires) {
			c.expires = d.expires
		}
		c.open++
	}
}
