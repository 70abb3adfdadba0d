package agh

import (
	"crypto/ed25519"

	"github.com/parley-hub/parley/internal/jsonx"
)

// Sign gives the bytes of e, sent by the identity: from becomes its handle and
// proof a signature of the trust profile over the RFC 8785 form of the whole
// envelope (RFC 004 §5). A peer card in the body must already name
// [Identity.ID].
func (i *Identity) Sign(e *Envelope) ([]byte, error) {
	c := *e
	c.From, c.Proof = i.ID(), nil
	_, b, err := c.marshal()
	if err != nil {
		return nil, err
	}
	b, err = i.signJSON(b, nil)
	if err != nil {
		return nil, err
	}
	if _, err := (&Decoder{Lenient: true, Handles: true}).Decode(b); err != nil {
		return nil, err
	}
	return b, nil
}

// signJSON signs any envelope text, keeping each member as it is: members
// given as null stay, absent ones stay absent. It sets from and proof; extra
// holds further members of the proof, which are signed too (may be nil). The
// result is in canonical form.
func (i *Identity) signJSON(envelope []byte, extra map[string]any) ([]byte, error) {
	var m map[string]jsonx.Value
	if err := jsonx.Decode(envelope, &m); err != nil || m == nil {
		return nil, malformed(StepParse, "", "must be a JSON object").because(err)
	}
	proof := map[string]any{}
	for k, v := range extra {
		proof[k] = v
	}
	proof["profile"], proof["alg"], proof["key_id"], proof["pubkey"] = Profile, "Ed25519", KeyID(i.Public()),
		b64.EncodeToString(i.Public())
	delete(proof, "sig")
	var err error
	m["from"], err = jsonx.Encode(i.ID())
	if err != nil {
		return nil, err
	}
	signed, err := withProof(m, proof)
	if err != nil {
		return nil, err
	}
	proof["sig"] = b64.EncodeToString(ed25519.Sign(i.key, signed))
	return withProof(m, proof)
}

func withProof(m map[string]jsonx.Value, proof map[string]any) ([]byte, error) {
	var err error
	m["proof"], err = jsonx.Encode(proof)
	if err != nil {
		return nil, malformed(StepTrust, "proof", "cannot be written as JSON").because(err)
	}
	return canonical(m)
}

func canonical(m map[string]jsonx.Value) ([]byte, error) {
	b, err := jsonx.Encode(m)
	if err == nil {
		b, err = canonicalize(b)
	}
	if err != nil {
		return nil, malformed(StepTrust, "", "has no canonical form").because(err)
	}
	return b, nil
}

// SignedBytes gives the bytes that a proof's signature covers: the RFC 8785 form
// of the received envelope without proof.sig. Members that this package does not
// know are included.
func SignedBytes(envelope []byte) ([]byte, error) {
	var m, proof map[string]jsonx.Value
	if err := jsonx.Decode(envelope, &m); err != nil || m == nil {
		return nil, malformed(StepParse, "", "must be a JSON object").because(err)
	}
	if err := jsonx.Decode(m["proof"], &proof); err != nil || proof == nil {
		return nil, malformed(StepTrust, "proof", "must be an object").because(err)
	}
	delete(proof, "sig")
	b, err := jsonx.Encode(proof)
	if err != nil {
		return nil, malformed(StepTrust, "proof", "cannot be written as JSON").because(err)
	}
	m["proof"] = b
	return canonical(m)
}
