package samvad

import (
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"maps"

	"golang.org/x/crypto/chacha20poly1305"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/keyring"
	protocol "github.com/parley-hub/parley/samvad"
)

// tokens keeps bearer tokens out of the journal, because any reader of a token can
// use it. The recorded envelope has a keyed digest in place of auth.token: equal
// tokens have equal digests, and only the hub's keyring can test guesses. If the
// recipient is an agent elsewhere, which checks the token itself, the record has the
// token too, sealed with a key of the keyring.
type tokens struct {
	digestKey []byte
	seal      cipher.AEAD
}

func newTokens(keys *keyring.Ring) (*tokens, error) {
	secret, err := keys.Secret("samvad tokens", 32)
	if err != nil {
		return nil, err
	}
	digestKey, err := hkdf.Key(sha256.New, secret, nil, "samvad token digest", sha256.Size)
	if err != nil {
		return nil, err
	}
	sealKey, err := hkdf.Key(sha256.New, secret, nil, "samvad token seal", chacha20poly1305.KeySize)
	if err != nil {
		return nil, err
	}
	seal, err := chacha20poly1305.NewX(sealKey)
	return &tokens{digestKey, seal}, err
}

// TokenDigest begins the digest that stands for a token in a recorded envelope.
const TokenDigest = "hmac-sha256:"

func (t *tokens) digest(token string) string {
	mac := hmac.New(sha256.New, t.digestKey)
	mac.Write([]byte(token))
	return TokenDigest + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// replace puts a digest in place of the token in the envelope of a message, before
// the message is recorded. With keep, the message has the token sealed.
func (t *tokens) replace(m *parley.Message, e *protocol.Envelope, keep bool) {
	raw, ok := t.redact(m.Origin.Raw)
	if !ok {
		return
	}
	m.Origin.Raw = raw
	if from, to := jsonx.Find(raw, "payload"); to > from && raw[from] == '{' && !e.Replaced {
		m.Parts[0].Data = raw[from:to:to] // the record holds it once
	}
	var sealed []byte
	if keep && e.Auth != nil {
		nonce := make([]byte, t.seal.NonceSize(), t.seal.NonceSize()+len(e.Auth.Token)+t.seal.Overhead())
		_, _ = rand.Read(nonce) // never fails
		sealed = t.seal.Seal(nonce, nonce, []byte(e.Auth.Token), []byte(e.ReplayKey()))
	}
	m.Extensions = map[string]json.RawMessage{Protocol: extension(true, sealed, false, e.Delegated(), e.Replaced)}
}

func (t *tokens) redact(raw []byte) ([]byte, bool) {
	return jsonx.Replace(raw, t.digest, "auth", "token")
}

// extension notes about an envelope, for [bridge.Losses], that it had a token or a
// delegation and that U+FFFD replaced halves of surrogate pairs; or, in place of the
// token, that a digest replaced it, with the sealed token if there is one.
func extension(replaced bool, sealed []byte, auth, delegation, surrogates bool) json.RawMessage {
	var noted struct {
		Auth       any  `json:"auth,omitzero"`
		Delegation bool `json:"delegation,omitzero"`
		Surrogates bool `json:"surrogates,omitzero"`
	}
	noted.Delegation, noted.Surrogates = delegation, surrogates
	switch {
	case replaced:
		noted.Auth = struct {
			Token  string `json:"token"`
			Sealed []byte `json:"sealed,omitempty"`
		}{"replaced", sealed}
	case auth:
		noted.Auth = true
	}
	b, _ := jsonx.Encode(noted) // nothing in it can fail
	return b
}

// surrogatesReplaced reports whether U+FFFD replaced halves of surrogate pairs in the
// parts of a message.
func surrogatesReplaced(m *parley.Message) bool {
	from, to := jsonx.Find(m.Extensions[Protocol], "surrogates")
	return to > from
}

// TokenReplaced reports whether a digest replaced the token in the envelope of a
// message, by the message's extension.
func TokenReplaced(extension []byte) bool {
	from, to := jsonx.Find(extension, "auth", "token")
	return string(extension[from:to]) == `"replaced"`
}

// tokenOf gives the token of a recorded request, for an agent elsewhere; "" if it
// has none, or if its recipient was an agent of this hub at that time.
func (t *tokens) tokenOf(m *parley.Message, e *protocol.Envelope) (string, *parley.Error) {
	if e.Auth == nil || e.Auth.Token == "" {
		return "", nil
	}
	noted := m.Extensions[Protocol]
	if !TokenReplaced(noted) {
		return e.Auth.Token, nil // recorded before tokens were replaced
	}
	from, to := jsonx.Find(noted, "auth", "sealed")
	if from == to {
		return "", nil
	}
	var sealed []byte
	err := json.Unmarshal(noted[from:to], &sealed)
	if err == nil && len(sealed) >= t.seal.NonceSize() {
		n := t.seal.NonceSize()
		var token []byte
		if token, err = t.seal.Open(nil, sealed[:n], sealed[n:], []byte(e.ReplayKey())); err == nil {
			return string(token), nil
		}
	}
	return "", parley.Refuse(parley.Internal,
		"the sender's token for %q cannot be opened: another keyring sealed it; send the request again",
		m.To).Because(err)
}

// Masked gives a message as operators and exports may see it: without the bearer
// token, which is sealed, or in clear in records of an earlier version. A message
// without a token stays as it is.
func (b *Binding) Masked(m *parley.Message) *parley.Message {
	if m.Origin.Protocol != Protocol {
		return m
	}
	noted := m.Extensions[Protocol]
	raw, old := m.Origin.Raw, false
	if !TokenReplaced(noted) {
		raw, old = b.tokens.redact(raw)
	}
	if from, to := jsonx.Find(noted, "auth", "sealed"); !old && from == to {
		return m
	}
	from, to := jsonx.Find(noted, "delegation")
	masked := *m
	masked.Origin.Raw = raw
	masked.Extensions = maps.Clone(m.Extensions)
	if masked.Extensions == nil {
		masked.Extensions = map[string]json.RawMessage{}
	}
	masked.Extensions[Protocol] = extension(true, nil, false, to > from, surrogatesReplaced(m))
	return &masked
}
