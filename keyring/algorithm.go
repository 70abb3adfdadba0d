package keyring

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"encoding/asn1"
	"fmt"
	"io"
	"math/big"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"
	secpecdsa "github.com/decred/dcrd/dcrec/secp256k1/v4/ecdsa"

	"github.com/parley-hub/parley/internal/edkeys"
)

// Algorithm is a kind of key.
type Algorithm string

const (
	// Ed25519 signs the message itself (RFC 8032); public keys have 32 bytes,
	// signatures 64.
	Ed25519 Algorithm = "ed25519"
	// Secp256k1 signs a digest of 32 bytes; the nonce is that of RFC 6979 and
	// s is low. Public keys have 33 bytes (compressed), signatures 64 (r, s).
	Secp256k1 Algorithm = "secp256k1"
	// P256 signs a digest of 32 bytes; the nonce is that of RFC 6979. Public
	// keys have 65 bytes (uncompressed), signatures 64 (r, s; as in JWS
	// ES256).
	P256 Algorithm = "p256"
)

// seedSize is the size of a private key of every algorithm: an Ed25519 seed,
// or a scalar, big endian.
const seedSize = 32

// private is a private key, prepared for signing.
type private struct {
	public []byte
	sign   func(msg []byte) ([]byte, error) // msg: a digest of 32 bytes, except for Ed25519
}

// parsePrivate makes a key from its 32 secret bytes.
func parsePrivate(a Algorithm, seed []byte) (private, error) {
	if len(seed) != seedSize {
		return private{}, fmt.Errorf("%w: a private %s key has %d bytes, not %d", ErrInvalid, a, seedSize, len(seed))
	}
	switch a {
	case Ed25519:
		k := ed25519.NewKeyFromSeed(seed)
		sign := func(msg []byte) ([]byte, error) { return ed25519.Sign(k, msg), nil }
		return private{bytes.Clone(k[seedSize:]), sign}, nil
	case Secp256k1:
		var s secp256k1.ModNScalar
		if s.SetByteSlice(seed) || s.IsZero() {
			return private{}, fmt.Errorf("%w: not a private secp256k1 key", ErrInvalid)
		}
		k := secp256k1.NewPrivateKey(&s)
		return private{k.PubKey().SerializeCompressed(),
			func(digest []byte) ([]byte, error) { return signSecp256k1(k, digest), nil }}, nil
	case P256:
		k, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), seed)
		if err != nil {
			return private{}, fmt.Errorf("%w: not a private P-256 key", ErrInvalid)
		}
		pub, err := k.PublicKey.Bytes()
		if err != nil {
			return private{}, fmt.Errorf("%w: not a private P-256 key", ErrInvalid)
		}
		return private{pub, func(digest []byte) ([]byte, error) { return signP256(k, digest) }}, nil
	}
	return private{}, errAlgorithm(a)
}

func errAlgorithm(a Algorithm) error {
	return fmt.Errorf("%w: algorithm %q is none of %q, %q, %q", ErrInvalid, string(a), Ed25519, Secp256k1, P256)
}

func signSecp256k1(k *secp256k1.PrivateKey, digest []byte) []byte {
	sig := secpecdsa.Sign(k, digest)
	r, s := sig.R(), sig.S()
	out := make([]byte, 64)
	r.PutBytesUnchecked(out[:32])
	s.PutBytesUnchecked(out[32:])
	return out
}

func signP256(k *ecdsa.PrivateKey, digest []byte) ([]byte, error) {
	der, err := k.Sign(nil, digest, crypto.SHA256)
	if err != nil {
		return nil, fmt.Errorf("keyring: P-256 signature: %w", err)
	}
	var sig struct{ R, S *big.Int }
	if _, err := asn1.Unmarshal(der, &sig); err != nil {
		return nil, fmt.Errorf("keyring: P-256 signature: %w", err)
	}
	out := make([]byte, 64)
	sig.R.FillBytes(out[:32])
	sig.S.FillBytes(out[32:])
	return out, nil
}

// newSeed draws a private key.
func newSeed(a Algorithm, rand io.Reader) ([]byte, error) {
	seed := make([]byte, seedSize)
	// A scalar above the group order comes once in 2³² draws (P-256) or never.
	for range 8 {
		if _, err := io.ReadFull(rand, seed); err != nil {
			return nil, fmt.Errorf("keyring: random source: %w", err)
		}
		if _, err := parsePrivate(a, seed); err == nil {
			return seed, nil
		}
	}
	if _, err := parsePrivate(a, bytes.Repeat([]byte{1}, seedSize)); err != nil {
		return nil, err // the algorithm itself is unknown
	}
	return nil, fmt.Errorf("keyring: the random source gives no usable key")
}

// normalPublic validates a public key and returns its canonical form, see the
// algorithms. The error wraps [ErrInvalid].
func normalPublic(a Algorithm, pub []byte) ([]byte, error) {
	switch a {
	case Ed25519:
		if err := edkeys.Check(pub); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		return bytes.Clone(pub), nil
	case Secp256k1:
		// Hybrid forms (6, 7) are other names of the same key.
		if len(pub) == 65 && pub[0] != 4 {
			return nil, fmt.Errorf("%w: not a public secp256k1 key", ErrInvalid)
		}
		k, err := secp256k1.ParsePubKey(pub)
		if err != nil {
			return nil, fmt.Errorf("%w: not a public secp256k1 key", ErrInvalid)
		}
		return k.SerializeCompressed(), nil
	case P256:
		if len(pub) == 33 {
			if x, y := elliptic.UnmarshalCompressed(elliptic.P256(), pub); x != nil {
				pub = append([]byte{4}, append(x.FillBytes(make([]byte, 32)), y.FillBytes(make([]byte, 32))...)...)
			}
		}
		if _, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), pub); err != nil {
			return nil, fmt.Errorf("%w: not a public P-256 key", ErrInvalid)
		}
		return bytes.Clone(pub), nil
	}
	return nil, errAlgorithm(a)
}
