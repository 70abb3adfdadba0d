package inspect

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/internal/jsonx"
)

func recognisesAGH(s *Sample) bool {
	var m struct {
		Protocol    string      `json:"protocol"`
		WorkspaceID jsonx.Value `json:"workspace_id"`
	}
	return json.Unmarshal(s.Body, &m) == nil && (strings.HasPrefix(m.Protocol, "agh-network/") ||
		len(m.WorkspaceID) > 0)
}

var aghMeanings = []meaning{
	{"protocol", "agh-network/v0"},
	{"id", "used once by its sender in a workspace; a second one is a duplicate"},
	{"workspace_id", "the outermost scope; nothing crosses it"},
	{"kind", "greet, whois, say, capability, receipt or trace"},
	{"channel", "where peers meet, within the workspace"},
	{"surface", "thread (public in the channel) or direct (a room of two)"},
	{"thread_id", "the public conversation"},
	{"direct_id", "the room, derived from workspace, channel and the two peers"},
	{"from", "the claimed sender: a peer id, or a handle that a key proves"},
	{"to", "the peer that is addressed; null is everybody in the channel"},
	{"work_id", "the piece of work that it belongs to"},
	{"reply_to", "the message that it answers"},
	{"trace_id", "the same over all that follows from one cause"},
	{"causation_id", "the message that caused it"},
	{"ts", "when it was made, Unix seconds; fresh for 300 s without expires_at"},
	{"expires_at", "until when it may be delivered, Unix seconds"},
	{"body", "the content, by kind"},
	{"proof", "opaque in v0; with the trust profile, key and signature"},
	{"ext", "extensions; unknown ones are kept"},
}

// The steps of the envelope page, in its order.
var aghSteps = []struct {
	step agh.Step
	name string
	fix  string
}{
	{agh.StepParse, "json", "Send one JSON object with the exact member names, each once, as UTF-8."},
	{agh.StepFields, "fields", "See the field that is named: its grammar is in the table of the envelope page."},
	{agh.StepFreshness, "freshness", "Check the sender's clock, or give the message an expires_at; --now judges it " +
		"at another time."},
	{agh.StepSurface, "surface", "A thread has thread_id, a room direct_id and to; greet and whois have neither."},
	{agh.StepBody, "body", "See the body of this kind on the message kinds page."},
	{agh.StepTrust, "proof", "Sign the RFC 8785 form of the whole envelope without proof.sig."},
}

func inspectAGH(ctx context.Context, s *Sample, o Options) (*Report, error) {
	pins, err := aghPins(o.Keys)
	if err != nil {
		return nil, err
	}
	v := newReport()
	var members map[string]jsonx.Value
	if json.Unmarshal(s.Body, &members) == nil {
		v.Version = strings.TrimPrefix(Decoded(members["protocol"]), "agh-network/")
		v.members(members, aghMeanings, Decoded, "no member of the protocol")
	}
	verifier := agh.Verifier{Trust: true, Keys: pins, RequirePin: len(o.Keys) > 0,
		Now: func() time.Time { return o.Now }}
	verified, err := verifier.Verify(ctx, s.Body)
	failed, ok := errors.AsType[*agh.Error](err)
	if err != nil && !ok {
		return nil, err
	}
	signed := verified != nil && verified.Verdict.Verified
	reached := true
	for _, step := range aghSteps {
		switch {
		case !reached:
			v.skip("an earlier check failed", step.name)
		case failed != nil && failed.Step == step.step:
			v.fail(step.name, failed.Error(),
				"A receiver refuses this message as "+string(failed.Code)+": "+failed.Error()+".", step.fix)
			reached = false
		case step.step == agh.StepTrust && !signed:
			v.skip("the sender is a plain peer id: AGH v0 proves nothing of it", step.name)
		default:
			v.pass(step.name)
		}
	}
	if b, err := agh.SignedBytes(s.Body); err == nil && (signed || failed != nil && failed.Step == agh.StepTrust) {
		v.Signed = append(v.Signed, signedStep("the envelope without proof.sig, in RFC 8785 form", string(b)))
		v.SignedBytes = b
	}
	if verified == nil {
		return v, nil
	}
	e := verified.Envelope
	if e.Surface == agh.SurfaceDirect {
		if e.InRoom(e.To) {
			v.ok("room", "direct_id is that of from and to")
		} else {
			v.fail("room", "direct_id is not derived from this workspace, this channel, from and to",
				"The room is not that of the two peers: it is delivered to no peer.",
				"Derive direct_id as the protocol says, from the peers in byte order.")
		}
	}
	if o.Self != "" {
		if e.To == "" || e.To == o.Self {
			v.pass("target")
		} else {
			v.fail("target", "it is addressed to "+e.To, "It is not addressed to "+o.Self+".", "")
		}
	}
	if subject, err := e.Subject(); err == nil {
		v.field("(subject)", subject, "where it is published on NATS")
	}
	if v.Sentence != "" {
		return v, nil
	}
	v.Verified = signed
	if signed {
		v.Sentence = "It is proved that the key of " + e.From + " signed this message."
	} else {
		v.Sentence = "It is a valid message; that it is from " + e.From + " is a claim, which only the connection " +
			"that it came by can support."
	}
	return v, nil
}

// aghKeys are the keys of the flags, for any sender.
type aghKeys []ed25519.PublicKey

func (k aghKeys) Keys(context.Context, string) ([]ed25519.PublicKey, error) { return k, nil }

func aghPins(texts []string) (agh.Keys, error) {
	var keys aghKeys
	for _, text := range texts {
		b, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(strings.NewReplacer("+", "-", "/",
			"_").Replace(text), "="))
		if err != nil || len(b) != ed25519.PublicKeySize {
			return nil, fmt.Errorf("--key %s: want the base64 of an Ed25519 public key, 32 bytes", short(text, 60))
		}
		keys = append(keys, b)
	}
	return keys, nil
}
