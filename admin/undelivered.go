package admin

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/index"
)

// This file groups undelivered messages by cause: `parley dead list --by-cause`.

// What [Admin.Undelivered] shows, besides ShowWaiting: deliveries that wait for an attempt or for the recipient.
const (
	ShowDead      Show = "dead"      // dead letters
	ShowRecovered Show = "recovered" // reached the recipient within the last day, after failures
	ShowDropped   Show = "dropped"   // dropped by an operator within the last day
)

const (
	recoveredFor  = 24 * time.Hour
	newestShown   = 3      // messages of a group
	maxGroups     = 1000   // of an answer
	defaultGroups = 100    // of an answer
	maxCauses     = 10_000 // held while groups are made
	maxCount      = 10_000 // shown; above it, more
)

// UndeliveredFilter chooses deliveries; a zero field chooses all.
type UndeliveredFilter struct {
	Show   Show // ShowDead, …; "": ShowDead
	To     string
	From   string
	Code   parley.Code
	Reason parley.Reason // or NoReason
	Text   string        // in the name of the recipient or sender, or in the text of the error; needs the role read
	Since  time.Time     // last changed at or after
	Limit  int           // groups at most; 0: 100, at most 1,000
}

// Undelivered is what was not delivered, by cause.
type Undelivered struct {
	Show   Show               `json:"show"`
	Now    time.Time          `json:"now"`
	AsOf   time.Time          `json:"asOf,omitzero"` // of dead and waiting ones; missing: now
	Counts UndeliveredCounts  `json:"counts"`
	Groups []UndeliveredGroup `json:"groups"`        // the one that changed last first
	More   bool               `json:"more,omitzero"` // there are more groups
}

// UndeliveredCounts are the numbers of deliveries that the filter chooses.
type UndeliveredCounts struct {
	Dead      Count `json:"dead"`
	Waiting   Count `json:"waiting"`
	Recovered Count `json:"recovered"`
	Dropped   Count `json:"dropped"`
}

func (c *Count) add() {
	if c.Number < maxCount {
		c.Number++
	} else {
		c.More = true
	}
}

// An UndeliveredGroup has deliveries to one recipient with one cause.
type UndeliveredGroup struct {
	To       string               `json:"to"`
	Problem  Problem              `json:"problem"` // of the newest, with advice; no code: no attempt failed yet
	Number   int                  `json:"number"`
	First    time.Time            `json:"first"`            // change; of recovered ones the first failed attempt
	Last     time.Time            `json:"last"`             // change: given up, tried, reached again, dropped
	Attempts int                  `json:"attempts"`         // the most for one delivery
	Expired  int                  `json:"expired,omitzero"` // that are past their deadline or expiry
	Failed   int                  `json:"failed,omitzero"`  // recovered requests that were answered with a failure
	Newest   []UndeliveredMessage `json:"newest"`           // the three that changed last

	Recipient *AgentState `json:"recipient,omitzero"` // now; missing: ready
}

// An UndeliveredMessage is one delivery of a group.
type UndeliveredMessage struct {
	DeadLetter
	State     parley.DeliveryState `json:"state"`
	Next      time.Time            `json:"next,omitzero"` // the next attempt
	Ends      time.Time            `json:"ends,omitzero"` // when it expires, or the deadline of a request passes
	Skill     string               `json:"skill,omitzero"`
	Act       string               `json:"act,omitzero"`
	Protocol  string               `json:"protocol,omitzero"` // in which it came
	Assurance parley.Assurance     `json:"assurance,omitzero"`
	Preview   string               `json:"preview,omitzero"` // the beginning of the content
}

// withoutContent leaves DeadLetter, which is a view of its own.
func (m *UndeliveredMessage) withoutContent() { m.Preview = "" }

// withoutContent leaves Newest, whose elements are views of their own.
func (g *UndeliveredGroup) withoutContent() {
	g.Problem.withoutContent()
	g.Recipient.withoutContent()
}

// check completes the filter.
func (f *UndeliveredFilter) check(a *Admin, by Actor) error {
	f.Show = cmp.Or(f.Show, ShowDead)
	if f.Limit = min(f.Limit, maxGroups); f.Limit <= 0 {
		f.Limit = defaultGroups
	}
	if !slices.Contains([]Show{ShowDead, ShowWaiting, ShowRecovered, ShowDropped}, f.Show) {
		return parley.Refuse(parley.Malformed, "show=%.40q: want dead, waiting, recovered or dropped", string(f.Show))
	}
	if f.Text != "" {
		if err := by.may(Read); err != nil {
			return err // texts of errors may quote content
		}
		f.Text = strings.ToLower(f.Text)
	}
	return a.resolveNames(&f.To, &f.From)
}

// A trouble is one delivery that was not delivered, or not at once.
type trouble struct {
	journal.Delivery
	first  time.Time
	mended *index.Mended // reached or dropped since; Delivery has only what Mended has
}

// matches reports whether the filter chooses a delivery.
func (f *UndeliveredFilter) matches(t *trouble) bool {
	e := cmp.Or(t.Error, &parley.Error{})
	return (f.To == "" || f.To == t.To) && (f.From == "" || f.From == t.From) && (f.Code == "" || f.Code == e.Code) &&
		reasonMatches(f.Reason, e) && !t.Changed.Before(f.Since) &&
		(f.Text == "" || slices.ContainsFunc([]string{t.To, t.From, e.Text, e.Detail}, func(s string) bool {
			return strings.Contains(strings.ToLower(s), f.Text)
		}))
}

type cause struct {
	to     string
	code   parley.Code
	reason parley.Reason
}

// causes makes groups.
type causes struct {
	now  time.Time
	list map[cause]*causeGroup
	more bool // there are more than maxCauses
}

type causeGroup struct {
	cause
	number, expired, attempts int
	failed                    int // answered with a failure
	first, last               time.Time
	newest                    []trouble // the one that changed last first
}

func (c *causes) add(t *trouble) {
	e := cmp.Or(t.Error, &parley.Error{})
	key := cause{t.To, e.Code, e.Reason}
	g := c.list[key]
	if g == nil {
		if len(c.list) >= maxCauses {
			c.more = true
			return
		}
		g = &causeGroup{cause: key, first: t.first}
		c.list[key] = g
	}
	g.number++
	if overdue(&t.Delivery, c.now) {
		g.expired++
	}
	if t.mended != nil && t.mended.Failure != "" {
		g.failed++
	}
	g.attempts = max(g.attempts, t.Attempt)
	if t.first.Before(g.first) {
		g.first = t.first
	}
	if t.Changed.After(g.last) {
		g.last = t.Changed
	}
	i, _ := slices.BinarySearchFunc(g.newest, t, func(v trouble, t *trouble) int { return newestFirst(&v, t) })
	if i < newestShown {
		g.newest = slices.Insert(g.newest, i, *t)
		g.newest = g.newest[:min(len(g.newest), newestShown)]
	}
}

func newestFirst(a, b *trouble) int {
	return cmp.Or(b.Changed.Compare(a.Changed), slices.Compare(b.Message[:], a.Message[:]))
}

// sorted gives at most n groups, the one that changed last first.
func (c *causes) sorted(n int) (list []*causeGroup, more bool) {
	for _, g := range c.list {
		list = append(list, g)
	}
	slices.SortFunc(list, func(a, b *causeGroup) int {
		return cmp.Or(b.last.Compare(a.last), strings.Compare(a.to, b.to), cmp.Compare(a.code, b.code),
			cmp.Compare(a.reason, b.reason))
	})
	return list[:min(len(list), n)], c.more || len(list) > n
}

// overdue reports whether a delivery is past its expiry or deadline: it is not attempted any more.
func overdue(d *journal.Delivery, now time.Time) bool {
	return !d.Expires.IsZero() && !now.Before(d.Expires) ||
		d.Kind == parley.Request && !d.Deadline.IsZero() && !now.Before(d.Deadline)
}

// Undelivered groups undelivered messages by recipient, code and reason.
func (a *Admin) Undelivered(ctx context.Context, by Actor, f UndeliveredFilter) (Undelivered, error) {
	if err := cmp.Or(by.may(Observe), f.check(a, by)); err != nil {
		return Undelivered{}, err
	}
	out := Undelivered{Show: f.Show, Now: a.c.Now(), Groups: []UndeliveredGroup{}}
	open := a.open.get(a, f, out.Now)
	out.Counts = open.counts
	all := open.causes
	if f.Show == ShowRecovered || f.Show == ShowDropped {
		all = &causes{now: out.Now, list: map[cause]*causeGroup{}}
	}
	if open.counted.Before(out.Now) {
		out.AsOf = open.counted
	}
	if err := a.walkMended(ctx, by, &f, &out.Counts, all); err != nil {
		return Undelivered{}, err
	}
	groups, more := all.sorted(f.Limit)
	out.More = more
	said, err := a.said(ctx, groups)
	if err != nil {
		return Undelivered{}, err
	}
	for _, g := range groups {
		out.Groups = append(out.Groups, a.viewGroup(by, g, said))
	}
	return out, nil
}

// openDeliveries are the dead letters and waiting deliveries that a filter chooses.
type openDeliveries struct {
	counts  UndeliveredCounts // without the others
	causes  *causes           // not changed any more
	counted time.Time
	until   time.Time // it is given again until then
}

// openCache keeps the last answers of a hub with many open deliveries: each call looks at all of them, and must not
// take more than a small part of the time.
type openCache struct {
	mu   sync.Mutex
	last map[UndeliveredFilter]*openDeliveries
}

const (
	openFew  = 20_000 // open deliveries that are counted anew each time
	openMost = 16     // filters that are kept
)

// get gives the deliveries that a filter chooses, at most a second old for each openFew open deliveries.
func (c *openCache) get(a *Admin, f UndeliveredFilter, now time.Time) *openDeliveries {
	c.mu.Lock()
	defer c.mu.Unlock()
	f.Limit = 0
	if v := c.last[f]; v != nil && now.Before(v.until) && !now.Before(v.counted) {
		return v
	}
	v := a.walkOpen(&f, now)
	delete(c.last, f)
	n := 0
	for _, p := range a.c.Hub.Journal().Stats().Partitions {
		n += p.Open + p.Dead
	}
	if n <= openFew {
		return v
	}
	if v.until = now.Add(time.Duration(n/openFew) * time.Second); len(c.last) >= openMost || c.last == nil {
		c.last = map[UndeliveredFilter]*openDeliveries{}
	}
	c.last[f] = v
	return v
}

// forget makes the next answers new: an operator changed something.
func (c *openCache) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.last)
}

// walkOpen counts and groups dead letters and waiting deliveries.
func (a *Admin) walkOpen(f *UndeliveredFilter, now time.Time) *openDeliveries {
	out := &openDeliveries{counted: now, causes: &causes{now: now, list: map[cause]*causeGroup{}}}
	states := []parley.DeliveryState{parley.Dead, parley.Waiting}
	var t trouble // one for all: they are many
	a.c.Hub.Journal().Walk(journal.Filter{States: states, To: f.To}, func(d *journal.Delivery) bool {
		t.Delivery, t.first = *d, d.Changed
		if !f.matches(&t) {
			return true
		}
		count, show := &out.counts.Dead, ShowDead
		if d.State == parley.Waiting {
			count, show = &out.counts.Waiting, ShowWaiting
		}
		if count.add(); show == f.Show {
			out.causes.add(&t)
		}
		return true
	})
	return out
}

// walkMended counts and groups deliveries that reached their recipient, or were dropped.
func (a *Admin) walkMended(ctx context.Context, by Actor, f *UndeliveredFilter, n *UndeliveredCounts,
	all *causes) error {
	x := a.c.Index
	if f.Show == ShowRecovered || f.Show == ShowDropped {
		var err error
		if x, err = a.fresh(ctx, by); err != nil {
			return err
		}
	}
	for _, of := range []struct {
		show    Show
		dropped bool
		count   *Count
	}{{ShowRecovered, false, &n.Recovered}, {ShowDropped, true, &n.Dropped}} {
		more, err := x.Mended(ctx, of.dropped, all.now.Add(-recoveredFor), func(m *index.Mended) {
			t := trouble{first: m.First, mended: m, Delivery: journal.Delivery{From: m.From}}
			t.Message, t.To, t.Changed, t.Attempt = m.Message, m.To, m.At, m.Attempts
			if m.Code != "" {
				t.Error = &parley.Error{Code: m.Code, Reason: m.Reason}
			}
			if !f.matches(&t) {
				return
			}
			if of.count.add(); of.show == f.Show {
				all.add(&t)
			}
		})
		if err != nil {
			return err
		}
		of.count.More = of.count.More || more
	}
	return nil
}

// said gives the contents of the newest messages of groups.
func (a *Admin) said(ctx context.Context, groups []*causeGroup) (map[parley.ID]index.Message, error) {
	out := map[parley.ID]index.Message{}
	var ids []parley.ID
	for _, g := range groups {
		for i := range g.newest {
			ids = append(ids, g.newest[i].Message)
		}
	}
	for some := range slices.Chunk(ids, index.MaxLimit) {
		found, err := a.c.Index.Named(ctx, some)
		if err != nil {
			return nil, err
		}
		for id, m := range found {
			out[id] = m
		}
	}
	return out, nil
}

func (a *Admin) viewGroup(by Actor, g *causeGroup, said map[parley.ID]index.Message) UndeliveredGroup {
	v := UndeliveredGroup{To: g.to, Problem: Problem{Code: g.code, Reason: g.reason}, Number: g.number, First: g.first,
		Last: g.last, Attempts: g.attempts, Expired: g.expired, Failed: g.failed, Newest: []UndeliveredMessage{},
		Recipient: a.notReady(by, g.to)}
	for i := range g.newest {
		t := &g.newest[i]
		m := a.viewTrouble(by, t, said[t.Message])
		if i == 0 && g.code != "" {
			v.Problem = m.Reason
		}
		v.Newest = append(v.Newest, m)
	}
	return *forActor(by, &v)
}

func (a *Admin) viewTrouble(by Actor, t *trouble, said index.Message) UndeliveredMessage {
	m := UndeliveredMessage{State: t.State, Next: t.Next, Ends: t.Expires, Skill: said.Skill, Act: said.Act,
		Protocol: said.Protocol, Assurance: said.Assurance, Preview: said.Preview}
	if t.Kind == parley.Request && !t.Deadline.IsZero() && (m.Ends.IsZero() || t.Deadline.Before(m.Ends)) {
		m.Ends = t.Deadline
	}
	if t.mended != nil {
		t.Kind, t.Conversation, t.Position = said.Kind, said.Conversation, said.Position
		for _, d := range said.Deliveries {
			if d.To == t.To {
				m.State, t.Postponed = d.State, d.Postponed
				if e := d.Error; e != nil && t.Error != nil && e.Code == t.Error.Code && e.Reason == t.Error.Reason {
					t.Error = &parley.Error{Code: e.Code, Text: e.Text, Source: e.Source, Reason: e.Reason,
						Detail: e.Detail}
				}
			}
		}
	}
	m.DeadLetter = a.viewDead(by, t.Delivery)
	m.Recipient = nil // the group has it
	if t.Error == nil {
		m.Reason = Problem{}
	}
	return *forActor(by, &m)
}

// Undelivered groups undelivered messages by recipient, code and reason.
func (c *Client) Undelivered(ctx context.Context, f UndeliveredFilter) (Undelivered, error) {
	return fetch[Undelivered](c, ctx, "GET", "/undelivered", values(undeliveredParams(&f)...), nil)
}

func undeliveredParams(f *UndeliveredFilter) []param {
	return []param{{"show", &f.Show}, {"to", &f.To}, {"from", &f.From}, {"code", &f.Code}, {"reason", &f.Reason},
		{"q", &f.Text}, {"since", &f.Since}, {"limit", &f.Limit}}
}
