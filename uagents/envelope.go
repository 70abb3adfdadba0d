package uagents

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"github.com/parley-hub/parley/internal/jsonx"
)

// An Int is a whole number or null, as an envelope carries it: decimal digits
// without leading zeros, "" for null. Envelopes may carry numbers of any
// size; only those from 0 to 2^64-1 can be signed.
type Int string

// Uint is the Int of n.
func Uint(n uint64) Int { return Int(strconv.FormatUint(n, 10)) }

// IsNull reports whether i is absent or null.
func (i Int) IsNull() bool { return i == "" }

// Uint64 is the value, if it has one between 0 and 2^64-1.
func (i Int) Uint64() (uint64, bool) {
	n, err := strconv.ParseUint(string(i), 10, 64)
	return n, err == nil
}

// An Envelope carries one message. The zero values of its optional fields are
// null on the wire.
type Envelope struct {
	Version        Int     // 1 in every envelope sent; not signed, never trusted
	Sender         string  // agent1… or user1…
	Target         string  // agent1…, bare
	Session        string  // UUID v4, lower case, hyphenated
	SchemaDigest   string  // model: and 64 hexadecimal digits
	ProtocolDigest *string // informational; not signed, never trusted
	Payload        *string // base64 of the message text, exactly as received
	Expires        Int     // Unix seconds
	Nonce          Int     // never set by the reference
	Signature      *string // sig1…

	raw       []byte
	duplicate bool
}

// Raw is the JSON text that the envelope was read from; nil for an envelope
// made here. The caller must not change it.
func (e *Envelope) Raw() []byte { return e.raw }

// Duplicate reports whether the text held a member name twice. The last member counts,
// as in the reference, but no honest client writes such a text, and [Verifier] refuses
// it.
func (e *Envelope) Duplicate() bool { return e.duplicate }

// NewEnvelope makes an unsigned envelope with version 1 around a message. An
// empty session becomes a new one; the zero time means no expiry.
func NewEnvelope(sender, target, session string, m Message, expires time.Time) (*Envelope, error) {
	if m.err != nil {
		return nil, m.err
	}
	if session == "" {
		session = NewSession()
	}
	canonical, err := parseSession(session)
	if err != nil {
		return nil, err
	}
	payload := EncodePayload(m.Payload)
	e := &Envelope{
		Version: "1", Sender: sender, Target: target, Session: canonical,
		SchemaDigest: m.Schema, Payload: &payload,
	}
	if m.Protocol != "" {
		protocol := m.Protocol
		e.ProtocolDigest = &protocol
	}
	if !expires.IsZero() {
		if expires.Unix() < 0 {
			return nil, ErrRange
		}
		e.Expires = Uint(uint64(expires.Unix()))
	}
	return e, nil
}

// NewSession is a new random session id.
func NewSession() string { return uuid.NewString() }

// Decode reads the JSON text of one envelope as the reference's server does: members
// in any order, unknown ones ignored, whole numbers also as integral floats,
// booleans and decimal strings, sessions in the four text forms of a UUID.
//
// The error is ErrMalformed for bytes that are not JSON in UTF-8, and ErrShape for
// JSON that is no envelope (wrong types, a session that is not a version 4
// UUID, nesting beyond 64). b is kept as [Envelope.Raw] and must not change.
func Decode(b []byte) (*Envelope, error) {
	if jsonx.TooDeep(b, maxSchemaDepth) {
		return nil, ErrMalformed.Because(jsonx.ErrDepth)
	}
	var w wire
	err := jsonx.Decode(b, &w)
	duplicate := errors.Is(err, jsonx.ErrDuplicate)
	if duplicate {
		err = w.lastWins(b)
	}
	switch {
	case err == nil:
	case errors.Is(err, jsonx.ErrType):
		return nil, ErrShape.Because(err)
	case notNumbers(b):
		return nil, ErrShape.Because(err)
	default:
		return nil, ErrMalformed.Because(err)
	}
	e := &Envelope{ProtocolDigest: w.Protocol, Payload: w.Payload, Signature: w.Signature, raw: b, duplicate: duplicate}
	for _, f := range []struct {
		name string
		from *string
		to   *string
	}{
		{"sender", w.Sender, &e.Sender}, {"target", w.Target, &e.Target},
		{"session", w.Session, &e.Session}, {"schema_digest", w.Schema, &e.SchemaDigest},
	} {
		if f.from == nil {
			return nil, ErrShape.Because(fmt.Errorf("%s is missing", f.name))
		}
		*f.to = *f.from
	}
	if e.Session, err = parseSession(e.Session); err != nil {
		return nil, err
	}
	for _, f := range []struct {
		name string
		from jsonx.Value
		to   *Int
	}{{"version", w.Version, &e.Version}, {"expires", w.Expires, &e.Expires}, {"nonce", w.Nonce, &e.Nonce}} {
		if *f.to, err = parseInt(f.from); err != nil {
			return nil, ErrShape.Because(fmt.Errorf("%s: %w", f.name, err))
		}
	}
	if e.Version.IsNull() {
		return nil, ErrShape.Because(errors.New("version is missing"))
	}
	return e, nil
}

// wire is the envelope's JSON object. An absent member counts as null.
type wire struct {
	Version   jsonx.Value `json:"version"`
	Sender    *string     `json:"sender"`
	Target    *string     `json:"target"`
	Session   *string     `json:"session"`
	Schema    *string     `json:"schema_digest"`
	Protocol  *string     `json:"protocol_digest"`
	Payload   *string     `json:"payload"`
	Expires   jsonx.Value `json:"expires"`
	Nonce     jsonx.Value `json:"nonce"`
	Signature *string     `json:"signature"`
}

// lastWins reads an object with duplicate member names: the last member counts.
func (w *wire) lastWins(b []byte) error {
	if !jsontext.Value(b).IsValid(jsontext.AllowDuplicateNames(true)) {
		return jsonx.ErrSyntax
	}
	last := map[string]jsonx.Value{}
	isObject := jsonx.Members(b, func(name string, v jsonx.Value) bool {
		switch name {
		case "version", "sender", "target", "session", "schema_digest", "protocol_digest", "payload", "expires",
			"nonce", "signature":
			last[name] = v
		}
		return true
	})
	if !isObject {
		return jsonx.ErrSyntax
	}
	clean, err := jsonx.Encode(last)
	if err != nil {
		return err
	}
	*w = wire{}
	return jsonx.Decode(clean, w)
}

// notNumbers reports whether b would be JSON without the literals NaN, Infinity and
// -Infinity: the reference's parser takes them, though no field may hold them.
func notNumbers(b []byte) bool {
	out := make([]byte, 0, len(b))
	found := false
	for i := 0; i < len(b); {
		if b[i] == '"' {
			j := i + 1
			for j < len(b) && b[j] != '"' {
				if b[j] == '\\' {
					j++
				}
				j++
			}
			j = min(j+1, len(b))
			out = append(out, b[i:j]...)
			i = j
			continue
		}
		hit := false
		for _, lit := range []string{"-Infinity", "Infinity", "NaN"} {
			if bytes.HasPrefix(b[i:], []byte(lit)) {
				out = append(out, "null"...)
				i += len(lit)
				hit, found = true, true
				break
			}
		}
		if !hit {
			out = append(out, b[i])
			i++
		}
	}
	return found && jsonx.Valid(out, maxSchemaDepth) == nil
}

// parseInt reads a whole number as the reference's data model does: integers
// of any size, integral floats within 64 bits, booleans, decimal strings.
func parseInt(v jsonx.Value) (Int, error) {
	if jsonx.IsNull(v) {
		return "", nil
	}
	switch v.Kind() {
	case 't':
		return "1", nil
	case 'f':
		return "0", nil
	case '0':
		s := string(v)
		if !strings.ContainsAny(s, ".eE") {
			return plainInt(s)
		}
		f, err := strconv.ParseFloat(s, 64)
		if err != nil || f != math.Trunc(f) || f >= 1<<63 || f <= -1<<63 {
			return "", fmt.Errorf("%s is not a whole number of 64 bits", s)
		}
		return Int(strconv.FormatInt(int64(f), 10)), nil
	case '"':
		s, err := jsontext.AppendUnquote(nil, v)
		if err != nil {
			return "", err
		}
		return intText(string(s))
	}
	return "", errors.New("not a whole number")
}

// intText reads a decimal string: surrounding space, a sign, single
// underscores between digits and a zero fraction are allowed.
func intText(s string) (Int, error) {
	bad := fmt.Errorf("%.40q is not a whole number", s)
	s = strings.TrimSpace(s)
	sign := ""
	if s != "" && (s[0] == '+' || s[0] == '-') {
		if s[0] == '-' {
			sign = "-"
		}
		s = s[1:]
	}
	if dot := strings.IndexByte(s, '.'); dot >= 0 {
		if dot == len(s)-1 || strings.Trim(s[dot+1:], "0") != "" {
			return "", bad
		}
		s = s[:dot]
	}
	if strings.HasPrefix(s, "_") || strings.HasSuffix(s, "_") || strings.Contains(s, "__") {
		return "", bad
	}
	s = strings.ReplaceAll(s, "_", "")
	if s == "" || strings.Trim(s, "0123456789") != "" {
		return "", bad
	}
	return plainInt(sign + s)
}

// maxDigits is the longest number read, as Python's own limit.
const maxDigits = 4300

// plainInt drops leading zeros of a decimal integer.
func plainInt(s string) (Int, error) {
	neg := strings.HasPrefix(s, "-")
	s = strings.TrimLeft(strings.TrimPrefix(s, "-"), "0")
	switch {
	case len(s) > maxDigits:
		return "", errors.New("number has too many digits")
	case s == "":
		return "0", nil
	case neg:
		return Int("-" + s), nil
	}
	return Int(s), nil
}

// parseSession reads a version 4 UUID (RFC 4122 variant) in one of its four
// text forms: hyphenated in any case, 32 hexadecimal digits, urn:uuid: and
// hyphenated, or {…} and hyphenated. It gives the lower-case hyphenated form
// that is signed. The error is ErrShape.
func parseSession(s string) (string, error) {
	// uuid.Parse takes more forms than these four.
	if len(s) == 32 && strings.Contains(s, "-") || len(s) == 38 && (s[0] != '{' || s[37] != '}') ||
		len(s) == 45 && !strings.HasPrefix(s, "urn:uuid:") {
		return "", ErrShape.Because(errors.New("session is not a UUID"))
	}
	u, err := uuid.Parse(s)
	if err != nil {
		return "", ErrShape.Because(fmt.Errorf("session: %w", err))
	}
	if u.Version() != 4 || u.Variant() != uuid.RFC4122 {
		return "", ErrShape.Because(errors.New("session is not a version 4 UUID"))
	}
	return u.String(), nil
}

// Encode writes the envelope as the reference's client does: compact, ten
// members in fixed order, null for absent ones, UTF-8 unescaped.
func (e *Envelope) Encode() ([]byte, error) { return e.json(pyCompact, jsonx.AppendText) }

// encodeAnswer writes the envelope as the reference's server does in answers.
func (e *Envelope) encodeAnswer() ([]byte, error) { return e.json(pyDefault, pyString) }

func (e *Envelope) json(s pyStyle, quote func([]byte, string) []byte) ([]byte, error) {
	for _, p := range []*string{&e.Sender, &e.Target, &e.Session, &e.SchemaDigest, e.ProtocolDigest, e.Payload,
		e.Signature} {
		if p != nil && !utf8.ValidString(*p) {
			return nil, ErrShape.Because(errors.New("text is not UTF-8"))
		}
	}
	num := func(i Int) *string {
		if i.IsNull() {
			return nil
		}
		return (*string)(&i)
	}
	b := []byte{'{'}
	for i, f := range []struct {
		name   string
		value  *string
		number bool
	}{
		{"version", num(cmp.Or(e.Version, "1")), true},
		{"sender", &e.Sender, false},
		{"target", &e.Target, false},
		{"session", &e.Session, false},
		{"schema_digest", &e.SchemaDigest, false},
		{"protocol_digest", e.ProtocolDigest, false},
		{"payload", e.Payload, false},
		{"expires", num(e.Expires), true},
		{"nonce", num(e.Nonce), true},
		{"signature", e.Signature, false},
	} {
		if i > 0 {
			b = append(b, s.item...)
		}
		b = quote(b, f.name)
		b = append(b, s.colon...)
		switch {
		case f.value == nil:
			b = append(b, "null"...)
		case f.number:
			b = append(b, *f.value...)
		default:
			b = quote(b, *f.value)
		}
	}
	return append(b, '}'), nil
}

// Message decodes the payload strictly. The error is ErrPayload.
func (e *Envelope) Message() (Message, error) { return e.message(DecodePayload) }

func (e *Envelope) message(decode func(payload string) ([]byte, error)) (Message, error) {
	m := Message{Schema: e.SchemaDigest}
	if e.ProtocolDigest != nil {
		m.Protocol = *e.ProtocolDigest
	}
	if e.Payload == nil {
		return m, nil
	}
	var err error
	m.Payload, err = decode(*e.Payload)
	return m, err
}

// ExpiresAt is the time after which the envelope is void; false for an envelope
// without expiry, or with one that no clock will reach.
func (e *Envelope) ExpiresAt() (time.Time, bool) {
	n, ok := e.Expires.Uint64()
	if !ok || n > math.MaxInt32*1000 {
		return time.Time{}, false
	}
	return time.Unix(int64(n), 0), true
}

// A Message is the content of an envelope: a JSON text and the digest of its schema.
// [Model.Message] makes one from a Go value.
type Message struct {
	Schema   string // model:…
	Payload  []byte // the JSON text
	Protocol string // proto:…, or empty

	err error
}

// EncodePayload is the base64 of a message text, as envelopes carry it.
func EncodePayload(text []byte) string { return base64.StdEncoding.EncodeToString(text) }

// DecodePayload reads the base64 of a message text: standard alphabet, padded,
// no other characters, no stray bits, and UTF-8 inside. The error is
// ErrPayload.
func DecodePayload(s string) ([]byte, error) {
	// The standard decoder skips line breaks.
	if strings.ContainsAny(s, "\r\n") {
		return nil, ErrPayload.Because(errors.New("line break in base64"))
	}
	b, err := base64.StdEncoding.Strict().DecodeString(s)
	if err != nil {
		return nil, ErrPayload.Because(err)
	}
	if !utf8.Valid(b) {
		return nil, ErrPayload.Because(errors.New("message is not UTF-8"))
	}
	return b, nil
}

// decodePayloadLenient is [DecodePayload] that skips ASCII characters outside
// the alphabet, as the reference does. No real client sends any.
func decodePayloadLenient(s string) ([]byte, error) {
	var clean strings.Builder
	clean.Grow(len(s))
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c >= 0x80:
			return nil, ErrPayload.Because(errors.New("payload is not ASCII"))
		case c >= 'A' && c <= 'Z', c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '+', c == '/', c == '=':
			clean.WriteByte(c)
		}
	}
	return DecodePayload(clean.String())
}
