package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// Status is the hub on one line: `parley status`, and the head of each page of the console.
type Status struct {
	Hub      string    `json:"hub"`
	Version  string    `json:"version"`
	Now      time.Time `json:"now"`
	Started  time.Time `json:"started,omitzero"`
	Accepted string    `json:"accepted"` // what "accepted" means, in a few words: "on disk"

	Health     Gauge     `json:"health"`          // 1: the hub takes messages
	Free       Gauge     `json:"free"`            // bytes on the disk of the journal; 0: not known
	Refused    Gauge     `json:"refused"`         // in the last minute, by this hub
	Dead       Gauge     `json:"dead"`            // dead letters
	Waiting    Gauge     `json:"waiting"`         // deliveries that are not settled
	Oldest     time.Time `json:"oldest,omitzero"` // the oldest message that waits to be delivered
	Agents     Gauge     `json:"agents"`
	NotReached Gauge     `json:"notReached"` // agents to which the last attempt failed
	Paused     Gauge     `json:"paused"`     // agents
	Lag        Gauge     `json:"lag"`        // records that the index does not have yet

	Warnings []string `json:"warnings,omitzero"` // settings that the operator should change
	Alarm    bool     `json:"alarm"`             // one of the numbers has an alarm
}

// A Gauge is a number of a [Status].
type Gauge struct {
	Number uint64 `json:"number"`
	Alarm  bool   `json:"alarm,omitzero"` // it does not mend itself
	Text   string `json:"text,omitzero"`  // with an alarm: what to do
}

// alarm sets an alarm if it is one.
func (g Gauge) alarm(is bool, text string) Gauge {
	if is {
		g.Alarm, g.Text = true, text
	}
	return g
}

// statusFor is how long a status is given again. Pages ask often.
const statusFor = time.Second

// statusCache has the last status.
type statusCache struct {
	mu    sync.Mutex
	last  Status
	until time.Time

	oldest      time.Time
	oldestUntil time.Time
}

// Status gives the numbers of the moment; they are at most a second old.
func (a *Admin) Status(by Actor) (Status, error) {
	if err := by.may(Observe); err != nil {
		return Status{}, err
	}
	c := &a.status
	c.mu.Lock()
	defer c.mu.Unlock()
	now := a.c.Now()
	if now.Before(c.until) && !now.Before(c.last.Now) {
		return c.last, nil
	}
	c.last, c.until = a.readStatus(now), now.Add(statusFor)
	return c.last, nil
}

// readStatus is called with the cache's lock.
func (a *Admin) readStatus(now time.Time) Status {
	h := a.c.Hub
	full := errors.Is(h.Journal().Healthy(), journal.ErrNoSpace) // which looks at the disk
	i, j, x := a.c.Info(), h.Journal().Stats(), a.c.Index.Stats()
	s := Status{Hub: i.Hub, Version: i.Version, Now: now, Started: i.Started, Accepted: accepted(i.Promise),
		Warnings: i.Warnings, Free: Gauge{Number: j.Free}, Agents: Gauge{Number: uint64(h.Directory().Len())},
		Refused: Gauge{Number: uint64(h.RefusedLately())}, Lag: Gauge{Number: x.Lag}, Health: Gauge{Number: 1}}
	for _, p := range j.Partitions {
		s.Dead.Number += uint64(p.Dead)
		s.Waiting.Number += uint64(p.Open)
	}
	for _, e := range h.Directory().All() {
		if e.Paused {
			s.Paused.Number++
		}
	}
	s.NotReached = a.notReached()
	s.Dead = s.Dead.alarm(s.Dead.Number > 0, "`parley dead list --by-cause` shows why, and what helps")
	s.Lag = s.Lag.alarm(x.Error != "", "the index does not follow: "+x.Error)
	s.Free = s.Free.alarm(full, "free some space: the hub takes no new messages")
	if err := a.Ready(); err != nil {
		s.Health = Gauge{}.alarm(!full, err.Error())
	}
	s.Oldest = a.oldestWaiting(now, int(s.Waiting.Number))
	for _, g := range []Gauge{s.Health, s.Free, s.Refused, s.Dead, s.Waiting, s.Agents, s.NotReached, s.Paused, s.Lag} {
		s.Alarm = s.Alarm || g.Alarm
	}
	return s
}

// stuck are reasons for which an agent is not reached until an operator changes something.
var stuck = []parley.Reason{parley.HostUnknown, parley.AddressGuard, parley.CertificateUnknown, parley.CertificateName,
	parley.NoAddress, parley.KeyUnknown, parley.WrongToken}

// notReached counts agents that fail. The alarm is about those that no further attempt will reach.
func (a *Admin) notReached() Gauge {
	failing, _ := a.c.Hub.Failing()
	g := Gauge{Number: uint64(len(failing))}
	var names []string
	for name, c := range failing {
		if c.Err != nil && slices.Contains(stuck, c.Err.Reason) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return g
	}
	name := slices.Min(names)
	text := Advise(Problem{Code: failing[name].Err.Code, Source: failing[name].Err.Source,
		Reason: failing[name].Err.Reason}, At{Agent: name})
	if n := len(names) - 1; n > 0 {
		text += fmt.Sprintf("; %s more", number(n))
	}
	return g.alarm(true, name+": "+text)
}

// oldestFor is how long the oldest waiting message is given again, for each oldestStep open deliveries: the search
// looks at all of them, and must not take more than a small part of the time.
const (
	oldestFor  = time.Second
	oldestStep = 20_000
)

// oldestWaiting finds the oldest message that waits to be delivered. It is called with the cache's lock.
func (a *Admin) oldestWaiting(now time.Time, open int) time.Time {
	c := &a.status
	if open == 0 {
		c.oldestUntil = time.Time{}
		return time.Time{}
	}
	if now.Before(c.oldestUntil) {
		return c.oldest
	}
	c.oldest, c.oldestUntil = time.Time{}, now.Add(oldestFor*time.Duration(1+open/oldestStep))
	a.c.Hub.Journal().Walk(journal.Filter{States: []parley.DeliveryState{parley.Waiting}}, func(d *journal.Delivery) bool {
		if at := d.Message.Time(); c.oldest.IsZero() || at.Before(c.oldest) {
			c.oldest = at
		}
		return true
	})
	return c.oldest
}

// accepted says in a few words what a journal promises.
func accepted(promise string) string {
	for _, v := range []struct{ part, words string }{
		{"on this machine's disk", "on disk"},
		{"in this program's memory", "in memory"},
		{"in the NATS servers' memory", "in the servers' memory"},
		{"a majority of", "on a majority of servers"},
		{"NATS server", "at the NATS server"},
	} {
		if strings.Contains(promise, v.part) {
			return v.words
		}
	}
	return promise
}

// Status gives the numbers of the moment; they are at most a second old.
func (c *Client) Status(ctx context.Context) (Status, error) {
	return fetch[Status](c, ctx, "GET", "/status", nil, nil)
}
