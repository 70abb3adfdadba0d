// Package policy decides whether a proved message may pass: rate, hops, size,
// assurance, exposure and permission, in this order. The rate comes first
// because a proved message that is refused is recorded all the same. It changes nothing
// but its own rate counters, which are bounded, and it never speaks to the
// network or the disk.
//
// Whatever it refuses is a [*parley.Error] that may be told to the sender.
package policy

import (
	"container/list"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/parley-hub/parley"
)

// Config are the rules. The zero value admits signed messages from anyone to
// agents of the same protocol and to those that are exposed, at the default
// rates.
type Config struct {
	Hub string // this hub's id, for the loop check

	Assurance map[string]parley.Assurance // least assurance per recipient; "" is the default for all
	Protocol  map[string]parley.Assurance // the default by the sender's protocol, in place of Assurance[""]: a protocol without signatures can prove no more than its sessions
	Least     []Least                     // the same by patterns, for recipients that Assurance does not name; the first that fits counts
	Allow     []Rule                      // who may call whom; none: everyone
	Limits    []Limit                     // rates of single pairs; the first that fits counts
	MaxHops   int                         // hubs a message may pass; 0: parley.MaxHops
	MaxBytes  int                         // of all parts together; 0: 8 MiB
	MaxParts  int                         // 0: 64

	SenderRate  Rate // per proved sender; zero: 1,000/s, burst 2,000
	UnknownRate Rate // per unsigned sender or address; zero: 20/s, burst 100
	MaxSenders  int  // counters kept at the most; 0: 16,384. The least recently seen goes first

	Now func() time.Time
}

// Rate is so many a second, with a burst. A PerSecond below zero is no limit.
type Rate struct {
	PerSecond float64
	Burst     int
}

// A Rule lets From call To. Both are patterns over directory names: "*"
// stands for any run of characters within a segment, a last segment "**" for
// all the rest. To may name one skill: "weather.forecast" where "weather" is
// an agent.
type Rule struct {
	From string
	To   []string
}

// Least is the least assurance of messages to the recipients that a pattern of
// To fits; see [Rule].
type Least struct {
	To        []string
	Assurance parley.Assurance
}

// A Limit bounds how often each agent that From fits may call each agent or
// skill that a pattern of To fits: every pair of two agents has a counter of
// its own. Patterns are those of a [Rule].
type Limit struct {
	From string
	To   []string
	Rate Rate
}

// Recipient is what policy has to know of one.
type Recipient struct {
	Agent  *parley.Agent
	Native []string // protocols that the agent itself speaks; "go" for one in this process
	Began  bool     // it began the exchange: it is answered there, exposed or not, by whoever may not call it
}

// Policy applies a Config. It is safe for concurrent use.
type Policy struct {
	c       Config
	senders *limiter
	unknown *limiter
	pairs   []*limiter // by Config.Limits
}

// New checks the rules.
func New(c Config) (*Policy, error) {
	if c.MaxHops == 0 {
		c.MaxHops = parley.MaxHops
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = 8 << 20
	}
	if c.MaxParts == 0 {
		c.MaxParts = 64
	}
	if c.SenderRate == (Rate{}) {
		c.SenderRate = Rate{1000, 2000}
	}
	if c.UnknownRate == (Rate{}) {
		c.UnknownRate = Rate{20, 100}
	}
	if c.MaxSenders == 0 {
		c.MaxSenders = 16384
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	p := &Policy{c: c, senders: newLimiter(c.SenderRate, c.MaxSenders), unknown: newLimiter(c.UnknownRate, c.MaxSenders)}
	for _, r := range c.Allow {
		if err := check("rule", r.From, r.To); err != nil {
			return nil, err
		}
	}
	for _, l := range c.Least {
		if err := check("least assurance", "**", l.To); err != nil {
			return nil, err
		}
	}
	for _, l := range c.Limits {
		if err := check("limit", l.From, l.To); err != nil {
			return nil, err
		}
		if l.Rate.PerSecond <= 0 || l.Rate.Burst < 1 {
			return nil, fmt.Errorf("limit from %q: want a rate above zero", l.From)
		}
		p.pairs = append(p.pairs, newLimiter(l.Rate, c.MaxSenders))
	}
	return p, nil
}

// SenderRate is how much is taken of one proved sender.
func (p *Policy) SenderRate() Rate { return p.c.SenderRate }

// check refuses patterns that fit nothing.
func check(what, from string, to []string) error {
	for _, pattern := range append([]string{from}, to...) {
		if _, err := path.Match(pattern, ""); err != nil {
			return fmt.Errorf("%s from %q: pattern %q: %w", what, from, pattern, err)
		}
	}
	if len(to) == 0 {
		return fmt.Errorf("%s from %q names no recipient: add to = [\"…\"]", what, from)
	}
	return nil
}

// Next makes a policy by other rules that keeps this one's rate counters where
// the rates stay the same, so that new rules give nobody a fresh burst.
func (p *Policy) Next(c Config) (*Policy, error) {
	n, err := New(c)
	if err != nil {
		return nil, err
	}
	if n.senders.rate == p.senders.rate && n.senders.max == p.senders.max {
		n.senders = p.senders
	}
	if n.unknown.rate == p.unknown.rate && n.unknown.max == p.unknown.max {
		n.unknown = p.unknown
	}
	for i, l := range n.c.Limits {
		for j, old := range p.c.Limits {
			if l.From == old.From && slices.Equal(l.To, old.To) && l.Rate == old.Rate && n.pairs[i].max == p.pairs[j].max {
				n.pairs[i] = p.pairs[j]
			}
		}
	}
	return n, nil
}

// Admit decides about a message of any kind to its recipients. It returns nil
// or the first refusal.
func (p *Policy) Admit(m *parley.Message, to []Recipient) *parley.Error {
	if err := p.rate(m); err != nil {
		return err
	}
	if err := p.hops(m); err != nil {
		return err
	}
	if err := p.size(m); err != nil {
		return err
	}
	for _, r := range to {
		if err := p.recipient(m, r); err != nil {
			return err
		}
	}
	if m.InReplyTo.IsZero() && len(p.pairs) > 0 {
		for _, r := range to {
			if r.Began {
				continue
			}
			if err := p.pair(m, r.Agent); err != nil {
				return err
			}
		}
	}
	return nil
}

// pair counts a message of one agent to another.
func (p *Policy) pair(m *parley.Message, a *parley.Agent) *parley.Error {
	to, skill := a.Name, skillOf(m, a)
	for i, l := range p.c.Limits {
		if !Match(l.From, m.From) || !matchAny(l.To, to, skill) {
			continue
		}
		if wait := p.pairs[i].take(m.From+"\x00"+to, p.c.Now()); wait > 0 {
			return tooOften(wait, "agent %q may call %q %g times a second", m.From, to, l.Rate.PerSecond)
		}
		return nil
	}
	return nil
}

// skillOf is the skill that a message is for: a request that names none is for
// the default one.
func skillOf(m *parley.Message, a *parley.Agent) string {
	if m.Skill == "" && m.Kind == parley.Request {
		if s, ok := a.SkillNamed(""); ok {
			return s.ID
		}
	}
	return m.Skill
}

func tooOften(wait time.Duration, format string, args ...any) *parley.Error {
	e := parley.Refuse(parley.RateLimited, format+"; retry in %s", append(args, wait.Round(time.Millisecond))...)
	e.Retryable, e.After = true, wait
	return e
}

// Permits reports whether one recipient may get a message, as far as assurance,
// exposure and permission go. It uses up nothing.
func (p *Policy) Permits(m *parley.Message, r Recipient) bool { return p.recipient(m, r) == nil }

func (p *Policy) hops(m *parley.Message) *parley.Error {
	if slices.Contains(m.Hops, p.c.Hub) {
		return parley.Refuse(parley.Loop, "the message has passed this hub before")
	}
	if len(m.Hops) >= p.c.MaxHops {
		return parley.Refuse(parley.Loop, "the message has passed %d hubs, more than the %d allowed", len(m.Hops), p.c.MaxHops)
	}
	return nil
}

func (p *Policy) size(m *parley.Message) *parley.Error {
	if len(m.Parts) > p.c.MaxParts {
		return parley.Refuse(parley.TooLarge, "%d parts, more than the %d allowed", len(m.Parts), p.c.MaxParts)
	}
	n := 0
	for _, part := range m.Parts {
		n += len(part.Data)
	}
	if n > p.c.MaxBytes {
		return parley.Refuse(parley.TooLarge, "content of %d bytes, more than the %d allowed", n, p.c.MaxBytes)
	}
	return nil
}

func (p *Policy) recipient(m *parley.Message, r Recipient) *parley.Error {
	name := r.Agent.Name
	if least := p.least(name, m.Origin.Protocol); m.Origin.Verdict.Assurance < least {
		return parley.Refuse(parley.Unauthenticated, "agent %q takes messages that are %s; this one is %s", name, least, m.Origin.Verdict.Assurance)
	}
	if !r.Began && !p.exposed(m.Origin.Protocol, r) {
		// The same words as for an agent that does not exist: a stranger learns nothing.
		return parley.Refuse(parley.UnknownAgent, "no agent %q here", name)
	}
	// A reply goes to the one who asked; the rules speak of who may begin.
	if r.Began || !m.InReplyTo.IsZero() || p.permitted(m.From, name, skillOf(m, r.Agent)) {
		return nil
	}
	return parley.Refuse(parley.Forbidden, "agent %q may not call %q", m.From, name)
}

// least is the least assurance for a recipient: its own, the default, or
// signed when nothing was said. The default is for those outside: this process
// and who holds a token of the hub itself are asked for more only where a
// recipient has a level of its own.
func (p *Policy) least(name, protocol string) parley.Assurance {
	if a, ok := p.c.Assurance[name]; ok && protocol != "go" {
		return a
	}
	if protocol != "go" {
		for _, l := range p.c.Least {
			if matchAny(l.To, name, "") {
				return l.Assurance
			}
		}
	}
	if protocol == "go" || protocol == "api" {
		return parley.Unsigned
	}
	if a, ok := p.c.Protocol[protocol]; ok {
		return a
	}
	if a, ok := p.c.Assurance[""]; ok {
		return a
	}
	return parley.Signed
}

// exposed: an agent is reached in the protocols it speaks, from inside the
// process and by an operator, and wherever it was exposed.
func (p *Policy) exposed(protocol string, r Recipient) bool {
	return protocol == "go" || protocol == "api" || slices.Contains(r.Native, protocol) || r.Agent.ExposedIn(protocol)
}

func (p *Policy) permitted(from, to, skill string) bool {
	if len(p.c.Allow) == 0 {
		return true
	}
	return slices.ContainsFunc(p.c.Allow, func(r Rule) bool { return Match(r.From, from) && matchAny(r.To, to, skill) })
}

// matchAny reports whether one of the patterns fits an agent, or a skill of it.
func matchAny(patterns []string, agent, skill string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		return Match(p, agent) || skill != "" && Match(p, agent+"."+skill)
	})
}

// Match reports whether a directory name fits a pattern as [Rule] says.
func Match(pattern, name string) bool {
	if pattern == "**" {
		return true
	}
	if head, ok := strings.CutSuffix(pattern, "/**"); ok {
		depth := strings.Count(head, "/") + 1
		segments := strings.Split(name, "/")
		return len(segments) > depth && Match(head, strings.Join(segments[:depth], "/"))
	}
	ok, err := path.Match(pattern, name)
	return ok && err == nil
}

func (p *Policy) rate(m *parley.Message) *parley.Error {
	if m.Origin.Protocol == "go" || !m.InReplyTo.IsZero() {
		return nil // what this process says itself, and answers that were asked for
	}
	l, who := p.senders, m.From
	if m.Origin.Verdict.Assurance == parley.Unsigned {
		l, who = p.unknown, m.Origin.Protocol+" "+m.Origin.Peer
	}
	if wait := l.take(who, p.c.Now()); wait > 0 {
		return tooOften(wait, "over the limit of %g messages a second", l.rate.PerSecond)
	}
	return nil
}

// limiter holds a token bucket per name, the least recently used of which is
// forgotten first: forgetting one that has been idle long enough to be full
// again changes nothing, and MaxSenders is chosen so that this is the rule.
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

// take uses up one message of name's rate, or says how long to wait for it.
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
