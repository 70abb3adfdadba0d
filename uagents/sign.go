package uagents

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"sync"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"
	"github.com/decred/dcrd/dcrec/secp256k1/v4/ecdsa"

	"github.com/parley-hub/parley/internal/bech32"
)

// A Curve signs and verifies on secp256k1. The default is pure Go; a program may
// provide a faster one.
type Curve interface {
	// Sign gives r||s of a 32-byte digest, deterministic (RFC 6979) and
	// low-S, for a 32-byte big-endian private key.
	Sign(key *[32]byte, digest *[32]byte) ([64]byte, error)
	// Verify checks r||s over a digest against a compressed public key,
	// accepting high s. It refuses r or s of 0 or beyond the order.
	Verify(public *[33]byte, digest *[32]byte, sig *[64]byte) bool
}

// pureGo is the default Curve.
type pureGo struct{}

func (pureGo) Sign(key *[32]byte, digest *[32]byte) ([64]byte, error) {
	var out [64]byte
	priv := secp256k1.PrivKeyFromBytes(key[:])
	defer priv.Zero()
	sig := ecdsa.Sign(priv, digest[:])
	r, s := sig.R(), sig.S()
	r.PutBytesUnchecked(out[:32])
	s.PutBytesUnchecked(out[32:])
	return out, nil
}

func (pureGo) Verify(public *[33]byte, digest *[32]byte, sig *[64]byte) bool {
	key := points.of(public)
	if key == nil {
		return false
	}
	var r, s secp256k1.ModNScalar
	if r.SetByteSlice(sig[:32]) || s.SetByteSlice(sig[32:]) || r.IsZero() || s.IsZero() {
		return false
	}
	return ecdsa.NewSignature(&r, &s).Verify(digest[:], key)
}

// pointCache holds the curve points of public keys. Computing a point takes a square
// root, about a sixth of a verification, and most senders send more than once.
type pointCache struct {
	mu    sync.RWMutex
	byKey map[[33]byte]*secp256k1.PublicKey
}

var points pointCache

// maxPoints bounds the cache; a full one is emptied.
const maxPoints = 4096

// of gives the point of a compressed public key, or nil.
func (p *pointCache) of(public *[33]byte) *secp256k1.PublicKey {
	p.mu.RLock()
	key := p.byKey[*public]
	p.mu.RUnlock()
	if key != nil {
		return key
	}
	key, err := secp256k1.ParsePubKey(public[:])
	if err != nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byKey == nil || len(p.byKey) >= maxPoints {
		p.byKey = make(map[[33]byte]*secp256k1.PublicKey)
	}
	p.byKey[*public] = key
	return key
}

// SignDigest signs a 32-byte digest, without a second hash, and gives the sig1…
// text.
func (id *Identity) SignDigest(digest [32]byte) (string, error) {
	if id == nil {
		return "", ErrNoIdentity
	}
	sig, err := id.curve.Sign(&id.key, &digest)
	if err != nil {
		return "", err
	}
	return bech32.Encode("sig", sig[:])
}

// Sign signs the SHA-256 of data, for identity challenges and attestation tokens.
// Envelopes need [Identity.SignDigest].
func (id *Identity) Sign(data []byte) (string, error) { return id.SignDigest(sha256.Sum256(data)) }

// Sign puts the identity's signature on the envelope. The sender must be the
// identity's address.
func (e *Envelope) Sign(id *Identity) error {
	if id == nil {
		return ErrNoIdentity
	}
	if e.Sender != id.address {
		return ErrAddress.Because(errors.New("sender is not the signing identity"))
	}
	d, err := e.Digest()
	if err != nil {
		return err
	}
	sig, err := id.SignDigest(d)
	if err != nil {
		return err
	}
	e.Signature, e.raw = &sig, nil
	return nil
}

// VerifyDigest checks a sig1… text of a digest against an agent address. The
// address must be the canonical one of its key: lower case, compressed. The
// error has the reference's words: ErrText, ErrPadding, ErrAddress,
// ErrSignatureText or ErrSignature.
func VerifyDigest(address string, digest [32]byte, signature string) error {
	return verifyDigest(pureGo{}, address, digest, signature)
}

func verifyDigest(c Curve, address string, digest [32]byte, signature string) error {
	hrp, key, err := bech32.DecodeNoLimit(address)
	if err != nil {
		return bechError(err)
	}
	sighrp, sig, err := bech32.DecodeNoLimit(signature)
	if err != nil {
		return bechError(err)
	}
	switch {
	case hrp != addressHRP:
		return ErrAddress.Because(errors.New("not an agent address"))
	case len(key) != 33 || key[0] != 2 && key[0] != 3 || address[0] != 'a':
		return ErrAddress.Because(errors.New("not the canonical address of its key"))
	case sighrp != "sig":
		return ErrSignatureText
	case len(sig) != 64:
		return ErrSignature.Because(errors.New("signature is not 64 bytes"))
	}
	if !c.Verify((*[33]byte)(key), &digest, (*[64]byte)(sig)) {
		return ErrSignature
	}
	return nil
}

// VerifyText checks a signature made by [Identity.Sign].
func VerifyText(address string, data []byte, signature string) error {
	return VerifyDigest(address, sha256.Sum256(data), signature)
}

// VerifySignature checks only the envelope's signature: neither expiry, nor grammar,
// nor replay. Servers need [Verifier].
func (e *Envelope) VerifySignature() error { return e.verifySignature(pureGo{}) }

func (e *Envelope) verifySignature(c Curve) error {
	if e.Signature == nil {
		return ErrUnsigned
	}
	d, err := e.Digest()
	if err != nil {
		return err
	}
	return verifyDigest(c, e.Sender, d, *e.Signature)
}

// registrationDigest is the digest that a registration with the ledger's Almanac
// contract signs: four items, each after its length as a 64-bit number; the timestamp
// is in Unix seconds.
func registrationDigest(contract, agent string, timestamp uint64, wallet string) [32]byte {
	h := sha256.New()
	item := func(b []byte) {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(b)))
		h.Write(n[:])
		h.Write(b)
	}
	item([]byte(contract))
	item([]byte(agent))
	item(binary.BigEndian.AppendUint64(nil, timestamp))
	item([]byte(wallet))
	return [32]byte(h.Sum(nil))
}

// signDoc is the document that a signature of arbitrary data covers (ADR-36):
// its text, and base64 of that text as the reference gives it.
func signDoc(signer string, data []byte) string {
	b := []byte(
		`{"account_number":"0","chain_id":"","fee":{"amount":[],"gas":"0"},"memo":"","msgs":[{"type":"sign/MsgSignData","value":{"data":`,
	)
	b = pyString(b, base64.StdEncoding.EncodeToString(data))
	b = append(b, `,"signer":`...)
	b = pyString(b, signer)
	return string(append(b, `}}],"sequence":"0"}`...))
}

// SignArbitrary signs data in a [signDoc] and gives base64 of r||s, low-S.
func (id *Identity) SignArbitrary(data []byte) (string, error) {
	if id == nil {
		return "", ErrNoIdentity
	}
	d := sha256.Sum256([]byte(signDoc(id.address, data)))
	sig, err := id.curve.Sign(&id.key, &d)
	if err != nil {
		return "", err
	}
	return base64.StdEncoding.EncodeToString(sig[:]), nil
}

// VerifyArbitrary checks a signature made by [Identity.SignArbitrary].
func VerifyArbitrary(address string, data []byte, signature string) error {
	sig, err := base64.StdEncoding.Strict().DecodeString(signature)
	if err != nil || len(sig) != 64 {
		return ErrSignatureText.Because(err)
	}
	key, err := ParseAddress(address)
	if err != nil {
		return err
	}
	d := sha256.Sum256([]byte(signDoc(address, data)))
	if !(pureGo{}).Verify(&key, &d, (*[64]byte)(sig)) {
		return ErrSignature
	}
	return nil
}
