package admin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/internal/readable"
	"github.com/parley-hub/parley/keyring"
)

// This file describes the effects of a change beforehand. A preview is refused if the hub knows that it would refuse
// the change.

// Preview describes the effects of a change. Nothing has been changed.
type Preview struct {
	Target  string    `json:"target"`         // agent, or owner of the key
	Text    []string  `json:"text"`           // sentences
	Agents  []string  `json:"agents"`         // others that the change concerns, at most [previewAgents]
	More    int       `json:"more,omitzero"`  // agents that are not listed
	Command string    `json:"command"`        // that makes the change
	Until   time.Time `json:"until,omitzero"` // of a rotation: end of the old key
	Old     string    `json:"old,omitzero"`   // of a rotation: fingerprint of the old key
}

const previewAgents = 20

func (p *Preview) say(format string, args ...any) {
	p.Text = append(p.Text, fmt.Sprintf(format, args...))
}

// previewed is the entry of an agent, for an actor who may change it.
func (a *Admin) previewed(by Actor, name *string) (*directory.Entry, error) {
	if err := cmp.Or(by.may(Administer), a.resolveNames(name)); err != nil {
		return nil, err
	}
	return a.entry(by, *name)
}

// PreviewExpose says what [Admin.Expose] would do.
func (a *Admin) PreviewExpose(_ context.Context, by Actor, name string, protocols []string) (Preview, error) {
	e, err := a.previewed(by, &name)
	if err == nil {
		err = a.checkProtocols(protocols)
	}
	if err == nil && e.Source == directory.FromConfig {
		err = a.notChanged(name, fmt.Errorf("%w: set expose for %q in the configuration", directory.ErrReadOnly, name))
	}
	if err != nil {
		return Preview{}, err
	}
	command := append([]string{"parley", "agents", "expose", name}, protocols...)
	if len(protocols) == 0 {
		command = append(command, "none")
	}
	p := Preview{Target: name, Agents: []string{},
		Command: readable.ShellWords(command...)}
	now := *e
	now.Exposed = protocols
	native, id := a.c.Hub.Native(e)
	for _, b := range a.c.Hub.Bindings() {
		protocol := b.Protocol()
		was, is := e.ExposedIn(protocol), now.ExposedIn(protocol)
		switch {
		case slices.Contains(e.Native(), protocol) || was == is:
		case was:
			p.say("%s can no longer be reached in %s.", name, protocol)
		default:
			at := a.c.Hub.StandInAddress(protocol, &now)
			if i, ok := e.Identity(protocol); ok && i.StandIn {
				at = i.ID
			}
			text := fmt.Sprintf("%s becomes reachable in %s as %s", name, protocol,
				cmp.Or(at, "an address that its stand-in gets then"))
			if a.c.Losses != nil {
				if lost := a.c.Losses(protocol, native, id); len(lost) > 0 {
					text += "; callers lose: " + strings.Join(lost, ", ")
				}
			}
			p.say("%s.", text)
		}
	}
	if len(p.Text) == 0 {
		p.say("Nothing changes: the hub stands in for %s in these protocols only already, or does not speak them.", name)
	}
	return p, nil
}

// PreviewLink says what [Admin.Link] would do.
func (a *Admin) PreviewLink(_ context.Context, by Actor, name string, id NewIdentity) (Preview, error) {
	e, err := a.previewed(by, &name)
	if err != nil {
		return Preview{}, err
	}
	key, err := id.check()
	if err != nil {
		return Preview{}, err
	}
	if _, err := a.credentials([]NewIdentity{id}, e.Identities); err != nil {
		return Preview{}, err
	}
	p := Preview{Target: name, Agents: []string{}, Command: readable.ShellWords("parley", "agents", "link", name,
		"--protocol", id.Protocol, "--id", id.ID)}
	p.say("%s is %s in %s, too.", name, id.ID, id.Protocol)
	if id.URL != "" {
		p.Command += " " + readable.ShellWords("--url", id.URL)
		p.say("The hub sends messages of %s agents to %s.", id.Protocol, id.URL)
	}
	if i, ok := e.Identity(id.Protocol); ok && i.StandIn || !ok && e.ExposedIn(id.Protocol) {
		p.say("Its stand-in in %s retires: the hub forwards the messages to it.", id.Protocol)
	}
	for _, o := range a.c.Hub.Directory().Claimants(id.Protocol, id.ID) {
		switch {
		case o.Name == name || strings.HasPrefix(o.Name, "guest/"): // a guest gives way
		case key == nil && slices.ContainsFunc(o.Identities, func(i parley.Identity) bool {
			return i.Protocol == id.Protocol && i.ID == id.ID && i.Key == "" && !i.StandIn
		}):
			return Preview{}, fromDirectory(fmt.Errorf("%w: %s %s is %q", directory.ErrIdentity, id.Protocol, id.ID, o.Name))
		default:
			p.add(o.Name)
		}
	}
	if len(p.Agents) > 0 {
		p.say("%s has this id already: keys tell them apart.", strings.Join(p.Agents, ", "))
	}
	if key != nil {
		p.Command += keyFlags(id)
		a.previewKey(&p, name, id, key)
	}
	return p, nil
}

// previewKey says what an enrolment does.
func (a *Admin) previewKey(p *Preview, agent string, id NewIdentity, key []byte) {
	p.say("Messages of %s signed by the key %s are from %s from now on.", id.Protocol,
		keyring.Fingerprint(keyring.Ed25519, key), agent)
	if n := len(a.c.Keys.Enrolled(agent, id.Protocol)); n > 0 {
		p.say("The keys that are enrolled for it in %s stay valid: %d.", id.Protocol, n)
	}
}

// keyFlags are the flags of a command that enrols a key.
func keyFlags(id NewIdentity) string {
	flags := []string{"--key", id.PublicKey}
	if id.KeyID != "" {
		flags = append(flags, "--key-id", id.KeyID)
	}
	return " " + readable.ShellWords(flags...)
}

func (p *Preview) add(agent string) {
	if len(p.Agents) < previewAgents {
		p.Agents = append(p.Agents, agent)
	} else {
		p.More++
	}
}

// PreviewEnroll says what [Admin.Enroll] would do.
func (a *Admin) PreviewEnroll(_ context.Context, by Actor, e Enrolment) (Preview, error) {
	if _, err := a.previewed(by, &e.Agent); err != nil {
		return Preview{}, err
	}
	key, err := decodeKey(e.PublicKey)
	if err != nil {
		return Preview{}, err
	}
	i, err := a.native(by, e.Agent, e.Protocol, e.ID)
	if err != nil {
		return Preview{}, err
	}
	for _, k := range a.c.Keys.Enrolled(e.Agent, e.Protocol) {
		if e.KeyID != "" && k.KeyID == e.KeyID && !slices.Equal(k.Public, key) {
			return Preview{}, fromKeyring(keyring.ErrExists)
		}
	}
	p := Preview{Target: e.Agent, Agents: []string{}, Command: readable.ShellWords("parley", "keys", "enroll", e.Agent,
		"--protocol", e.Protocol) + keyFlags(e.NewIdentity)}
	e.ID = i.ID
	a.previewKey(&p, e.Agent, e.NewIdentity, key)
	return p, nil
}

// PreviewRotate says what [Admin.Rotate] would do, and which agents may have to be told.
func (a *Admin) PreviewRotate(_ context.Context, by Actor, r Rotation) (Preview, error) {
	if err := cmp.Or(by.may(Administer), a.resolveNames(&r.Owner)); err != nil {
		return Preview{}, err
	}
	overlap, err := r.overlap()
	if err != nil {
		return Preview{}, err
	}
	var old *keyring.Key
	replacing := false
	for _, k := range a.c.Keys.List() {
		if k.Owner != r.Owner || k.Purpose != r.Purpose {
			continue
		}
		replacing = replacing || k.State == keyring.Next
		if k.State == keyring.Active {
			old = &k
		}
	}
	switch {
	case old == nil:
		return Preview{}, fromKeyring(keyring.ErrNotFound)
	case replacing && overlap > 0:
		return Preview{}, beingReplaced(r)
	}
	p := Preview{Target: r.Owner, Agents: []string{}, Until: a.c.Now().Add(overlap), Command: readable.ShellWords("parley",
		"keys", "rotate", r.Owner, "--protocol", r.Purpose, "--overlap", overlap.String())}
	p.Old = keyring.Fingerprint(old.Algorithm, old.Public)
	stamp := func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") }
	switch {
	case overlap == 0:
		p.say("The old key %s ends at once, for good: what it signed and is still on its way is refused.", p.Old)
	case r.Purpose == "samvad":
		p.say("Both keys are published; the old key %s signs until %s, then the new one.", p.Old, stamp(p.Until))
		p.Until = p.Until.Add(OldKeyPublished)
		p.say("The old key stays valid until %s.", stamp(p.Until))
	default:
		p.say("The new key signs at once; the old key %s stays valid until %s.", p.Old, stamp(p.Until))
	}
	a.previewPeers(&p, r.Purpose)
	return p, nil
}

// previewPeers names the agents that check signatures of the hub in a protocol where they may trust a key by hand.
func (a *Admin) previewPeers(p *Preview, protocol string) {
	if protocol != "samvad" {
		p.say("Agents of %s read the new key from the registry or the card.", protocol)
		return
	}
	for _, e := range a.c.Hub.Directory().All() {
		if slices.ContainsFunc(e.Identities, func(i parley.Identity) bool {
			return i.Protocol == protocol && !i.StandIn && i.URL != ""
		}) {
			p.add(e.Name)
		}
	}
	if len(p.Agents) > 0 {
		more := ""
		if p.More > 0 {
			more = fmt.Sprintf(" and %d more", p.More)
		}
		n := len(p.Agents) + p.More
		p.say("%s trust the old key by hand, and then %s the new one: %s%s.", numbered(n, "This agent may",
			"These "+number(n)+" agents may"), numbered(n, "needs", "need"), strings.Join(p.Agents, ", "), more)
	}
}
