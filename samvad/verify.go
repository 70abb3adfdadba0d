package samvad

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/parley-hub/parley/internal/edkeys"
	"github.com/parley-hub/parley/internal/httpsig"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/internal/netguard"
)

// Assurance says how far the sender is proved.
type Assurance string

// Degrees of a verdict.
const (
	Unsigned Assurance = "unsigned" // lightweight mode: nothing
	Signed   Assurance = "signed"   // the message is signed by a key known for its sender
)

// A Verdict is the outcome of verification, check by check.
type Verdict struct {
	Checks     []Check // in the order in which they were made; the last one decided
	KeyID      string  // keyid of the signature; when it failed: the claimed one
	KeySource  string  // [Key.Source]
	Label      string  // of the signature in the headers
	SignedPath string  // the @path that verified
	StrictBase bool    // signed over the base of RFC 9421, without SAMVAD's final line feed
	Legacy     bool    // a body signature of protocol 1.1
	Assurance  Assurance
}

// A Check is one step of verification.
type Check struct {
	Name   Step
	OK     bool
	Detail string // for the operator; never sent
}

// Verified is a message whose sender is proved.
type Verified struct {
	*Envelope
	Verdict Verdict

	checks [8]Check
}

// A Verifier checks requests for one agent, or for many through
// [Verifier.CheckMessage]. Its fields must not change while it is in use; it
// is safe for concurrent use and must not be copied. The zero value knows no
// sender and so refuses everything.
type Verifier struct {
	Self   string // the agent's identity: to must be equal to it
	Keys   Keys   // the keys of the senders; nil: no sender is known
	Memory Memory // nil: [NewMemory] of default size
	Now    func() time.Time
	Limits Limits

	// NotBefore refuses messages made earlier: set it to the start of the
	// process when Memory does not outlive it (SAM-057).
	NotBefore time.Time

	// Prefix is the base path under which the agent is known outside, when a
	// proxy removes it before the request arrives here.
	Prefix string

	// Legacy accepts the body signature of protocol 1.1 from senders whose
	// card does not say 1.2 (SAM-170).
	Legacy bool

	once   sync.Once
	memory Memory
}

// Incoming is a request in pieces, for callers without an *http.Request.
type Incoming struct {
	Self   string // the addressed agent; "" = the verifier's
	Method string // as received
	// what @path may be: as received, escaped, without the query; then other forms that are this agent's
	Paths     []string
	RawQuery  string
	Scheme    string // of the request, if known
	Authority string // the Host header
	Header    http.Header
	Body      []byte
}

// Verify checks a request and reserves its nonce: media type, size, envelope,
// recipient, freshness, replay, digest, key and signature, in this order.
// r.Body stays readable. The error is an [*Error] with the verdict.
func (v *Verifier) Verify(r *http.Request) (*Verified, error) {
	in, err := v.read(r)
	if err != nil {
		return nil, err
	}
	m, err := v.CheckMessage(r.Context(), in)
	if err != nil {
		return nil, err
	}
	if err := v.Reserve(r.Context(), m); err != nil {
		return nil, err
	}
	return m, nil
}

// Reserve takes the nonce of a checked message; [ErrReplay] if it was taken before.
func (v *Verifier) Reserve(ctx context.Context, m *Verified) error {
	if err := v.reserve(ctx, m.Envelope); err != nil {
		return m.fail(StepReplay, err)
	}
	return nil
}

func (v *Verifier) reserve(ctx context.Context, e *Envelope) error {
	fresh, err := v.mem().Seen(ctx, e.ReplayKey(), e.Until(v.Limits.window()))
	switch {
	case err != nil:
		return because(ErrUnavailable, err)
	case !fresh:
		return ErrReplay
	}
	return nil
}

func (v *Verifier) now() time.Time { return nowOf(v.Now) }

// nowOf asks a clock; nil is that of the system.
func nowOf(clock func() time.Time) time.Time {
	if clock == nil {
		return time.Now()
	}
	return clock()
}

func (v *Verifier) mem() Memory {
	if v.Memory != nil {
		return v.Memory
	}
	v.once.Do(func() { v.memory = NewMemory(0, v.now) })
	return v.memory
}

// read checks method, media type and size of a request, and reads its body.
func (v *Verifier) read(r *http.Request) (*Incoming, error) {
	if r.Method != http.MethodPost {
		return nil, refuse(ErrMethod, "", nil)
	}
	if err := checkMediaType(r.Header); err != nil {
		return nil, refuse(ErrMediaType, "", err)
	}
	body, err := readBody(r, v.Limits.maxBody())
	if err != nil {
		return nil, err
	}
	in := &Incoming{
		Method: r.Method, Paths: signedPaths(requestPath(r), v.Prefix), RawQuery: r.URL.RawQuery,
		Scheme: "http", Authority: r.Host, Header: r.Header, Body: body,
	}
	if r.TLS != nil {
		in.Scheme = "https"
	}
	return in, nil
}

func checkMediaType(h http.Header) error {
	ct := h["Content-Type"]
	if len(ct) == 1 && ct[0] == "application/json" && h["Content-Encoding"] == nil {
		return nil
	}
	if len(ct) != 1 {
		return fmt.Errorf("%d Content-Type fields", len(ct))
	}
	if t, _, err := mime.ParseMediaType(ct[0]); err != nil || t != "application/json" {
		return fmt.Errorf("media type %q", clip(ct[0]))
	}
	if enc := h.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		return fmt.Errorf("content encoding %q", clip(enc))
	}
	return nil
}

// readBody reads at most limit bytes and leaves r.Body readable from its start.
func readBody(r *http.Request, limit int64) ([]byte, error) {
	if r.ContentLength > limit {
		return nil, refuse(ErrTooLarge, "", nil)
	}
	if r.Body == nil {
		return nil, nil
	}
	b, err := netguard.ReadAll(r.Body, limit)
	var tooLarge *http.MaxBytesError
	switch {
	case errors.Is(err, netguard.ErrTooLarge) || errors.As(err, &tooLarge):
		return nil, refuse(ErrTooLarge, "", err)
	case err != nil:
		return nil, refuse(ErrMalformed, "The request body could not be read.", err)
	}
	r.Body = io.NopCloser(bytes.NewReader(b))
	return b, nil
}

// requestPath gives the path as it stood in the request line: escaped,
// without the query, nothing cleaned.
func requestPath(r *http.Request) string {
	if !strings.HasPrefix(r.RequestURI, "/") {
		return r.URL.EscapedPath()
	}
	path, _, _ := strings.Cut(r.RequestURI, "?")
	return path
}

// signedPaths gives what @path may be for a request to path (SAM-022): the
// path itself (TypeScript clients), its fixed endpoint suffix (Python
// clients), and the path that it had before a proxy removed prefix.
func signedPaths(path, prefix string) []string {
	paths := []string{path}
	for _, e := range [...]string{pathMessage, pathTask, pathStream} {
		if path != e && strings.HasSuffix(path, e) {
			paths = append(paths, e)
		}
	}
	prefix = strings.TrimRight(prefix, "/")
	if prefix != "" {
		for _, p := range paths {
			paths = append(paths, prefix+p)
		}
	}
	return paths
}

// The fixed paths (SAMVAD 1.2 §6).
const (
	pathMessage = "/agent/message"
	pathTask    = "/agent/task"
	pathStream  = "/agent/stream"
	pathIntro   = "/agent/intro"
	pathHealth  = "/agent/health"
)

func (m *Verified) pass(s Step) {
	m.Verdict.Checks = append(m.Verdict.Checks, Check{Name: s, OK: true})
}

// fail ends verification at a step: the verdict goes with the error.
func (m *Verified) fail(s Step, err error) *Error {
	e := *AsError(err)
	e.Step = s
	m.Verdict.Checks = append(m.Verdict.Checks, Check{Name: s, Detail: err.Error()})
	m.Verdict.Assurance = Unsigned
	e.Verdict = new(m.Verdict)
	if m.Envelope != nil {
		e.TraceID = m.TraceID
		e.envelope = m.Envelope
	}
	return &e
}

// CheckMessage is [Verifier.Verify] for a request in pieces, without media type
// and size, and without the reservation: the nonce is looked up but stays free.
// To accept the message, call [Verifier.Reserve] or record it in another way that
// happens at most once per [Envelope.ReplayKey].
func (v *Verifier) CheckMessage(ctx context.Context, in *Incoming) (*Verified, error) {
	m := &Verified{}
	m.Verdict.Checks, m.Verdict.Assurance = m.checks[:0], Unsigned

	e, derr := Decode(in.Body)
	if derr != nil {
		return nil, m.fail(StepEnvelope, derr)
	}
	m.Envelope = e
	m.pass(StepEnvelope)

	if self := cmp.Or(in.Self, v.Self); e.To != self {
		return nil, m.fail(StepRecipient, because(ErrRecipient, fmt.Errorf("to is %q, this is %q", clip(e.To), self)))
	}
	m.pass(StepRecipient)

	now := v.now()
	if err := v.fresh(e.Timestamp, now); err != nil {
		return nil, m.fail(StepFreshness, err)
	}
	m.pass(StepFreshness)

	// Look-up only: an unauthenticated repeat may learn that the nonce was
	// used, but cannot use one up.
	known, err := v.mem().Known(ctx, e.ReplayKey())
	if err != nil {
		return nil, m.fail(StepReplay, because(ErrUnavailable, err))
	}
	if known {
		return nil, m.fail(StepReplay, ErrReplay)
	}
	m.pass(StepReplay)

	keys := v.Keys
	if keys == nil {
		keys = StaticKeys(nil)
	}
	if v.Legacy && !signedHeaders(in.Header) {
		if err := m.checkLegacy(ctx, in, keys); err != nil {
			return nil, err
		}
	} else if err := m.checkSignature(ctx, in, keys, now); err != nil {
		return nil, err
	}
	m.Verdict.Assurance = Signed
	return m, nil
}

func (v *Verifier) fresh(ts, now time.Time) error {
	switch {
	case now.Sub(ts) > v.Limits.window():
		return because(ErrStale, fmt.Errorf("%s old", now.Sub(ts)))
	case ts.Sub(now) > v.Limits.skew():
		return because(ErrStale, fmt.Errorf("%s in the future", ts.Sub(now)))
	case ts.Before(v.NotBefore):
		return because(ErrStale,
			fmt.Errorf("made before %s, where the memory begins", v.NotBefore.Format(time.RFC3339)))
	}
	return nil
}

func signedHeaders(h http.Header) bool {
	return len(h[headerDigest])+len(h[headerInput])+len(h[headerSignature]) > 0
}

func (m *Verified) checkSignature(ctx context.Context, in *Incoming, keys Keys, now time.Time) *Error {
	sigs, err := m.checkHeaders(in, now)
	if err != nil {
		return err
	}
	if err := httpsig.CheckDigest(in.Header[headerDigest][0], in.Body); err != nil {
		return m.fail(StepDigest, because(ErrDigest, err))
	}
	m.pass(StepDigest)
	return m.checkKey(ctx, in, sigs, keys)
}

// checkHeaders gives the signatures of the headers that fit the profile.
func (m *Verified) checkHeaders(in *Incoming, now time.Time) ([]httpsig.Signature, *Error) {
	sigs, err := candidates(in.Header, now)
	if err != nil {
		return nil, m.fail(StepHeaders, err)
	}
	m.Verdict.KeyID, m.Verdict.Label = sigs[0].KeyID, sigs[0].Label
	m.pass(StepHeaders)
	return sigs, nil
}

// checkKey finds the sender's key and verifies its signature over the headers.
func (m *Verified) checkKey(ctx context.Context, in *Incoming, sigs []httpsig.Signature, keys Keys) *Error {
	list, err := keys.Keys(ctx, m.From)
	if err != nil && !errors.Is(err, ErrUnknownKey) {
		return m.fail(StepKey, because(ErrUnknownKey, err))
	}
	unknown := err // why no key is known, for the operator
	pairs, err := match(sigs, list)
	if errors.Is(err, ErrUnknownKey) && len(list) > 0 {
		if r, ok := keys.(Refresher); ok {
			if list, rerr := r.Refresh(ctx, m.From); rerr == nil {
				pairs, err = match(sigs, list)
			}
		}
	}
	if err != nil {
		if unknown != nil && errors.Is(err, ErrUnknownKey) {
			// As text: the message is refused because no key is known, not for the
			// cause of the card's refusal.
			err = because(ErrUnknownKey, errors.New(unknown.Error()))
		}
		return m.fail(StepKey, err)
	}
	m.Verdict.KeyID, m.Verdict.Label = pairs[0].sig.KeyID, pairs[0].sig.Label
	m.pass(StepKey)

	if err := m.verify(in, pairs); err != nil {
		return m.fail(StepSignature, err)
	}
	m.pass(StepSignature)
	return nil
}

// VerifySignature checks the three headers of a request against keys and
// nothing else: neither envelope nor time window nor nonce. In.Paths are
// compared verbatim.
func VerifySignature(in *Incoming, now time.Time, keys ...Key) (*Verdict, error) {
	m := &Verified{Envelope: &Envelope{From: "x"}}
	if err := m.checkSignature(context.Background(), in, StaticKeys{"x": keys}, now); err != nil {
		return err.Verdict, err
	}
	m.Verdict.Assurance = Signed
	return &m.Verdict, nil
}

// VerifyDetached is [VerifySignature] without the body: it proves that a key
// signed the method, the path and the Content-Digest of the headers, and nothing
// about the bytes of In.Body. The verdict's assurance stays [Unsigned].
func VerifyDetached(in *Incoming, now time.Time, keys ...Key) (*Verdict, error) {
	m := &Verified{Envelope: &Envelope{From: "x"}, Verdict: Verdict{Assurance: Unsigned}}
	sigs, err := m.checkHeaders(in, now)
	if err == nil {
		err = m.checkKey(context.Background(), in, sigs, StaticKeys{"x": keys})
	}
	if err != nil {
		return err.Verdict, err
	}
	return &m.Verdict, nil
}

// candidates gives the signatures that fit the profile: all three components
// covered, keyid and created there, alg absent or ed25519, not expired.
func candidates(h http.Header, now time.Time) ([]httpsig.Signature, error) {
	for _, name := range [...]string{headerDigest, headerInput, headerSignature} {
		switch n := len(h[name]); {
		case n == 0:
			return nil, because(ErrUnsigned, fmt.Errorf("no %s", name))
		case n > 1:
			return nil, because(ErrHeaders, fmt.Errorf("%d fields %s", n, name))
		}
	}
	all, err := httpsig.Parse(h[headerInput][0], h[headerSignature][0])
	if err != nil {
		return nil, because(ErrHeaders, err)
	}
	fit := all[:0]
	why := errors.New("no signature")
	for _, s := range all {
		if err := profile(&s, now); err != nil {
			why = fmt.Errorf("%s: %w", clip(s.Label), err)
			continue
		}
		fit = append(fit, s)
	}
	if len(fit) == 0 {
		return nil, because(ErrHeaders, why)
	}
	return fit, nil
}

func profile(s *httpsig.Signature, now time.Time) error {
	switch {
	case s.Bytes == nil:
		return errors.New("no such label in Signature")
	case !s.Covers("@method", "@path", "content-digest"):
		return errors.New("does not cover @method, @path and content-digest")
	case s.HasAlg && s.Alg != "ed25519":
		return fmt.Errorf("alg %q", clip(s.Alg))
	case !s.HasKeyID:
		return errors.New("no keyid")
	case !s.HasCreated:
		return errors.New("no created")
	case s.HasExpires && now.Unix() >= s.Expires:
		return errors.New("expired")
	}
	return nil
}

type pair struct {
	sig *httpsig.Signature
	key *Key
}

// maxTries bounds the signatures that are tried when nothing tells which one
// is the sender's own (a raw key that answers to any keyid).
const maxTries = 4

// match finds the signature that is the sender's by its keyid. A revoked key of that
// name refuses it, even if other keys have the name.
func match(sigs []httpsig.Signature, keys []Key) ([]pair, error) {
	var named, raw []pair
	for i := range sigs {
		s := &sigs[i]
		var found *Key
		for j := range keys {
			k := &keys[j]
			switch {
			case k.KID == "" && !k.Revoked:
				if len(raw) < maxTries {
					raw = append(raw, pair{s, k})
				}
			case k.KID == s.KeyID && k.Revoked:
				return nil, because(ErrInactiveKey, fmt.Errorf("keyid %q", clip(s.KeyID)))
			case k.KID == s.KeyID:
				if found != nil {
					return nil, because(ErrUnknownKey, fmt.Errorf("keyid %q is ambiguous", clip(s.KeyID)))
				}
				found = k
			}
		}
		if found != nil {
			named = append(named, pair{s, found})
		}
	}
	switch {
	case len(named) > 1:
		return nil, because(ErrHeaders, errors.New("several signatures of the sender"))
	case len(named) == 1:
		return named, nil
	case len(raw) > 0:
		return raw, nil
	}
	return nil, because(ErrUnknownKey, fmt.Errorf("keyid %q", clip(sigs[0].KeyID)))
}

// verify tries the signature over every base that it may be meant for: each
// allowed path, with SAMVAD's final line feed (§4.1) and without (RFC 9421).
func (m *Verified) verify(in *Incoming, pairs []pair) error {
	hm := httpsig.Message{
		Method: strings.ToUpper(in.Method), RawQuery: in.RawQuery,
		Scheme: in.Scheme, Authority: in.Authority, Header: in.Header,
	}
	var room [512]byte
	for _, p := range pairs {
		if len(p.key.Public) != ed25519.PublicKeySize {
			return because(ErrBadKey, fmt.Errorf("key %q", clip(p.sig.KeyID)))
		}
		for _, path := range in.Paths {
			hm.Path = path
			base, err := hm.AppendBase(room[:0], p.sig)
			if err != nil {
				return because(ErrHeaders, err)
			}
			base = append(base, '\n')
			strict := !edkeys.Verify(p.key.Public, base, p.sig.Bytes)
			if strict && !edkeys.Verify(p.key.Public, base[:len(base)-1], p.sig.Bytes) {
				continue
			}
			m.Verdict.KeyID, m.Verdict.Label, m.Verdict.KeySource = p.sig.KeyID, p.sig.Label, p.key.Source
			m.Verdict.SignedPath, m.Verdict.StrictBase = path, strict
			return nil
		}
	}
	return ErrSignature
}

// checkLegacy verifies the body signature of protocol 1.1.
func (m *Verified) checkLegacy(ctx context.Context, in *Incoming, keys Keys) *Error {
	m.Verdict.Legacy = true
	var w struct {
		KID       *string `json:"kid"`
		Signature *string `json:"signature"`
	}
	if err := jsonx.Decode(in.Body, &w); err != nil || w.KID == nil || w.Signature == nil {
		return m.fail(StepHeaders,
			because(ErrUnsigned, errors.New("neither signature headers nor kid and signature in the body")))
	}
	m.Verdict.KeyID = *w.KID
	sig, err := base64.StdEncoding.DecodeString(*w.Signature)
	if err != nil {
		return m.fail(StepHeaders, because(ErrHeaders, errors.New("signature is not base64")))
	}
	m.pass(StepHeaders)
	list, err := keys.Keys(ctx, m.From)
	if err != nil && !errors.Is(err, ErrUnknownKey) {
		return m.fail(StepKey, because(ErrUnknownKey, err))
	}
	for _, k := range list {
		if k.Version != "" && k.Version != legacyVersion {
			return m.fail(StepKey, ErrDowngrade)
		}
	}
	pairs, err := match([]httpsig.Signature{{KeyID: *w.KID}}, list)
	if err != nil {
		return m.fail(StepKey, err)
	}
	m.pass(StepKey)
	base, err := LegacyBase(in.Body)
	if err != nil {
		return m.fail(StepSignature, because(ErrSignature, err))
	}
	for _, p := range pairs {
		if edkeys.Verify(p.key.Public, base, sig) {
			m.Verdict.KeySource = p.key.Source
			m.pass(StepSignature)
			return nil
		}
	}
	return m.fail(StepSignature, ErrSignature)
}
