package agh

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/parley-hub/parley/internal/jsonx"
)

// privilegedCapability is the only capability that claims a privilege: a card
// that lists it counts only with a verified proof.
const privilegedCapability = "task.write"

// Keys of ext that discovery uses (RFC 003 §8.3, RFC 005).
const (
	ExtInclude   = "agh.include"            // on a whois request: array with IncludeCatalog
	ExtFilter    = "agh.capability_ids"     // on a whois request: array of capability ids
	ExtCatalog   = "agh.capability_catalog" // on a whois response: {"capabilities": […]}
	ExtBrief     = "agh.capabilities_brief" // on a peer card: [{id, summary}]
	IncludeValue = "capability_catalog"
)

// Card is a peer card. Its four lists are always written, even when empty.
type Card struct {
	PeerID      string          `json:"peer_id"`
	DisplayName string          `json:"display_name,omitzero"`
	Profiles    []string        `json:"profiles_supported"`
	Capability  []string        `json:"capabilities"` // ids
	Artifacts   []string        `json:"artifacts_supported"`
	TrustModes  []string        `json:"trust_modes_supported"`
	Ext         json.RawMessage `json:"ext,omitzero"`
}

// card reads the peer card of from. Strings are taken without padding and
// blank list entries do not count (RFC 003 §7).
func (d *Decoder) card(v jsonx.Value, from string) (*Card, error) {
	if len(v) == 0 || v.Kind() != '{' {
		return nil, malformed(StepBody, "body.peer_card", "must be an object")
	}
	c := &Card{}
	if err := jsonx.Decode(v, c); err != nil {
		return nil, malformed(StepBody, "body.peer_card", "has not the shape of a peer card").because(err)
	}
	c.PeerID, c.DisplayName = strings.TrimSpace(c.PeerID), strings.TrimSpace(c.DisplayName)
	if c.PeerID != from {
		return nil, malformed(StepBody, "body.peer_card.peer_id", "must be the sender")
	}
	for _, l := range []struct {
		name string
		list *[]string
	}{{"profiles_supported", &c.Profiles}, {"capabilities", &c.Capability}, {"artifacts_supported", &c.Artifacts},
		{"trust_modes_supported", &c.TrustModes}} {
		if *l.list == nil {
			return nil, malformed(StepBody, "body.peer_card."+l.name, "must be an array of strings")
		}
		*l.list = trimmed(*l.list)
	}
	var err error
	c.Ext, err = object(jsonx.Value(c.Ext), "body.peer_card.ext")
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (c *Card) encode() jsonx.Value {
	b, err := jsonx.Encode(c)
	if err != nil { // Ext is not JSON; the envelope's Encode refuses it
		return jsonx.Value("null")
	}
	return b
}

// privileged reports whether c claims a privileged capability.
func (c *Card) privileged() bool { return slices.Contains(c.Capability, privilegedCapability) }

// matches reports whether c answers a whois query. A blank query matches every
// card. Any other must equal the peer id, the display name or a list entry, in
// the same case.
func (c *Card) matches(query string) bool {
	q := strings.TrimSpace(query)
	if q == "" || q == c.PeerID || q == c.DisplayName {
		return true
	}
	for _, l := range [][]string{c.Profiles, c.Capability, c.Artifacts, c.TrustModes} {
		if slices.Contains(l, q) {
			return true
		}
	}
	return false
}

// NewCard gives the card of a peer with a catalogue of capabilities, as the AGH
// daemon makes it: Capability lists the ids, ext["agh.capabilities_brief"] the
// {id, summary} of each. Without a catalogue the card has neither.
func NewCard(peerID, displayName string, catalog []Capability) (*Card, error) {
	c := &Card{PeerID: peerID, DisplayName: displayName, Profiles: []string{Protocol},
		Artifacts: []string{string(KindCapability)}}
	type entry struct {
		ID      string `json:"id"`
		Summary string `json:"summary"`
	}
	var brief []entry
	for _, k := range catalog {
		c.Capability = append(c.Capability, strings.TrimSpace(k.ID))
		brief = append(brief, entry{strings.TrimSpace(k.ID), strings.TrimSpace(k.Summary)})
	}
	if brief != nil {
		b, err := jsonx.Encode(map[string]any{ExtBrief: brief})
		if err != nil {
			return nil, malformed(StepBody, "capability", "is not valid text").because(err)
		}
		c.Ext = b
	}
	return c, nil
}

// trimmed gives l without padding and blank entries; never nil, so that an
// empty list is encoded as [].
func trimmed(l []string) []string {
	out := make([]string, 0, len(l))
	for _, s := range l {
		s = strings.TrimSpace(s)
		if s != "" {
			out = append(out, s)
		}
	}
	return out
}

// Summary gives the greeting that the AGH daemon writes for a card: at most
// 160 runes.
func (c *Card) Summary() string {
	name := cmp.Or(c.DisplayName, c.PeerID)
	s := name + " is present"
	if n := len(c.Capability); n > 0 {
		s = name + " ready for " + c.Capability[0]
		if n > 1 {
			s += fmt.Sprintf(" +%d more", n-1)
		}
	}
	if r := []rune(s); len(r) > 160 {
		s = string(r[:160])
	}
	return s
}
