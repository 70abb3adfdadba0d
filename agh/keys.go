package agh

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"

	"github.com/parley-hub/parley/internal/edkeys"
)

// Keys holds pinned keys: which keys may speak as a handle or nickname. No
// keys means that the id is not pinned.
type Keys interface {
	Keys(ctx context.Context, id string) ([]ed25519.PublicKey, error)
}

// StaticKeys pins keys by handle or nickname.
type StaticKeys map[string][]ed25519.PublicKey

// Keys implements [Keys].
func (k StaticKeys) Keys(_ context.Context, id string) ([]ed25519.PublicKey, error) {
	return k[id], nil
}

// KeyID gives sha256: and the hex SHA-256 of a raw public key.
func KeyID(pub ed25519.PublicKey) string {
	sum := sha256.Sum256(pub)
	return "sha256:" + hex.EncodeToString(sum[:])
}

var b64 = base64.RawURLEncoding.Strict()

// PublicKey parses the pubkey member of a proof: an Ed25519 public key in 43
// characters of base64url without padding. It refuses weak and invalid keys.
func PublicKey(s string) (ed25519.PublicKey, error) {
	pub, err := b64.DecodeString(s)
	if err != nil || len(s) != 43 || len(pub) != ed25519.PublicKeySize {
		return nil, refuse(ErrSignature, StepTrust, "proof.pubkey",
			"must be 32 bytes in base64url without padding").because(err)
	}
	if err := edkeys.Check(pub); err != nil {
		return nil, refuse(ErrSignature, StepTrust, "proof.pubkey", "is a weak or impossible key").because(err)
	}
	return pub, nil
}
