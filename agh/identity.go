package agh

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// Profile is the trust profile of RFC 004.
const Profile = "agh-network.trust.ed25519-jcs/v1"

// Identity signs as a verified handle, nickname@fingerprint (RFC 004 §3).
type Identity struct {
	nickname string
	key      ed25519.PrivateKey
}

// NewIdentity makes a key pair for a nickname, which must match
// [a-z0-9_-]{1,32}.
func NewIdentity(nickname string) (*Identity, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	return IdentityFromKey(nickname, key)
}

// IdentityFromSeed makes the identity of a 32-byte Ed25519 seed.
func IdentityFromSeed(nickname string, seed []byte) (*Identity, error) {
	if len(seed) != ed25519.SeedSize {
		return nil, malformed(StepTrust, "", "an Ed25519 seed has 32 bytes")
	}
	return IdentityFromKey(nickname, ed25519.NewKeyFromSeed(seed))
}

// IdentityFromKey makes the identity of a private key.
func IdentityFromKey(nickname string, key ed25519.PrivateKey) (*Identity, error) {
	if !ValidNickname(nickname) {
		return nil, malformed(StepTrust, "", "a nickname matches [a-z0-9_-]{1,32}")
	}
	if len(key) != ed25519.PrivateKeySize {
		return nil, malformed(StepTrust, "", "an Ed25519 private key has 64 bytes")
	}
	return &Identity{nickname: nickname, key: key}, nil
}

// ID gives the handle that the identity speaks as.
func (i *Identity) ID() string { return Handle(i.nickname, i.Public()) }

// Public gives the public key.
func (i *Identity) Public() ed25519.PublicKey { return i.key.Public().(ed25519.PublicKey) }

// Handle gives nickname@fingerprint, where the fingerprint is the first 32 hex
// digits of SHA-256 of the raw public key.
func Handle(nickname string, pub ed25519.PublicKey) string {
	sum := sha256.Sum256(pub)
	return nickname + "@" + hex.EncodeToString(sum[:16])
}

// SplitHandle splits a verified handle; ok is false for any other text.
func SplitHandle(s string) (nickname, fingerprint string, ok bool) {
	nickname, fingerprint, ok = strings.Cut(s, "@")
	if !ok || !ValidNickname(nickname) || len(fingerprint) != 32 || !only(fingerprint, hexDigits, 32) {
		return "", "", false
	}
	return nickname, fingerprint, true
}

// ValidNickname reports whether s matches [a-z0-9_-]{1,32}.
func ValidNickname(s string) bool { return only(s, alnum+"_-", 32) }
