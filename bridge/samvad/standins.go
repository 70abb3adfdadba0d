package samvad

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/keyring"
	"github.com/parley-hub/parley/policy"
	protocol "github.com/parley-hub/parley/samvad"
)

// talk is the skill of stand-ins whose agent has no known skill: every agent takes
// messages.
const talk = "talk"

// hasTalk reports whether a stand-in has the skill talk: its agent speaks another
// protocol, and its skills are not declared. The skill stays when the agent itself
// declares some, so that callers need not know whether it has done so yet.
func hasTalk(e *directory.Entry) bool {
	return (len(e.Skills) == 0 || e.Learned != "" && !slices.ContainsFunc(e.Skills, isTalk)) &&
		slices.ContainsFunc(e.Native(), func(p string) bool { return p != Protocol }) &&
		!slices.Contains(e.Native(), Protocol)
}

func isTalk(s parley.SkillSpec) bool { return s.ID == talk }

// talkSkill is talk as a card shows it.
func talkSkill() protocol.Skill {
	return protocol.Skill{ID: talk, Name: "Talk", Description: "Takes a message and answers it.",
		InputSchema:  json.RawMessage(`{"type":"object","properties":{"text":{"type":"string"}}}`),
		OutputSchema: json.RawMessage(`{"type":"object"}`),
		Modes:        []protocol.Mode{protocol.ModeSync, protocol.ModeAsync, protocol.ModeStream},
		Trust:        protocol.TrustPublic}
}

// exposes reports whether an agent can be called here: it is exposed in SAMVAD, or
// speaks SAMVAD itself.
func (b *Binding) exposes(e *directory.Entry) bool {
	return e.ExposedIn(Protocol) || slices.Contains(e.Native(), Protocol)
}

// AgentURL gives the base URL of an agent here; "" where it has none.
func (b *Binding) AgentURL(e *directory.Entry) string {
	if !b.exposes(e) {
		return ""
	}
	if e.Name == Root {
		return b.public.String()
	}
	return b.public.String() + "/agents/" + e.Name
}

// standInID gives the identity of an agent's stand-in.
func (b *Binding) standInID(name string) string {
	host := cmp.Or(b.c.Domain, b.public.Host)
	if name == Root {
		return "agent://" + host
	}
	bare, port, err := net.SplitHostPort(host)
	if err != nil {
		bare, port = host, ""
	}
	if ip := net.ParseIP(strings.Trim(bare, "[]")); ip != nil {
		// A label before an address is no host name.
		if ip.IsLoopback() {
			bare = "localhost"
		} else {
			bare = strings.NewReplacer(".", "-", ":", "-").Replace(ip.String()) + ".parley.local"
		}
	}
	if port != "" {
		bare = net.JoinHostPort(bare, port)
	}
	return "agent://" + bridge.HostLabel(name) + "." + bare
}

// standIn gives the stand-in of an agent, or nil.
func (b *Binding) standIn(ctx context.Context, name string) *protocol.Agent {
	keys := fmt.Sprint(b.c.Hub.SenderRate().PerSecond, " ", b.c.Keys.Valid(keyring.Hub, Protocol))
	b.mu.RLock()
	a, same := b.standIns[name], b.cardBasis == keys
	b.mu.RUnlock()
	if a != nil && same {
		return a
	}
	e, ok := b.c.Hub.Directory().Agent(name)
	if !ok || !b.exposes(e) {
		return nil
	}
	a = &protocol.Agent{Card: b.card(ctx, e), Identity: b.client.Identity,
		Skills: map[string]protocol.SkillOptions{},
		Limit:  &protocol.RateLimit{TokensPerSenderPerDay: b.c.TokensPerDay}}
	if len(a.Card.Skills) == 0 {
		return nil
	}
	if !elsewhere(e) { // an agent elsewhere checks tokens itself
		a.Token = b.checkToken
	}
	for _, k := range a.Card.Skills {
		a.Skills[k.ID] = protocol.SkillOptions{NoScan: matchesSkill(b.c.Unscanned, name, k.ID),
			Lightweight: matchesSkill(b.c.Lightweight, name, k.ID)}
	}
	if err := a.Check(); err != nil {
		b.c.Logger.Warn("an agent cannot be called in SAMVAD", "agent", name, "error", err)
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cardBasis != keys {
		b.cardBasis = keys
		clear(b.standIns)
	}
	b.standIns[name] = a
	return a
}

// card makes the card of a stand-in. Where the directory declares no skills of an
// agent elsewhere, they are those of its own card.
func (b *Binding) card(ctx context.Context, e *directory.Entry) *protocol.Card {
	c := &protocol.Card{
		ID:          b.standInID(e.Name),
		Name:        clip(cmp.Or(e.Title, e.Name), 100),
		Version:     e.Version,
		Description: clip(cmp.Or(e.Description, e.Name+", through Parley"), 500),
		URL:         b.AgentURL(e),
		PublicKeys:  b.identity.cardKeys(),
		RateLimit:   b.limits(),
	}
	for _, k := range e.Skills {
		c.Skills = append(c.Skills, toSkill(k))
	}
	wait, all := time.Duration(0), len(e.Skills) == 0
	if all {
		wait = protocol.DefaultFetchTimeout // there is nothing to show without it
	}
	if remote := b.remoteCard(ctx, e, wait, all); remote != nil {
		if all {
			c.Skills, c.Name, c.Description, c.Version = remote.Skills, remote.Name, remote.Description, remote.Version
		}
		c.Specializations, c.Models = remote.Specializations, remote.Models
		c.RateLimit = behind(c.RateLimit, remote.RateLimit)
	}
	if hasTalk(e) {
		c.Skills = append(c.Skills, talkSkill())
	}
	return c.Complete()
}

// unlimited stands on a card for no limit: the schema requires a number above zero.
const unlimited = 1_000_000_000

// limits are those of the hub for each proved sender. It has none for all senders
// together.
func (b *Binding) limits() *protocol.RateLimit {
	l := &protocol.RateLimit{RequestsPerMinute: unlimited, RequestsPerSender: unlimited,
		TokensPerSenderPerDay: b.c.TokensPerDay}
	if r := b.c.Hub.SenderRate().PerSecond; r > 0 {
		l.RequestsPerSender = max(1, min(int(60*r), unlimited))
	}
	return l
}

// behind gives the limits of an agent elsewhere for callers here: they share its
// limit for one sender, the hub.
func behind(here, there *protocol.RateLimit) *protocol.RateLimit {
	if there == nil {
		return here
	}
	l := *here
	if n := shared(there); n > 0 {
		l.RequestsPerMinute, l.RequestsPerSender = min(l.RequestsPerMinute, n), min(l.RequestsPerSender, n)
	}
	if n := there.TokensPerSenderPerDay; n > 0 && (l.TokensPerSenderPerDay == 0 || n < l.TokensPerSenderPerDay) {
		l.TokensPerSenderPerDay = n
	}
	return &l
}

// elsewhere reports whether calls to an agent are calls to a SAMVAD agent of
// another host.
func elsewhere(e *directory.Entry) bool {
	i, ok := e.Identity(Protocol)
	return ok && !i.StandIn && e.Source != directory.FromCode
}

// leadsElsewhere is elsewhere for an agent of that name.
func (b *Binding) leadsElsewhere(name string) bool {
	e, ok := b.c.Hub.Directory().Agent(name)
	return ok && elsewhere(e)
}

// matchesSkill reports whether an operator's patterns name a skill, or its agent.
func matchesSkill(patterns []string, agent, skill string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		return policy.Match(pattern, agent) || policy.Match(pattern, agent+"."+skill)
	})
}

func clip(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

func toSkill(s parley.SkillSpec) protocol.Skill {
	out := protocol.Skill{
		ID: s.ID, Name: clip(cmp.Or(s.Name, s.ID), 100), Description: clip(cmp.Or(s.Description, s.ID), 500),
		InputSchema: json.RawMessage(s.Input), OutputSchema: json.RawMessage(s.Output),
		Trust: protocol.Trust(cmp.Or(s.Access, parley.Public)), AllowedPeers: s.Peers,
	}
	modes := s.Modes
	if len(modes) == 0 {
		modes = []parley.Mode{parley.Sync, parley.Async, parley.Streaming}
	}
	for _, m := range modes {
		out.Modes = append(out.Modes, protocol.Mode(m))
	}
	return out
}
