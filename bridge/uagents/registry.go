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

// mayRegister admits any agent, or in a closed registry only agents of the directory, but
// never an address whose key the hub holds.
func (b *Binding) mayRegister(ctx context.Context, _ *protocol.Attestation, address string) error {
	b.noteProof(ctx, address)
	if _, _, ok := b.standIns.at(address); ok {
		return protocol.ErrOtherAgent
	}
	return b.mayUse(address)
}

func (b *Binding) mayHaveMailbox(_ context.Context, address string) error { return b.mayUse(address) }

func (b *Binding) mayUse(address string) error {
	if !b.c.Closed {
		return nil
	}
	if _, ok := b.c.Hub.Directory().Lookup(Protocol, address); ok || b.accounts.of(address) != nil {
		return nil
	}
	return protocol.ErrOtherAgent.Saying("This registry is closed; ask its operator to add the agent")
}

// registered adds an agent that registered itself to the directory, and makes its mailbox
// if the registration names a mailbox of this hub.
func (b *Binding) registered(ctx context.Context, r protocol.Record) {
	ctx = context.WithoutCancel(ctx)
	if slices.ContainsFunc(r.Endpoints, func(e protocol.Endpoint) bool { return b.isOwnPath(e.URL, pathMailbox) }) {
		if err := b.mailbox.Create(ctx, r.Address); err != nil {
			// The agent reads the refusal when it asks for its mailbox.
			b.c.Logger.Debug("cannot make a mailbox", "address", r.Address, "error", err)
		}
	}
	b.enter(ctx, &r)
}

// enter updates the directory's entry of a registered agent.
func (b *Binding) enter(ctx context.Context, r *protocol.Record) {
	d := b.c.Hub.Directory()
	skills := b.skillsOf(r)
	title, description := b.profileText(r.Address)
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
	more := skillBytes(skills) - b.directoryBytes(r.Address)
	if err := b.almanac.budget.Grow(r.Address, more); err != nil {
		b.c.Logger.Debug("no room for the skills of a registered agent", "address", r.Address, "error", err)
		if ok {
			return
		}
		skills, more = nil, 0
	}
	a := parley.Agent{Name: directory.GuestName(Protocol, r.Address, ""), Skills: skills, Exposed: b.c.Expose,
		Identities: []parley.Identity{{Protocol: Protocol, ID: r.Address}}}
	if ok {
		a = e.Agent
		a.Skills = skills
	}
	a.Title, a.Description = title, description
	source, _, _ := b.almanac.footprint(r.Address)
	b.c.Hub.Guests().Wrote(source, int(skillBytes(skills))+writeBytes)
	if _, err := d.Register(ctx, a, directory.FromGuest, Protocol); err != nil {
		_ = b.almanac.budget.Grow(r.Address, -more) // a decrease is never refused
		b.c.Logger.Warn("cannot take a registered agent into the directory", "address", r.Address, "error", err)
	}
}

func sameSkills(a, b []parley.SkillSpec) bool {
	return slices.EqualFunc(a, b, func(x, y parley.SkillSpec) bool {
		return x.ID == y.ID && x.Description == y.Description && x.Default == y.Default &&
			bytes.Equal(x.Input, y.Input) && bytes.Equal(x.Output, y.Output)
	})
}

// chatSkill is the id of the skill for the chat protocol.
const chatSkill = "chat"

// maxSkillBytes bounds the schemas of a guest's skills in the directory. Further skills
// have no schema.
const maxSkillBytes = 64 << 10

// skillsOf gives the requests of the protocols that an agent registered, if their
// manifests are known here. The digests in the signed record bind them.
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
		return nil // half of the skills would mislead
	}
	slices.SortFunc(out, func(x, y parley.SkillSpec) int { return strings.Compare(x.ID, y.ID) })
	return out
}

// hostedRecord is the registry's record of a stand-in.
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

// endpoint is the hub's own endpoint for envelopes, with the host that the caller of a
// request used.
func (b *Binding) endpoint(ctx context.Context) protocol.Endpoint {
	base := *b.public
	if host, ok := ctx.Value(hostKey{}).(string); ok && b.c.Unnamed && host != "" {
		base.Host = host
	}
	return protocol.Endpoint{URL: base.String() + pathSubmit, Weight: 1}
}

// hostKey is the context key of the host that the caller of the registry used. The
// registry's server between the caller and the store passes no hosts.
type hostKey struct{}

// recordForAgents is a registration as other agents read it. The endpoint of an agent
// with its own endpoints is the hub's /submit, so that envelopes for it are recorded,
// limited and governed; the hub itself delivers to the agent's endpoints. Envelopes for a
// mailbox pass the hub anyway.
//
// The library does not compare this record with its own; it renews at fixed times.
func (b *Binding) recordForAgents(ctx context.Context, r *protocol.Record) *protocol.Record {
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
