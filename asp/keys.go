package asp

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"

	"github.com/parley-hub/parley/internal/edkeys"
)

// A Key is the pair of an agent's public keys during one span of time.
type Key struct {
	Signing   ed25519.PublicKey
	Proof     *ProofKey // nil: proofs of this agent cannot be checked
	OrgID     string    // the organization that the card names; empty: not checked
	NotBefore time.Time // zero: no limit
	NotAfter  time.Time // exclusive; zero: no limit
}

// ID names the key: the SHA-256 of the Ed25519 key in hexadecimal.
func (k Key) ID() string {
	sum := sha256.Sum256(k.Signing)
	return hex.EncodeToString(sum[:])
}

// ValidAt reports whether t lies in the key's span.
func (k Key) ValidAt(t time.Time) bool {
	return !t.Before(k.NotBefore) && (k.NotAfter.IsZero() || t.Before(k.NotAfter))
}

// Keys finds the keys of an agent, oldest first. An unknown agent has none; an
// error means that the lookup failed.
type Keys interface {
	Keys(ctx context.Context, agentID string) ([]Key, error)
}

// StaticKeys are a fixed set of keys by agent URI.
type StaticKeys map[string][]Key

// Keys implements [Keys].
func (s StaticKeys) Keys(_ context.Context, agentID string) ([]Key, error) { return s[agentID], nil }

// A ProofKey is the P-256 public key of DPoP proofs.
type ProofKey struct {
	public     *ecdsa.PublicKey
	x, y       string // as in a JWK
	thumbprint string
}

// Thumbprint is the key's RFC 7638 thumbprint.
func (k *ProofKey) Thumbprint() string { return k.thumbprint }

// Equal reports whether both are the same key.
func (k *ProofKey) Equal(o *ProofKey) bool {
	return k == o || k != nil && o != nil && k.thumbprint == o.thumbprint
}

// newProofKey makes the key of a point on P-256.
func newProofKey(pub *ecdsa.PublicKey) (*ProofKey, error) {
	point, err := pub.Bytes()
	if err != nil {
		return nil, refuseCause("weak_or_invalid_key", "dpopPublicKey", err)
	}
	k := &ProofKey{public: pub, x: b64.EncodeToString(point[1:33]), y: b64.EncodeToString(point[33:])}
	// The required members in RFC 7638 order.
	sum := sha256.Sum256([]byte(`{"crv":"P-256","kty":"EC","x":"` + k.x + `","y":"` + k.y + `"}`))
	k.thumbprint = b64.EncodeToString(sum[:])
	return k, nil
}

func (k *ProofKey) jwk() string {
	return `{"kty":"EC","crv":"P-256","x":"` + k.x + `","y":"` + k.y + `"}`
}

// proofKeyOf parses an EC P-256 JWK. It refuses private keys, coordinates that are
// not in canonical encoding, and points off the curve. If the JWK is the key
// known, proofKeyOf returns known without parsing.
func proofKeyOf(n *node, known *ProofKey) *ProofKey {
	if n == nil || n.kind != '{' || n.text("kty") != "EC" || n.text("crv") != "P-256" || n.get("d") != nil {
		return nil
	}
	if known != nil && n.text("x") == known.x && n.text("y") == known.y {
		return known
	}
	x, okX := decode64(n.text("x"))
	y, okY := decode64(n.text("y"))
	if !okX || !okY || len(x) != 32 || len(y) != 32 {
		return nil
	}
	point := append(append(make([]byte, 0, 65), 4), x...)
	pub, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), append(point, y...))
	if err != nil {
		return nil
	}
	k, _ := newProofKey(pub) // the point is on the curve
	return k
}

// decode64 decodes canonical unpadded base64url. The length shows line breaks,
// which the standard decoder skips.
func decode64(s string) ([]byte, bool) {
	b, err := b64.DecodeString(s)
	if err != nil || len(s)%4 == 1 || len(b) != b64.DecodedLen(len(s)) {
		return nil, false
	}
	return b, true
}

// SigningKey checks a raw Ed25519 public key: 32 bytes, canonical, on the curve,
// not of small order (weak_or_invalid_key otherwise).
func SigningKey(b []byte) (ed25519.PublicKey, error) {
	if err := edkeys.Check(b); err != nil {
		return nil, refuseCause("weak_or_invalid_key", "", err)
	}
	return ed25519.PublicKey(b), nil
}

// signingKeyOf reads an Ed25519 key from a card: an OKP JWK, or
// "ed25519:" and hex.
func signingKeyOf(n *node) (ed25519.PublicKey, error) {
	var raw []byte
	switch n.kind {
	case '{':
		if n.text("kty") != "OKP" || n.text("crv") != "Ed25519" || n.get("d") != nil {
			return nil, refuse("weak_or_invalid_key", "")
		}
		raw, _ = decode64(n.text("x"))
	case '"':
		text, ok := strings.CutPrefix(n.str, "ed25519:")
		if !ok || !prefixedHex(n.str, "ed25519:", 64) {
			return nil, refuse("weak_or_invalid_key", "")
		}
		raw, _ = hex.DecodeString(text)
	}
	return SigningKey(raw)
}
