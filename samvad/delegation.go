package samvad

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/parley-hub/parley/internal/edkeys"
	"github.com/parley-hub/parley/internal/jsonx"
)

// Bounds of delegation tokens.
const (
	DefaultDelegationTTL = 15 * time.Minute // and the longest that [Delegation.Issue] gives
	delegationSkew       = 60 * time.Second // how far in the future iat may lie
	maxToken             = 8 << 10
	maxScope             = 256
)

// A Delegation is the content of a delegation token (SAMVAD 1.2 §9): the issuer
// lets the subject use skills in its name. There is no link to the tokens
// before it and no audience: it narrows what the signer of a request may do,
// and grants nothing.
type Delegation struct {
	Issuer   string   // iss: the signer of the token
	Subject  string   // sub: the agent that may use it; equal to from of the envelope
	Scope    []string // skill ids
	MaxDepth int      // 1 = no further delegation
	Actor    string   // act.sub: on whose behalf the issuer acts; may be empty
	Expires  time.Time
	Issued   time.Time // zero if the token does not say
}

// Covers reports whether a skill is in the scope.
func (d *Delegation) Covers(skill string) bool { return slices.Contains(d.Scope, skill) }

type wireDelegation struct {
	Iss      *string         `json:"iss"`
	Sub      *string         `json:"sub"`
	Scope    json.RawMessage `json:"scope"`
	MaxDepth *float64        `json:"maxDepth"`
	Exp      *float64        `json:"exp"`
	Iat      *float64        `json:"iat,omitzero"`
	Nbf      *float64        `json:"nbf,omitzero"`
	Act      *struct {
		Sub string `json:"sub"`
	} `json:"act,omitzero"`
}

// VerifyDelegation checks a token: EdDSA only, signed by a key of its issuer
// (the one that kid names, if it names one), not expired, exp required,
// integer maxDepth above zero. Errors wrap [ErrDelegation] (AUTH_FAILED) or
// [ErrDelegationExceeded]. Subject and scope are for [Delegation.Allows].
func VerifyDelegation(ctx context.Context, token string, keys Keys, now time.Time) (*Delegation, error) {
	bad := func(cause error) (*Delegation, error) { return nil, because(ErrDelegation, cause) }
	if len(token) > maxToken {
		return bad(errors.New("token too long"))
	}
	jws, err := jose.ParseSignedCompact(token, []jose.SignatureAlgorithm{jose.EdDSA})
	if err != nil {
		return bad(err)
	}
	var w wireDelegation
	if err := jsonx.Decode(jws.UnsafePayloadWithoutVerification(), &w); err != nil {
		return bad(err)
	}
	if w.Iss == nil || CheckAgent(*w.Iss) != nil {
		return bad(errors.New("iss is not an agent identity"))
	}
	if keys == nil {
		return bad(ErrUnknownKey)
	}
	list, err := keys.Keys(ctx, *w.Iss)
	if err != nil {
		return bad(err)
	}
	if err := verifyJWS(jws, list); err != nil {
		return bad(err)
	}

	exp, ok := numericDate(w.Exp)
	if !ok {
		return bad(errors.New("exp is missing or not a number"))
	}
	if !now.Before(exp) {
		return bad(errors.New("expired"))
	}
	d := &Delegation{Issuer: *w.Iss, Expires: exp}
	if w.Nbf != nil {
		nbf, ok := numericDate(w.Nbf)
		if !ok || now.Before(nbf) {
			return bad(errors.New("not valid yet"))
		}
	}
	if w.Iat != nil {
		d.Issued, ok = numericDate(w.Iat)
		if !ok || d.Issued.Sub(now) > delegationSkew {
			return bad(errors.New("iat is in the future or not a number"))
		}
	}
	if w.Sub == nil || CheckAgent(*w.Sub) != nil {
		return bad(errors.New("sub is not an agent identity"))
	}
	d.Subject = *w.Sub
	if w.Act != nil {
		d.Actor = w.Act.Sub
	}
	if d.Scope, err = scopeOf(w.Scope); err != nil {
		return bad(err)
	}
	if n := w.MaxDepth; n == nil || *n != math.Trunc(*n) || math.Abs(*n) > 1<<31 {
		return bad(errors.New("maxDepth is not an integer"))
	}
	d.MaxDepth = int(*w.MaxDepth)
	if d.MaxDepth <= 0 {
		return nil, because(ErrDelegationExceeded, fmt.Errorf("maxDepth is %d", d.MaxDepth))
	}
	return d, nil
}

// Allows checks a verified token against the request that carries it.
func (d *Delegation) Allows(from, skill string) error {
	if d.Subject != from {
		return because(ErrDelegation, fmt.Errorf("sub is %q, from is %q", clip(d.Subject), clip(from)))
	}
	if !d.Covers(skill) {
		return because(ErrDelegationExceeded, fmt.Errorf("skill %q is not in the scope", clip(skill)))
	}
	return nil
}

func verifyJWS(jws *jose.JSONWebSignature, keys []Key) error {
	if len(jws.Signatures) != 1 {
		return errors.New("not exactly one signature")
	}
	kid := jws.Signatures[0].Header.KeyID
	err := ErrUnknownKey
	for _, k := range keys {
		if kid != "" && k.KID != "" && k.KID != kid {
			continue
		}
		if k.Revoked {
			if kid != "" {
				return ErrInactiveKey
			}
			continue
		}
		if e := edkeys.Check(k.Public); e != nil {
			return because(ErrBadKey, e)
		}
		if _, e := jws.Verify(k.Public); e == nil {
			return nil
		}
		err = ErrSignature
	}
	return err
}

// scopeOf reads an array of strings or one string with spaces (SAM-103).
func scopeOf(v json.RawMessage) ([]string, error) {
	bad := errors.New("scope is neither an array of strings nor a string")
	list := []string{}
	switch kindOf(v) {
	case '"':
		var s string
		if err := jsonx.Decode(v, &s); err != nil {
			return nil, bad
		}
		list = append(list, strings.Fields(s)...)
	case '[':
		var items []json.RawMessage
		if err := jsonx.Decode(v, &items); err != nil {
			return nil, bad
		}
		for _, it := range items {
			var s string
			if kindOf(it) != '"' || jsonx.Decode(it, &s) != nil {
				return nil, bad
			}
			list = append(list, s)
		}
	default:
		return nil, bad
	}
	if len(list) > maxScope {
		return nil, errors.New("scope is too long")
	}
	return list, nil
}

// numericDate reads seconds since the epoch, fractions allowed (RFC 7519 §2).
func numericDate(v *float64) (time.Time, bool) {
	if v == nil || *v < 0 || *v > 253402300799 {
		return time.Time{}, false
	}
	sec := int64(*v)
	return time.Unix(sec, int64((*v-float64(sec))*1e9)), true
}

// Issue signs a token as s: exp at most 15 minutes ahead (zero: exactly
// that), scope as an array, integer maxDepth, iat always. The issuer is s.
func (d *Delegation) Issue(s Signer, now time.Time) (string, error) {
	s = current(s)
	if d.MaxDepth <= 0 {
		return "", because(ErrDelegationExceeded, fmt.Errorf("maxDepth is %d", d.MaxDepth))
	}
	if err := CheckAgent(d.Subject); err != nil {
		return "", err
	}
	limit := now.Add(DefaultDelegationTTL)
	exp := d.Expires
	if exp.IsZero() || exp.After(limit) {
		exp = limit
	}
	if exp.Unix() <= now.Unix() {
		return "", because(ErrDelegation, errors.New("it would be expired"))
	}
	claims := map[string]any{
		"iss": s.ID(), "sub": d.Subject, "scope": append([]string{}, d.Scope...),
		"maxDepth": d.MaxDepth, "iat": now.Unix(), "exp": exp.Unix(),
	}
	if d.Actor != "" {
		claims["act"] = map[string]any{"sub": d.Actor}
	}
	payload, err := jsonx.Encode(claims)
	if err != nil {
		return "", fmt.Errorf("samvad: delegation: %w", err)
	}
	js, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.EdDSA, Key: opaque{s}},
		(&jose.SignerOptions{}).WithType("JWT").WithHeader("kid", s.KID()))
	if err != nil {
		return "", fmt.Errorf("samvad: delegation: %w", err)
	}
	jws, err := js.Sign(payload)
	if err != nil {
		return "", fmt.Errorf("samvad: delegation: %w", err)
	}
	return jws.CompactSerialize()
}

// opaque lends a [Signer] to the JOSE library.
type opaque struct{ Signer }

func (o opaque) Public() *jose.JSONWebKey {
	return &jose.JSONWebKey{Key: o.Signer.Public(), KeyID: o.KID(), Algorithm: string(jose.EdDSA)}
}
func (o opaque) Algs() []jose.SignatureAlgorithm { return []jose.SignatureAlgorithm{jose.EdDSA} }
func (o opaque) SignPayload(b []byte, _ jose.SignatureAlgorithm) ([]byte, error) {
	return o.Sign(b)
}

// Narrow gives the delegation that the subject of a token may pass on to another
// agent: one level less, a scope within the parent's (nil: all of it), no longer life
// (SAM-105). The issuer of the new token is the old one's subject; the error wraps
// [ErrDelegationExceeded].
func (d *Delegation) Narrow(subject string, scope []string) (*Delegation, error) {
	if d.MaxDepth <= 1 {
		return nil, because(ErrDelegationExceeded, errors.New("no further delegation"))
	}
	if scope == nil {
		scope = d.Scope
	}
	for _, s := range scope {
		if !d.Covers(s) {
			return nil, because(ErrDelegationExceeded, fmt.Errorf("skill %q is not in the scope", clip(s)))
		}
	}
	return &Delegation{
		Issuer: d.Subject, Subject: subject, Scope: slices.Clone(scope), MaxDepth: d.MaxDepth - 1,
		Actor: d.Issuer, Expires: d.Expires,
	}, nil
}
