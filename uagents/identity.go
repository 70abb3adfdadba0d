package uagents

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"
	//lint:ignore SA1019 the ledger's addresses are made with it
	"golang.org/x/crypto/ripemd160"

	"github.com/parley-hub/parley/internal/bech32"
)

const (
	addressHRP    = "agent"
	addressLength = 65
	userPrefix    = "user"
	userLength    = 32
)

// An Identity holds a private key and signs with it. Make one with
// [NewIdentity], [IdentityFromSeed] or [IdentityFromKey].
type Identity struct {
	key     [32]byte
	public  [33]byte
	address string
	curve   Curve
}

// NewIdentity makes a random identity.
func NewIdentity() (*Identity, error) {
	k, err := secp256k1.GeneratePrivateKeyFromRand(rand.Reader)
	if err != nil {
		return nil, err
	}
	return IdentityFromKey(k.Serialize())
}

// IdentityFromSeed derives the same identity as the reference; agents use index 0.
// The seed is used as its UTF-8 bytes, untrimmed. The error is
// ErrSeedIndex for an index outside 0..255.
func IdentityFromSeed(seed string, index int) (*Identity, error) {
	key, err := seedKey(addressHRP, seed, index)
	if err != nil {
		return nil, err
	}
	return IdentityFromKey(key)
}

// seedKey is SHA256(SHA256(purpose || index) || SHA256(seed)).
func seedKey(purpose, seed string, index int) ([]byte, error) {
	if index < 0 || index > 255 {
		return nil, ErrSeedIndex
	}
	prefix := sha256.Sum256(append([]byte(purpose), byte(index)))
	body := sha256.Sum256([]byte(seed))
	key := sha256.Sum256(append(prefix[:], body[:]...))
	return key[:], nil
}

// WalletKeyFromSeed derives the private key of the ledger wallet that the
// reference pairs with the identity of the same seed and index. This package
// does not speak to the ledger.
func WalletKeyFromSeed(seed string, index int) ([]byte, error) { return seedKey("fetch", seed, index) }

// WalletAddress is the fetch1… text of a wallet's private key: bech32 of
// RIPEMD160(SHA256(compressed public key)).
func WalletAddress(key []byte) (string, error) {
	id, err := IdentityFromKey(key)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(id.public[:])
	h := ripemd160.New()
	h.Write(sum[:])
	return bech32.Encode("fetch", h.Sum(nil))
}

// IdentityFromKey takes a 32-byte big-endian private key. The error is ErrKey.
func IdentityFromKey(key []byte) (*Identity, error) {
	var n secp256k1.ModNScalar
	if len(key) != 32 || n.SetByteSlice(key) || n.IsZero() {
		return nil, ErrKey
	}
	id := &Identity{curve: pureGo{}, key: [32]byte(key)}
	id.public = [33]byte(secp256k1.NewPrivateKey(&n).PubKey().SerializeCompressed())
	address, err := bech32.Encode(addressHRP, id.public[:])
	if err != nil {
		return nil, err
	}
	id.address = address
	return id, nil
}

// WithCurve gives a copy that signs with c.
func (id *Identity) WithCurve(c Curve) *Identity {
	n := *id
	n.curve = c
	return &n
}

// Address is the agent1… text of the public key, 65 characters.
func (id *Identity) Address() string { return id.address }

// ShortName is the first 16 characters of the address: the reference's storage
// name and default display name.
func (id *Identity) ShortName() string { return id.address[:16] }

// Identifier is the address with its network: agent:// or, on the test
// network, test-agent://.
func (id *Identity) Identifier(testnet bool) string {
	if testnet {
		return "test-agent://" + id.address
	}
	return "agent://" + id.address
}

// Public is the compressed public key, 33 bytes.
func (id *Identity) Public() []byte { return append([]byte(nil), id.public[:]...) }

// PrivateKey is the 32-byte private key. Handle with care.
func (id *Identity) PrivateKey() []byte { return append([]byte(nil), id.key[:]...) }

// String never shows the private key.
func (id *Identity) String() string { return id.address }

// Format keeps every fmt verb from reaching the private key.
func (id *Identity) Format(s fmt.State, _ rune) { fmt.Fprint(s, id.address) }

// AddressOf is the address of a compressed public key, 33 bytes on the curve.
func AddressOf(public []byte) (string, error) {
	if len(public) != 33 {
		return "", ErrAddress
	}
	if _, err := secp256k1.ParsePubKey(public); err != nil {
		return "", ErrAddress.Because(err)
	}
	return bech32.Encode(addressHRP, public)
}

// ParseAddress gives the public key of a canonical agent address. The error
// is ErrText, ErrPadding or ErrAddress.
func ParseAddress(address string) ([33]byte, error) {
	var key [33]byte
	hrp, b, err := bech32.DecodeNoLimit(address)
	if err != nil {
		return key, bechError(err)
	}
	if hrp != addressHRP || len(b) != 33 || address[0] != 'a' {
		return key, ErrAddress
	}
	if _, err := secp256k1.ParsePubKey(b); err != nil {
		return key, ErrAddress.Because(err)
	}
	return [33]byte(b), nil
}

// IsUser reports whether the reference takes the text for an unsigned sender: it
// begins with "user". [ParseUser] checks the whole address.
func IsUser(address string) bool { return strings.HasPrefix(address, userPrefix) }

// ParseUser gives the 32 bytes of a user1… address, checksum and spelling
// verified. The error is ErrUserAddress.
func ParseUser(address string) ([32]byte, error) {
	hrp, b, err := bech32.DecodeNoLimit(address)
	if err != nil || hrp != userPrefix || len(b) != userLength || address[0] != 'u' {
		return [32]byte{}, ErrUserAddress.Because(err)
	}
	return [32]byte(b), nil
}

// NewUser makes a random unsigned sender.
func NewUser() (string, error) {
	var b [userLength]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", err
	}
	return bech32.Encode(userPrefix, b[:])
}

// IsAddress is the reference's loose test: the text begins with "user", or has 65
// characters and begins with "agent".
func IsAddress(s string) bool {
	return IsUser(s) || len([]rune(s)) == addressLength && strings.HasPrefix(s, addressHRP)
}

// An Identifier names an agent: prefix://name/address, each part optional.
type Identifier struct {
	Prefix  string // agent, test-agent or empty, when valid
	Name    string // domain name
	Address string
}

// ParseIdentifier splits an identifier as the reference does. It never fails;
// [Identifier.Valid] says whether the prefix names a network.
func ParseIdentifier(s string) Identifier {
	var id Identifier
	if prefix, rest, ok := strings.Cut(s, "://"); ok {
		id.Prefix, s = prefix, rest
	}
	if name, rest, ok := strings.Cut(s, "/"); ok {
		id.Name, s = name, rest
	}
	if IsAddress(s) {
		id.Address = s
	} else {
		id.Name = s
	}
	return id
}

// Valid reports whether the prefix is agent, test-agent or empty.
func (id Identifier) Valid() bool {
	return id.Prefix == "" || id.Prefix == "agent" || id.Prefix == "test-agent"
}

// String puts the parts together again.
func (id Identifier) String() string {
	s := ""
	if id.Prefix != "" {
		s = id.Prefix + "://"
	}
	s += id.Name
	if id.Name != "" && id.Address != "" {
		s += "/"
	}
	return s + id.Address
}

// resolveAddress parses an identifier that names a network and a canonical address,
// whose key can verify a signature. UAG-008.
func resolveAddress(identifier string) (Identifier, error) {
	id := ParseIdentifier(identifier)
	if !id.Valid() {
		return id, ErrAddress.Because(errors.New("unknown identifier prefix"))
	}
	if _, err := ParseAddress(id.Address); err != nil {
		return id, err
	}
	return id, nil
}

// LoadIdentity reads a private key of 64 hexadecimal digits, as the reference
// keeps it in its private_keys.json.
func LoadIdentity(text string) (*Identity, error) {
	b, err := hex.DecodeString(strings.TrimSpace(text))
	if err != nil {
		return nil, ErrKey
	}
	return IdentityFromKey(b)
}
