package asp

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
	"encoding/hex"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/parley-hub/parley/internal/edkeys"
	"github.com/parley-hub/parley/internal/jsonx"
)

// A Verifier checks single messages, as far as that needs no session. Its zero value
// is strict but knows no keys. It is safe for concurrent use; its fields must not
// change after the first use.
//
// The steps are numbered as the checks of a live message are:
//
//	 1 size              2 syntax            3 schema and grammar
//	 4 version           5 size of the body  6 transport identity, organization
//	 7 session (S)       8 content hash      9 signature
//	10 duplicate (S)    11 proof            12 sequenceNumber (S)
//	13 messageId (S)    14 link (S)         15 timestamp
//	16 state, role (S)  17 body             18 trust, rate (S)
//
// Only the [Server] does the steps marked (S). The first step that fails decides. A
// proof is remembered only after all other steps.
//
// The signature does not cover the recipient, so a Verifier has no field for its own
// agent: the chain of a session determines its participants.
type Verifier struct {
	Keys   Keys             // nil: no agent is known
	Memory Memory           // nil: in process, bounded
	Now    func() time.Time // nil: time.Now

	once   sync.Once
	memory Memory
}

// A Transport is the context in which a message arrived.
type Transport struct {
	Format      Format // empty: JSON
	Agent       string // the authenticated agent; empty: not authenticated
	AccessToken string // the token that the connection carried
}

// Verified is a message that passed the checks.
type Verified struct {
	*Envelope
	Verdict Verdict
	Proof   *Proof
}

// A Verdict lists the checks that were made.
type Verdict struct {
	Checks    []Check
	KeyID     string // of the Ed25519 key
	Assurance string // "signed"
}

// A Check is a step that passed, or the step that failed.
type Check struct {
	Step int
	Name string
	Code string // empty: passed
}

var stepNames = [...]string{
	1:  "size",
	2:  "syntax",
	3:  "schema",
	4:  "version",
	5:  "body size",
	6:  "sender",
	7:  "session",
	8:  "content hash",
	9:  "signature",
	10: "duplicate",
	11: "proof",
	12: "sequence",
	13: "messageId",
	14: "link",
	15: "timestamp",
	16: "state",
	17: "body",
	18: "trust",
}

// VerdictOf lists the checks up to err: those before its step passed.
func VerdictOf(err error) Verdict {
	e := asError(err)
	v := Verdict{Assurance: "unsigned"}
	for step := 1; step < min(len(stepNames), e.Step); step++ {
		v.Checks = append(v.Checks, Check{Step: step, Name: stepNames[step]})
	}
	if e.Step > 0 && e.Step < len(stepNames) {
		v.Checks = append(v.Checks, Check{e.Step, stepNames[e.Step], e.Code})
	}
	if e.Step > 9 {
		v.Assurance = "signed"
	}
	return v
}

// Verify reads and checks one message.
func (v *Verifier) Verify(ctx context.Context, raw []byte, t Transport) (*Verified, error) {
	e, err := cmp.Or(t.Format, JSON).Decode(raw)
	if err != nil {
		return nil, err
	}
	key, proof, err := v.check(ctx, e, t)
	if err != nil {
		return nil, err
	}
	if err := checkBody(e.Performative, e.body()); err != nil {
		return nil, liveBody(err)
	}
	fresh, err := v.mem().Seen(ctx, proof.ReplayKey(), proof.Until)
	if err != nil {
		return nil, atStep(err, 11)
	}
	if !fresh {
		return nil, refuse("dpop_jti_replayed", "sender.dpopProof").at(11)
	}
	return &Verified{e, signedVerdict(key.ID(), 6, 8, 9, 11, 15, 17), proof}, nil
}

// liveBody makes the path of a fault in a body relative to the envelope.
func liveBody(err error) error {
	e := asError(err)
	if e.Code == "invalid_body" {
		e.Path = strings.TrimSuffix("content.body."+e.Path, ".")
	}
	return e.at(17)
}

func signedVerdict(keyID string, steps ...int) Verdict {
	v := Verdict{KeyID: keyID, Assurance: "signed", Checks: make([]Check, 0, 5+len(steps))}
	for step := 1; step <= 5; step++ {
		v.Checks = append(v.Checks, Check{Step: step, Name: stepNames[step]})
	}
	for _, step := range steps {
		v.Checks = append(v.Checks, Check{Step: step, Name: stepNames[step]})
	}
	return v
}

func (v *Verifier) mem() Memory {
	v.once.Do(func() {
		v.memory = v.Memory
		if v.memory == nil {
			v.memory = NewMemory(0, v.Now)
		}
	})
	return v.memory
}

// check is steps 6, 8, 9, 11 (without memory) and 15.
func (v *Verifier) check(ctx context.Context, e *Envelope, t Transport) (Key, *Proof, error) {
	now := clock(v.Now)()
	if t.Agent != "" && t.Agent != e.Sender.AgentID {
		return Key{}, nil, refuse("sender_mismatch", "sender.agentId").at(6)
	}
	var keys []Key
	if v.Keys != nil {
		var err error
		if keys, err = v.Keys.Keys(ctx, e.Sender.AgentID); err != nil {
			return Key{}, nil, refuseCause("internal", "", err).at(9)
		}
	}
	key, known := keyAt(keys, now)
	if known && key.OrgID != "" && key.OrgID != e.Sender.OrgID {
		return Key{}, nil, refuse("sender_mismatch", "sender.orgId").at(6)
	}
	if err := e.checkSigned(key, known); err != nil {
		return Key{}, nil, err
	}
	proof, err := e.checkProof(key, t.AccessToken, now, window{}, false)
	if err != nil {
		return Key{}, nil, err
	}
	if err := e.checkTime(now); err != nil {
		return Key{}, nil, err
	}
	return key, proof, nil
}

func keyAt(keys []Key, t time.Time) (Key, bool) {
	for _, k := range slices.Backward(keys) {
		if k.ValidAt(t) {
			return k, true
		}
	}
	return Key{}, false
}

// checkSigned is steps 8 and 9; known: the sender has a key.
func (e *Envelope) checkSigned(key Key, known bool) error {
	if err := e.checkHash(); err != nil {
		return err
	}
	switch {
	case !known:
		return refuse("key_unknown", "sender.agentId").at(9)
	case !e.signedBy(key.Signing):
		return refuse("bad_signature", "integrity.signature").at(9)
	}
	return nil
}

// checkHash is step 8. The details of the refusal say if the hash was computed without
// NFC.
func (e *Envelope) checkHash() error {
	if hashOf(e.content) == e.Integrity.Hash {
		return nil
	}
	err := refuse("hash_mismatch", "integrity.hash").at(8)
	if plain, jcsErr := jsonx.Canonicalize(e.root.get("content").raw); jcsErr == nil &&
		hashOf(plain) == e.Integrity.Hash {
		err.Details = map[string]any{"detail": "non_nfc_canonicalisation"}
	}
	return err
}

// signedBy is step 9: the signature is valid, and no part of its input contains NUL,
// the separator.
func (e *Envelope) signedBy(pub ed25519.PublicKey) bool {
	input := e.SigningInput()
	return bytes.Count(input, []byte{0}) == 7 && signatureHolds(pub, input, e.Integrity.Signature)
}

// signatureHolds verifies a signature of "ed25519:" and hex over input: its form, S
// below the group order, no key of small order.
func signatureHolds(pub ed25519.PublicKey, input []byte, signature string) bool {
	if !validSignature(signature) {
		return false
	}
	sig, err := hex.DecodeString(signature[len("ed25519:"):])
	return err == nil && edkeys.Verify(pub, input, sig)
}

// checkProof is step 11 without the memory of proofs. made means that this process
// made the proof, with this key, for this session.
func (e *Envelope) checkProof(key Key, token string, now time.Time, w window, made bool) (*Proof, error) {
	refused := func(err error) (*Proof, error) {
		r := asError(err)
		r.Path = "sender.dpopProof"
		return nil, r.at(11)
	}
	if key.Proof == nil {
		return refused(refuse("dpop_key_mismatch", ""))
	}
	if made && token == "" {
		proof := e.made.proof
		if !w.holds(proof.IssuedAt, now) {
			return refused(refuse("dpop_iat_out_of_window", ""))
		}
		proof.Until = w.until(proof.IssuedAt)
		return &proof, nil
	}
	proof, err := checkProof(e.Sender.DPoPProof, proofClaims{Method: messageMethod, URL: messageURL(e.SessionID),
		Key: key.Proof, AccessToken: token, Now: now, Window: w})
	if err != nil {
		return refused(err)
	}
	return proof, nil
}

// MaxSkew bounds how far a timestamp may lie from the server's time, both ways
// (project).
const MaxSkew = 300 * time.Second

// checkTime is step 15.
func (e *Envelope) checkTime(now time.Time) error {
	t, ok := ParseTimestamp(e.Timestamp)
	if d := now.Sub(t).Abs(); !ok || d > MaxSkew {
		return refuse("timestamp_out_of_window", "timestamp").at(15)
	}
	return nil
}
