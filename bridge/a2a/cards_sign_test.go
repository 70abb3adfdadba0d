package a2a

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/go-jose/go-jose/v4"

	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/internal/jwks"
	"github.com/parley-hub/parley/keyring"
)

// byKid finds the keys of a set.
func byKid(set jwks.Set) func(*CardSignature) []jose.JSONWebKey {
	return func(s *CardSignature) []jose.JSONWebKey {
		return set.Find(s.KeyID, jose.SignatureAlgorithm(s.Algorithm))
	}
}

// The fragment of section 8.4.1 of the specification, and what its readers sign.
func TestReadingsOfTheSpecification(t *testing.T) {
	const fragment = `{"name":"Example Agent","description":"","capabilities":{"streaming":false,` +
		`"pushNotifications":false,"extensions":[]},"skills":[],"signatures":[{"protected":"x"}]}`
	got, err := readings([]byte(fragment))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		// Literally: what is there.
		`{"capabilities":{"extensions":[],"pushNotifications":false,"streaming":false},"description":"",` +
			`"name":"Example Agent","skills":[]}`,
		// The specification's result.
		`{"capabilities":{"pushNotifications":false,"streaming":false},"description":"","name":"Example Agent","skills":[]}`,
		// That of the SDK for Python 1.3.0.
		`{"capabilities":{"pushNotifications":false,"streaming":false},"name":"Example Agent"}`,
	}
	for i, w := range want {
		if i >= len(got) || string(got[i]) != w {
			t.Errorf("reading %d: %s, want %s", i, got[i], w)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d readings", len(got))
	}
}

// pythonReading is what the SDK for Python 1.3.0 signs of a card, by its own steps: it maps
// members of 0.3, reads the rest into its types, which keep known members and drop empty
// lists of requirements, and removes all that is empty.
func pythonReading(t *testing.T, card []byte) []byte {
	t.Helper()
	var c protocol.AgentCard
	var tree map[string]any
	if err := json.Unmarshal(card, &tree); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"url", "preferredTransport", "protocolVersion", "additionalInterfaces", "security",
		"supportsAuthenticatedExtendedCard"} {
		delete(tree, name)
	}
	schemes, _ := tree["securitySchemes"].(map[string]any)
	for name, v := range schemes {
		s := v.(map[string]any)
		switch s["type"] {
		case "http":
			schemes[name] = map[string]any{"httpAuthSecurityScheme": s}
		case "openIdConnect":
			schemes[name] = map[string]any{"openIdConnectSecurityScheme": s}
		case "mutualTLS":
			schemes[name] = map[string]any{"mtlsSecurityScheme": s}
		}
	}
	raw, err := json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &c); err != nil { // unknown members fall away
		t.Fatal(err)
	}
	c.Signatures = nil
	if raw, err = json.Marshal(c); err != nil {
		t.Fatal(err)
	}
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	if raw, err = json.Marshal(withoutEmpty(v)); err != nil {
		t.Fatal(err)
	}
	if raw, err = jsonx.Canonicalize(raw); err != nil {
		t.Fatal(err)
	}
	return raw
}

func withoutEmpty(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for k, x := range v {
			if x = withoutEmpty(x); x != nil {
				out[k] = x
			}
		}
		if len(out) == 0 {
			return nil
		}
		return out
	case []any:
		var out []any
		for _, x := range v {
			if x = withoutEmpty(x); x != nil {
				out = append(out, x)
			}
		}
		if out == nil {
			return nil
		}
		return out
	case string:
		if v == "" {
			return nil
		}
	}
	return v
}

// literalReading is RFC 8785 of the card as it was served, without its signatures.
func literalReading(t *testing.T, card []byte) []byte {
	t.Helper()
	var tree map[string]json.RawMessage
	if err := json.Unmarshal(card, &tree); err != nil {
		t.Fatal(err)
	}
	delete(tree, "signatures")
	raw, err := json.Marshal(tree)
	if err == nil {
		raw, err = jsonx.Canonicalize(raw)
	}
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// A2A-080: each reader finds a signature over the form that it makes of the card.
func TestEveryReaderVerifies(t *testing.T) {
	h := newCardHub(t, nil)
	key := h.hubKeys(t)[0]
	for _, version := range []string{"1.0", ""} {
		card := h.get("crew/weather", "A2A-Version", version).Body.Bytes()
		var doc struct {
			Signatures []protocol.AgentCardSignature `json:"signatures"`
		}
		if err := json.Unmarshal(card, &doc); err != nil || len(doc.Signatures) == 0 {
			t.Fatalf("%v: %s", err, card)
		}
		for name, form := range map[string][]byte{"literal": literalReading(t, card), "python": pythonReading(t, card)} {
			valid := 0
			for _, s := range doc.Signatures {
				jws, err := jose.ParseSignedCompact(s.Protected+"."+base64.RawURLEncoding.EncodeToString(form)+"."+s.Signature,
					[]jose.SignatureAlgorithm{jose.EdDSA})
				if err != nil {
					t.Fatal(err)
				}
				if jws.Signatures[0].Header.KeyID != key.KeyID {
					t.Errorf("kid %q", jws.Signatures[0].Header.KeyID)
				}
				if payload, err := jws.Verify(key.Key); err == nil && bytes.Equal(payload, form) {
					valid++
				}
			}
			if valid != 1 {
				t.Errorf("version %q, %s reading: %d of %d signatures\n%s", version, name, valid, len(doc.Signatures), form)
			}
		}
	}
}

// The protected header says what the rule wants, and nothing about keys while there is one.
func TestCardHeader(t *testing.T) {
	h := newCardHub(t, nil)
	headers := func() (out []string) {
		var doc struct {
			Signatures []protocol.AgentCardSignature `json:"signatures"`
		}
		if err := json.Unmarshal(h.get("crew/weather", "A2A-Version", "1.0").Body.Bytes(), &doc); err != nil {
			t.Fatal(err)
		}
		for _, s := range doc.Signatures {
			raw, err := base64.RawURLEncoding.DecodeString(s.Protected)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, string(raw))
		}
		return out
	}
	old := h.hubKeys(t)[0].KeyID
	want := `{"alg":"EdDSA","kid":"` + old + `","jku":"https://hub.example/parley/a2a/.well-known/jwks.json","typ":"JOSE"}`
	for _, got := range headers() {
		if got != want {
			t.Errorf("header %s", got)
		}
	}
	// A rotation: both keys sign, and each names the other.
	if _, err := h.keys.Rotate(keyring.Hub, Protocol, "test", time.Hour); err != nil {
		t.Fatal(err)
	}
	keys := h.hubKeys(t)
	if len(keys) != 2 || len(headers()) != 4 {
		t.Fatalf("%d keys, %d signatures", len(keys), len(headers()))
	}
	for _, got := range headers() {
		if !strings.Contains(got, keys[0].KeyID) || !strings.Contains(got, keys[1].KeyID) {
			t.Errorf("header %s", got)
		}
	}
	h.now = h.now.Add(2 * time.Hour)
	if keys = h.hubKeys(t); len(keys) != 1 || keys[0].KeyID == old || len(headers()) != 2 {
		t.Errorf("after the overlap: %d keys, %d signatures", len(keys), len(headers()))
	}
}

// A2A-080: the extended card for a client of 0.3 is signed in the hybrid form, as the public card is.
func TestExtendedCardOf03(t *testing.T) {
	h := newCardHub(t, nil)
	ctx := withCall(t.Context(), &call{agent: "crew/weather", caller: bridge.Caller{Name: "crew/bob"}, version: V03})
	m := methods[V03]["agent/getAuthenticatedExtendedCard"]
	result, err := m.call(ctx, h.methods, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	card := []byte(encoded(t, result))
	var doc struct {
		Schemes    map[string]map[string]json.RawMessage `json:"securitySchemes"`
		Signatures []protocol.AgentCardSignature         `json:"signatures"`
	}
	if err := json.Unmarshal(card, &doc); err != nil {
		t.Fatal(err)
	}
	key := h.hubKeys(t)[0].Key
	for name, form := range map[string][]byte{"literal": literalReading(t, card), "python": pythonReading(t, card)} {
		holds := func(s protocol.AgentCardSignature) bool {
			jws, err := jose.ParseSignedCompact(s.Protected+"."+base64.RawURLEncoding.EncodeToString(form)+"."+s.Signature,
				[]jose.SignatureAlgorithm{jose.EdDSA})
			if err != nil {
				t.Fatal(err)
			}
			_, err = jws.Verify(key)
			return err == nil
		}
		if !slices.ContainsFunc(doc.Signatures, holds) {
			t.Errorf("no signature holds for the %s reading of %s", name, card)
		}
	}
	for name, scheme := range doc.Schemes {
		for _, member := range nestedSchemes {
			if scheme[member] != nil {
				t.Errorf("scheme %s repeats itself in %s", name, member)
			}
		}
	}
}
