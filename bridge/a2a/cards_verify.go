package a2a

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/go-jose/go-jose/v4"

	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/internal/jwks"
	"github.com/parley-hub/parley/internal/netguard"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/keyring"
)

// Signatures on the cards of agents elsewhere (rule A2A-080). A key is trusted if the
// operator enrolled it for the agent, else at first use: the keys that signed the first
// card of an origin are pinned, and later cards of the origin must be signed by one of
// them. A pinned key may endorse others (cardHeader). Who can change what an origin serves
// could so replace its cards once, but not unnoticed.

const (
	maxCard       = 1 << 20
	maxCardDepth  = 100
	maxSignatures = 16
	maxPinned     = 8
	maxJKU        = 2 // fetched for one card
	keysWait      = 10 * time.Second
)

// Errors of a card's signatures.
var (
	// ErrCard means that a card is not strict JSON, too large or has malformed signatures.
	ErrCard = errors.New("a2a: not a valid card")
	// ErrUnsigned means that a card has no signature although an earlier one had, or the
	// operator enrolled a key.
	ErrUnsigned = errors.New("a2a: the card was signed and is no longer")
	// ErrSignature means that no trusted key signed a card.
	ErrSignature = errors.New("a2a: no trusted key signed the card")
)

// A CardSignature is a signature on a card, and what became of its check.
type CardSignature struct {
	KeyID     string
	Algorithm string // EdDSA, ES256 or RS256; others do not count
	JKU       string // where the signer says that the key is; "": nowhere
	Known     bool   // the key is known
	Valid     bool   // it signed the card

	endorsed []string
	key      jose.JSONWebKey
}

// VerifiedCard is a card and the checks of its signatures.
type VerifiedCard struct {
	// Card is the JSON that a known key signed, without what the signature does not cover;
	// without a valid signature it is the card as it came.
	Card       []byte
	Signatures []CardSignature
}

// Valid reports whether a known key signed the card.
func (v *VerifiedCard) Valid() bool {
	return slices.ContainsFunc(v.Signatures, func(s CardSignature) bool { return s.Valid })
}

// VerifyCard checks the signatures of a card, pure or hybrid, against the keys that find
// gives for each: none if the key is not known. It asks for no key twice. The error wraps
// ErrCard; a card without valid signatures is none.
func VerifyCard(card []byte, find func(s *CardSignature) []jose.JSONWebKey) (*VerifiedCard, error) {
	if len(card) > maxCard {
		return nil, fmt.Errorf("%w: more than %d bytes", ErrCard, maxCard)
	}
	forms, err := readings(card)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCard, err)
	}
	var doc struct {
		Signatures []protocol.AgentCardSignature `json:"signatures"`
	}
	if err := json.Unmarshal(card, &doc); err != nil {
		return nil, fmt.Errorf("%w: signatures: %w", ErrCard, err)
	}
	if len(doc.Signatures) > maxSignatures {
		return nil, fmt.Errorf("%w: %d signatures, more than %d", ErrCard, len(doc.Signatures), maxSignatures)
	}
	out := &VerifiedCard{Card: card}
	known := map[string][]jose.JSONWebKey{}
	signed := len(forms) // index of the first form that a key signed
	for _, s := range doc.Signatures {
		one, ok := headerOf(s.Protected)
		if ok {
			id := one.Algorithm + "\n" + one.KeyID + "\n" + one.JKU
			if _, asked := known[id]; !asked {
				known[id] = find(&one)
			}
			for _, k := range known[id] {
				if string(jwks.Algorithm(k)) != one.Algorithm {
					continue
				}
				one.Known = true
				if i := signedForm(forms, s, one.Algorithm, k); i >= 0 {
					one.Valid, one.key, signed = true, k, min(signed, i)
					break
				}
			}
		}
		out.Signatures = append(out.Signatures, one)
	}
	if signed < len(forms) {
		out.Card = forms[signed]
	}
	return out, nil
}

// headerOf reads a protected header; false if the signature does not count.
func headerOf(protected string) (s CardSignature, ok bool) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(protected)
	var h cardHeader
	if err != nil || len(raw) > 4096 || jsonx.Decode(raw, &h) != nil {
		return s, false
	}
	s = CardSignature{KeyID: h.KeyID, Algorithm: h.Algorithm, JKU: h.JKU, endorsed: h.Endorsed}
	ok = slices.Contains(jwks.Algorithms, jose.SignatureAlgorithm(h.Algorithm)) && h.KeyID != "" && len(h.Critical) == 0 &&
		(h.Type == "" || strings.EqualFold(h.Type, "JOSE")) && len(h.Endorsed) <= maxPinned
	return s, ok
}

// signedForm finds the form that a key signed; -1 for none.
func signedForm(forms [][]byte, s protocol.AgentCardSignature, algorithm string, k jose.JSONWebKey) int {
	return slices.IndexFunc(forms, func(form []byte) bool {
		compact := s.Protected + "." + base64.RawURLEncoding.EncodeToString(form) + "." + s.Signature
		sig, err := jose.ParseSignedCompact(compact, []jose.SignatureAlgorithm{jose.SignatureAlgorithm(algorithm)})
		if err != nil {
			return false
		}
		_, err = sig.Verify(k.Key)
		return err == nil
	})
}

// cardTrust is the trusted keys of agents elsewhere.
type cardTrust struct {
	once  sync.Once
	table *journal.Table[pinned]
	http  *http.Client
}

// pinned is a row of the trusted keys: of an origin, the keys that may sign its cards; of a
// card, that it was signed.
type pinned struct {
	Keys   []jose.JSONWebKey `json:"keys,omitzero"`
	Signed bool              `json:"signed,omitzero"`
}

// trust gives the trusted keys, and the client that fetches keys.
func (b *Binding) trust() *cardTrust {
	t := &b.cards.trust
	t.once.Do(func() {
		t.table = journal.NewTable[pinned](b.c.Journal, "a2a-card-keys", 1024)
		t.http = netguard.Live(b.c.Allow, netguard.HubAdvice).Client(netguard.Options{Timeout: keysWait,
			MaxResponseBytes: jwks.MaxBytes + 1, RootCAs: b.c.RootCAs})
		if b.c.Transport != nil {
			t.http.Transport = b.c.Transport(t.http.Transport)
		}
	})
	return t
}

// verifyCard decides whether the card of an agent elsewhere, as it came from a URL, may be
// used, and gives the JSON to parse. It pins keys that are new. The error wraps ErrCard,
// ErrUnsigned or ErrSignature, or comes from the journal.
func (b *Binding) verifyCard(ctx context.Context, agent, at string, card []byte) ([]byte, error) {
	u, err := url.Parse(at)
	if err != nil || u.Host == "" {
		return nil, fmt.Errorf("%w: its URL is %.200q", ErrCard, at)
	}
	sum := sha256.Sum256([]byte(originOf(u) + u.EscapedPath())) // a path may be long
	origin, page := "origin "+originOf(u), "card "+hex.EncodeToString(sum[:])
	trust := b.trust()
	row, err := trust.table.Get(ctx, origin)
	if err != nil {
		return nil, err
	}
	was, err := trust.table.Get(ctx, page)
	if err != nil {
		return nil, err
	}
	enrolled := b.enrolledCardKeys(agent)
	keys := enrolled
	if len(keys) == 0 {
		keys = row.Value.Keys
	}
	published := &publishedKeys{b: b, card: u}
	first := len(keys) == 0
	v, err := VerifyCard(card, func(s *CardSignature) []jose.JSONWebKey {
		if first {
			return published.find(ctx, s.JKU, s.KeyID, s.Algorithm)
		}
		return slices.DeleteFunc(slices.Clone(keys), func(k jose.JSONWebKey) bool {
			return k.KeyID != "" && k.KeyID != s.KeyID
		})
	})
	if err != nil {
		return nil, err
	}
	switch {
	case len(v.Signatures) == 0:
		if (was.Value.Signed || len(enrolled) > 0) && !b.settingsOf(agent).Unsigned {
			return nil, ErrUnsigned
		}
		return v.Card, nil
	case v.Valid():
	case first && !slices.ContainsFunc(v.Signatures, func(s CardSignature) bool { return s.Known }) && !was.Value.Signed:
		// Nothing can be said about it, as about a card without signatures.
		b.c.Logger.Warn("the keys that signed an agent's card are not known", "agent", agent, "card", at)
		return v.Card, nil
	default:
		return nil, fmt.Errorf("%w: it has %d signatures; `parley keys enroll %s --protocol a2a --key BASE64` vouches for "+
			"another key", ErrSignature, len(v.Signatures), agent)
	}
	if len(enrolled) == 0 {
		if err := b.pin(ctx, origin, published, first, v); err != nil {
			return nil, err
		}
	}
	if !was.Value.Signed {
		if _, err := trust.table.Put(ctx, page, pinned{Signed: true}, time.Time{}); err != nil {
			return nil, err
		}
	}
	return v.Card, nil
}

// enrolledCardKeys are the keys that the operator vouches for. Without an id, they have
// any.
func (b *Binding) enrolledCardKeys(agent string) (out []jose.JSONWebKey) {
	for _, e := range b.c.Keys.Enrolled(agent, Protocol) {
		k := jose.JSONWebKey{KeyID: e.KeyID, Use: "sig"}
		if e.KeyID == keyring.Fingerprint(e.Algorithm, e.Public) { // the operator named none
			k.KeyID = ""
		}
		switch e.Algorithm {
		case keyring.Ed25519:
			k.Key, k.Algorithm = ed25519.PublicKey(e.Public), string(jose.EdDSA)
		case keyring.P256:
			public, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), e.Public)
			if err != nil {
				continue // the keyring takes none such
			}
			k.Key, k.Algorithm = public, string(jose.ES256)
		default:
			continue
		}
		out = append(out, k)
	}
	return out
}

// publishedKeys fetches the keys that a card's signatures name. They must be at the card's
// origin: elsewhere they would say only that the signer has a web site.
type publishedKeys struct {
	b    *Binding
	card *url.URL
	sets map[string]jwks.Set // by URL
}

func (p *publishedKeys) find(ctx context.Context, jku, kid, algorithm string) []jose.JSONWebKey {
	set, ok := p.sets[jku]
	if !ok {
		u, err := url.Parse(jku)
		if err != nil || u.Host == "" || originOf(u) != originOf(p.card) || len(p.sets) == maxJKU {
			return nil
		}
		if set, err = jwks.Fetch(ctx, p.b.trust().http, jku); err != nil {
			p.b.c.Logger.Warn("cannot fetch the keys that sign a card", "url", u.Redacted(), "error", err)
		}
		if p.sets == nil {
			p.sets = map[string]jwks.Set{}
		}
		p.sets[jku] = set
	}
	return set.Find(kid, jose.SignatureAlgorithm(algorithm))
}

// pin keeps the keys that signed a card, and those that they endorsed. At the first card of
// an origin it fails if other keys were pinned meanwhile.
func (b *Binding) pin(ctx context.Context, origin string, published *publishedKeys, first bool, v *VerifiedCard) error {
	has := func(keys []jose.JSONWebKey, id string) bool {
		return slices.ContainsFunc(keys, func(k jose.JSONWebKey) bool { return k.KeyID == id })
	}
	var signed, more []jose.JSONWebKey
	known := b.trust().table.Known(origin).Value.Keys
	for _, s := range v.Signatures {
		if s.Valid && !has(signed, s.KeyID) {
			s.key.KeyID = s.KeyID
			signed = append(signed, s.key)
		}
	}
	for _, s := range v.Signatures {
		for _, id := range s.endorsed {
			if !s.Valid || has(known, id) || has(signed, id) || has(more, id) {
				continue
			}
			for _, k := range published.find(ctx, s.JKU, id, s.Algorithm) {
				if thumbprint(k) == id {
					more = append(more, k)
					break
				}
			}
		}
	}
	if !first && len(more) == 0 {
		return nil
	}
	_, err := b.trust().table.Change(ctx, origin, func(r *journal.Row[pinned]) (bool, error) {
		old := r.Value.Keys
		if len(old) > 0 && !slices.ContainsFunc(signed, func(k jose.JSONWebKey) bool { return has(old, k.KeyID) }) {
			return false, fmt.Errorf("%w: other keys of its origin are known by now", ErrSignature)
		}
		keys := slices.Clone(old)
		for _, k := range append(signed, more...) {
			if !has(keys, k.KeyID) && (len(old) == 0 || has(more, k.KeyID)) {
				keys = append(keys, k)
			}
		}
		r.Value.Keys = keys[max(0, len(keys)-maxPinned):]
		return len(keys) > len(old), nil
	})
	return err
}

// originOf is scheme, host and port (RFC 6454, section 4).
func originOf(u *url.URL) string {
	scheme, host := strings.ToLower(u.Scheme), strings.ToLower(u.Host)
	if u.Port() == "" {
		host += map[string]string{"https": ":443", "http": ":80"}[scheme]
	}
	return scheme + "://" + host
}
