package inspect

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/parley-hub/parley/asp"
)

func recognisesASP(s *Sample) bool {
	return s.http && strings.HasPrefix(s.path(), "/v1/asp/sessions") || s.Has("performative", "sessionId", "integrity")
}

// aspMeanings of the envelope's members.
var aspMeanings = []meaning{
	{"version", "asp/1.0; signed"},
	{"messageId", "UUID of version 7; not signed"},
	{"sessionId", "UUID of version 7; signed"},
	{"sequenceNumber", "the sender's own counter, from 0 without gaps; signed"},
	{"timestamp", "milliseconds and Z; signed"},
	{"sender", "agentId is signed; orgId, trustScore and dpopProof are not"},
	{"recipient", "the agent that should act; not signed"},
	{"performative", "what the message does; signed"},
	{"content", "what the hash covers: mimeType, body, context"},
	{"integrity", "content hash, link to the message before, signature"},
	{"constraints", "wishes for the answer; advisory, not signed"},
}

func inspectASP(ctx context.Context, s *Sample, o Options) (*Report, error) {
	v := newReport()
	v.Version = strings.TrimPrefix(Decoded(s.members()["version"]), "asp/")
	v.members(s.members(), aspMeanings, unquoted, "")
	e, err := asp.Decode(s.Body)
	if err != nil {
		aspFailed(v, err, "It is no message of ASP: ")
		return v, nil
	}
	hash, err := asp.ContentHash(e.CanonicalContent())
	if err != nil {
		return nil, err
	}
	v.Signed = append(v.Signed,
		signedStep("content in canonical JSON", string(e.CanonicalContent())),
		signedStep("its SHA-256, which integrity.hash must be", hash),
		signedStep("eight texts joined by NUL (shown as line ends), which Ed25519 signs",
			strings.ReplaceAll(string(e.SigningInput()), "\x00", "\n")))
	v.SignedBytes = e.SigningInput()
	keys, err := aspKeys(e.Sender.AgentID, o)
	if err != nil {
		return nil, err
	}
	if keys == nil {
		v.pass("size", "syntax", "schema", "version", "body size")
		if hash != e.Integrity.Hash {
			v.differs("content", e.Integrity.Hash, hash)
			v.fail("content hash", "it is "+hash,
				"The content was changed: it does not have the hash that was signed.", "")
			return v, nil
		}
		v.pass("content hash")
		v.skip("no key of the sender is known", "signature", "proof")
		v.Sentence = "It is well-formed and its content has its hash; its sender is not proved without the " +
			"sender's card (--card FILE)."
		return v, nil
	}
	verifier := &asp.Verifier{Keys: keys, Now: func() time.Time { return o.Now }}
	got, err := verifier.Verify(ctx, s.Body, asp.Transport{})
	if err != nil {
		aspFailed(v, err, "It would be refused: ")
		return v, nil
	}
	for _, c := range got.Verdict.Checks {
		v.pass(c.Name)
	}
	v.Verified = true
	v.Sentence = fmt.Sprintf("%s signed it, as message %d of its own in session %s. Whether it is a part of that "+
		"session, the session's transcript says.", e.Sender.AgentID, e.SequenceNumber, e.SessionID)
	return v, nil
}

// aspFailed shows the checks that led to a refusal.
func aspFailed(v *Report, err error, lead string) {
	e, ok := errors.AsType[*asp.Error](err)
	if !ok {
		v.fail("message", err.Error(), lead+"it cannot be read.", "")
		return
	}
	name := "message"
	for _, c := range asp.VerdictOf(err).Checks {
		if c.Code == "" {
			v.pass(c.Name)
		} else {
			name = c.Name
		}
	}
	fix := ""
	switch e.Code {
	case "timestamp_out_of_window", "dpop_iat_out_of_window":
		fix = "It may have been in time: judge it with --now at the time of its arrival."
	case "bad_signature":
		fix = "Compare the signed texts above with what the sender signs; the hash is lower-case hexadecimal with " +
			"its prefix."
	case "dpop_ath_mismatch", "dpop_htu_mismatch":
		fix = "The proof of a message is for htm ASP and htu asp://SESSION."
	}
	v.fail(name, strings.TrimSpace(e.Code+" "+e.Path), lead+e.Text+".", fix)
}

// aspKeys gives the user's keys: a card, or a bare Ed25519 key. A bare key cannot check
// proofs, so with it no message is verified in full.
func aspKeys(sender string, o Options) (asp.Keys, error) {
	if o.Card == nil {
		if len(o.Keys) > 0 {
			return nil, errors.New("an ASP message is verified with the sender's card, which holds both of its " +
				"keys: --card FILE")
		}
		return nil, nil
	}
	card, err := asp.ParseCard(o.Card)
	if err != nil {
		return nil, fmt.Errorf("--card: %w", err)
	}
	if card.AgentID != sender {
		return nil, fmt.Errorf("--card is that of %s, the message claims to be from %s", card.AgentID, sender)
	}
	return card, nil
}
