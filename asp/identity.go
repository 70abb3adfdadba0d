package asp

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"os"

	"golang.org/x/crypto/cryptobyte"
	"golang.org/x/crypto/cryptobyte/asn1"

	"github.com/parley-hub/parley/internal/edkeys"
	"github.com/parley-hub/parley/internal/jsonx"
)

var b64 = base64.RawURLEncoding.Strict()

// An Identity is an agent with its two private keys: Ed25519 for messages,
// P-256 for proofs. Only the agent's card relates the two keys. An Identity is
// safe for concurrent use if its signers are.
type Identity struct {
	agentID, orgID string
	signing        crypto.Signer
	proving        crypto.Signer
	public         ed25519.PublicKey
	proof          *ProofKey
	proofHeader    string // header of its proofs, in base64url
}

// NewIdentity makes an identity of signers, which may be remote. signing must have
// an Ed25519 public key, proving a P-256 public key.
func NewIdentity(agentID, orgID string, signing, proving crypto.Signer) (*Identity, error) {
	if !ValidAgentID(agentID) {
		return nil, refuse("invalid_field", "agentId")
	}
	if orgID == "" {
		return nil, refuse("missing_field", "orgId")
	}
	pub, ok := signing.Public().(ed25519.PublicKey)
	if !ok {
		return nil, fmt.Errorf("asp: the signing key is a %T, not Ed25519", signing.Public())
	}
	if err := edkeys.Check(pub); err != nil {
		return nil, refuseCause("weak_or_invalid_key", "signingPublicKey", err)
	}
	ec, ok := proving.Public().(*ecdsa.PublicKey)
	if !ok || ec.Curve != elliptic.P256() {
		return nil, errors.New("asp: the proof key is not P-256")
	}
	proof, err := newProofKey(ec)
	if err != nil {
		return nil, err
	}
	header := b64.EncodeToString([]byte(`{"typ":"dpop+jwt","alg":"ES256","jwk":` + proof.jwk() + `}`))
	return &Identity{agentID, orgID, signing, proving, pub, proof, header}, nil
}

// GenerateIdentity makes an identity with new keys.
func GenerateIdentity(agentID, orgID string) (*Identity, error) {
	_, signing, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	proving, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	return NewIdentity(agentID, orgID, signing, proving)
}

// IdentityFromSeed makes an identity of a 32 byte Ed25519 seed and a 32 byte
// P-256 scalar, big endian.
func IdentityFromSeed(agentID, orgID string, seed, scalar []byte) (*Identity, error) {
	if len(seed) != ed25519.SeedSize {
		return nil, errors.New("asp: an Ed25519 seed has 32 bytes")
	}
	proving, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), scalar)
	if err != nil {
		return nil, fmt.Errorf("asp: P-256 scalar: %w", err)
	}
	return NewIdentity(agentID, orgID, ed25519.NewKeyFromSeed(seed), proving)
}

// ID is the agent URI.
func (id *Identity) ID() string { return id.agentID }

// OrgID is the organization.
func (id *Identity) OrgID() string { return id.orgID }

// Public gives both public keys.
func (id *Identity) Public() Key {
	return Key{Signing: id.public, Proof: id.proof, OrgID: id.orgID}
}

// Card gives a card with the identity's keys; the caller fills in the rest.
func (id *Identity) Card() *Card {
	return &Card{AgentID: id.agentID, OrgID: id.orgID, Protocols: []string{Version}, ConformanceLevel: "full",
		SigningKey: id.public, ProofKey: id.proof}
}

func (id *Identity) sign(msg []byte) (string, error) {
	sig, err := id.signing.Sign(rand.Reader, msg, crypto.Hash(0))
	if err != nil {
		return "", fmt.Errorf("asp: signing: %w", err)
	}
	return "ed25519:" + hex.EncodeToString(sig), nil
}

// signES256 gives R‖S over the SHA-256 of msg, RFC 7518 §3.4.
func (id *Identity) signES256(msg []byte) (sig [64]byte, err error) {
	digest := sha256.Sum256(msg)
	der, err := id.proving.Sign(rand.Reader, digest[:], crypto.SHA256)
	if err != nil {
		return sig, fmt.Errorf("asp: signing a proof: %w", err)
	}
	var seq cryptobyte.String
	var r, s []byte
	in := cryptobyte.String(der)
	if !in.ReadASN1(&seq, asn1.SEQUENCE) || !in.Empty() || !seq.ReadASN1Integer(&r) || !seq.ReadASN1Integer(&s) ||
		!seq.Empty() || len(r) > 32 || len(s) > 32 {
		return sig, errors.New("asp: the proof key gave no ECDSA signature")
	}
	copy(sig[32-len(r):], r)
	copy(sig[64-len(s):], s)
	return sig, nil
}

// identityFile is the stored form of an identity.
type identityFile struct {
	AgentID string `json:"agentId"`
	OrgID   string `json:"orgId"`
	Seed    string `json:"ed25519Seed"`
	Scalar  string `json:"p256Scalar"`
}

// Save writes the identity, with unencrypted keys, to a new file of mode 0600. It
// cannot save identities with signers of other kinds.
func (id *Identity) Save(path string) error {
	signing, ok1 := id.signing.(ed25519.PrivateKey)
	proving, ok2 := id.proving.(*ecdsa.PrivateKey)
	if !ok1 || !ok2 {
		return errors.New("asp: the keys of this identity live elsewhere")
	}
	scalar, err := proving.Bytes()
	if err != nil {
		return fmt.Errorf("asp: P-256 key: %w", err)
	}
	b, err := jsonx.Encode(identityFile{id.agentID, id.orgID, hex.EncodeToString(signing.Seed()),
		hex.EncodeToString(scalar)})
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	return errors.Join(err, f.Close())
}

// LoadIdentity reads a file that [Identity.Save] wrote.
func LoadIdentity(path string) (*Identity, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var f identityFile
	if err := jsonx.DecodeKnown(b, &f); err != nil {
		return nil, fmt.Errorf("asp: %s: %w", path, err)
	}
	seed, err1 := hex.DecodeString(f.Seed)
	scalar, err2 := hex.DecodeString(f.Scalar)
	if err := errors.Join(err1, err2); err != nil {
		return nil, fmt.Errorf("asp: %s: %w", path, err)
	}
	return IdentityFromSeed(f.AgentID, f.OrgID, seed, scalar)
}
