package oidc

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/parley-hub/parley/internal/jwks"
)

var now = time.Unix(1767225600, 0)

type signer struct {
	alg jose.SignatureAlgorithm
	key any
	kid string
}

func (s signer) token(t *testing.T, typ string, claims map[string]any) string {
	t.Helper()
	o := &jose.SignerOptions{}
	if typ != "" {
		o = o.WithType(jose.ContentType(typ))
	}
	g, err := jose.NewSigner(jose.SigningKey{Algorithm: s.alg, Key: jose.JSONWebKey{Key: s.key, KeyID: s.kid}}, o)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(g).Claims(claims).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestVerify(t *testing.T) {
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, other, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	good := signer{jose.EdDSA, key, "k1"}
	i := &Issuer{URL: "https://login.example", Audience: []string{"https://hub.example", "hub"}, Claim: "sub",
		Keys: Static{{Key: pub, KeyID: "k1", Algorithm: "EdDSA"}}}
	claims := func(change ...any) map[string]any {
		c := map[string]any{"iss": i.URL, "aud": "hub", "sub": "bob", "exp": now.Add(time.Hour).Unix(),
			"iat": now.Unix(), "nbf": now.Unix()}
		for n := 0; n < len(change); n += 2 {
			if c[change[n].(string)] = change[n+1]; change[n+1] == nil {
				delete(c, change[n].(string))
			}
		}
		return c
	}
	soon := now.Add(50 * time.Second).Unix()
	for name, token := range map[string]string{
		"plain":              good.token(t, "", claims()),
		"JWT":                good.token(t, "JWT", claims()),
		"at+jwt":             good.token(t, "at+jwt", claims()),
		"application/at+jwt": good.token(t, "application/at+JWT", claims()),
		"audiences":          good.token(t, "JWT", claims("aud", []string{"x", "hub"})),
		"no kid":             signer{jose.EdDSA, key, ""}.token(t, "JWT", claims()),
		"clock ahead":        good.token(t, "JWT", claims("iat", soon, "nbf", soon)),
		"clock behind":       good.token(t, "JWT", claims("exp", now.Add(-50*time.Second).Unix())),
		"no iat":             good.token(t, "JWT", claims("iat", nil, "nbf", nil)),
	} {
		if who, err := i.Verify(t.Context(), token, now); err != nil || who.Subject != "bob" || !who.Until.After(now) ||
			!IsToken(token) {
			t.Errorf("%s: %+v %v", name, who, err)
		}
		if iss, err := IssuerOf(token); err != nil || iss != i.URL {
			t.Errorf("%s: issuer %q %v", name, iss, err)
		}
	}
	valid := strings.Split(good.token(t, "JWT", claims()), ".")
	eve := strings.Split(good.token(t, "JWT", claims("sub", "eve")), ".")
	none := "eyJhbGciOiJub25lIn0." + valid[1] + "."
	for name, token := range map[string]string{
		"none":                none,
		"HS256":               signer{jose.HS256, []byte(pub), "k1"}.token(t, "JWT", claims()),
		"another key":         signer{jose.EdDSA, other, "k1"}.token(t, "JWT", claims()),
		"unknown kid":         signer{jose.EdDSA, key, "k2"}.token(t, "JWT", claims()),
		"signature of others": valid[0] + "." + eve[1] + "." + valid[2],
		"issuer":              good.token(t, "JWT", claims("iss", "https://login.example/")),
		"no issuer":           good.token(t, "JWT", claims("iss", nil)),
		"audience":            good.token(t, "JWT", claims("aud", "https://other.example")),
		"no audience":         good.token(t, "JWT", claims("aud", nil)),
		"expired":             good.token(t, "JWT", claims("exp", now.Add(-2*time.Minute).Unix())),
		"no exp":              good.token(t, "JWT", claims("exp", nil)),
		"not yet":             good.token(t, "JWT", claims("nbf", now.Add(2*time.Minute).Unix())),
		"issued later":        good.token(t, "JWT", claims("iat", now.Add(2*time.Minute).Unix())),
		"type":                good.token(t, "logout+jwt", claims()),
		"no subject":          good.token(t, "JWT", claims("sub", nil)),
		"subject no string":   good.token(t, "JWT", claims("sub", 7)),
		"empty subject":       good.token(t, "JWT", claims("sub", "")),
		"long subject":        good.token(t, "JWT", claims("sub", strings.Repeat("x", 256))),
		"line in subject":     good.token(t, "JWT", claims("sub", "a\nb")),
		"long":                good.token(t, "JWT", claims("x", strings.Repeat("x", MaxToken))),
		"no token":            "a.b.c",
		"empty":               "",
		"JSON":                `{"payload":"","signatures":[]}`,
	} {
		if who, err := i.Verify(t.Context(), token, now); !errors.Is(err, ErrToken) || who != (Bearer{}) {
			t.Errorf("%s: %+v %v", name, who, err)
		}
	}
	i.Claim = "client_id"
	boxed := good.token(t, "", claims("client_id", "box"))
	if who, err := i.Verify(t.Context(), boxed, now); err != nil || who.Subject != "box" || who.KeyID != "k1" ||
		!who.Until.Equal(now.Add(time.Hour+Leeway)) {
		t.Errorf("another claim: %+v %v", who, err)
	}
	i.Keys = failing{}
	if _, err := i.Verify(t.Context(), good.token(t, "JWT", claims()), now); !errors.Is(err, ErrKeys) {
		t.Errorf("keys not known: %v", err)
	}
}

type failing struct{}

func (failing) Find(context.Context, string, jose.SignatureAlgorithm) (jwks.Set, error) {
	return nil, errors.New("down")
}

func TestDiscover(t *testing.T) {
	var doc string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/.well-known/openid-configuration" {
			http.NotFound(w, r)
			return
		}
		fmt.Fprint(w, doc)
	}))
	t.Cleanup(s.Close)
	for text, want := range map[string]string{
		`{"issuer":"ISS","jwks_uri":"ISS/keys"}`:               s.URL + "/keys",
		`{"issuer":"ISS","jwks_uri":"https://keys.example/k"}`: "https://keys.example/k",
		`{"issuer":"https://other","jwks_uri":"ISS/keys"}`:     "",
		`{"issuer":"ISS"}`: "",
		`{"issuer":"ISS","jwks_uri":"file:///etc/passwd"}`:      "",
		`{"issuer":"ISS","issuer":"ISS","jwks_uri":"ISS/keys"}`: "",
		`<html>`: "",
	} {
		doc = strings.ReplaceAll(text, "ISS", s.URL)
		if got, err := Discover(t.Context(), s.Client(), s.URL); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q %v", text, got, err)
		}
	}
	if Discovery("https://x/y/") != "https://x/y/.well-known/openid-configuration" {
		t.Error(Discovery("https://x/y/"))
	}
}
