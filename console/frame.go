package console

import (
	"fmt"
	"strings"
	"time"

	"github.com/parley-hub/parley/admin"
)

// A Frame is what every page shows of the hub.
type Frame struct {
	Facts []Fact
	Dead  uint64 // dead letters
	Lag   uint64 // records that the index has not yet
}

// A Fact is one number of the frame; it leads to the page that says more.
type Fact struct {
	Name   string // for tests and styles
	Before string
	Number string
	After  string
	Title  string // more words: what to do
	Link   string
	Class  string // alarm: it does not mend itself; warn: it does; opt: left out where there is no room
}

func (c *Console) frame(q *request) *Frame {
	s, err := c.admin.Status(q.by)
	if err != nil {
		return &Frame{Facts: []Fact{{Name: "fault", Number: err.Error(), Class: "alarm"}}}
	}
	f := &Frame{Dead: s.Dead.Number, Lag: s.Lag.Number}
	number := func(n uint64) string { return grouped(int64(n)) }
	add := func(g admin.Gauge, warn bool, v Fact) {
		switch {
		case g.Alarm:
			v.Class, v.Title = "alarm", g.Text
		case warn:
			v.Class = "warn"
		}
		f.Facts = append(f.Facts, v)
	}
	add(admin.Gauge{}, false, Fact{Name: "hub", Number: s.Hub, After: s.Version, Link: Base})
	add(admin.Gauge{}, false, Fact{Name: "accepted", Before: "accepted =", Number: s.Accepted, Link: Base})
	if s.Health.Alarm {
		add(s.Health, false, Fact{Name: "health", Number: "the hub takes no messages", After: s.Health.Text, Link: Base})
	}
	if s.Free.Number > 0 {
		add(s.Free, false, Fact{Name: "free", Number: size(int64(s.Free.Number)), After: "free", Class: "opt", Link: Base})
	}
	if s.Refused.Number > 0 {
		add(s.Refused, true, Fact{Name: "refused", Number: number(s.Refused.Number), After: "refused a minute",
			Link: Base + "?show=refused"})
	}
	if s.Dead.Number > 0 {
		add(s.Dead, false, Fact{Name: "dead", Number: number(s.Dead.Number), After: "dead", Link: undeliveredPath})
	}
	if age := s.Now.Sub(s.Oldest); !s.Oldest.IsZero() && age >= oldWaiting {
		add(admin.Gauge{}, true, Fact{Name: "oldest", Before: "oldest waiting", Number: ago(age),
			Link: undeliveredPath + "?show=waiting"})
	}
	agents := Fact{Name: "agents", Number: number(s.Agents.Number), After: agentWords(&s), Class: "opt",
		Link: Base + "agents"}
	add(s.NotReached, false, agents)
	if s.Lag.Alarm || s.Lag.Number > laggard {
		add(s.Lag, true, Fact{Name: "lag", Before: "index", Number: number(s.Lag.Number), After: "records behind",
			Link: Base})
	} else {
		add(s.Lag, false, Fact{Name: "lag", After: "index up to date", Class: "opt", Link: Base})
	}
	return f
}

const (
	oldWaiting = time.Minute // from which a waiting message is worth a look
	laggard    = 1000        // records by which a working index may lag
)

// agentWords says how many agents are in trouble.
func agentWords(s *admin.Status) string {
	out := []string{"agents"}
	if s.Agents.Number == 1 {
		out[0] = "agent"
	}
	if n := s.NotReached.Number; n > 0 {
		out = append(out, fmt.Sprintf("%d not reached", n))
	}
	if n := s.Paused.Number; n > 0 {
		out = append(out, fmt.Sprintf("%d paused", n))
	}
	return strings.Join(out, ", ")
}

// role is the word of a role in the console.
func role(r admin.Role) string {
	switch r {
	case admin.Operate:
		return "operator"
	case admin.Administer:
		return "admin"
	}
	return "viewer"
}
