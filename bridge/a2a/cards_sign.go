package a2a

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/go-jose/go-jose/v4"

	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/keyring"
)

// Signatures on the hub's cards (A2A 1.0, section 8.4): JWS over the canonical form
// (RFC 8785) of the card without its signatures.
//
// The specification contradicts itself about empty members, and the SDKs of Python and
// JavaScript leave out all of them, also required ones, and those of 0.3. So a card has one
// signature for each form that a reader may make of it, by each valid key of the hub.

// JWKSPath is where the hub publishes the keys that sign its cards; no agent has that name.
const JWKSPath = Base + ".well-known/jwks.json"

// A cardHeader is the protected header of a signature. Endorsed is Parley's: ids of
// further keys of the same signer. A verifier that knows the signing key can trust them,
// which it could not if they only signed too, for signatures are not signed.
type cardHeader struct {
	Algorithm string   `json:"alg"`
	KeyID     string   `json:"kid"`
	JKU       string   `json:"jku,omitzero"`
	Type      string   `json:"typ,omitzero"`
	Critical  []string `json:"crit,omitzero"`
	Endorsed  []string `json:"https://github.com/parley-hub/parley/a2a/v1,omitzero"`
}

// serveKeys serves the public keys of the hub's cards.
func (b *Binding) serveKeys(w http.ResponseWriter, r *http.Request) {
	var set jose.JSONWebKeySet
	err := b.ensureCardKey()
	if err == nil {
		for _, k := range b.c.Keys.Keys(keyring.Hub, Protocol) {
			set.Keys = append(set.Keys, cardKey(k.Public))
		}
		var body []byte
		if body, err = json.Marshal(set); err == nil {
			newDocument(body).serve(w, r)
			return
		}
	}
	b.c.Logger.Error("cannot publish the keys of the cards", "error", err)
	http.Error(w, "internal error", http.StatusInternalServerError)
}

// ensureCardKey makes the hub's key for cards if there is none.
func (b *Binding) ensureCardKey() error {
	_, err := b.c.Keys.Ensure(keyring.New{Owner: keyring.Hub, Purpose: Protocol, Algorithm: keyring.Ed25519, By: "parley"})
	if err != nil {
		return fmt.Errorf("the hub's A2A key: %w", err)
	}
	return nil
}

// cardKeys changes whenever other keys sign cards.
func (b *Binding) cardKeys() string { return b.c.Keys.Valid(keyring.Hub, Protocol) }

// cardKey gives a public key as cards name it: by its thumbprint (RFC 7638).
func cardKey(public []byte) jose.JSONWebKey {
	k := jose.JSONWebKey{Key: ed25519.PublicKey(public), Algorithm: string(jose.EdDSA), Use: "sig"}
	k.KeyID = thumbprint(k)
	return k
}

// thumbprint gives the RFC 7638 thumbprint of a key; "" for one that has none.
func thumbprint(k jose.JSONWebKey) string {
	sum, err := k.Thumbprint(crypto.SHA256)
	if err != nil {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(sum)
}

// signedCard signs the card that a method returns, in the form of the caller's version: hybrid for 0.3, else pure.
func (b *Binding) signedCard(c *protocol.AgentCard, version string) (*protocol.AgentCard, error) {
	if err := b.ensureCardKey(); err != nil {
		return nil, err
	}
	form := func(c *protocol.AgentCard) ([]byte, error) { return json.Marshal(c) }
	if version == V03 {
		form = hybridForm
	}
	raw, err := form(c)
	if err != nil {
		return nil, err
	}
	c.Signatures, err = b.signCard(raw)
	return c, err
}

// signedForms gives both forms of a card, signed.
func (b *Binding) signedForms(c *protocol.AgentCard) (pure, hybrid document, err error) {
	raw, err := json.Marshal(c)
	if err != nil {
		return pure, hybrid, err
	}
	mixed, err := hybridForm(c)
	if err != nil {
		return pure, hybrid, err
	}
	signed := *c
	if signed.Signatures, err = b.signCard(raw); err != nil {
		return pure, hybrid, err
	}
	if raw, err = json.Marshal(signed); err != nil {
		return pure, hybrid, err
	}
	if signed.Signatures, err = b.signCard(mixed); err != nil {
		return pure, hybrid, err
	}
	if mixed, err = hybridForm(&signed); err != nil {
		return pure, hybrid, err
	}
	var compact bytes.Buffer
	err = json.Compact(&compact, mixed)
	return newDocument(raw), newDocument(compact.Bytes()), err
}

// signCard gives the signatures of a card: for each reading of it, by each valid key.
func (b *Binding) signCard(card []byte) (out []protocol.AgentCardSignature, err error) {
	forms, err := readings(card)
	if err != nil {
		return nil, err
	}
	keys := b.c.Keys.Keys(keyring.Hub, Protocol)
	var ids []string
	for _, k := range keys {
		ids = append(ids, cardKey(k.Public).KeyID)
	}
	for i, k := range keys {
		signer, err := b.c.Keys.SignerByID(k.ID)
		if err != nil {
			return nil, fmt.Errorf("the hub's A2A key: %w", err)
		}
		h := cardHeader{Algorithm: string(jose.EdDSA), KeyID: ids[i], Type: "JOSE", JKU: b.public.String() + JWKSPath,
			Endorsed: slices.Delete(slices.Clone(ids), i, i+1)}
		if len(h.Endorsed) == 0 {
			h.Endorsed = nil
		}
		header, err := jsonx.Encode(h)
		if err != nil {
			return nil, err
		}
		protected := base64.RawURLEncoding.EncodeToString(header)
		for _, form := range forms {
			sig, err := signer.Sign([]byte(protected + "." + base64.RawURLEncoding.EncodeToString(form)))
			if err != nil {
				return nil, fmt.Errorf("sign a card: %w", err)
			}
			out = append(out, protocol.AgentCardSignature{Protected: protected,
				Signature: base64.RawURLEncoding.EncodeToString(sig)})
		}
	}
	return out, nil
}

// readings gives the canonical forms that a card has for different readers, without
// doubles: as it is; without empty members that are not required (section 8.4.2); without
// any empty members, as the SDKs of Python and JavaScript have it; and without the members
// of 0.3 besides. The error is about JSON that is no card.
func readings(card []byte) (out [][]byte, err error) {
	if err := jsonx.Valid(card, maxCardDepth); err != nil {
		return nil, err
	}
	var tree map[string]any
	d := json.NewDecoder(bytes.NewReader(card))
	d.UseNumber()
	if err := d.Decode(&tree); err != nil {
		return nil, err
	}
	delete(tree, "signatures")
	add := func(v any) error {
		raw, err := jsonx.EncodeTree(v)
		if err == nil {
			raw, err = jsonx.Canonicalize(raw)
		}
		if err == nil && !slices.ContainsFunc(out, func(o []byte) bool { return bytes.Equal(o, raw) }) {
			out = append(out, raw)
		}
		return err
	}
	for _, keepRequired := range []bool{true, false} {
		if keepRequired {
			if err := add(tree); err != nil {
				return nil, err
			}
		}
		pruned, _ := prune(tree, "", keepRequired)
		if err := add(pruned); err != nil {
			return nil, err
		}
	}
	pruned, _ := prune(without03(tree), "", false)
	return out, add(pruned)
}

// requiredMembers are members of cards that are signed even if they are empty, by path.
var requiredMembers = map[string][]string{
	"": {"name", "description", "supportedInterfaces", "version", "capabilities", "defaultInputModes",
		"defaultOutputModes", "skills"},
	".skills":              {"id", "name", "description", "tags"},
	".supportedInterfaces": {"url", "protocolBinding", "protocolVersion"},
	".provider":            {"url", "organization"},
}

// prune removes empty strings, lists, objects and null from a tree, and the one flag whose
// false means the same as its absence. It reports whether anything is left.
func prune(v any, at string, keepRequired bool) (_ any, some bool) {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for name, value := range v {
			value, some := prune(value, at+"."+name, keepRequired)
			if some || keepRequired && slices.Contains(requiredMembers[at], name) {
				out[name] = value
			}
		}
		return out, len(out) > 0
	case []any:
		out := []any{}
		for _, value := range v {
			if value, some := prune(value, at, keepRequired); some {
				out = append(out, value)
			}
		}
		return out, len(out) > 0
	case string:
		return v, v != ""
	case bool:
		return v, v || at != ".capabilities.extensions.required"
	}
	return v, v != nil
}

// without03 gives a card without the members that only 0.3 has, as readers of 1.0 have it
// after they parsed it.
func without03(card map[string]any) map[string]any {
	out := map[string]any{}
	for name, value := range card {
		switch name {
		case "url", "preferredTransport", "protocolVersion", "additionalInterfaces", "security",
			"supportsAuthenticatedExtendedCard":
		case "skills":
			out[name] = eachObject(value, func(skill map[string]any) { delete(skill, "security") })
		case "securitySchemes":
			schemes := map[string]any{}
			if named, ok := value.(map[string]any); ok {
				for name, scheme := range named {
					schemes[name] = scheme10(scheme)
				}
			}
			out[name] = schemes
		default:
			out[name] = value
		}
	}
	return out
}

// eachObject gives a copy of a list with its objects changed.
func eachObject(list any, change func(map[string]any)) any {
	in, ok := list.([]any)
	if !ok {
		return list
	}
	out := slices.Clone(in)
	for i, v := range out {
		if object, ok := v.(map[string]any); ok {
			copied := map[string]any{}
			for name, value := range object {
				copied[name] = value
			}
			change(copied)
			out[i] = copied
		}
	}
	return out
}

// scheme10 gives a security scheme of a hybrid card in the form of 1.0.
func scheme10(scheme any) any {
	s, ok := scheme.(map[string]any)
	if !ok {
		return scheme
	}
	forms := map[any]struct {
		member string
		keeps  []string
	}{
		"apiKey":        {"apiKeySecurityScheme", []string{"description", "name"}},
		"http":          {"httpAuthSecurityScheme", []string{"description", "scheme", "bearerFormat"}},
		"openIdConnect": {"openIdConnectSecurityScheme", []string{"description", "openIdConnectUrl"}},
		"mutualTLS":     {"mtlsSecurityScheme", []string{"description"}},
		"oauth2":        {"oauth2SecurityScheme", []string{"description", "flows", "oauth2MetadataUrl"}},
	}
	form, ok := forms[s["type"]]
	if !ok {
		return scheme
	}
	inner := map[string]any{}
	for _, name := range form.keeps {
		if v, ok := s[name]; ok {
			inner[name] = v
		}
	}
	if v, ok := s["in"]; ok {
		inner["location"] = v
	}
	return map[string]any{form.member: inner}
}
