// Package jwks reads public keys in the form of RFC 7517 (JSON Web Key), for tokens and
// signed cards. For example, an issuer publishes {"keys":[…]} at a URL, and a token names
// one of them by its kid: [Remote] fetches the keys, keeps them, and finds that one.
//
// Keys that prove nothing are left out: private and symmetric ones, other algorithms than
// [Algorithms], Ed25519 keys of small order, RSA keys below 2,048 bits.
package jwks

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"errors"
	"fmt"
	"net/http"

	"github.com/go-jose/go-jose/v4"

	"github.com/parley-hub/parley/internal/edkeys"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/internal/netguard"
)

// Algorithms are those of accepted signatures. None of them shares a secret.
var Algorithms = []jose.SignatureAlgorithm{jose.EdDSA, jose.ES256, jose.RS256}

const (
	// MaxBytes bounds a document with keys.
	MaxBytes = 256 << 10
	// MaxKeys bounds the keys of a document.
	MaxKeys = 64

	minRSA, maxRSA = 2048, 8192
)

// ErrKeys is the cause of errors about a document that has no usable keys.
var ErrKeys = errors.New("jwks: no usable keys")

// A Set is usable public keys.
type Set []jose.JSONWebKey

// Parse reads {"keys":[…]}. It leaves out keys that cannot be used; without any usable
// one the error is ErrKeys.
func Parse(b []byte) (Set, error) {
	if len(b) > MaxBytes {
		return nil, fmt.Errorf("%w: more than %d bytes", ErrKeys, MaxBytes)
	}
	var doc struct {
		Keys []jsonx.Value `json:"keys"`
	}
	if err := jsonx.Decode(b, &doc); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKeys, err)
	}
	if len(doc.Keys) > MaxKeys {
		return nil, fmt.Errorf("%w: %d of them, more than %d", ErrKeys, len(doc.Keys), MaxKeys)
	}
	var out Set
	for _, raw := range doc.Keys {
		var k jose.JSONWebKey
		if k.UnmarshalJSON(raw) == nil && Algorithm(k) != "" {
			// Of the certificates that may come with a key nothing is checked, so nothing may rely on them.
			out = append(out, jose.JSONWebKey{Key: k.Key, KeyID: k.KeyID, Algorithm: string(Algorithm(k)), Use: "sig"})
		}
	}
	if len(out) == 0 {
		return nil, ErrKeys
	}
	return out, nil
}

// Algorithm gives the algorithm of a key's signatures; "" for a key that cannot be used.
func Algorithm(k jose.JSONWebKey) (a jose.SignatureAlgorithm) {
	switch key := k.Key.(type) {
	case ed25519.PublicKey:
		if edkeys.Check(key) == nil {
			a = jose.EdDSA
		}
	case *ecdsa.PublicKey:
		if key.Curve == elliptic.P256() {
			a = jose.ES256
		}
	case *rsa.PublicKey:
		if n := key.N.BitLen(); n >= minRSA && n <= maxRSA {
			a = jose.RS256
		}
	}
	switch {
	case k.Use != "" && k.Use != "sig":
		return ""
	case k.Algorithm != "" && k.Algorithm != string(a) && (a != jose.EdDSA || k.Algorithm != "Ed25519"): // RFC 9864
		return ""
	}
	return a
}

// Find gives the keys with an id that sign with an algorithm; without an id, all that do.
func (s Set) Find(kid string, a jose.SignatureAlgorithm) (out Set) {
	for _, k := range s {
		if k.Algorithm == string(a) && (kid == "" || k.KeyID == kid) {
			out = append(out, k)
		}
	}
	return out
}

// Fetch gets the keys at a URL. The client bounds time and addresses.
func Fetch(ctx context.Context, c *http.Client, url string) (Set, error) {
	b, err := Get(ctx, c, url)
	if err != nil {
		return nil, err
	}
	return Parse(b)
}

// Get gets a document of at most MaxBytes.
func Get(ctx context.Context, c *http.Client, url string) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", "application/json, application/jwk-set+json")
	resp, err := c.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answered %s", r.URL.Redacted(), resp.Status)
	}
	return netguard.ReadAll(resp.Body, MaxBytes)
}
