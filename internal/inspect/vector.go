package inspect

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/parley-hub/parley/a2e"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/internal/httpsig"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/samvad"
	"github.com/parley-hub/parley/uagents"
)

// This file saves a message as a test vector: a file in the form of testdata/vectors, whose runner takes it.

// A savedFile is a file of testdata/vectors with one case.
type savedFile struct {
	Description string      `json:"description"`
	Source      string      `json:"source"`
	Cases       []savedCase `json:"cases"`
}

// A savedCase is a case, and the file whose form it has.
type savedCase struct {
	Name   string         `json:"name"`
	Input  map[string]any `json:"input"`
	Expect map[string]any `json:"expect"`
	Hub    map[string]any `json:"hub,omitzero"` // of agh/envelope-parse.json
	Note   string         `json:"note,omitzero"`

	file string
}

// vectorSource says who wrote the expectation. Vectors of the repository are made by other implementations.
const vectorSource = "Parley saved it with its own verdict (parley inspect --vector). No other implementation was " +
	"asked: compare expect with the specification before you rely on it."

// Vector saves a pasted message, or a recorded one, as a test vector: the message, what the verdict depends on, and
// this implementation's verdict. Secrets are masked first; the verdict is on the masked message.
func Vector(ctx context.Context, raw []byte, named string, o Options) ([]byte, error) {
	s, p, err := recognised(raw, named, &o)
	if err != nil {
		return nil, err
	}
	s, masked, err := s.masked()
	if err != nil {
		return nil, err
	}
	save := p.Vector
	if save == nil {
		save = p.request
	}
	c, err := save(ctx, s, o)
	if err != nil {
		return nil, err
	}
	c.Name = s.form + " of " + stamp(o.Now)
	if masked {
		c.Note = "Secrets in it were masked; a signature over them does not hold any more."
	}
	v := savedFile{Description: "In the form of " + c.file + ".", Source: vectorSource, Cases: []savedCase{*c}}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	if err := e.Encode(v); err != nil {
		return nil, fmt.Errorf("the vector cannot be written: %w", err)
	}
	return b.Bytes(), nil
}

// masked gives the sample without its secrets, and reports whether it had any.
func (s *Sample) masked() (*Sample, bool, error) {
	secrets := s.secrets()
	if len(secrets) == 0 {
		return s, false, nil
	}
	r := masking(secrets)
	out := *s
	out.target, out.Body, out.header = r.Replace(s.target), []byte(r.Replace(string(s.Body))), http.Header{}
	for name, values := range s.header {
		for _, v := range values {
			out.header.Add(name, r.Replace(v))
		}
	}
	if json.Valid(s.Body) && !json.Valid(out.Body) {
		return nil, false, errors.New("it is not saved: a secret in it is also a part of something else, and cannot be " +
			"masked")
	}
	return &out, true, nil
}

// text puts bytes into an input: as text, or else as base64 under the other name.
func text(in map[string]any, b []byte, name, base64Name string) {
	if utf8.Valid(b) {
		in[name] = string(b)
	} else {
		in[base64Name] = base64.StdEncoding.EncodeToString(b)
	}
}

// vectorSAMVAD makes a case of the three headers against the body and one key.
func vectorSAMVAD(_ context.Context, s *Sample, o Options) (*savedCase, error) {
	keys, err := samvadKeys(o)
	if err != nil {
		return nil, err
	}
	s = samvadReceived(s, o, keys)
	sigs, err := httpsig.Parse(s.header.Get("Signature-Input"), s.header.Get("Signature"))
	switch {
	case !s.http || err != nil || len(sigs) == 0:
		return nil, errors.New("a vector of SAMVAD has the method, the path and the signature's headers: give the whole " +
			"HTTP request")
	case len(keys) == 0:
		return nil, errors.New("a vector of SAMVAD has the sender's key: enrol it, or give it with --key")
	}
	key := keys[0]
	if _, usable, _ := samvadMatch(sigs, keys); len(usable) > 0 {
		key = usable[0]
	}
	h, headers := http.Header{}, map[string]string{}
	for _, name := range []string{"Content-Type", "Content-Digest", "Signature-Input", "Signature"} {
		if v := s.header.Values(name); len(v) > 0 {
			headers[strings.ToLower(name)] = strings.Join(v, ", ")
			h.Set(name, headers[strings.ToLower(name)])
		}
	}
	in := map[string]any{"method": s.method, "path": s.path(), "headers": headers,
		"public_key_base64": base64.StdEncoding.EncodeToString(key.Public)}
	text(in, s.Body, "body", "body_base64")
	// The form of the file: a key without an id, and the clock at the time of the signature.
	_, err = samvad.VerifySignature(&samvad.Incoming{Method: s.method, Paths: []string{s.path()}, Header: h, Body: s.Body},
		time.Unix(sigs[0].Created, 0), samvad.Key{Public: key.Public})
	return &savedCase{file: "testdata/vectors/samvad/verify.json", Input: in,
		Expect: map[string]any{"valid": err == nil}}, nil
}

// uagentsPolicies are the words of the vectors for what a hub refuses although its signature holds.
var uagentsPolicies = []struct {
	err    error
	policy string
}{
	{uagents.ErrAddress, "reject_noncanonical_address"}, {uagents.ErrAmbiguous, "expires_required_or_cap_lifetime"},
	{uagents.ErrSchemaDigest, "check_schema_digest_grammar"}, {uagents.ErrHorizon, "cap_expires_in_future"},
	{uagents.ErrStale, "reject_expired"},
}

// vectorUAgents makes a case of an envelope at a time, or of a body that is no envelope.
func vectorUAgents(_ context.Context, s *Sample, o Options) (*savedCase, error) {
	e, err := uagents.Decode(s.Body)
	if err != nil && utf8.Valid(s.Body) {
		return &savedCase{file: "testdata/vectors/uagents/envelope_parse.json",
			Input: map[string]any{"body": string(s.Body)}, Expect: map[string]any{"accepted": false}}, nil
	} else if err != nil {
		return nil, errors.New("it is not saved: a vector of uAgents is text, and this is none")
	}
	signature := e.VerifySignature()
	expect := map[string]any{"valid": signature == nil}
	if digest, err := e.Digest(); err == nil && signature == nil {
		expect["digest_hex"] = hex.EncodeToString(digest[:])
	}
	_, full := (&uagents.Verifier{Now: func() time.Time { return o.Now }}).Check(e)
	for _, p := range uagentsPolicies {
		if errors.Is(full, p.err) && (signature == nil || errors.Is(signature, p.err)) {
			expect["hub_policy"] = p.policy
		}
	}
	return &savedCase{file: "testdata/vectors/uagents/envelope_verify.json",
		Input: map[string]any{"envelope": json.RawMessage(s.Body), "now": o.Now.Unix()}, Expect: expect}, nil
}

// vectorA2E makes a case of a message that fits its type, of one that does not, or of a line that is none.
func vectorA2E(_ context.Context, s *Sample, o Options) (*savedCase, error) {
	line := firstLine(s.Body)
	m, err := a2e.NewRegistry().Decode(line)
	if e, ok := errors.AsType[*a2e.Error](err); ok && utf8.Valid(line) {
		return &savedCase{file: "testdata/vectors/a2e/host_frames.json", Input: map[string]any{"line": string(line)},
			Expect: map[string]any{"parley": map[string]any{"outcome": "error", "code": e.Code, "req_id": "<any>"}}}, nil
	} else if err != nil {
		return nil, err
	}
	in := map[string]any{"message": json.RawMessage(line)}
	if e, ok := errors.AsType[*a2e.Error](m.Check()); ok {
		var detail struct {
			Errors []struct {
				Path   string `json:"path"`
				Reason string `json:"reason"`
			} `json:"errors"`
		}
		if len(e.Detail) > 0 && jsonx.Decode(e.Detail, &detail) != nil {
			return nil, e
		}
		faults := []map[string]string{}
		for _, f := range detail.Errors {
			faults = append(faults, map[string]string{"path": f.Path, "kind": f.Reason})
		}
		return &savedCase{file: "testdata/vectors/a2e/messages_invalid.json", Input: in,
			Expect: map[string]any{"valid": false, "errors": faults, "parley_code": e.Code}}, nil
	}
	// The reference writes no member a2e.
	written := string(m.Complete(o.Now))
	if rest, ok := strings.CutPrefix(written, `{"a2e":"`+m.Version+`",`); ok {
		written = "{" + rest
	}
	return &savedCase{file: "testdata/vectors/a2e/messages_valid.json", Input: in,
		Expect: map[string]any{"valid": true, "reference_line": written}}, nil
}

// vectorAGH makes a case of the trust in a proof, or of an envelope that has none.
func vectorAGH(ctx context.Context, s *Sample, o Options) (*savedCase, error) {
	in, now := map[string]any{"now": o.Now.Unix()}, func() time.Time { return o.Now }
	text(in, s.Body, "raw", "raw_b64")
	if proof := s.members()["proof"]; !jsonx.IsNull(proof) || strings.Contains(Decoded(s.members()["from"]), "@") {
		got, err := (&agh.Verifier{Trust: true, Now: now}).Verify(ctx, s.Body)
		expect := map[string]any{"trust": "unverified"}
		if err != nil {
			expect = map[string]any{"trust": "rejected", "reason_code": agh.ReasonOf(err)}
		} else if got.Verdict.Verified {
			expect["trust"] = "verified"
		}
		return &savedCase{file: "testdata/vectors/agh/trust-verify.json", Input: in, Expect: expect}, nil
	}
	const replayAge = 300
	in["max_replay_age"] = replayAge
	c := &savedCase{file: "testdata/vectors/agh/envelope-parse.json", Input: in}
	got, err := (&agh.Verifier{Now: now, Limits: agh.Limits{MaxReplayAge: replayAge}}).Verify(ctx, s.Body)
	if err != nil {
		c.Expect = map[string]any{"ok": false, "reason_code": agh.ReasonOf(err)}
		c.Hub = maps.Clone(c.Expect)
		return c, nil
	}
	emitted, err := got.Envelope.Encode()
	if err != nil {
		return nil, err
	}
	c.Hub, c.Expect = map[string]any{"ok": true}, map[string]any{"ok": true}
	text(c.Expect, emitted, "emitted", "emitted_b64")
	return c, nil
}

// vectorASP makes a case of the envelope's schema.
func vectorASP(_ context.Context, s *Sample, _ Options) (*savedCase, error) {
	if !json.Valid(s.Body) {
		return nil, errors.New("it is not saved: a vector of ASP is a JSON object, and this is none")
	}
	expect := map[string]any{"accept": true}
	if _, err := asp.Decode(s.Body); err != nil {
		e, ok := errors.AsType[*asp.Error](err)
		if !ok {
			return nil, err
		}
		expect = map[string]any{"accept": false, "error": e.Code, "path": e.Path}
	}
	return &savedCase{file: "testdata/vectors/asp/envelope.json",
		Input: map[string]any{"message": json.RawMessage(s.Body)}, Expect: expect}, nil
}

// request makes a case of a request, of a protocol of which there are no vectors.
func (p *Protocol) request(ctx context.Context, s *Sample, o Options) (*savedCase, error) {
	v, err := p.Inspect(ctx, s, o)
	if err != nil {
		return nil, err
	}
	in := map[string]any{}
	if s.http {
		headers := map[string]string{}
		for name, values := range s.header {
			headers[strings.ToLower(name)] = strings.Join(values, ", ")
		}
		in["method"], in["target"], in["headers"] = s.method, s.target, headers
	}
	text(in, s.Body, "body", "body_base64")
	expect := map[string]any{"ok": true}
	if i := slices.IndexFunc(v.Checks, func(c admin.InspectedCheck) bool { return c.State == admin.CheckFailed }); i >= 0 {
		expect = map[string]any{"ok": false, "failing": v.Checks[i].Name}
	}
	return &savedCase{file: "a request or a body, as parley inspect reads it; testdata/vectors has none of this protocol",
		Input: in, Expect: expect}, nil
}
