package uagents

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"sync"
	"time"
)

// Assurance is the degree of proof of the sender's address.
type Assurance string

// The degrees of assurance.
const (
	Signed   Assurance = "signed"   // the sender's key signed it
	Unsigned Assurance = "unsigned" // no proof: any client could have written it
)

// A Check is one step of a verification.
type Check struct {
	Name string // e.g. "signature"
	OK   bool
}

// A Verdict is the outcome of a verification.
type Verdict struct {
	Checks    []Check // in order; the last one failed, if any did
	Key       string  // the address of the signing key; empty when unsigned
	Assurance Assurance
}

// Verified is an envelope that passed the verification.
type Verified struct {
	*Envelope
	Verdict Verdict
	Digest  [32]byte  // the envelope digest: the replay key
	Content Message   // the decoded payload
	Until   time.Time // how long the digest must be remembered
}

// ReplayKey names the envelope in a [Memory]. It is made of sender and digest, not of
// the signature: anyone can turn a signature into another valid one (r, n-s). UAG-032.
func (v *Verified) ReplayKey() string {
	return v.Sender + " " + hex.EncodeToString(v.Digest[:])
}

// EnvelopeSize is the most bytes of an envelope whose message has content bytes:
// base64 makes four bytes of three, and envelope and message have other members.
func EnvelopeSize(content int) int { return content/3*4 + 16<<10 }

// A Verifier decides whether an envelope is what it claims to be. The zero
// value is strict. It is safe for concurrent use; fields must not change once in use.
type Verifier struct {
	Self   string           // the address that envelopes must name; empty: any
	Memory Memory           // digests seen; nil: [NewMemory] of the default size
	Now    func() time.Time // nil: time.Now
	Limits Limits
	Curve  Curve // nil: pure Go

	// AllowUnsigned takes well-formed "user1…" senders, marked [Unsigned].
	AllowUnsigned bool
	// AllowExpired takes envelopes after their expiry, as the reference does:
	// for agents with broken clocks.
	AllowExpired bool
	// AllowNonce takes a nonce without expires. The digest is the same for both:
	// a relay can strip an expiry by renaming it to nonce.
	AllowNonce bool
	// AllowDuplicates takes texts that name a member twice.
	AllowDuplicates bool
	// LenientPayload skips characters outside the base64 alphabet.
	LenientPayload bool

	once sync.Once
	own  Memory
}

func (v *Verifier) now() time.Time { return clock(v.Now) }

// clock reads a clock; nil: time.Now.
func clock(now func() time.Time) time.Time {
	if now == nil {
		return time.Now()
	}
	return now()
}

func (v *Verifier) curve() Curve { return cmp.Or[Curve](v.Curve, pureGo{}) }

func (v *Verifier) memory() Memory {
	if v.Memory != nil {
		return v.Memory
	}
	v.once.Do(func() { v.own = NewMemory(0, v.now) })
	return v.own
}

// Verify decodes an envelope's text, runs every check, and consumes its digest
// last. The error is an [*Error]; ErrReplay comes with the Verified envelope,
// because the protocol answers a duplicate as a success.
func (v *Verifier) Verify(ctx context.Context, body []byte) (*Verified, error) {
	if len(body) > v.Limits.body() {
		return nil, ErrTooLarge
	}
	e, err := Decode(body)
	if err != nil {
		return nil, err
	}
	verified, err := v.Check(e)
	if err != nil {
		return nil, err
	}
	if v.Self != "" && e.Target != v.Self {
		return nil, ErrUnknownAgent
	}
	fresh, err := v.memory().Seen(ctx, verified.ReplayKey(), verified.Until)
	if err != nil {
		return nil, AsError(err)
	}
	if !fresh {
		return verified, ErrReplay
	}
	return verified, nil
}

// Check runs every check that needs no memory, in this order: sender form,
// signature, ambiguity, schema digest, expiry and horizon, payload. The error
// is an [*Error]; from the first policy check on it comes with the Verified
// envelope, so that a caller may record the refusal of an authenticated sender.
func (v *Verifier) Check(e *Envelope) (*Verified, error) { return v.check(e, v.AllowUnsigned) }

func (v *Verifier) check(e *Envelope, unsigned bool) (*Verified, error) {
	verified := &Verified{Envelope: e}
	checks := make([]Check, 0, 6)
	step := func(name string, err error) error {
		checks = append(checks, Check{name, err == nil})
		verified.Verdict.Checks = checks
		return err
	}
	if len(e.Sender) > v.Limits.name() || len(e.Target) > v.Limits.name() {
		return nil, ErrShape.Because(errors.New("address is too long"))
	}
	digest, err := e.Digest()
	if err != nil && e.Signature == nil && !IsUser(e.Sender) {
		err = ErrUnsigned
	}
	if step("digest", err) != nil {
		return nil, err
	}
	verified.Digest = digest
	if IsUser(e.Sender) {
		_, err := ParseUser(e.Sender)
		if err == nil && !unsigned {
			err = ErrUnsigned
		}
		if step("sender", err) != nil {
			return nil, err
		}
		verified.Verdict.Assurance = Unsigned
	} else {
		err := ErrUnsigned.orNil(e.Signature == nil)
		if err == nil {
			err = verifyDigest(v.curve(), e.Sender, digest, *e.Signature)
		}
		if step("signature", err) != nil {
			return nil, err
		}
		verified.Verdict.Assurance, verified.Verdict.Key = Signed, e.Sender
	}

	now := v.now()
	verified.Until = v.remember(e, now, verified.Verdict.Assurance)
	if err := step("ambiguity", v.ambiguity(e)); err != nil {
		return verified, err
	}
	if err := step("schema_digest", ErrSchemaDigest.orNil(!IsSchemaDigest(e.SchemaDigest))); err != nil {
		return verified, err
	}
	if err := step("expires", v.expiry(e, now)); err != nil {
		return verified, err
	}
	decode := DecodePayload
	if v.LenientPayload {
		decode = decodePayloadLenient
	}
	verified.Content, err = e.message(decode)
	if e.Payload != nil {
		step("payload", err)
	}
	return verified, err
}

// orNil is e if bad, else nil.
func (e *Error) orNil(bad bool) error {
	if bad {
		return e
	}
	return nil
}

// ambiguity refuses an envelope that two parsers could read differently, or whose
// digest fits another envelope too.
func (v *Verifier) ambiguity(e *Envelope) error {
	switch {
	case e.duplicate && !v.AllowDuplicates:
		return ErrAmbiguous.Because(errors.New("duplicate member name"))
	case !e.Nonce.IsNull() && e.Expires.IsNull() && !v.AllowNonce:
		return ErrAmbiguous.Because(errors.New("nonce without expires"))
	}
	return nil
}

// expiry accepts an envelope while now <= expires + skew, and not with expires beyond
// the horizon.
func (v *Verifier) expiry(e *Envelope, now time.Time) error {
	if e.Expires.IsNull() {
		return nil
	}
	n, _ := e.Expires.Uint64()
	limit := now.Add(v.Limits.horizon()).Unix()
	if limit >= 0 && n > uint64(limit) {
		return ErrHorizon
	}
	if !v.AllowExpired && now.After(time.Unix(int64(n), 0).Add(v.Limits.skew())) {
		return ErrStale
	}
	return nil
}

// remember is the time until which the digest must be kept: when the envelope expires,
// or the horizon for an envelope without expiry. One that is refused for the horizon
// had no effect and is kept no longer than that.
func (v *Verifier) remember(e *Envelope, now time.Time, a Assurance) time.Time {
	until := now.Add(v.Limits.horizon())
	if at, ok := e.ExpiresAt(); ok && !v.AllowExpired && !errors.Is(v.expiry(e, now), ErrHorizon) {
		until = at.Add(v.Limits.skew() + time.Nanosecond)
	}
	if most := now.Add(v.Limits.unsigned()); a == Unsigned && most.Before(until) {
		until = most
	}
	return until
}

// IsSchemaDigest reports whether s is model: and 64 lower-case hexadecimal
// digits. The grammar keeps characters from moving between schema
// digest and payload under one signature. UAG-033.
func IsSchemaDigest(s string) bool { return isDigest("model:", s) }

// IsProtocolDigest reports whether s is proto: and 64 lower-case hexadecimal
// digits. The reference asks only for the prefix and the length.
func IsProtocolDigest(s string) bool { return isDigest("proto:", s) }

func isDigest(prefix, s string) bool {
	if len(s) != len(prefix)+64 || s[:len(prefix)] != prefix {
		return false
	}
	for i := len(prefix); i < len(s); i++ {
		if c := s[i]; !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f') {
			return false
		}
	}
	return true
}
