package uagents

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	protocol "github.com/parley-hub/parley/uagents"
)

// mayRegister lets anyone register, or only whom the directory knows. Nobody
// registers an address whose key the hub holds.
func (b *Binding) mayRegister(ctx context.Context, _ *protocol.Attestation, address string) error {
	b.proved(ctx, address)
	if _, _, ok := b.standIns.at(address); ok {
		return protocol.ErrOtherAgent
	}
	return b.known(address)
}

func (b *Binding) mayHaveMailbox(_ context.Context, address string) error { return b.known(address) }

func (b *Binding) known(address string) error {
	if !b.c.Closed {
		return nil
	}
	if _, ok := b.c.Hub.Directory().Lookup(Protocol, address); ok || b.accounts.of(address) != nil {
		return nil
	}
	return protocol.ErrOtherAgent.Saying("This registry is closed; ask its operator to add the agent")
}

// registered takes an agent that registered itself into the directory, and
// makes its mailbox if it registered one of this hub.
func (b *Binding) registered(ctx context.Context, r protocol.Record) {
	ctx = context.WithoutCancel(ctx)
	if slices.ContainsFunc(r.Endpoints, func(e protocol.Endpoint) bool { return b.ours(e.URL, pathMailbox) }) {
		if err := b.mailbox.Create(ctx, r.Address); err != nil {
			// The agent reads the refusal when it asks for its mailbox.
			b.c.Logger.Debug("cannot make a mailbox", "address", r.Address, "error", err)
		}
	}
	b.enter(ctx, &r)
}

// published hears of registrations on other nodes and of manifests that came
// after a registration.
func (b *Binding) published(r *protocol.Record) { b.standIns.later(r.Address) }

// enter keeps the directory's entry of a registered agent up to date.
func (b *Binding) enter(ctx context.Context, r *protocol.Record) {
	d := b.c.Hub.Directory()
	skills := b.skillsOf(r)
	title, description := b.described(r.Address)
	e, ok := d.Lookup(Protocol, r.Address)
	switch {
	case !ok:
	case !e.Learns(Protocol):
		return
	case !isGuest(e):
		if sameSkills(e.Skills, skills) {
			return
		}
		if err := d.Learn(ctx, e.Name, Protocol, skills); err != nil {
			b.c.Logger.Warn("cannot note the skills of a registered agent", "agent", e.Name, "error", err)
		}
		return
	case sameSkills(e.Skills, skills) && e.Title == title && e.Description == description:
		return
	}
	more := skillBytes(skills) - b.entered(r.Address)
	if err := b.almanac.count.grow(r.Address, more); err != nil {
		b.c.Logger.Debug("no room for the skills of a registered agent", "address", r.Address, "error", err)
		if skills, more = nil, 0; ok {
			return
		}
	}
	a := parley.Agent{Name: directory.Stranger(Protocol, r.Address, ""), Skills: skills, Exposed: b.c.Expose,
		Identities: []parley.Identity{{Protocol: Protocol, ID: r.Address}}}
	if ok {
		a = e.Agent
		a.Skills = skills
	}
	a.Title, a.Description = title, description
	source, _, _ := b.almanac.held(r.Address)
	b.c.Hub.Guests().Wrote(source, int(skillBytes(skills))+writeBytes)
	if _, err := d.Register(ctx, a, directory.FromGuest, Protocol); err != nil {
		_ = b.almanac.count.grow(r.Address, -more) // less is never refused
		b.c.Logger.Warn("cannot take a registered agent into the directory", "address", r.Address, "error", err)
	}
}

func sameSkills(a, b []parley.SkillSpec) bool {
	return slices.EqualFunc(a, b, func(x, y parley.SkillSpec) bool {
		return x.ID == y.ID && x.Description == y.Description && x.Default == y.Default &&
			bytes.Equal(x.Input, y.Input) && bytes.Equal(x.Output, y.Output)
	})
}

// chatSkill is the id of the skill that the chat protocol is.
const chatSkill = "chat"

// maxSkillBytes bounds what the schemas of a guest's skills hold in the
// directory. Skills beyond it have none.
const maxSkillBytes = 64 << 10

// skillsOf are the requests of the protocols that an agent registered, as far
// as their manifests are known here. What they say is bound by the digests in
// the signed record.
func (b *Binding) skillsOf(r *protocol.Record) []parley.SkillSpec {
	var out []parley.SkillSpec
	size := 0
	add := func(s parley.SkillSpec) {
		if !slices.ContainsFunc(out, func(o parley.SkillSpec) bool { return o.ID == s.ID }) && len(out) < 64 {
			if n := len(s.Input) + len(s.Output); size+n <= maxSkillBytes {
				size += n
			} else {
				s.Input, s.Output = nil, nil
			}
			out = append(out, s)
		}
	}
	unknown := false
	for _, p := range r.Protocols {
		if p == protocol.ChatProtocolDigest {
			add(parley.SkillSpec{ID: chatSkill, Name: "Chat", Description: "AgentChatProtocol", Default: true})
			continue
		}
		known := b.almanac.protocol(p)
		if known == nil {
			unknown = true
			continue
		}
		for _, request := range slices.Sorted(maps.Keys(known.requests)) {
			text, ok := known.models[request]
			if !ok || classOf(request) != other || len(text.name) == 0 || len(text.name) > 64 {
				continue
			}
			s := parley.SkillSpec{ID: text.name, Name: text.name, Description: text.description(), Input: text.schema}
			responses := known.requests[request]
			for _, d := range responses {
				if answer, ok := known.models[d]; ok && d != protocol.ErrorMessageDigest && len(responses) <= 2 {
					s.Output = answer.schema
				}
			}
			add(s)
		}
	}
	if unknown && len(out) > 0 && !slices.ContainsFunc(out, func(s parley.SkillSpec) bool { return s.Default }) {
		return nil // there is more than is known; nothing is better than half
	}
	slices.SortFunc(out, func(x, y parley.SkillSpec) int { return strings.Compare(x.ID, y.ID) })
	return out
}

// hostedRecord is the registry's record of an agent that the hub stands in
// for.
func (b *Binding) hostedRecord(ctx context.Context, network, address string) *protocol.Record {
	name, _, ok := b.standIns.at(address)
	if !ok {
		return nil
	}
	r := &protocol.Record{Network: network, Address: address, Active: true, Expires: b.c.Now().Add(time.Hour),
		Endpoints: []protocol.Endpoint{b.endpoint(ctx)}, Protocols: []string{protocol.ChatProtocolDigest}}
	if e, ok := b.c.Hub.Directory().Agent(name); ok && b.hosts(e) {
		r.Protocols = b.standIns.protocols(e)
	}
	return r
}

// endpoint is the hub's own for envelopes, as the caller of a request reaches
// it.
func (b *Binding) endpoint(ctx context.Context) protocol.Endpoint {
	base := *b.public
	if host, ok := ctx.Value(hostKey{}).(string); ok && b.c.Unnamed && host != "" {
		base.Host = host
	}
	return protocol.Endpoint{URL: base.String() + pathSubmit, Weight: 1}
}

// hostKey is where the context of a request to the registry holds the host that
// its caller named. It is in the context because the registry's server, which
// knows no hosts, and its store lie between.
type hostKey struct{}

// shown is what agents read of a registration. An agent with endpoints of its
// own is found at the hub's /submit, so that what others say to it is recorded,
// limited and governed; the hub itself delivers to the endpoints. What comes to
// a mailbox here passes the hub in any case.
//
// The library does not compare this with what it registered: it renews by the
// clock.
func (b *Binding) shown(ctx context.Context, r *protocol.Record) *protocol.Record {
	if !slices.ContainsFunc(r.Endpoints, b.elsewhere) {
		return r
	}
	name := ""
	if e, ok := b.c.Hub.Directory().Lookup(Protocol, r.Address); ok {
		name = e.Name
	}
	if b.c.Direct != nil && b.c.Direct(name) {
		return r
	}
	through := *r
	through.Endpoints = []protocol.Endpoint{b.endpoint(ctx)}
	return &through
}

// addressOf resolves names: those of the directory.
func (b *Binding) addressOf(_ context.Context, name string) string {
	e, ok := b.c.Hub.Directory().Agent(name)
	if !ok {
		return ""
	}
	return b.Address(e)
}
