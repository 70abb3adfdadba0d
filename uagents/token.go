package uagents

import (
	"cmp"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"strings"
	"time"
)

// TokenLifetime is the lifetime of the reference's mailbox tokens.
const TokenLifetime = 1000 * time.Second

// A Token is an attestation token: recent proof that its bearer holds an agent's key.
// It is sent as "Authorization: Agent attr:…".
type Token struct {
	Address string // canonical address of the key inside
	From    uint64 // valid from, Unix seconds
	To      uint64 // valid to, Unix seconds, inclusive
	Nonce   [32]byte
}

// NewToken makes a token that is valid from now on.
func (id *Identity) NewToken(now time.Time, lifetime time.Duration) (string, error) {
	if id == nil {
		return "", ErrNoIdentity
	}
	var nonce [32]byte
	if _, err := rand.Read(nonce[:]); err != nil {
		return "", err
	}
	from := uint64(max(0, now.Unix()))
	return id.token(from, from+uint64(max(0, lifetime/time.Second)), nonce)
}

func (id *Identity) token(from, to uint64, nonce [32]byte) (string, error) {
	b := binary.BigEndian.AppendUint64(id.Public(), from)
	b = append(binary.BigEndian.AppendUint64(b, to), nonce[:]...)
	sig, err := id.Sign(b)
	if err != nil {
		return "", err
	}
	return "attr:" + base64.StdEncoding.EncodeToString(b) + ":" + sig, nil
}

// A TokenVerifier checks attestation tokens. The zero value is strict.
type TokenVerifier struct {
	Now         func() time.Time // nil: time.Now
	Skew        time.Duration    // clock difference forgiven; default 5 s, negative for none
	MaxLifetime time.Duration    // longest validity accepted; default 24 h
}

// Verify checks shape, signature, validity window and, when address is not
// empty, that the token belongs to that agent. The error is ErrToken,
// ErrTokenExpired or ErrOtherAgent.
func (v TokenVerifier) Verify(token, address string) (*Token, error) {
	parts := strings.Split(token, ":")
	if len(parts) != 3 || parts[0] != "attr" || len(parts[1]) > 256 {
		return nil, ErrToken
	}
	b, err := base64.StdEncoding.Strict().DecodeString(parts[1])
	if err != nil || len(b) != 81 || strings.ContainsAny(parts[1], "\r\n") {
		return nil, ErrToken.Because(err)
	}
	t := &Token{
		From:  binary.BigEndian.Uint64(b[33:]),
		To:    binary.BigEndian.Uint64(b[41:]),
		Nonce: [32]byte(b[49:]),
	}
	if t.Address, err = AddressOf(b[:33]); err != nil {
		return nil, ErrToken.Because(err)
	}
	if err := VerifyText(t.Address, b, parts[2]); err != nil {
		return nil, ErrToken.Because(err)
	}
	if address != "" && t.Address != address {
		return nil, ErrOtherAgent
	}
	if t.To < t.From || t.To-t.From > uint64(cmp.Or(v.MaxLifetime, 24*time.Hour)/time.Second) {
		return nil, ErrTokenExpired
	}
	now, skew := clock(v.Now), max(0, cmp.Or(v.Skew, DefaultSkew))
	earliest, latest := now.Add(skew).Unix(), now.Add(-skew).Unix()
	if earliest < 0 || t.From > uint64(earliest) || latest > 0 && t.To < uint64(latest) {
		return nil, ErrTokenExpired
	}
	return t, nil
}

// VerifyHeader is [TokenVerifier.Verify] for the value of an Authorization
// header. An empty header is ErrUnauthorized.
func (v TokenVerifier) VerifyHeader(header, address string) (*Token, error) {
	token, ok := strings.CutPrefix(header, "Agent ")
	if !ok {
		return nil, ErrUnauthorized
	}
	return v.Verify(token, address)
}
