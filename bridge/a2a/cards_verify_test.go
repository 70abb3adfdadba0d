package a2a

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/parley-hub/parley/bridge/peerauth"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/keyring"
)

const plainCard = `{"name":"x","description":"","version":"1","capabilities":{"streaming":false},"skills":[],` +
	`"supportedInterfaces":[{"url":"http://h/x","protocolBinding":"JSONRPC","protocolVersion":"1.0"}]}`

// A cardSigner is an agent elsewhere that signs its card.
type cardSigner struct {
	kid string
	alg jose.SignatureAlgorithm
	key any
}

func newSigner(t *testing.T, alg jose.SignatureAlgorithm, kid string) cardSigner {
	t.Helper()
	var key any
	var err error
	switch alg {
	case jose.EdDSA:
		_, key, err = ed25519.GenerateKey(rand.Reader)
	case jose.ES256:
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case jose.RS256:
		key, err = rsa.GenerateKey(rand.Reader, 2048)
	case jose.HS256:
		key = []byte("a secret of thirty-two characters")
	}
	if err != nil {
		t.Fatal(err)
	}
	s := cardSigner{kid: kid, alg: alg, key: key}
	if kid == "thumbprint" {
		s.kid = thumbprint(jose.JSONWebKey{Key: s.public().Key})
	}
	return s
}

func (s cardSigner) public() jose.JSONWebKey {
	k := jose.JSONWebKey{Key: s.key, KeyID: s.kid, Algorithm: string(s.alg), Use: "sig"}
	if p := k.Public(); p.Key != nil {
		return p
	}
	return k
}

// sign adds a signature over the literal form of a card.
func (s cardSigner) sign(t *testing.T, card, jku string, extra ...any) string {
	t.Helper()
	o := (&jose.SignerOptions{}).WithType("JOSE")
	if jku != "" {
		o.WithHeader("jku", jku)
	}
	for i := 0; i < len(extra); i += 2 {
		o.WithHeader(jose.HeaderKey(extra[i].(string)), extra[i+1])
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: s.alg, Key: jose.JSONWebKey{Key: s.key, KeyID: s.kid}}, o)
	if err != nil {
		t.Fatal(err)
	}
	tree := map[string]json.RawMessage{}
	if err := json.Unmarshal([]byte(card), &tree); err != nil {
		t.Fatal(err)
	}
	var have []json.RawMessage
	if err := json.Unmarshal(tree["signatures"], &have); len(tree["signatures"]) > 0 && err != nil {
		t.Fatal(err)
	}
	jws, err := signer.Sign(literalReading(t, []byte(card)))
	if err != nil {
		t.Fatal(err)
	}
	compact, err := jws.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(compact, ".")
	one, err := json.Marshal(map[string]string{"protected": parts[0], "signature": parts[2]})
	if err != nil {
		t.Fatal(err)
	}
	if tree["signatures"], err = json.Marshal(append(have, one)); err != nil {
		t.Fatal(err)
	}
	out, err := json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// A signerSite is the origin of agents elsewhere, where they publish keys.
type signerSite struct {
	*httptest.Server
	keys    []jose.JSONWebKey
	fetches atomic.Int32
}

func newSite(t *testing.T, signers ...cardSigner) *signerSite {
	t.Helper()
	s := &signerSite{}
	s.publish(signers...)
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.fetches.Add(1)
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: s.keys})
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *signerSite) publish(signers ...cardSigner) {
	s.keys = nil
	for _, k := range signers {
		s.keys = append(s.keys, k.public())
	}
}

func (s *signerSite) jku() string  { return s.URL + "/jwks" }
func (s *signerSite) card() string { return s.URL + "/agent" + CardPath }

// A2A-080: the algorithms that count, and the two forms of what was signed.
func TestVerifyCard(t *testing.T) {
	for _, alg := range []jose.SignatureAlgorithm{jose.EdDSA, jose.ES256, jose.RS256, jose.HS256} {
		s := newSigner(t, alg, "k1")
		find := func(*CardSignature) []jose.JSONWebKey { return []jose.JSONWebKey{s.public()} }
		for name, card := range map[string]string{
			"as it is":         s.sign(t, plainCard, ""),
			"defaults removed": removed(t, s.sign(t, removedFrom(t, plainCard), ""), plainCard),
		} {
			v, err := VerifyCard([]byte(card), find)
			if err != nil || v.Valid() != (alg != jose.HS256) || len(v.Signatures) != 1 {
				t.Errorf("%s, %s: %v %+v", alg, name, err, v)
			}
		}
		changed := strings.Replace(s.sign(t, plainCard, ""), "http://h/x", "http://evil/x", 1)
		if v, err := VerifyCard([]byte(changed), find); err != nil || v.Valid() || string(v.Card) != changed {
			t.Errorf("%s: a changed card: %v", alg, err)
		}
	}
}

// removedFrom removes what is empty from a card; removed gives the signatures of one card
// to another.
func removedFrom(t *testing.T, card string) string {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(card), &v); err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(withoutEmpty(v))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func removed(t *testing.T, from, to string) string {
	t.Helper()
	sig := jsonx.Member([]byte(from), "signatures")
	return strings.TrimSuffix(to, "}") + `,"signatures":` + string(sig) + "}"
}

// What a signature does not cover is not used: members of 0.3 that were added to a signed
// card of 1.0 are not in the result.
func TestUnsignedMembersAreNotUsed(t *testing.T) {
	s := newSigner(t, jose.EdDSA, "k1")
	signed := s.sign(t, removedFrom(t, plainCard), "")
	hybrid := strings.Replace(signed, "{", `{"url":"http://evil.example","preferredTransport":"JSONRPC",`, 1)
	v, err := VerifyCard([]byte(hybrid), func(*CardSignature) []jose.JSONWebKey { return []jose.JSONWebKey{s.public()} })
	if err != nil || !v.Valid() || strings.Contains(string(v.Card), "evil") ||
		!strings.Contains(string(v.Card), "http://h/x") {
		t.Errorf("%v: %s", err, v.Card)
	}
}

// Hostile cards: none of them is valid, and what is no card is an error.
func TestHostileCards(t *testing.T) {
	s := newSigner(t, jose.EdDSA, "k1")
	find := func(*CardSignature) []jose.JSONWebKey { return []jose.JSONWebKey{s.public()} }
	good := s.sign(t, plainCard, "")
	many := plainCard
	for range maxSignatures + 1 {
		many = s.sign(t, many, "")
	}
	header := func(h string) string {
		return strings.TrimSuffix(plainCard, "}") + `,"signatures":[{"protected":"` +
			base64.RawURLEncoding.EncodeToString([]byte(h)) + `","signature":""}]}`
	}
	for name, card := range map[string]string{
		"not JSON":            `{"name":`,
		"a list":              `[]`,
		"duplicate members":   strings.Replace(good, "{", `{"name":"y",`, 1),
		"deep":                strings.Replace(good, "{", `{"a":`+strings.Repeat("[", 200)+strings.Repeat("]", 200)+`,`, 1),
		"large":               strings.Replace(good, `"x"`, `"`+strings.Repeat("x", maxCard)+`"`, 1),
		"many signatures":     many,
		"signatures no list":  strings.TrimSuffix(plainCard, "}") + `,"signatures":{}}`,
		"number out of range": strings.Replace(good, "{", `{"a":1e999,`, 1),
	} {
		if _, err := VerifyCard([]byte(card), find); !errors.Is(err, ErrCard) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, card := range map[string]string{
		"none":          header(`{"alg":"none","kid":"k1"}`),
		"HS256":         header(`{"alg":"HS256","kid":"k1"}`),
		"no kid":        header(`{"alg":"EdDSA"}`),
		"header twice":  header(`{"alg":"EdDSA","alg":"none","kid":"k1"}`),
		"other type":    s.sign(t, plainCard, "", "typ", "JWT"),
		"critical":      header(`{"alg":"EdDSA","kid":"k1","crit":["x"],"x":1}`),
		"large header":  header(`{"alg":"EdDSA","kid":"` + strings.Repeat("k", 5000) + `"}`),
		"not base64":    strings.Replace(good, `"protected":"`, `"protected":"!`, 1),
		"no signature":  header(`{"alg":"EdDSA","kid":"k1"}`),
		"other's key":   newSigner(t, jose.EdDSA, "k1").sign(t, plainCard, ""),
		"key in header": newSigner(t, jose.EdDSA, "k1").sign(t, plainCard, "", "jwk", s.public()),
	} {
		v, err := VerifyCard([]byte(card), find)
		if err != nil || v.Valid() || string(v.Card) != card {
			t.Errorf("%s: %v %+v", name, err, v)
		}
	}
}

// Keys are pinned at first use; later only they count, and what they endorse.
func TestPinnedKeys(t *testing.T) {
	h := newCardHub(t, nil)
	first, second := newSigner(t, jose.EdDSA, "thumbprint"), newSigner(t, jose.EdDSA, "thumbprint")
	site := newSite(t, first, second)
	check := func(what, card string, want error) {
		t.Helper()
		got, err := h.verifyCard(t.Context(), "box", site.card(), []byte(card))
		if !errors.Is(err, want) || want == nil && len(got) == 0 {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	check("unsigned, before any signature", plainCard, nil)
	check("the first", first.sign(t, plainCard, site.jku()), nil)
	fetches := site.fetches.Load()
	check("the first again", first.sign(t, plainCard, site.jku()), nil)
	check("another key, published at the origin", second.sign(t, plainCard, site.jku()), ErrSignature)
	check("a later one, unsigned", plainCard, ErrUnsigned)
	// Who can change what the origin serves can add a signature, but not an endorsement.
	check("both sign", second.sign(t, first.sign(t, plainCard, site.jku()), site.jku()), nil)
	check("another key still", second.sign(t, plainCard, site.jku()), ErrSignature)
	forged := second.sign(t, first.sign(t, plainCard, site.jku()), site.jku(), ExtensionURI, []string{second.kid})
	check("it endorses itself", forged, nil)
	check("another key still", second.sign(t, plainCard, site.jku()), ErrSignature)
	if site.fetches.Load() != fetches {
		t.Errorf("the hub fetched keys although it knows them")
	}
	check("endorsed", first.sign(t, plainCard, site.jku(), ExtensionURI, []string{second.kid}), nil)
	check("the new key", second.sign(t, plainCard, site.jku()), nil)
	check("the old key", first.sign(t, plainCard, site.jku()), nil)
	h.SetAgent("box", AgentSettings{Unsigned: true})
	check("unsigned, as the operator agreed", plainCard, nil)
	// The pins are the journal's: another hub has them.
	other := &cardHub{Binding: &Binding{c: h.c, public: h.public, settings: map[string]AgentSettings{}}}
	third := newSigner(t, jose.EdDSA, "thumbprint")
	site.publish(third)
	card := []byte(third.sign(t, plainCard, site.jku()))
	if _, err := other.verifyCard(t.Context(), "box", site.card(), card); !errors.Is(err, ErrSignature) {
		t.Errorf("another hub: %v", err)
	}
}

// The operator's key counts alone.
func TestEnrolledCardKey(t *testing.T) {
	h := newCardHub(t, nil)
	mine, other := newSigner(t, jose.ES256, "whatever"), newSigner(t, jose.ES256, "whatever")
	site := newSite(t, other)
	public, err := mine.public().Key.(*ecdsa.PublicKey).Bytes()
	if err != nil {
		t.Fatal(err)
	}
	_, err = h.keys.Enroll(keyring.Enrolled{Agent: "box", Purpose: Protocol, Algorithm: keyring.P256, Public: public})
	if err != nil {
		t.Fatal(err)
	}
	for card, want := range map[string]error{mine.sign(t, plainCard, ""): nil, plainCard: ErrUnsigned,
		other.sign(t, plainCard, site.jku()): ErrSignature} {
		if _, err := h.verifyCard(t.Context(), "box", site.card(), []byte(card)); !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
	if site.fetches.Load() != 0 {
		t.Error("the hub fetched keys")
	}
}

// Hole 2: keys come from the card's origin alone, through the guard, and a wrong signature
// by a published key is refused at first use.
func TestFetchedKeys(t *testing.T) {
	h := newCardHub(t, nil)
	s := newSigner(t, jose.RS256, "k1")
	site, elsewhere := newSite(t, s), newSite(t, s)
	for name, jku := range map[string]string{"none": "", "elsewhere": elsewhere.jku(), "no URL": "::",
		"a file":   "file:///etc/passwd",
		"metadata": "http://169.254.169.254/jwks"} {
		card := s.sign(t, plainCard, jku)
		if got, err := h.verifyCard(t.Context(), "box", site.card(), []byte(card)); err != nil || string(got) != card {
			t.Errorf("%s: %v", name, err)
		}
	}
	if site.fetches.Load()+elsewhere.fetches.Load() != 0 {
		t.Error("the hub fetched keys from elsewhere")
	}
	forged := newSigner(t, jose.RS256, "k1").sign(t, plainCard, site.jku())
	if _, err := h.verifyCard(t.Context(), "box", site.card(), []byte(forged)); !errors.Is(err, ErrSignature) {
		t.Errorf("signed by another key of that id: %v", err)
	}
	blocked := newCardHub(t, func(c *Config) { c.Allow = nil })
	before := site.fetches.Load()
	card := []byte(s.sign(t, plainCard, site.jku()))
	if _, err := blocked.verifyCard(t.Context(), "box", site.card(), card); err != nil {
		t.Error(err)
	}
	if site.fetches.Load() != before {
		t.Error("the guard let the hub fetch from 127.0.0.1")
	}
}

// One hub verifies the cards of another through a change of its key.
func TestHubsVerifyEachOther(t *testing.T) {
	far := newCardHub(t, nil)
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { far.serveKeys(w, r) }))
	t.Cleanup(site.Close)
	public := *far.public
	public.Scheme, public.Host, public.Path = "http", strings.TrimPrefix(site.URL, "http://"), ""
	far.public = &public
	near := newCardHub(t, nil)
	check := func(what string, want error) {
		t.Helper()
		for _, version := range []string{"1.0", ""} {
			card := far.get("crew/weather", "A2A-Version", version).Body.Bytes()
			_, err := near.verifyCard(t.Context(), "far", site.URL+Base+"crew/weather"+CardPath, card)
			if !errors.Is(err, want) {
				t.Errorf("%s, version %q: %v", what, version, err)
			}
		}
	}
	check("the first key", nil)
	if _, err := far.keys.Rotate(keyring.Hub, Protocol, "test", time.Hour); err != nil {
		t.Fatal(err)
	}
	check("both keys", nil)
	far.now = far.now.Add(2 * time.Hour)
	check("the second key", nil)
	if _, err := far.keys.Rotate(keyring.Hub, Protocol, "test", 0); err != nil {
		t.Fatal(err)
	}
	check("a third key that none endorsed", ErrSignature)
}

// A card counts as signed if a key that the hub knows signed it.
func TestCardIsSigned(t *testing.T) {
	s, unknown := newSigner(t, jose.EdDSA, "thumbprint"), newSigner(t, jose.EdDSA, "unknown")
	for name, c := range map[string]struct {
		card   func(jku string) string
		signed bool
	}{
		"plain":              {func(string) string { return plainCard }, false},
		"by a published key": {func(jku string) string { return s.sign(t, plainCard, jku) }, true},
		"by an unknown key":  {func(string) string { return unknown.sign(t, plainCard, "") }, false},
		"changed": {func(jku string) string {
			return strings.Replace(s.sign(t, plainCard, jku), `"name":"x"`, `"name":"y"`, 1)
		}, false},
	} {
		var card string
		far := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/jwks" {
				_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{s.public()}})
				return
			}
			_, _ = w.Write([]byte(card))
		}))
		t.Cleanup(far.Close)
		card = c.card(far.URL + "/jwks")
		got, err := newCardHub(t, nil).ReadCard(t.Context(), far.URL, peerauth.Credentials{})
		if err != nil || got.Signed != c.signed {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}
