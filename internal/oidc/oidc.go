// Package oidc checks the tokens of OpenID Connect and OAuth 2.0 issuers: JSON Web Tokens
// (RFC 7519, RFC 9068) that a caller shows as a bearer token. For example, an agent gets
// a token at https://login.example for the audience https://hub.example; an [Issuer] for
// that URL and audience gives its subject.
package oidc

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/internal/jwks"
)

const (
	// MaxToken bounds a token.
	MaxToken = 16 << 10
	// Leeway is the difference between the clocks of issuer and hub that is tolerated.
	Leeway = time.Minute

	maxSubject = 255 // OpenID Connect Core 1.0, section 2
)

// Errors of a token. ErrToken wraps every cause that lies in the token itself.
var (
	ErrToken = errors.New("oidc: the token does not hold")
	// ErrKeys means that the issuer's keys cannot be had, so that nothing is known about the token.
	ErrKeys = errors.New("oidc: the issuer's keys are not known")
)

// Keys finds keys of an issuer; *jwks.Remote does. The error means that they are not known.
type Keys interface {
	Find(ctx context.Context, kid string, a jose.SignatureAlgorithm) (jwks.Set, error)
}

// Static is keys from a file.
type Static jwks.Set

// Find implements Keys.
func (s Static) Find(_ context.Context, kid string, a jose.SignatureAlgorithm) (jwks.Set, error) {
	return jwks.Set(s).Find(kid, a), nil
}

// An Issuer is one whose tokens are accepted.
type Issuer struct {
	URL      string   // exactly as in the claim iss
	Audience []string // one of them must be in the claim aud; never empty
	Claim    string   // that names the caller; a string
	Keys     Keys
}

// IsToken reports whether a bearer token has the form of a JSON Web Token.
func IsToken(token string) bool {
	return strings.HasPrefix(token, "eyJ") && strings.Count(token, ".") == 2
}

// IssuerOf gives the claim iss of a token of which nothing is checked yet.
func IssuerOf(token string) (string, error) {
	t, err := parse(token)
	if err != nil {
		return "", err
	}
	var c jwt.Claims
	if err := t.UnsafeClaimsWithoutVerification(&c); err != nil {
		return "", fmt.Errorf("%w: %w", ErrToken, err)
	}
	return c.Issuer, nil
}

func parse(token string) (*jwt.JSONWebToken, error) {
	if len(token) > MaxToken {
		return nil, fmt.Errorf("%w: more than %d bytes", ErrToken, MaxToken)
	}
	t, err := jwt.ParseSigned(token, jwks.Algorithms)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrToken, err)
	}
	return t, nil
}

// A Bearer is the caller that a valid token names.
type Bearer struct {
	Subject string // the value of the issuer's claim
	KeyID   string
	Until   time.Time // end of the token's validity, with the leeway
}

// Verify checks the signature, the type, the issuer, the audience and the times of a
// token. The error wraps ErrToken or ErrKeys.
func (i *Issuer) Verify(ctx context.Context, token string, now time.Time) (b Bearer, err error) {
	t, err := parse(token)
	if err != nil {
		return b, err
	}
	h := t.Headers[0]
	if typ, ok := h.ExtraHeaders[jose.HeaderType]; ok {
		// Others are no access or ID tokens, such as logout+jwt or secevent+jwt.
		name, _ := typ.(string)
		if !slices.Contains([]string{"jwt", "at+jwt"}, strings.TrimPrefix(strings.ToLower(name), "application/")) {
			return b, fmt.Errorf("%w: typ %.40q", ErrToken, name)
		}
	}
	keys, err := i.Keys.Find(ctx, h.KeyID, jose.SignatureAlgorithm(h.Algorithm))
	if err != nil {
		return b, fmt.Errorf("%w: %w", ErrKeys, err)
	}
	var c jwt.Claims
	var all map[string]any
	err = errors.New("no key of the issuer has its kid and algorithm")
	for _, k := range keys {
		if err = t.Claims(k.Key, &c, &all); err == nil {
			b.KeyID = k.KeyID
			break
		}
	}
	if err == nil {
		err = c.ValidateWithLeeway(jwt.Expected{Issuer: i.URL, AnyAudience: i.Audience, Time: now}, Leeway)
	}
	if err == nil && c.Expiry == nil {
		err = errors.New("it has no exp")
	}
	if err != nil {
		return Bearer{}, fmt.Errorf("%w: %w", ErrToken, err)
	}
	b.Until = c.Expiry.Time().Add(Leeway)
	var ok bool
	if b.Subject, ok = all[i.Claim].(string); !ok || b.Subject == "" || len(b.Subject) > maxSubject ||
		!utf8.ValidString(b.Subject) || strings.ContainsFunc(b.Subject, unicode.IsControl) {
		return Bearer{}, fmt.Errorf("%w: the claim %q is no name of 1 to %d bytes", ErrToken, i.Claim, maxSubject)
	}
	return b, nil
}

// Discovery is the URL of an issuer's description (OpenID Connect Discovery 1.0, section 4).
func Discovery(issuer string) string {
	return strings.TrimSuffix(issuer, "/") + "/.well-known/openid-configuration"
}

// Discover gives the URL of an issuer's keys, from its description.
func Discover(ctx context.Context, c *http.Client, issuer string) (string, error) {
	b, err := jwks.Get(ctx, c, Discovery(issuer))
	if err != nil {
		return "", err
	}
	var doc struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	if err := jsonx.Decode(b, &doc); err != nil {
		return "", fmt.Errorf("the description of issuer %s: %w", issuer, err)
	}
	if doc.Issuer != issuer {
		return "", fmt.Errorf("the description of issuer %s is of %.200q", issuer, doc.Issuer)
	}
	u, err := url.Parse(doc.Keys)
	if err != nil || u.Host == "" || u.Scheme != "https" && !strings.HasPrefix(issuer, u.Scheme+":") {
		return "", fmt.Errorf("the description of issuer %s: jwks_uri %.200q is no https URL", issuer, doc.Keys)
	}
	return doc.Keys, nil
}
