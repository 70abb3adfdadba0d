package asp

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"slices"

	"github.com/parley-hub/parley/internal/jsonx"
)

// A Card describes an agent, concepts/agent-registry. The page does not show
// the member of the Ed25519 key; signingPublicKey is emitted, and signingKey,
// publicKey and ed25519PublicKey are read as well, as JWK or "ed25519:"+hex
// (project).
type Card struct {
	AgentID          string
	OrgID            string // orgId, or organization; compared as it is
	Name             string
	Description      string
	Capabilities     []string
	Protocols        []string // "asp/1.0"
	Schemas          []string
	ConformanceLevel string // minimal, standard, full
	Endpoints        map[string]string
	SigningKey       ed25519.PublicKey
	ProofKey         *ProofKey

	raw []byte
}

var cardRules = []rule{
	{"agentId", true, isAgent},
	{"orgId", false, isShortID},
	{"organization", false, isShortID},
	{"name", false, isString},
	{"description", false, isString},
	{"capabilities", false, isStrings},
	{"protocols", false, isStrings},
	{"schemas", false, isArray},
	{"conformanceLevel", false, isString},
	{"endpoints", false, isObject},
	{"dpopPublicKey", true, isObject},
}

func isStrings(n *node) bool {
	return isArray(n) && !slices.ContainsFunc(n.kids, func(k node) bool { return k.kind != '"' })
}

// maxCard bounds a card in bytes (project).
const maxCard = 64 << 10

// ParseCard reads a card: missing_field, invalid_field with a path, or
// weak_or_invalid_key. Unknown members are kept in [Card.JSON]. Members about
// trust are ignored: the server computes the score.
func ParseCard(b []byte) (*Card, error) {
	if len(b) > maxCard {
		return nil, refuse("message_too_large", "")
	}
	n, err := parseJSON(b)
	if err != nil {
		return nil, err
	}
	return cardOf(n)
}

func cardOf(n *node) (*Card, error) {
	if n.kind != '{' {
		return nil, refuse("invalid_field", "")
	}
	if err := checkRules(n, "", cardRules); err != nil {
		return nil, err
	}
	c := &Card{AgentID: n.text("agentId"), OrgID: cmp.Or(n.text("orgId"), n.text("organization")), Name: n.text("name"),
		Description: n.text("description"), ConformanceLevel: n.text("conformanceLevel"),
		Capabilities: stringsOf(n.get("capabilities")), Protocols: stringsOf(n.get("protocols")),
		Schemas: stringsOf(n.get("schemas")), raw: n.raw}
	if c.OrgID == "" {
		return nil, refuse("missing_field", "orgId")
	}
	if ends := n.get("endpoints"); ends != nil {
		c.Endpoints = make(map[string]string, len(ends.names))
		for i := range ends.names {
			if ends.kids[i].kind == '"' {
				c.Endpoints[ends.names[i].raw] = ends.kids[i].str
			}
		}
	}
	c.ProofKey = proofKeyOf(n.get("dpopPublicKey"), nil)
	if c.ProofKey == nil {
		return nil, refuse("weak_or_invalid_key", "dpopPublicKey")
	}
	for _, name := range []string{"signingPublicKey", "signingKey", "publicKey", "ed25519PublicKey"} {
		v := n.get(name)
		if v == nil {
			continue
		}
		key, err := signingKeyOf(v)
		if err != nil {
			e := asError(err)
			e.Path = name
			return nil, e
		}
		if c.SigningKey != nil && !c.SigningKey.Equal(key) {
			return nil, refuse("weak_or_invalid_key", name)
		}
		c.SigningKey = key
	}
	if c.SigningKey == nil {
		return nil, refuse("missing_field", "signingPublicKey")
	}
	return c, nil
}

func stringsOf(n *node) []string {
	var out []string
	for v := range n.elements() {
		if v.kind == '"' {
			out = append(out, v.str)
		}
	}
	return out
}

// Key gives the card's keys.
func (c *Card) Key() Key { return Key{Signing: c.SigningKey, Proof: c.ProofKey, OrgID: c.OrgID} }

// JSON gives the card as it was read, or encodes it.
func (c *Card) JSON() ([]byte, error) {
	if c.raw != nil {
		return c.raw, nil
	}
	w := map[string]any{"agentId": c.AgentID, "orgId": c.OrgID}
	put := func(name string, v any, there bool) {
		if there {
			w[name] = v
		}
	}
	put("name", c.Name, c.Name != "")
	put("description", c.Description, c.Description != "")
	put("capabilities", c.Capabilities, len(c.Capabilities) > 0)
	put("protocols", c.Protocols, len(c.Protocols) > 0)
	put("schemas", c.Schemas, len(c.Schemas) > 0)
	put("conformanceLevel", c.ConformanceLevel, c.ConformanceLevel != "")
	put("endpoints", c.Endpoints, len(c.Endpoints) > 0)
	if c.ProofKey != nil {
		w["dpopPublicKey"] = jsonx.Value(c.ProofKey.jwk())
	}
	if c.SigningKey != nil {
		w["signingPublicKey"] = map[string]string{"kty": "OKP", "crv": "Ed25519", "x": b64.EncodeToString(c.SigningKey)}
	}
	return jsonx.Encode(w)
}

// Keys makes a card a source of its own keys.
func (c *Card) Keys(_ context.Context, agentID string) ([]Key, error) {
	if c == nil || agentID != c.AgentID {
		return nil, nil
	}
	return []Key{c.Key()}, nil
}

// cardInput is what the signatures over a registration cover (project).
func cardInput(card *node) []byte {
	return appendCanonical([]byte("asp-agent-card\x00"), card)
}

// SignCard signs a card for its registration. The holder of the card's key signs
// it, and so does the holder of the key that it replaces, if any. The result is
// "ed25519:" and hex.
func (id *Identity) SignCard(card []byte) (string, error) {
	n, err := parseJSON(card)
	if err != nil {
		return "", err
	}
	return id.sign(cardInput(n))
}
