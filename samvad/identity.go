package samvad

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/parley-hub/parley/internal/edkeys"
	"github.com/parley-hub/parley/internal/jsonx"
)

// A Signer signs as one agent: it has the agent's identity, the id of one of its
// keys, and gives that key's Ed25519 signature over any bytes. [Identity] is one; a
// key store may bring its own.
type Signer interface {
	ID() string  // agent://host[:port]
	KID() string // id of the key in the agent's card
	Public() ed25519.PublicKey
	Sign(message []byte) ([]byte, error)
}

// A RollingSigner is a Signer whose key is replaced while it is in use. Current gives
// the signer of the present key, so that a signature and the key id beside it are of
// one key.
type RollingSigner interface {
	Signer
	Current() Signer
}

func current(s Signer) Signer {
	if r, ok := s.(RollingSigner); ok {
		return r.Current()
	}
	return s
}

// An Identity is an agent identity with its private key in memory.
type Identity struct {
	id, kid string
	key     ed25519.PrivateKey
}

// NewIdentity makes an identity with a fresh key.
func NewIdentity(id, kid string) (*Identity, error) {
	seed := make([]byte, ed25519.SeedSize)
	if _, err := rand.Read(seed); err != nil {
		return nil, fmt.Errorf("samvad: %w", err)
	}
	return IdentityFromSeed(id, kid, seed)
}

// IdentityFromSeed makes an identity from a 32-byte Ed25519 seed.
func IdentityFromSeed(id, kid string, seed []byte) (*Identity, error) {
	if err := CheckAgent(id); err != nil {
		return nil, err
	}
	if len(seed) != ed25519.SeedSize {
		return nil, fmt.Errorf("%w: the seed has %d bytes, not 32", ErrBadKey, len(seed))
	}
	if err := checkKID(kid); err != nil {
		return nil, err
	}
	return &Identity{id: id, kid: kid, key: ed25519.NewKeyFromSeed(seed)}, nil
}

// ID gives the agent identity.
func (i *Identity) ID() string { return i.id }

// KID gives the id of the key.
func (i *Identity) KID() string { return i.kid }

// Public gives the public key, 32 bytes.
func (i *Identity) Public() ed25519.PublicKey { return i.key.Public().(ed25519.PublicKey) }

// Seed gives the private key as a 32-byte seed.
func (i *Identity) Seed() []byte { return i.key.Seed() }

// Sign gives the Ed25519 signature of message, 64 bytes.
func (i *Identity) Sign(message []byte) ([]byte, error) { return ed25519.Sign(i.key, message), nil }

// Key gives the public half as a [Key] that others enrol.
func (i *Identity) Key() Key { return Key{KID: i.kid, Public: i.Public()} }

// String names the identity without its secret.
func (i *Identity) String() string { return i.id + "#" + i.kid }

// checkKID allows the characters of a structured-field string (RFC 8941 §3.3.3).
func checkKID(kid string) error {
	if kid == "" || len(kid) > 256 {
		return fmt.Errorf("%w: key id must have 1 to 256 characters", ErrBadKey)
	}
	for j := 0; j < len(kid); j++ {
		if kid[j] < 0x20 || kid[j] > 0x7e {
			return fmt.Errorf("%w: key id %q is not printable ASCII", ErrBadKey, clip(kid))
		}
	}
	return nil
}

// ParseKey reads a public key as cards and enrolments spell it: standard
// base64 of 32 bytes. The result matches any keyid; set KID to bind it. Keys
// that are not canonical or of small order are refused with [ErrBadKey].
func ParseKey(b64 string) (Key, error) {
	pub, err := base64.StdEncoding.Strict().DecodeString(b64)
	if err == nil {
		err = edkeys.Check(pub)
	}
	if err != nil {
		return Key{}, because(ErrBadKey, err)
	}
	return Key{Public: pub}, nil
}

// keyFile is the key file of the TypeScript SDK: KID.json, mode 0600.
type keyFile struct {
	KID        string `json:"kid"`
	PrivateKey string `json:"privateKey"` // base64 of the 32-byte seed
	PublicKey  string `json:"publicKey"`  // base64 of the 32-byte key
}

// LoadIdentity reads a key file of the TypeScript SDK (KID.json) or of the Python SDK
// (KID.key, with KID.pub beside it if there is one) for the agent id. The extension
// tells which.
func LoadIdentity(path, id string) (*Identity, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("samvad: key file: %w", err)
	}
	f := keyFile{KID: strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))}
	switch filepath.Ext(path) {
	case ".json":
		f.KID = ""
		if err := jsonx.Decode(b, &f); err != nil {
			return nil, fmt.Errorf("samvad: key file %s: %w", filepath.Base(path), err)
		}
	case ".key":
		f.PrivateKey = strings.TrimSpace(string(b))
		pub, err := os.ReadFile(strings.TrimSuffix(path, ".key") + ".pub")
		if err == nil {
			f.PublicKey = strings.TrimSpace(string(pub))
		} else if !os.IsNotExist(err) {
			return nil, fmt.Errorf("samvad: key file: %w", err)
		}
	default:
		return nil, fmt.Errorf("samvad: key file %s: neither .json nor .key", filepath.Base(path))
	}
	seed, err := base64.StdEncoding.DecodeString(f.PrivateKey)
	if err != nil {
		return nil, fmt.Errorf("%w: private key in %s is not base64", ErrBadKey, filepath.Base(path))
	}
	i, err := IdentityFromSeed(id, f.KID, seed)
	if err != nil {
		return nil, err
	}
	if f.PublicKey != "" && f.PublicKey != base64.StdEncoding.EncodeToString(i.Public()) {
		return nil, fmt.Errorf("%w: public and private key in %s do not belong together", ErrBadKey,
			filepath.Base(path))
	}
	return i, nil
}

// SaveTS writes the key file of the TypeScript SDK, dir/KID.json, mode 0600.
// An existing file is not overwritten.
func (i *Identity) SaveTS(dir string) error {
	b, err := jsonx.Encode(keyFile{
		KID:        i.kid,
		PrivateKey: base64.StdEncoding.EncodeToString(i.Seed()),
		PublicKey:  base64.StdEncoding.EncodeToString(i.Public()),
	})
	if err != nil {
		return fmt.Errorf("samvad: key file: %w", err)
	}
	return i.save(dir, ".json", append(b, '\n'), 0o600)
}

// SavePython writes the key files of the Python SDK, dir/KID.key (mode 0600)
// and dir/KID.pub. Existing files are not overwritten.
func (i *Identity) SavePython(dir string) error {
	if err := i.save(dir, ".key", []byte(base64.StdEncoding.EncodeToString(i.Seed())), 0o600); err != nil {
		return err
	}
	return i.save(dir, ".pub", []byte(base64.StdEncoding.EncodeToString(i.Public())), 0o644)
}

func (i *Identity) save(dir, ext string, b []byte, mode os.FileMode) error {
	if strings.ContainsAny(i.kid, `/\:`) || strings.HasPrefix(i.kid, ".") {
		return fmt.Errorf("samvad: key id %q cannot be a file name", i.kid)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("samvad: key file: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, i.kid+ext), os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return fmt.Errorf("samvad: key file: %w", err)
	}
	_, err = f.Write(b)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("samvad: key file: %w", err)
	}
	return nil
}
