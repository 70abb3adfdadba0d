package samvad

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/parley-hub/parley/internal/edkeys"
	"github.com/parley-hub/parley/internal/jsonx"
)

// Trust is the tier of a skill (SAMVAD 1.2 §8).
type Trust string

// The trust tiers.
const (
	TrustPublic        Trust = "public"        // any verified signature
	TrustAuthenticated Trust = "authenticated" // and a bearer token
	TrustPeers         Trust = "trusted-peers" // and a sender in allowedPeers
)

// A Card describes an agent (GET /.well-known/agent.json, agent-card schema).
type Card struct {
	ID              string     `json:"id"`
	Name            string     `json:"name"`        // at most 100 characters
	Version         string     `json:"version"`     // of the agent's software
	Description     string     `json:"description"` // at most 500 characters
	URL             string     `json:"url"`         // base URL of the endpoints
	ProtocolVersion string     `json:"protocolVersion"`
	Specializations []string   `json:"specializations"`
	Models          []Model    `json:"models"`
	Skills          []Skill    `json:"skills"`
	PublicKeys      []CardKey  `json:"publicKeys"`
	Auth            *CardAuth  `json:"auth,omitzero"`
	RateLimit       *RateLimit `json:"rateLimit,omitzero"`
	CardTTL         *int       `json:"cardTTL,omitzero"` // seconds
	Endpoints       *Endpoints `json:"endpoints,omitzero"`
}

// A Model names a language model behind an agent.
type Model struct {
	Provider string `json:"provider"`
	Model    string `json:"model"`
}

// A Skill is an operation that an agent offers.
type Skill struct {
	ID           string          `json:"id"`          // at most 64 characters
	Name         string          `json:"name"`        // at most 100 characters
	Description  string          `json:"description"` // at most 500 characters
	InputSchema  json.RawMessage `json:"inputSchema"`
	OutputSchema json.RawMessage `json:"outputSchema"`
	Modes        []Mode          `json:"modes"`
	Trust        Trust           `json:"trust"`
	AllowedPeers []string        `json:"allowedPeers,omitempty"`
}

// A CardKey is a public key as a card lists it.
type CardKey struct {
	KID    string `json:"kid"`
	Key    string `json:"key"` // base64 of 32 bytes
	Active bool   `json:"active"`
}

// CardAuth lists what an agent's skills may ask for.
type CardAuth struct {
	Schemes []string `json:"schemes"` // "bearer", "none"
}

// RateLimit is the rate that an agent accepts (SAMVAD 1.2 §8, agent-card schema).
type RateLimit struct {
	RequestsPerMinute     int `json:"requestsPerMinute,omitzero"`     // from all senders
	RequestsPerSender     int `json:"requestsPerSender,omitzero"`     // per minute
	TokensPerSenderPerDay int `json:"tokensPerSenderPerDay,omitzero"` // 0 = no budget
}

// Endpoints are addresses that no known client follows: the paths are fixed.
type Endpoints struct {
	Intro      string `json:"intro"`
	Message    string `json:"message"`
	Task       string `json:"task"`
	TaskStatus string `json:"taskStatus"`
	Stream     string `json:"stream"`
	Health     string `json:"health"`
}

// Defaults of cards without these members.
const (
	DefaultCardTTL           = 300 // seconds
	DefaultRequestsPerMinute = 60
	DefaultRequestsPerSender = 20 // as the Python SDK; the TypeScript SDK has 10
)

// DecodeCard reads a card: strict JSON, members it does not know skipped, an id that
// begins with agent://. Members that a client does not need may be missing;
// [CardDocument] validates against the whole schema. The error wraps [ErrCard].
func DecodeCard(b []byte) (*Card, error) {
	var c Card
	if err := jsonx.Decode(b, &c); err != nil {
		return nil, because(ErrCard, err)
	}
	if !strings.HasPrefix(c.ID, agentScheme) {
		return nil, because(ErrCard, errors.New("id does not begin with agent://"))
	}
	return &c, nil
}

// Complete gives a copy with every member filled in, as the Python SDK's
// client needs it (SAM-002): protocol version, auth schemes (bearer exactly if
// a skill is authenticated, SAM-005), rate limit, TTL and endpoints.
func (c *Card) Complete() *Card {
	d := *c
	d.ProtocolVersion = Version
	d.Version = cmp.Or(d.Version, "1.0.0")
	d.Specializations = append([]string{}, c.Specializations...)
	d.Models = append([]Model{}, c.Models...)
	d.PublicKeys = append([]CardKey{}, c.PublicKeys...)
	d.Skills = append([]Skill{}, c.Skills...)
	schemes := []string{"none"}
	for i := range d.Skills {
		s := &d.Skills[i]
		for _, schema := range []*json.RawMessage{&s.InputSchema, &s.OutputSchema} {
			if isNull(*schema) {
				*schema = json.RawMessage(`{"type":"object"}`)
			}
		}
		if s.Trust == TrustAuthenticated {
			schemes = []string{"bearer", "none"}
		}
	}
	d.Auth = &CardAuth{Schemes: schemes}
	d.RateLimit, d.CardTTL = new(c.limit()), new(c.ttl())
	if c.Endpoints == nil {
		base := strings.TrimRight(c.URL, "/")
		d.Endpoints = &Endpoints{
			Intro: base + pathIntro, Message: base + pathMessage, Task: base + pathTask,
			TaskStatus: base + pathTask + "/{taskId}", Stream: base + pathStream, Health: base + pathHealth,
		}
	}
	return &d
}

func (c *Card) limit() RateLimit {
	var l RateLimit
	if c.RateLimit != nil {
		l = *c.RateLimit
	}
	l.RequestsPerMinute = cmp.Or(l.RequestsPerMinute, DefaultRequestsPerMinute)
	l.RequestsPerSender = cmp.Or(l.RequestsPerSender, DefaultRequestsPerSender)
	return l
}

func (c *Card) ttl() int {
	if c.CardTTL == nil {
		return DefaultCardTTL
	}
	return *c.CardTTL
}

// Encode writes the completed card and makes sure that it is one: valid
// against the schema, unique skill ids and kids, usable keys of which one at
// least is active (SAM-002, SAM-004). The error wraps [ErrCard].
func (c *Card) Encode() ([]byte, error) {
	d := c.Complete()
	b, err := jsonx.Encode(d)
	if err != nil {
		return nil, because(ErrCard, err)
	}
	if err := CardDocument.Validate(b); err != nil {
		return nil, because(ErrCard, err)
	}
	if err := d.check(); err != nil {
		return nil, because(ErrCard, err)
	}
	return b, nil
}

func (c *Card) check() error {
	if err := CheckAgent(c.ID); err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, s := range c.Skills {
		if s.ID == "" || seen[s.ID] {
			return fmt.Errorf("skill id %q is empty or used twice", s.ID)
		}
		seen[s.ID] = true
	}
	seen, active := map[string]bool{}, false
	for _, k := range c.PublicKeys {
		if seen[k.KID] {
			return fmt.Errorf("kid %q is used twice", k.KID)
		}
		seen[k.KID] = true
		if err := checkKID(k.KID); err != nil {
			return err
		}
		if _, err := ParseKey(k.Key); err != nil {
			return fmt.Errorf("kid %q: %w", k.KID, err)
		}
		active = active || k.Active
	}
	if !active {
		return errors.New("no active key")
	}
	return nil
}

// Skill gives a skill by id, nil if the card has none of that id.
func (c *Card) Skill(id string) *Skill {
	if i := slices.IndexFunc(c.Skills, func(s Skill) bool { return s.ID == id }); i >= 0 {
		return &c.Skills[i]
	}
	return nil
}

// Offers reports whether the skill declares a mode.
func (s *Skill) Offers(m Mode) bool { return slices.Contains(s.Modes, m) }

// CardKeyOf gives the card entry for a signer's key.
func CardKeyOf(s Signer, active bool) CardKey {
	return CardKey{KID: s.KID(), Key: base64.StdEncoding.EncodeToString(s.Public()), Active: active}
}

// cardKeys gives the keys of a card as [Key]. Entries that are no acceptable key
// are left out: they can verify nothing. Revoked ones stay, so that the refusal of a
// message that names one says so.
func cardKeys(list []CardKey, version string) []Key {
	out := make([]Key, 0, len(list))
	for _, k := range list {
		if k.KID == "" {
			continue
		}
		pub, err := base64.StdEncoding.DecodeString(k.Key)
		if err != nil || edkeys.Check(pub) != nil {
			continue
		}
		out = append(out, Key{KID: k.KID, Public: pub, Revoked: !k.Active, Source: "card", Version: version})
	}
	return out
}
