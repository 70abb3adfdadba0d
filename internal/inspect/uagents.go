package inspect

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/parley-hub/parley/uagents"
)

func recognisesUAgents(s *Sample) bool {
	return s.http && strings.HasSuffix(s.path(), "/submit") || s.Has("sender", "target", "session", "schema_digest")
}

// uagentsMeanings of the envelope's members.
var uagentsMeanings = []meaning{
	{"version", "1; not signed"},
	{"sender", "the claimed sender: agent1… holds its public key, user1… proves nothing"},
	{"target", "the agent that is addressed"},
	{"session", "a random UUID that replies repeat"},
	{"schema_digest", "names the message's model"},
	{"protocol_digest", "names the protocol; not signed"},
	{"payload", "base64 of the message's JSON"},
	{"expires", "Unix seconds after which it is void"},
	{"nonce", "never set by the reference; alone it is ambiguous with expires"},
	{"signature", "secp256k1 over the digest below"},
}

func inspectUAgents(_ context.Context, s *Sample, o Options) (*Report, error) {
	v := newReport()
	v.Version = Decoded(s.members()["version"])
	v.members(s.members(), uagentsMeanings, unquoted, "")
	e, err := uagents.Decode(s.Body)
	if err != nil {
		v.fail("envelope", err.Error(), "It is no envelope: "+uagents.AsError(err).Text+".", "")
		return v, nil
	}
	v.pass("envelope")
	switch e.SchemaDigest {
	case uagents.ChatMessageDigest:
		v.field("(model)", "ChatMessage", "AgentChatProtocol")
	case uagents.ChatAcknowledgementDigest:
		v.field("(model)", "ChatAcknowledgement", "AgentChatProtocol")
	case uagents.ErrorMessageDigest:
		v.field("(model)", "ErrorMessage", "a failure; never answered by another")
	}
	if m, err := e.Message(); err == nil {
		v.field("(message)", string(m.Payload), "the payload, decoded")
	}
	if digest, err := e.Digest(); err == nil {
		payload := "(none)"
		if e.Payload != nil {
			payload = *e.Payload
		}
		v.Signed = append(v.Signed,
			signedStep("these texts, one after the other, nothing between",
				strings.Join([]string{e.Sender, e.Target, e.Session, e.SchemaDigest, payload}, "\n")),
			signedStep("then expires and nonce, 8 bytes each, where they are not null",
				fmt.Sprintf("expires %s, nonce %s", cmp.Or(string(e.Expires), "null"),
					cmp.Or(string(e.Nonce), "null"))),
			signedStep("SHA-256, which is signed as it is", hex.EncodeToString(digest[:])))
		v.SignedBytes = digest[:]
	}
	verifier := &uagents.Verifier{AllowUnsigned: true, Now: func() time.Time { return o.Now }}
	got, err := verifier.Check(e)
	if got != nil {
		for _, c := range got.Verdict.Checks {
			if c.OK {
				v.pass(c.Name)
			}
		}
	}
	if err != nil {
		x := uagents.AsError(err)
		fix := ""
		switch {
		case errors.Is(x, uagents.ErrStale):
			fix = "It may have been in time: judge it with --now at the time of its arrival."
		case errors.Is(x, uagents.ErrSignature):
			fix = "The payload must be forwarded byte for byte; the signature is over the digest itself, without a " +
				"second hash."
		}
		v.fail(x.Step, x.Error(), "It would be refused: "+x.Text+".", fix)
		return v, nil
	}
	if o.Self != "" && e.Target != o.Self {
		v.fail("target", e.Target, "It is addressed to another agent.", "")
		return v, nil
	}
	if got.Verdict.Assurance == uagents.Unsigned {
		v.skip("the sender is an unsigned user", "signature")
		v.Sentence = "It is well-formed and unsigned: it proves nothing about its sender."
		return v, nil
	}
	v.Verified = true
	v.Sentence = "The key of " + e.Sender + " signed it."
	return v, nil
}
