package inspect

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/edkeys"
	"github.com/parley-hub/parley/internal/httpsig"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/samvad"
)

// The paths that clients post to (SAMVAD 1.2 §6).
var SAMVADPaths = [...]string{"/agent/message", "/agent/task", "/agent/stream"}

func recognisesSAMVAD(s *Sample) bool {
	for _, p := range SAMVADPaths {
		if s.http && strings.HasSuffix(s.path(), p) {
			return true
		}
	}
	members := s.members()
	if members == nil {
		return len(s.header.Values("Signature-Input")) > 0
	}
	found := 0
	for _, name := range []string{"from", "to", "skill", "mode", "nonce", "timestamp", "traceId", "spanId", "payload"} {
		if members[name] != nil {
			found++
		}
	}
	return found >= 5 && members["skill"] != nil
}

// samvadMeanings of the envelope's members.
var samvadMeanings = []meaning{
	{"from", "the claimed sender"},
	{"to", "the agent that is addressed, as its card spells it"},
	{"skill", "the operation"},
	{"mode", "how the answer is wanted: sync, async or stream; the path decides"},
	{"nonce", "used once for each message, 8 to 64 characters"},
	{"timestamp", "when it was made; accepted for 300 s, and 60 s ahead"},
	{"traceId", "the same over all hops of an activity"},
	{"spanId", "this hop"},
	{"parentSpanId", "the hop before"},
	{"delegationToken", "a signed permission to act for another agent"},
	{"auth", "credentials for skills of the tier authenticated"},
	{"callbackUrl", "where the result of a task is posted to"},
	{"payload", "the content, by the skill's input schema"},
	{"kid", "protocol 1.1: the key of the signature in the body"},
	{"signature", "protocol 1.1: a signature in the body"},
}

func inspectSAMVAD(_ context.Context, s *Sample, o Options) (*Report, error) {
	keys, err := samvadKeys(o)
	if err != nil {
		return nil, err
	}
	s = samvadReceived(s, o, keys)
	v := newReport()
	samvadFields(v, s)
	v.Version = "1.2"
	if BodySigned(s.Body) {
		v.Version = "1.1"
	}
	e := samvadEnvelope(v, s, o)
	switch {
	case s.http:
		samvadSignature(v, s, o, e, keys)
	case e != nil && BodySigned(s.Body):
		samvadLegacy(v, s, keys)
	default:
		why := "only the body was given: the signature is in the headers of the request"
		v.skip(why, "headers", "digest", "key", "signature")
	}
	failed, skipped := false, []string{}
	for _, c := range v.Checks {
		failed = failed || c.State == admin.CheckFailed
		if c.State == admin.CheckSkipped {
			skipped = append(skipped, c.Name)
		}
	}
	v.Verified = !failed && !slices.Contains(skipped, "signature")
	switch {
	case failed:
	case v.Verified && len(skipped) > 0:
		v.Sentence = "It is proved that " + e.From + " signed this message; not checked: " + strings.Join(skipped,
			", ") + "."
	case v.Verified:
		v.Sentence = "It is proved that " + e.From + " signed this message."
	default:
		v.Sentence = "Nothing that could be checked is wrong; not checked: " + strings.Join(skipped, ", ") + "."
		switch {
		case s.http && len(keys) == 0 && o.Known != nil && e != nil:
			v.Fix = "The hub knows no key of " + e.From + ": parley keys enroll NAME --key KEY enrols one."
		case s.http && len(keys) == 0:
			v.Fix = "Give the sender's public key with --key, or its card with --card."
		}
	}
	return v, nil
}

// samvadReceived gives a recorded message as the request that it came in. The hub records the signature's headers, not
// the path: of those that it serves, the one that the signature covers is taken. Without one it stays an envelope.
func samvadReceived(s *Sample, o Options, keys []samvad.Key) *Sample {
	if o.Recorded == nil || s.http {
		return s
	}
	out := *s
	out.method, out.header = http.MethodPost, http.Header{}
	for name, value := range o.Recorded.Header {
		out.header.Set(name, value)
	}
	sigs, err := httpsig.Parse(out.header.Get("Signature-Input"), out.header.Get("Signature"))
	if err != nil || len(sigs) == 0 {
		return s
	}
	sig, usable, _ := samvadMatch(sigs, keys)
	for _, path := range SAMVADServed(o.Recorded.To, o.Base) {
		if ok, _ := (samvadSigned{s: &out, sig: sig, keys: usable}).over(out.method, path); ok {
			out.http, out.target = true, path
			return &out
		}
	}
	return s
}

// SAMVADServed lists the paths at which a hub with this address takes messages to an agent.
func SAMVADServed(to, base string) (out []string) {
	prefixes := []string{"", "/agents/" + to, "/agents/" + url.PathEscape(to)}
	if u, err := url.Parse(base); err == nil && strings.Trim(u.Path, "/") != "" {
		for _, p := range slices.Clone(prefixes) {
			prefixes = append(prefixes, strings.TrimRight(u.Path, "/")+p)
		}
	}
	for _, p := range prefixes {
		for _, end := range SAMVADPaths {
			out = append(out, p+end)
		}
	}
	return out
}

// samvadKeys gives the keys of the flags.
func samvadKeys(o Options) ([]samvad.Key, error) {
	var keys []samvad.Key
	for _, text := range o.Keys {
		k, err := samvad.ParseKey(text)
		if err != nil {
			return nil, fmt.Errorf("--key %s: want the base64 of an Ed25519 public key, 32 bytes: %w", short(text, 60),
				err)
		}
		k.Source = "--key"
		keys = append(keys, k)
	}
	if o.Card == nil {
		return keys, nil
	}
	card, err := samvad.DecodeCard(o.Card)
	if err != nil {
		return nil, fmt.Errorf("--card: %w", err)
	}
	for _, c := range card.PublicKeys {
		k, err := samvad.ParseKey(c.Key)
		if err != nil {
			return nil, fmt.Errorf("--card: key %s: %w", short(c.KID, 60), err)
		}
		k.KID, k.Revoked, k.Source, k.Version = c.KID, !c.Active, "card of "+card.ID, card.ProtocolVersion
		keys = append(keys, k)
	}
	return keys, nil
}

func samvadFields(v *Report, s *Sample) {
	if s.http {
		v.field("request", s.method+" "+s.target, "method and target as sent")
		if s.host != "" {
			v.field("Host", s.host, "not covered by the signature")
		}
		for _, h := range []struct{ name, meaning string }{
			{"Content-Type", "must be application/json"},
			{"Content-Digest", "SHA-256 of the body's bytes (RFC 9530)"},
			{"Signature-Input", "what is signed, by which key, when (RFC 9421)"},
			{"Signature", "Ed25519 over the signed bytes, base64"},
		} {
			for _, value := range s.header.Values(h.name) {
				v.field(h.name, value, h.meaning)
			}
		}
	}
	members := s.members()
	if members == nil {
		v.field("body", string(s.Body), plural(len(s.Body), "byte", "bytes")+" that cannot be read as a JSON object")
		return
	}
	v.members(members, samvadMeanings, Decoded, "not a member of the protocol; receivers skip it")
}

// samvadEnvelope makes the checks that need no signature; nil when the
// envelope cannot be read.
func samvadEnvelope(v *Report, s *Sample, o Options) *samvad.Envelope {
	if s.http {
		switch t := s.header.Get("Content-Type"); {
		case s.method != http.MethodPost:
			v.fail("transport", s.method, "Messages are sent with POST, this is a "+s.method+".", "")
		case strings.TrimSpace(strings.Split(t, ";")[0]) != "application/json":
			v.fail("transport", "Content-Type "+t, "The media type must be application/json.",
				"Set Content-Type: application/json.")
		default:
			v.ok("transport", plural(len(s.Body), "byte", "bytes"))
		}
	}
	e, err := samvad.Decode(s.Body)
	if err != nil {
		text := samvad.AsError(err).Text
		v.fail("envelope", text, "The body is not a SAMVAD envelope: "+strings.TrimPrefix(text,
			"Invalid envelope: "), "")
		v.skip("the envelope cannot be read", "recipient", "freshness")
		return nil
	}
	v.ok("envelope", "every member is there, with its type and within its bounds")
	switch {
	case o.Self == "":
		v.skip("--self says who should be addressed", "recipient")
	case e.To != o.Self:
		v.fail("recipient", e.To, fmt.Sprintf("It is addressed to %s, not to %s.", e.To, o.Self),
			"The sender must take \"to\" from the id of the agent's card.")
	default:
		v.ok("recipient", e.To)
	}
	age := o.Now.Sub(e.Timestamp)
	switch {
	case age > 300*time.Second:
		v.fail("freshness", age.Round(time.Second).String()+" old",
			fmt.Sprintf("It is %s old; 300 s are accepted.", age.Round(time.Second)),
			"For a message of the past, say with --now when it arrived.")
	case age < -60*time.Second:
		v.fail("freshness", (-age).Round(time.Second).String()+" ahead",
			fmt.Sprintf("It is dated %s ahead; 60 s are accepted.", (-age).Round(time.Second)),
			"Set the sender's clock.")
	default:
		v.ok("freshness", age.Round(time.Millisecond).String()+" old")
	}
	return e
}

// samvadSignature makes the checks of the three headers, each on its own.
func samvadSignature(v *Report, s *Sample, o Options, e *samvad.Envelope, keys []samvad.Key) {
	for _, name := range []string{"Content-Digest", "Signature-Input", "Signature"} {
		switch n := len(s.header.Values(name)); {
		case n == 0 && BodySigned(s.Body):
			samvadLegacy(v, s, keys)
			return
		case n != 1:
			v.fail("headers", fmt.Sprintf("%s: %d times", name, n),
				fmt.Sprintf("The header %s is there %d times; it must be there once.", name, n),
				"Sign the request: all three of Content-Digest, Signature-Input and Signature.")
			v.skip("the headers cannot be used", "digest", "key", "signature")
			return
		}
	}
	sigs, err := httpsig.Parse(s.header.Get("Signature-Input"), s.header.Get("Signature"))
	if err != nil {
		v.fail("headers", err.Error(), "Signature-Input or Signature is not a structured field.", "")
		v.skip("the headers cannot be used", "digest", "key", "signature")
		return
	}
	in := &samvad.Incoming{Method: s.method, Paths: []string{s.path()}, RawQuery: s.query(), Scheme: s.scheme,
		Authority: s.host, Header: s.header, Body: s.Body}
	verdict, err := samvad.VerifySignature(in, o.Now, keys...)
	badHeaders := err != nil && samvad.AsError(err).Step == samvad.StepHeaders
	if badHeaders {
		detail := verdict.Checks[len(verdict.Checks)-1].Detail
		v.fail("headers", detail, "The signature does not fit the profile of SAMVAD: "+lastPart(detail)+".",
			"One signature over (\"@method\" \"@path\" \"content-digest\") with keyid and created is wanted.")
	} else {
		v.ok("headers", fmt.Sprintf("label %s, keyid %q, created %s", sigs[0].Label, sigs[0].KeyID,
			stamp(time.Unix(sigs[0].Created, 0))))
	}
	signedBytes(v, s, &sigs[0])
	if digestFits(s.header, s.Body) {
		v.ok("digest", "Content-Digest is that of the body")
	} else {
		v.differs("content-digest", s.header.Get("Content-Digest"), httpsig.Digest(s.Body))
		v.fail("digest", "the body's is "+httpsig.Digest(s.Body),
			"Content-Digest is not that of the body: the body was changed after it was signed, or other bytes were "+
				"digested than were sent.",
			"Compute the digest over the very bytes that are sent.")
	}
	if len(keys) == 0 {
		v.skip("no key was given", "key", "signature")
		return
	}
	if badHeaders {
		v.skip("the headers cannot be used", "key", "signature")
		return
	}
	sig, usable, revoked := samvadMatch(sigs, keys)
	switch {
	case revoked:
		v.fail("key", sig.KeyID, fmt.Sprintf("The key %q is revoked.", sig.KeyID),
			"Sign with an active key.")
		v.skip("there is no key to verify it with", "signature")
		return
	case len(usable) == 0:
		v.fail("key", sig.KeyID, fmt.Sprintf("No key that was given is called %q.", sig.KeyID),
			"Give the key that the sender signs with, or enrol it.")
		v.skip("there is no key to verify it with", "signature")
		return
	}
	v.ok("key", fmt.Sprintf("%q, from %s", sig.KeyID, usable[0].Source))
	signed := samvadSigned{s: s, sig: sig, keys: usable}
	if ok, strict := signed.over(s.method, s.path()); ok {
		detail := "Ed25519 verifies"
		if strict {
			detail += ", over the base without SAMVAD's final line feed"
		}
		v.ok("signature", detail)
		return
	}
	samvadWhy(v, signed, e)
}

// samvadMatch finds the signature that names one of the keys, and the keys that may have
// made it. A key without an id matches any.
func samvadMatch(sigs []httpsig.Signature, keys []samvad.Key) (sig *httpsig.Signature, usable []samvad.Key,
	revoked bool) {
	for i := range sigs {
		sig = &sigs[i]
		for _, k := range keys {
			if k.KID == sig.KeyID && k.Revoked {
				return sig, nil, true
			}
			if k.KID == sig.KeyID || k.KID == "" && !k.Revoked {
				usable = append(usable, k)
			}
		}
		if len(usable) > 0 {
			return sig, usable, false
		}
	}
	return &sigs[0], nil, false
}

// samvadSigned checks a signature against the methods and paths that it may cover.
type samvadSigned struct {
	s    *Sample
	sig  *httpsig.Signature
	keys []samvad.Key
}

// over reports whether the signature verifies for a method and a path; strict: without
// the final line feed of SAMVAD §4.1.
func (t samvadSigned) over(method, path string) (ok, strict bool) {
	base, err := t.s.signatureBase(method, path, t.sig)
	if err != nil {
		return false, false
	}
	for _, k := range t.keys {
		if edkeys.Verify(k.Public, append(base, '\n'), t.sig.Bytes) {
			return true, false
		}
		if edkeys.Verify(k.Public, base, t.sig.Bytes) {
			return true, true
		}
	}
	return false, false
}

// signatureBase is the base of RFC 9421 for a method and a path, with the rest of the sample.
func (s *Sample) signatureBase(method, path string, sig *httpsig.Signature) ([]byte, error) {
	m := httpsig.Message{Method: strings.ToUpper(method), Scheme: s.scheme, Authority: s.host, Path: path,
		RawQuery: s.query(), Header: s.header}
	return m.AppendBase(nil, sig)
}

func lastPart(s string) string {
	if i := strings.LastIndex(s, ": "); i >= 0 {
		return s[i+2:]
	}
	return s
}

// signedBytes shows step by step how the signed bytes are made.
func signedBytes(v *Report, s *Sample, sig *httpsig.Signature) {
	add := func(step, text string) { v.Signed = append(v.Signed, signedStep(step, text)) }
	add("the body, "+plural(len(s.Body), "byte", "bytes")+", is digested", httpsig.Digest(s.Body))
	add("the covered components, in the order of Signature-Input", strings.Join(sig.Components, "\n"))
	base, err := s.signatureBase(s.method, s.path(), sig)
	if err != nil {
		add("the signature base cannot be made", err.Error())
		return
	}
	add("one line for each, and the parameters last: the signature base of RFC 9421 §2.5", string(base))
	add("SAMVAD §4.1 adds a line feed after the last line; Ed25519 signs these bytes",
		fmt.Sprintf("%d bytes", len(base)+1))
	v.SignedBytes = append(base, '\n')
	if sig.Bytes != nil {
		add("the signature", base64.StdEncoding.EncodeToString(sig.Bytes))
	}
}

// maxPaths bounds the paths that a signature is tried with.
const maxPaths = 64

// samvadWhy finds the method and path that an invalid signature covers.
func samvadWhy(v *Report, signed samvadSigned, e *samvad.Envelope) {
	path := signed.s.path()
	for _, p := range SAMVADPaths {
		if ok, _ := signed.over(signed.s.method, p); ok && strings.HasSuffix(path, p) {
			// SAM-022: this is how the Python SDK signs; receivers accept it.
			v.ok("signature", "Ed25519 verifies over "+p+", the fixed end of the path")
			return
		}
	}
	others := append([]string{strings.TrimRight(path, "/"), path + "/", strings.ReplaceAll(path, "//", "/"),
		signed.s.target}, SAMVADPaths[:]...)
	for i := 1; i < len(path) && len(others) < maxPaths; i++ { // behind a proxy that added a prefix
		if path[i] == '/' {
			others = append(others, path[i:])
		}
	}
	for _, p := range others {
		if ok, _ := signed.over(signed.s.method, p); ok {
			v.differs("@path", p, path)
			v.fail("signature", "verifies over "+p,
				fmt.Sprintf("It was signed over %s, but sent to %s.", p, path),
				"Sign the path that is requested; receivers also accept the fixed end of it (/agent/message, "+
					"/agent/task, /agent/stream). The receiver must know the public path of a proxy that changes paths "+
					"(public_url).")
			return
		}
	}
	for _, method := range []string{"POST", "GET", "PUT"} {
		if ok, _ := signed.over(method, path); ok {
			v.differs("@method", method, signed.s.method)
			v.fail("signature", "verifies for "+method,
				fmt.Sprintf("It was signed for the method %s, but sent with %s.", method, signed.s.method),
				"Sign the method that is used.")
			return
		}
	}
	who := "the sender"
	if e != nil {
		who = e.From
	}
	v.fail("signature", "Ed25519 does not verify over the signed bytes",
		fmt.Sprintf("The signature is not one of this key over these bytes: another key made it, or the method, the "+
			"path or the digest is not what %s signed.", who),
		"Compare the signed bytes with the sender's; the key must belong to the sender's private key.")
}

// BodySigned reports whether a body has a signature of protocol 1.1.
func BodySigned(body []byte) bool {
	var w struct {
		KID       string `json:"kid"`
		Signature string `json:"signature"`
	}
	return jsonx.Decode(body, &w) == nil && w.KID != "" && w.Signature != ""
}

// samvadLegacy checks the signature in the body of protocol 1.1.
func samvadLegacy(v *Report, s *Sample, keys []samvad.Key) {
	base, err := samvad.LegacyBase(s.Body)
	if err != nil {
		v.fail("headers", err.Error(), "The body of protocol 1.1 has no canonical form.", "")
		return
	}
	v.Signed = append(v.Signed,
		signedStep("protocol 1.1: the member signature is taken out of the body", ""),
		signedStep("the rest in canonical JSON (RFC 8785); Ed25519 signs these bytes", string(base)))
	v.SignedBytes = base
	v.ok("headers", "protocol 1.1: the signature is in the body; receivers take it only where they are set to")
	if len(keys) == 0 {
		v.skip("no key was given", "key", "signature")
		return
	}
	e, err := samvad.Decode(s.Body)
	if err != nil {
		v.skip("the envelope cannot be read", "key", "signature")
		return
	}
	verifier := &samvad.Verifier{Self: e.To, Keys: samvad.StaticKeys{e.From: keys}, Legacy: true,
		Limits: samvad.Limits{Window: 1 << 62, Skew: 1 << 62}}
	_, err = verifier.CheckMessage(context.Background(),
		&samvad.Incoming{Method: "POST", Header: http.Header{}, Body: s.Body})
	switch {
	case err == nil:
		v.pass("key")
		v.ok("signature", "Ed25519 verifies over the canonical body")
	case samvad.AsError(err).Step == samvad.StepKey:
		v.fail("key", lastPart(err.Error()),
			"No key that was given may sign this: "+lastPart(err.Error())+".", "")
		v.skip("there is no key to verify it with", "signature")
	default:
		v.pass("key")
		v.fail("signature", lastPart(err.Error()),
			"The signature in the body is not one of this key over the canonical body.", "")
	}
}
