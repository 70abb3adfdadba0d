// Package policy decides whether a proved message may pass: rate, hops, size,
// assurance, exposure and permission, in this order. The rate comes first because
// a refused message of a proved sender is recorded too. Policy changes nothing but
// its own rate counters, which are bounded, and does no I/O.
//
// Each refusal is a [*parley.Error] whose text may be sent to the sender.
package policy

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/parley-hub/parley"
)

// Config are the rules. The zero value admits signed messages from any sender to
// agents of the same protocol and to those that are exposed, at the default rates.
type Config struct {
	Hub string // this hub's id, for the loop check

	Assurance map[string]parley.Assurance // least assurance per recipient; "" is the default for all
	// Protocol is the default by the sender's protocol, in place of Assurance[""]: a
	// protocol without signatures can prove no more than its sessions.
	Protocol map[string]parley.Assurance
	Least    []Least // by patterns, for recipients that Assurance does not name; the first match counts
	Allow    []Rule  // callers and their recipients; none: all may call all
	Limits   []Limit // rates of single pairs; the first match counts
	MaxHops  int     // hubs a message may pass; 0: parley.MaxHops
	MaxBytes int     // of all parts together; 0: 8 MiB
	MaxParts int     // 0: 64

	SenderRate  Rate // per proved sender; zero: 1,000/s, burst 2,000
	UnknownRate Rate // per unsigned sender or address; zero: 20/s, burst 100
	MaxSenders  int  // counters kept at the most; 0: 16,384. The least recently seen goes first

	Now func() time.Time
}

// Rate is a number of messages a second, with a burst. A PerSecond below zero is no
// limit.
type Rate struct {
	PerSecond float64
	Burst     int
}

// A Rule lets From call To. Both are patterns over directory names: "*" matches any
// characters within a segment, a last segment "**" all further segments. To may
// name one skill: "weather.forecast" where "weather" is an agent.
type Rule struct {
	From string
	To   []string
	Place
}

// A Place is where a rule is written, for people. Line 0: in no file.
type Place struct {
	File string
	Line int
}

// Least is the least assurance of messages to the recipients that a pattern of To
// matches; see [Rule]. Protocol restricts it to senders of one protocol; "": of all.
type Least struct {
	To        []string
	Protocol  string
	Assurance parley.Assurance
	Place
}

// A Limit bounds how often each agent that From matches may call each agent or skill
// that a pattern of To matches. Every pair of agents has its own counter. Patterns
// are those of a [Rule].
type Limit struct {
	From string
	To   []string
	Rate Rate
}

// Recipient is a recipient as policy sees it.
type Recipient struct {
	Agent  *parley.Agent
	Native []string // protocols that the agent itself speaks; "go" for one in this process
	Began  bool     // it began the exchange: others may answer it there, even where they may not call it
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
	c.MaxHops = cmp.Or(c.MaxHops, parley.MaxHops)
	c.MaxBytes = cmp.Or(c.MaxBytes, 8<<20)
	c.MaxParts = cmp.Or(c.MaxParts, 64)
	c.SenderRate = cmp.Or(c.SenderRate, Rate{1000, 2000})
	c.UnknownRate = cmp.Or(c.UnknownRate, Rate{20, 100})
	c.MaxSenders = cmp.Or(c.MaxSenders, 16384)
	if c.Now == nil {
		c.Now = time.Now
	}
	p := &Policy{c: c, senders: newLimiter(c.SenderRate, c.MaxSenders),
		unknown: newLimiter(c.UnknownRate, c.MaxSenders)}
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

// SenderRate is the rate of one proved sender.
func (p *Policy) SenderRate() Rate { return p.c.SenderRate }

// check refuses malformed patterns, and a rule without a recipient.
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

// Next makes a policy with other rules. It keeps this one's counters where the rates
// stay the same, so that new rules give no sender a fresh burst.
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
			if l.From == old.From && slices.Equal(l.To, old.To) && l.Rate == old.Rate &&
				n.pairs[i].max == p.pairs[j].max {
				n.pairs[i] = p.pairs[j]
			}
		}
	}
	return n, nil
}

// Admit decides about a message of any kind to its recipients. It returns nil
// or the first refusal.
func (p *Policy) Admit(m *parley.Message, to []Recipient) *parley.Error {
	return p.judge(m, to, (*limiter).take)
}

// judge decides about a message. take says how long a limiter holds it back.
func (p *Policy) judge(m *parley.Message, to []Recipient, take taker) *parley.Error {
	if err := p.rate(m, take); err != nil {
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
	if !isReply(m) && len(p.pairs) > 0 {
		for _, r := range to {
			if r.Began {
				continue
			}
			if err := p.pair(m, r.Agent, take); err != nil {
				return err
			}
		}
	}
	return nil
}

// isReply reports whether a message goes back to a requester. An Input or Cancel goes the
// other way, like the request that it is about.
func isReply(m *parley.Message) bool {
	return !m.InReplyTo.IsZero() && m.Kind != parley.Input && m.Kind != parley.Cancel
}

// pair counts a message of one agent to another.
func (p *Policy) pair(m *parley.Message, a *parley.Agent, take taker) *parley.Error {
	to, skill := a.Name, skillOf(m, a)
	for i, l := range p.c.Limits {
		if !Match(l.From, m.From) || !matchAny(l.To, to, skill) {
			continue
		}
		if wait := take(p.pairs[i], m.From+"\x00"+to, p.c.Now()); wait > 0 {
			return tooOften(parley.PairRate, wait, "agent %q may call %q %g times a second", m.From, to,
				l.Rate.PerSecond)
		}
		return nil
	}
	return nil
}

// skillOf is the skill of a message. A request that names none, and an input to it, are for
// the default skill.
func skillOf(m *parley.Message, a *parley.Agent) string {
	if m.Skill == "" && (m.Kind == parley.Request || m.Kind == parley.Input) {
		if s, ok := a.SkillNamed(""); ok {
			return s.ID
		}
	}
	return m.Skill
}

func tooOften(limit parley.Reason, wait time.Duration, format string, args ...any) *parley.Error {
	e := parley.Refuse(parley.RateLimited, format+"; retry in %s", append(args, wait.Round(time.Millisecond))...)
	e.Retryable, e.After = true, wait
	return e.With(parley.ByLimit, limit, "")
}

// Permits reports whether assurance, exposure and permission let a message through
// to one recipient. It uses up no rate.
func (p *Policy) Permits(m *parley.Message, r Recipient) bool { return p.recipient(m, r) == nil }

func (p *Policy) hops(m *parley.Message) *parley.Error {
	// Each call from handler to handler is a hop within this hub.
	within := m.Origin.Protocol == "go"
	if !within && slices.Contains(m.Hops, p.c.Hub) {
		return parley.Refuse(parley.Loop, "the message has passed this hub before")
	}
	if len(m.Hops) >= p.c.MaxHops {
		if within {
			return parley.Refuse(parley.Loop, "the request went through %d hubs and handlers, and parley.MaxHops allows no "+
				"more: do agents call each other in a circle?", len(m.Hops))
		}
		return parley.Refuse(parley.Loop, "the message has passed %d hubs, more than the %d allowed", len(m.Hops),
			p.c.MaxHops)
	}
	return nil
}

func (p *Policy) size(m *parley.Message) *parley.Error {
	if len(m.Parts) > p.c.MaxParts {
		return parley.Refuse(parley.TooLarge, "%d parts, more than the %d allowed", len(m.Parts), p.c.MaxParts).
			With(parley.ByLimit, parley.PartsNumber, "")
	}
	if n := m.ContentSize(); n > p.c.MaxBytes {
		return parley.Refuse(parley.TooLarge, "content of %d bytes, more than the %d allowed", n, p.c.MaxBytes).
			With(parley.ByLimit, parley.BodySize, "")
	}
	return nil
}

func (p *Policy) recipient(m *parley.Message, r Recipient) *parley.Error {
	name := r.Agent.Name
	if least := p.least(name, m.Origin.Protocol); m.Origin.Verdict.Assurance < least {
		return parley.Refuse(parley.Unauthenticated, "agent %q takes messages that are %s; this one is %s",
			name, least, m.Origin.Verdict.Assurance).With(parley.ByPolicy, parley.AssuranceLow, "")
	}
	if !r.Began && !p.exposed(m.Origin.Protocol, r) {
		// The same text as for an agent that does not exist: a guest learns nothing.
		return parley.Refuse(parley.UnknownAgent, "no agent %q here", name).With(parley.ByPolicy, parley.NotExposed,
			fmt.Sprintf("agent %q is here, but neither speaks %s nor is exposed in it", name, m.Origin.Protocol))
	}
	// A reply goes to the requester; the rules are about requests.
	if r.Began || isReply(m) || p.permitted(m.From, name, skillOf(m, r.Agent)) {
		return nil
	}
	return parley.Refuse(parley.Forbidden, "agent %q may not call %q", m.From, name).With(parley.ByPolicy,
		parley.NotAllowed, "")
}

// least is the least assurance for a recipient: its own, else the default, else
// signed. Defaults are for messages from outside: this process and holders of the
// hub's tokens need more only where a recipient has a level of its own.
func (p *Policy) least(name, protocol string) parley.Assurance {
	if a, ok := p.c.Assurance[name]; ok && protocol != "go" {
		return a
	}
	if protocol != "go" {
		for _, l := range p.c.Least {
			if l.names(name, protocol) {
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

// exposed reports whether an agent can be reached from a protocol: one it speaks
// or is exposed in, this process, or the admin API.
func (p *Policy) exposed(protocol string, r Recipient) bool {
	return protocol == "go" || protocol == "api" || slices.Contains(r.Native, protocol) || r.Agent.ExposedIn(protocol)
}

func (p *Policy) permitted(from, to, skill string) bool {
	return len(p.c.Allow) == 0 || p.ruleFor(from, to, skill) >= 0
}

// matchAny reports whether one of the patterns matches an agent, or its skill.
func matchAny(patterns []string, agent, skill string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		return Match(p, agent) || skill != "" && Match(p, agent+"."+skill)
	})
}

// Match reports whether a directory name matches a pattern of a [Rule].
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

// A taker is [limiter.take] or [limiter.wait].
type taker func(l *limiter, name string, now time.Time) time.Duration

func (p *Policy) rate(m *parley.Message, take taker) *parley.Error {
	if m.Origin.Protocol == "go" || isReply(m) {
		return nil // this process's own messages, and replies
	}
	l, who, limit := p.senders, m.From, parley.SenderRate
	if m.Origin.Verdict.Assurance == parley.Unsigned {
		l, who, limit = p.unknown, m.Origin.Protocol+" "+m.Origin.Peer, parley.UnknownRate
	}
	if wait := take(l, who, p.c.Now()); wait > 0 {
		return tooOften(limit, wait, "over the limit of %g messages a second", l.rate.PerSecond)
	}
	return nil
}

// Visible reports whether exposure and permission let an agent of a protocol call
// a skill. It uses up no rate.
func (p *Policy) Visible(protocol, from string, to Recipient, skill string) bool {
	return p.exposed(protocol, to) && p.permitted(from, to.Agent.Name, skill)
}
