package agh

import (
	"context"
	"crypto/ed25519"
	"slices"
	"time"

	"github.com/parley-hub/parley/internal/edkeys"
	"github.com/parley-hub/parley/internal/jsonx"
)

// Trust is the trust state of a message (RFC 004 §6).
type Trust string

// The states. With trust off every valid message is unverified.
const (
	TrustUnverified Trust = "unverified"
	TrustVerified   Trust = "verified"
	TrustRejected   Trust = "rejected"
)

// Verdict is the result of the checks of a sender.
type Verdict struct {
	Trust    Trust
	Handle   string // the verified handle, when Trust is verified
	KeyID    string // sha256:…, when Trust is verified
	Pinned   bool   // the key is pinned
	Verified bool   // Trust is verified
}

// Verified is a message that passed a [Verifier].
type Verified struct {
	Envelope *Envelope
	Verdict  Verdict
}

// Verifier checks received messages in the order of the envelope page, with
// trust between body and routing. The zero value checks everything but proofs,
// which are opaque in AGH v0, and replays, which need a Memory.
type Verifier struct {
	// Trust switches the trust profile on: handles are legal senders and their
	// proofs are verified. Plain peers stay legal and unverified.
	Trust bool
	// Keys pins keys to handles and nicknames; nil pins none. A handle proves
	// its own key; a pin decides only whether the key may be used.
	Keys Keys
	// RequirePin refuses verified senders that Keys does not know.
	RequirePin bool
	// RequireVerified refuses unverified senders.
	RequireVerified bool
	// StrictProfile refuses plain peers whose proof has another profile.
	// Without it they are unverified.
	StrictProfile bool
	// Lenient keeps unknown top-level members; see [Decoder].
	Lenient bool
	// Memory, when set, makes Verify refuse messages that Memory has seen.
	Memory Memory
	Limits Limits
	Now    func() time.Time
}

func (v *Verifier) now() time.Time {
	if v.Now == nil {
		return time.Now()
	}
	return v.Now()
}

// Verify checks one received message. The bytes are kept, not copied. Errors are
// [*Error], or wrap an error of Keys or Memory.
func (v *Verifier) Verify(ctx context.Context, raw []byte) (*Verified, error) {
	_, verified, err := v.verify(ctx, raw)
	if err == nil && v.Memory != nil {
		err = v.remember(ctx, v.Memory, verified.Envelope)
	}
	if err != nil {
		return nil, err
	}
	return verified, nil
}

// remember consumes the replay key of e in m for as long as e could be accepted
// again. The key is (workspace_id, from, id), so that no peer can use up the id
// of another sender. The error is [ErrReplay] if the key was consumed before.
func (v *Verifier) remember(ctx context.Context, m Memory, e *Envelope) error {
	fresh, err := m.Seen(ctx, ReplayKey(e), v.Limits.Until(e))
	if err != nil {
		return refuse(ErrBusy, StepRouting, "id", "the replay memory cannot take it now").because(err)
	}
	if !fresh {
		return refuse(ErrReplay, StepRouting, "id", "was seen before")
	}
	return nil
}

// verify gives even a refused envelope, as far as it could be parsed, so that a
// receipt can be made for it; nil if raw was not JSON.
func (v *Verifier) verify(ctx context.Context, raw []byte) (*Envelope, *Verified, error) {
	d := Decoder{Lenient: v.Lenient, Handles: v.Trust, Limits: v.Limits}
	p, err := d.parse(raw)
	if p == nil {
		return nil, nil, err
	}
	fresh := func(p *parsed) error { return v.Limits.Fresh(p.Envelope, v.now()) }
	if err = p.pass(err, d.fields, fresh, d.surface, d.body); err != nil {
		return p.Envelope, nil, err
	}
	verdict, err := v.trust(ctx, p.Envelope)
	if err != nil {
		return p.Envelope, nil, err
	}
	if card := cardOf(p.Envelope); card != nil && card.privileged() && !verdict.Verified {
		return p.Envelope, nil, refuse(ErrPrivileged, StepTrust, "proof", "the card claims a privileged capability")
	}
	return p.Envelope, &Verified{Envelope: p.Envelope, Verdict: verdict}, nil
}

func cardOf(e *Envelope) *Card {
	switch c := e.content.(type) {
	case *Greet:
		return c.Card
	case *Whois:
		return c.Card
	}
	return nil
}

type proofWire struct {
	Profile jsonx.Value `json:"profile"`
	Alg     jsonx.Value `json:"alg"`
	KeyID   jsonx.Value `json:"key_id"`
	Pubkey  jsonx.Value `json:"pubkey"`
	Sig     jsonx.Value `json:"sig"`
}

// trust is RFC 004 §6. A handle without a valid proof of the profile is always
// rejected: if an unknown profile only made it unverified, an attacker could strip
// the signature by renaming the profile.
func (v *Verifier) trust(ctx context.Context, e *Envelope) (Verdict, error) {
	if !v.Trust {
		return Verdict{Trust: TrustUnverified}, nil
	}
	nickname, fingerprint, isHandle := SplitHandle(e.From)
	if e.Proof == nil {
		return v.unsigned(isHandle, "a handle needs a proof")
	}
	var w proofWire
	if err := jsonx.Decode(e.Proof, &w); err != nil {
		return Verdict{}, malformed(StepTrust, "proof", "has not the shape of a proof").because(err)
	}
	if text(w.Profile) != Profile {
		if v.StrictProfile && !isHandle {
			err := refuse(ErrSignature, StepTrust, "proof.profile", "is not supported")
			err.Code = ReasonUnsupportedProfile
			return Verdict{}, err
		}
		return v.unsigned(isHandle, "a handle needs a proof of the profile "+Profile)
	}
	if text(w.Alg) != "Ed25519" {
		return Verdict{}, refuse(ErrSignature, StepTrust, "proof.alg", "must be Ed25519")
	}
	pub, err := PublicKey(text(w.Pubkey))
	if err != nil {
		return Verdict{}, err
	}
	keyID := KeyID(pub)
	switch {
	case text(w.KeyID) != keyID:
		return Verdict{}, refuse(ErrSignature, StepTrust, "proof.key_id", "is not that of the key")
	case !isHandle:
		return Verdict{}, refuse(ErrSignature, StepTrust, "from", "must be a handle when the profile is used")
	case "sha256:"+fingerprint != keyID[:len("sha256:")+32]:
		return Verdict{}, refuse(ErrSignature, StepTrust, "from", "has the fingerprint of another key")
	}
	sigText := text(w.Sig)
	sig, err := b64.DecodeString(sigText)
	if err != nil || len(sigText) != 86 || len(sig) != ed25519.SignatureSize {
		return Verdict{}, refuse(ErrSignature, StepTrust, "proof.sig",
			"must be 64 bytes in base64url without padding").because(err)
	}
	signed, err := SignedBytes(e.raw)
	if err != nil {
		return Verdict{}, refuse(ErrSignature, StepTrust, "", "has no canonical form").because(err)
	}
	if !edkeys.Verify(pub, signed, sig) {
		return Verdict{}, refuse(ErrSignature, StepTrust, "proof.sig", "does not verify")
	}
	pinned, err := v.pinned(ctx, e.From, nickname, pub)
	if err != nil {
		return Verdict{}, err
	}
	return Verdict{Trust: TrustVerified, Handle: e.From, KeyID: keyID, Pinned: pinned, Verified: true}, nil
}

func (v *Verifier) unsigned(isHandle bool, why string) (Verdict, error) {
	switch {
	case isHandle:
		return Verdict{}, refuse(ErrSignature, StepTrust, "proof", why)
	case v.RequireVerified:
		return Verdict{}, refuse(ErrSignature, StepTrust, "proof", "only verified senders are taken here")
	}
	return Verdict{Trust: TrustUnverified}, nil
}

// pinned is local policy, step 14: the pins of the handle, else of the nickname.
func (v *Verifier) pinned(ctx context.Context, handle, nickname string, pub ed25519.PublicKey) (bool, error) {
	keysOf := v.Keys
	if keysOf == nil {
		keysOf = StaticKeys{}
	}
	for _, id := range []string{handle, nickname} {
		keys, err := keysOf.Keys(ctx, id)
		if err != nil {
			return false, refuse(ErrUnknownKey, StepTrust, "from", "pins cannot be read now").because(err)
		}
		if len(keys) == 0 {
			continue
		}
		if !slices.ContainsFunc(keys, func(k ed25519.PublicKey) bool { return k.Equal(pub) }) {
			return false, refuse(ErrUnknownKey, StepTrust, "proof.pubkey", "is not the pinned key")
		}
		return true, nil
	}
	if v.RequirePin {
		return false, refuse(ErrUnknownKey, StepTrust, "from", "is not pinned")
	}
	return false, nil
}

// text gives v as a string, "" if v is no JSON string.
func text(v jsonx.Value) string {
	var s string
	if len(v) == 0 || v.Kind() != '"' || jsonx.Decode(v, &s) != nil {
		return ""
	}
	return s
}
