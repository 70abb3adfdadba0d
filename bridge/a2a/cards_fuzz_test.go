package a2a

import (
	"crypto/ed25519"
	"errors"
	"testing"

	"github.com/go-jose/go-jose/v4"

	"github.com/parley-hub/parley/internal/jsonx"
)

// FuzzVerifyCard: whatever comes as a card, the result is an error or JSON, and nothing is
// valid without a key that signed it.
func FuzzVerifyCard(f *testing.F) {
	for _, seed := range []string{plainCard, `{}`, `[]`, `{"signatures":[{"protected":"e30","signature":""}]}`,
		`{"skills":[{"security":[]},7],"securitySchemes":{"a":{"type":"http","scheme":"Bearer"},"b":7},"url":null}`,
		`{"signatures":[{"protected":"eyJhbGciOiJFZERTQSIsImtpZCI6ImsxIn0","signature":"AAAA"}],"capabilities":{"extensions":` +
			`[{"required":false,"params":{"a":[null,"",{}]}}]}}`} {
		f.Add([]byte(seed))
	}
	other := cardKey(ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)).Public().(ed25519.PublicKey))
	f.Fuzz(func(t *testing.T, card []byte) {
		v, err := VerifyCard(card, func(*CardSignature) []jose.JSONWebKey { return []jose.JSONWebKey{other} })
		if err != nil {
			if !errors.Is(err, ErrCard) {
				t.Fatal(err)
			}
			return
		}
		if v.Valid() || string(v.Card) != string(card) || jsonx.Valid(v.Card, maxCardDepth) != nil {
			t.Fatalf("%s", v.Card)
		}
	})
}
