package samvad

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/parley-hub/parley/internal/jsonx"
)

// Mode is a delivery mode (SAMVAD 1.2 §5).
type Mode string

// The three delivery modes.
const (
	ModeSync   Mode = "sync"
	ModeAsync  Mode = "async"
	ModeStream Mode = "stream"
)

func (m Mode) valid() bool { return m == ModeSync || m == ModeAsync || m == ModeStream }

// Bounds of the request schema, in code points.
const (
	minNonce = 8
	maxNonce = 64
	maxSkill = 64
)

// An Envelope is a request as it travels in the body of a POST (SAMVAD 1.2
// §4, request-envelope schema).
type Envelope struct {
	From      string    // the sender's identity, agent://host[:port]
	To        string    // the receiver's identity, as its card spells it
	Skill     string    // id of the skill, at most 64 code points
	Mode      Mode      // the mode that the sender asks for; the endpoint decides
	Nonce     string    // 8 to 64 code points, unique per sender
	Timestamp time.Time // when it was made
	TraceID   string    // root correlation id, the same over all hops
	SpanID    string    // id of the sender's hop

	ParentSpanID    string          // span of the hop before; "" at the root
	DelegationToken string          // compact JWS; see [Delegation]
	Auth            *Auth           // credentials for authenticated skills
	CallbackURL     string          // async only
	Payload         json.RawMessage // a JSON object, numbers as written; nil counts as {}
	Replaced        bool            // in Payload, as decoded, U+FFFD stands for halves of surrogate pairs; Raw has them

	raw       []byte
	delegated bool // delegationToken was there, though perhaps empty
	callback  bool // callbackUrl was there, though perhaps empty
}

// Auth carries credentials in the envelope.
type Auth struct {
	Scheme string // "bearer" or "none"
	Token  string
}

// Raw gives the bytes that the envelope was decoded from, not to be changed;
// nil for one that was not decoded.
func (e *Envelope) Raw() []byte { return e.raw }

// Delegated reports whether a delegation token is present, be it empty.
func (e *Envelope) Delegated() bool { return e.delegated || e.DelegationToken != "" }

// HasCallback reports whether a callback URL is present, be it empty.
func (e *Envelope) HasCallback() bool { return e.callback || e.CallbackURL != "" }

// ReplayKey names the message in a [Memory]: addressed agent, sender, nonce.
// Neither identity can hold a line feed.
func (e *Envelope) ReplayKey() string { return e.To + "\n" + e.From + "\n" + e.Nonce }

// Until gives the first moment at which the envelope is stale, so that its nonce
// need not be remembered any more: it is fresh up to timestamp plus window, that
// moment included (SAM-050, SAM-053).
func (e *Envelope) Until(window time.Duration) time.Time {
	return e.Timestamp.Add(window + time.Nanosecond)
}

// wireEnvelope is the envelope as JSON. Pointers tell absent (or null) from
// empty.
type wireEnvelope struct {
	From            *string         `json:"from"`
	To              *string         `json:"to"`
	Skill           *string         `json:"skill"`
	Mode            *string         `json:"mode"`
	Nonce           *string         `json:"nonce"`
	Timestamp       *string         `json:"timestamp"`
	TraceID         *string         `json:"traceId"`
	SpanID          *string         `json:"spanId"`
	ParentSpanID    *string         `json:"parentSpanId,omitzero"`
	DelegationToken *string         `json:"delegationToken,omitzero"`
	Auth            *wireAuth       `json:"auth,omitzero"`
	CallbackURL     *string         `json:"callbackUrl,omitzero"`
	Payload         json.RawMessage `json:"payload"`

	replaced bool // Payload is not as it was written; see [Envelope.Replaced]
}

type wireAuth struct {
	Scheme *string `json:"scheme,omitzero"`
	Token  *string `json:"token,omitzero"`
}

// readWire reads the members of an envelope. The payload is a part of b, or of
// its repaired copy.
func readWire(b []byte) (*wireEnvelope, error) {
	whole, replaced, err := jsonx.Whole(b)
	if err != nil && !replaced {
		whole = b // Decode explains the error
	}
	if replaced {
		from, to := jsonx.Find(whole, "payload")
		if !bytes.Equal(whole[:from], b[:from]) || !bytes.Equal(whole[to:], b[to:]) {
			return nil, &jsonx.Error{Is: jsonx.ErrSyntax} // only content may be cut
		}
	}
	w := wireEnvelope{replaced: replaced}
	if err := jsonx.Decode(whole, &w); err != nil {
		return nil, err
	}
	w.Payload = share(whole, w.Payload)
	return &w, nil
}

// Decode reads an envelope: strict JSON, every required member, types and
// bounds of the schema, from an identity of host and port. Members it does not
// know are skipped (SAM-031); null counts as absent for the optional ones
// (SAM-037), an absent payload as {} (SAM-038). Half a surrogate pair, which
// JavaScript writes where it cut a text, is accepted in the payload alone, in
// member names too; see [Envelope.Replaced]. Names that then are the same are
// duplicates. Errors are [*Error] wrapping [ErrMalformed].
//
// The envelope shares b: do not change it.
func Decode(b []byte) (*Envelope, error) {
	w, err := readWire(b)
	if err != nil {
		return nil, refuse(ErrMalformed, jsonText(err), err)
	}
	bad := func(text string) (*Envelope, error) {
		e := refuse(ErrMalformed, "Invalid envelope: "+text+".", errors.New(text))
		e.TraceID = given(w.TraceID)
		return nil, e
	}
	for _, m := range [...]struct {
		name  string
		value *string
	}{
		{"from", w.From}, {"to", w.To}, {"skill", w.Skill}, {"mode", w.Mode}, {"nonce", w.Nonce},
		{"timestamp", w.Timestamp}, {"traceId", w.TraceID}, {"spanId", w.SpanID},
	} {
		if m.value == nil {
			return bad(m.name + " is missing")
		}
	}
	e := &Envelope{
		From: *w.From, To: *w.To, Skill: *w.Skill, Mode: Mode(*w.Mode), Nonce: *w.Nonce,
		TraceID: *w.TraceID, SpanID: *w.SpanID, raw: b,
	}
	if _, _, err := splitAgent(e.From); err != nil {
		return bad("from is not agent://host[:port]")
	}
	if !strings.HasPrefix(e.To, agentScheme) {
		return bad("to does not begin with agent://")
	}
	if utf8.RuneCountInString(e.Skill) > maxSkill {
		return bad("skill has more than 64 characters")
	}
	if !e.Mode.valid() {
		return bad("mode is not sync, async or stream")
	}
	if n := utf8.RuneCountInString(e.Nonce); n < minNonce || n > maxNonce {
		return bad("nonce has not 8 to 64 characters")
	}
	var ok bool
	e.Timestamp, ok = parseTimestamp(*w.Timestamp)
	if !ok {
		return bad("timestamp is not an RFC 3339 date-time with zone")
	}
	e.ParentSpanID = given(w.ParentSpanID)
	e.DelegationToken, e.delegated = given(w.DelegationToken), w.DelegationToken != nil
	e.CallbackURL, e.callback = given(w.CallbackURL), w.CallbackURL != nil
	if a := w.Auth; a != nil {
		if a.Scheme != nil && *a.Scheme != "bearer" && *a.Scheme != "none" {
			return bad("auth.scheme is not bearer or none")
		}
		e.Auth = &Auth{given(a.Scheme), given(a.Token)}
	}
	if !isNull(w.Payload) {
		if kindOf(w.Payload) != '{' {
			return bad("payload is not an object")
		}
		e.Payload, e.Replaced = w.Payload, w.replaced
	}
	return e, nil
}

// given is an optional member; "" where it is absent.
func given(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// RawPayload gives the payload as it was written, which differs from Payload if
// [Envelope.Replaced] is set. Nil if the envelope was not decoded, or has none.
func (e *Envelope) RawPayload() json.RawMessage {
	whole, _, err := jsonx.Whole(e.raw)
	if err != nil {
		return nil
	}
	from, to := jsonx.Find(whole, "payload")
	return json.RawMessage(e.raw[from:to:to])
}

// share gives the bytes of v as they lie in b, so that the decoder's copy can be
// freed.
func share(b []byte, v json.RawMessage) json.RawMessage {
	if i := bytes.Index(b, v); i >= 0 {
		return json.RawMessage(b[i : i+len(v) : i+len(v)])
	}
	return v
}

// Encode writes the envelope compactly (a payload with half a surrogate pair as
// it is): always a payload object, never a null, no member that the schema does
// not have (SAM-031, SAM-152).
func (e *Envelope) Encode() ([]byte, error) {
	w := wireEnvelope{From: &e.From, To: &e.To, Skill: &e.Skill, Mode: new(string(e.Mode)), Nonce: &e.Nonce,
		Timestamp: new(formatTimestamp(e.Timestamp)),
		TraceID:   &e.TraceID, SpanID: &e.SpanID, ParentSpanID: optional(e.ParentSpanID),
		DelegationToken: optional(e.DelegationToken), CallbackURL: optional(e.CallbackURL),
		Payload: json.RawMessage("{}")}
	if e.Auth != nil {
		w.Auth = &wireAuth{Scheme: optional(e.Auth.Scheme), Token: &e.Auth.Token}
	}
	_, replaced, _ := jsonx.Whole(e.Payload)
	if !replaced && !isNull(e.Payload) {
		w.Payload = e.Payload
	}
	b, err := jsonx.Encode(&w)
	if err != nil {
		return nil, fmt.Errorf("samvad: envelope: %w", err)
	}
	if replaced { // the encoder refuses half a surrogate pair
		b = append(append(b[:len(b)-len("{}}")], e.Payload...), '}')
	}
	if _, err := Decode(b); err != nil {
		return nil, err
	}
	return b, nil
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// timestampLayout is the form of the TypeScript SDK: milliseconds, UTC.
const timestampLayout = "2006-01-02T15:04:05.000Z"

// formatTimestamp writes a timestamp as the TypeScript SDK does, in UTC with
// three decimals.
func formatTimestamp(t time.Time) string { return t.UTC().Format(timestampLayout) }

// parseTimestamp reads an RFC 3339 date-time. A zone is required; a comma, a
// space in place of T, and a leap second are not accepted. Fractions finer
// than a nanosecond are cut.
func parseTimestamp(s string) (time.Time, bool) {
	if len(s) < len("2006-01-02T15:04:05Z") || len(s) > 64 {
		return time.Time{}, false
	}
	for i, c := range "dddd-dd-ddTdd:dd:dd" {
		switch {
		case c == 'd' && '0' <= s[i] && s[i] <= '9':
		case c == 'T' && s[i] == 't':
		case c != 'd' && rune(s[i]) == c:
		default:
			return time.Time{}, false
		}
	}
	date, clock, rest := s[:10], s[11:19], s[19:]
	if rest[0] == '.' {
		n := 1
		for n < len(rest) && '0' <= rest[n] && rest[n] <= '9' {
			n++
		}
		if n == 1 || n == len(rest) {
			return time.Time{}, false
		}
		clock += rest[:min(n, 10)]
		rest = rest[n:]
	}
	switch {
	case rest == "Z" || rest == "z":
		rest = "Z"
	case len(rest) == 6 && (rest[0] == '+' || rest[0] == '-') && rest[3] == ':' && rest[1:3] < "24" && rest[4:6] < "60":
	default:
		return time.Time{}, false
	}
	t, err := time.Parse(time.RFC3339Nano, date+"T"+clock+rest)
	return t, err == nil
}

// jsonText describes a JSON error for a guest, without the content.
func jsonText(err error) string {
	e, ok := errors.AsType[*jsonx.Error](err)
	if !ok {
		return ""
	}
	text := "Invalid envelope: " + e.Is.Error()
	if e.Pointer != "" && len(e.Pointer) < 80 && errors.Is(e.Is, jsonx.ErrType) {
		text += " at " + e.Pointer
	}
	return text + "."
}

// kindOf gives the first byte of a JSON value, '0' for any number and 0 for none.
func kindOf(v json.RawMessage) byte { return byte(jsonx.Value(v).Kind()) }

// isNull reports whether a member is absent or null.
func isNull(v json.RawMessage) bool { return jsonx.IsNull(jsonx.Value(v)) }
