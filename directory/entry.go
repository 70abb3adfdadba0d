package directory

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/parley-hub/parley"
)

// Source is where an entry came from.
type Source string

const (
	FromConfig   Source = "config"
	FromCode     Source = "code"
	FromOperator Source = "operator"
	FromAgent    Source = "agent" // registered itself, over a connection that the operator configured
	FromGuest    Source = "guest" // registered itself, and nobody vouches for it
)

// stored reports whether entries of the source live in the journal's state.
func (s Source) stored() bool { return s == FromOperator || s.registered() }

// registered reports whether agents make entries of the source themselves.
func (s Source) registered() bool { return s == FromAgent || s == FromGuest }

// An Entry is an agent with its place in the directory. Entries are immutable: a
// change makes a new one.
type Entry struct {
	parley.Agent
	Source Source
	Added  time.Time
	Paused bool  // its deliveries wait
	Pause  Pause `json:",omitzero"` // zero where earlier releases paused it

	// Learned is the protocol in which the agent itself declares its skills; "":
	// the entry's source declared them, or they are unknown.
	Learned string `json:",omitempty"`
	Card    Card   `json:",omitzero"` // what the agent's own card said last
}

// A Pause says since when an agent is paused, by whom and why.
type Pause struct {
	Since  time.Time `json:",omitzero"`
	By     string    `json:",omitempty"`
	Reason string    `json:",omitempty"`
}

// A Card is what an agent says of itself, beside its skills.
type Card struct {
	Title       string `json:",omitempty"`
	Description string `json:",omitempty"`
	Version     string `json:",omitempty"`
}

// Learns reports whether an agent's own declarations in a protocol are its skills:
// it speaks no other protocol, and its source declared none.
func (e *Entry) Learns(protocol string) bool {
	return (len(e.Skills) == 0 || e.Learned == protocol) && e.onlySpeaks(protocol)
}

func (e *Entry) onlySpeaks(protocol string) bool { return slices.Equal(e.Native(), []string{protocol}) }

// Native lists the protocols that the agent itself speaks.
func (e *Entry) Native() []string {
	var out []string
	if e.Source == FromCode {
		out = append(out, "go")
	}
	for _, i := range e.Identities {
		if !i.StandIn && !slices.Contains(out, i.Protocol) {
			out = append(out, i.Protocol)
		}
	}
	return out
}

// Identity finds the agent's identity in a protocol: its own, else its stand-in's.
func (e *Entry) Identity(protocol string) (parley.Identity, bool) {
	var found parley.Identity
	ok := false
	for _, i := range e.Identities {
		if i.Protocol == protocol && (!ok || found.StandIn && !i.StandIn) {
			found, ok = i, true
		}
	}
	return found, ok
}

// SameCard reports whether a later entry of the same agent shows the same on a card: title, description and skills. It
// compares the lists of skills only as wholes, which every change of something else leaves in place.
func (e *Entry) SameCard(o *Entry) bool {
	return e.Title == o.Title && e.Description == o.Description && len(e.Skills) == len(o.Skills) &&
		(len(e.Skills) == 0 || &e.Skills[0] == &o.Skills[0])
}

// upgrade brings an entry of an earlier release to the form of this one.
func (e *Entry) upgrade() {
	for i := range e.Skills { // an absent schema was once written as null
		for _, v := range []*json.RawMessage{&e.Skills[i].Input, &e.Skills[i].Output} {
			if string(*v) == "null" {
				*v = nil
			}
		}
	}
	// Guests once had no source of their own, and their skills no protocol. The ASP
	// binding upgrades its own.
	if e.Source.registered() && strings.HasPrefix(e.Name, "guest/uagents/") {
		e.Source, e.Learned = FromGuest, "uagents"
	}
}

// inherit takes over the skills that the agent declared under another entry, unless
// this one has some.
func (e *Entry) inherit(from *Entry) {
	if len(e.Skills) == 0 && from.Learned != "" {
		e.Skills, e.Learned = from.Skills, from.Learned
		e.describe(from.Card)
	}
}

// describe takes over the texts of an agent's own card, where the entry's source wrote
// none.
func (e *Entry) describe(c Card) {
	text := func(have *string, before, now string) {
		if *have == "" || *have == before {
			*have = now
		}
	}
	text(&e.Title, e.Card.Title, c.Title)
	text(&e.Description, e.Card.Description, c.Description)
	text(&e.Version, e.Card.Version, c.Version)
	e.Card = c
}

// before reports whether an entry wins an identity over another: one that an
// operator added over one that registered itself, an older over a newer one.
func (e *Entry) before(o *Entry) bool {
	if e.Source.registered() != o.Source.registered() {
		return o.Source.registered()
	}
	return cmp.Or(e.Added.Compare(o.Added), cmp.Compare(e.Name, o.Name)) < 0
}

// Matcher makes the test by which a filter chooses agents: the name, the title or the id of an identity contains the
// filter, in upper or lower case. A filter with * must match one of them from its begin to its end; each * stands for
// any text, also none. "" chooses all.
func Matcher(filter string) func(*Entry) bool {
	if filter == "" {
		return func(*Entry) bool { return true }
	}
	filter = strings.ToLower(filter)
	matches := func(s string) bool { return strings.Contains(strings.ToLower(s), filter) }
	if strings.Contains(filter, "*") {
		parts := strings.Split(filter, "*")
		matches = func(s string) bool { return inOrder(strings.ToLower(s), parts) }
	}
	return func(e *Entry) bool {
		return matches(e.Name) || matches(e.Title) ||
			slices.ContainsFunc(e.Identities, func(i parley.Identity) bool { return matches(i.ID) })
	}
}

// inOrder reports whether s begins with the first part, ends with the last one, and has the others in order between
// them, without overlaps. There are at least two parts.
func inOrder(s string, parts []string) bool {
	s, begins := strings.CutPrefix(s, parts[0])
	last := len(parts) - 1
	s, ends := strings.CutSuffix(s, parts[last])
	if !begins || !ends {
		return false
	}
	for _, p := range parts[1:last] {
		at := strings.Index(s, p)
		if at < 0 {
			return false
		}
		s = s[at+len(p):]
	}
	return true
}
