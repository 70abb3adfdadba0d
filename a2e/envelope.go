package a2e

import (
	"bytes"
	"encoding/json"
	"math"
	"regexp"
	"strconv"
	"unicode/utf8"

	"github.com/parley-hub/parley/internal/jsonx"
)

// Version is the version that this package writes; it accepts every 1.x (A2E §2.2).
const Version = "1.0"

// Bounds of base members (A2E §2.3, §5.2).
const (
	maxID   = 256 // characters
	maxType = 128 // of an unknown type, when it is echoed
)

// Defaults of the decoder (A2E §2.1, §12).
const (
	DefaultMaxFrame = 4 << 20  // bytes of one line
	HardMaxFrame    = 16 << 20 // upper bound of every configuration
	DefaultMaxDepth = 128      // levels of nesting
)

// Envelope is one received message: its exact bytes, its base members, and access to
// all others. A type that the registry does not know is kept whole as a generic message
// (A2E §9). An Envelope does not change after decoding, so that goroutines may share
// it.
type Envelope struct {
	Type    string
	ID      string // generated when the sender gave none
	ReqID   string // the id of the request that the message is about; may be empty
	Version string // as the version rule of A2E §2.2 settles it
	Class   Class

	typ    *Type // nil when the type is unknown
	raw    []byte
	ms     []member
	inline [14]member
}

// Decode reads one message with all types of A2E §6 and the default limits. It checks
// everything but the type's own schema, which [Envelope.Check] checks: a host must
// distinguish an unknown or forbidden type from a malformed one.
func Decode(line []byte) (*Envelope, error) { return builtin().Decode(line) }

// Decode is the function [Decode] with the types of r.
func (r *Registry) Decode(line []byte) (*Envelope, error) {
	if len(line) > DefaultMaxFrame {
		return nil, ErrTooLarge
	}
	m, err := r.decode(bytes.Clone(line), DefaultMaxDepth)
	if err != nil {
		return nil, err
	}
	return m, nil
}

// decode takes over line. If the line is an object, decode gives the readable members
// even with an error, so that the caller can distinguish a request, which is answered,
// from a response or event, which is not (A2E §5.2).
func (r *Registry) decode(line []byte, depth int) (*Envelope, *Error) {
	if fault := checkObject(line, depth); fault != "" {
		e := *ErrParse
		e.Reason = fault
		return nil, &e
	}
	m := &Envelope{raw: line}
	m.ms = membersInto(m.inline[:0], line)
	return m, m.settle(r)
}

// text gives a base member that is a string free of lone surrogates.
func (m *Envelope) text(name string) (s string, ok bool) {
	v := m.member(name)
	if len(v) == 0 || v[0] != '"' {
		return "", false
	}
	s, lone := unquote(v)
	return s, !lone
}

// settle is steps 5 to 7 of A2E §5.2, after classifying the message; even a malformed
// one is classified by type and req_id.
func (m *Envelope) settle(r *Registry) *Error {
	var typeOK bool
	if v := m.member("type"); len(v) > 1 && v[0] == '"' {
		if t, ok := r.all()[string(v[1:len(v)-1])]; ok { // no allocation
			m.typ, m.Type = t, t.Name
		} else {
			m.Type, _ = m.text("type")
			m.typ, _ = r.Lookup(m.Type)
		}
		typeOK = m.Type != ""
	}
	m.ReqID, _ = m.text("req_id")
	switch {
	case m.typ == nil:
		m.Class = classOf(m.Type, m.ReqID != "")
	case m.typ.Name == "mcp/sample/req" && m.ReqID != "":
		m.Class = ClassResponse // the reference's answer has the type of the request (A2E §6.16)
	case m.typ.Name == "env/plan/resp" && m.ReqID == "" && (m.member("episode_id") != nil || m.member("state") != nil):
		if t, ok := r.Lookup("env/plan/req"); ok { // and here the reverse
			m.typ, m.Type, m.Class = t, t.Name, ClassRequest
		}
	default:
		m.Class = m.typ.Class
	}

	if v := m.member("id"); v != nil {
		id, ok := m.text("id")
		if !ok || utf8.RuneCountInString(id) > maxID {
			e := *ErrSchema
			e.Reason = "id"
			d := []byte(`{"errors":[{"path":"id","reason":"string_type"}]`)
			if isNumber(v[0]) && len(v) <= 64 {
				d = append(append(d, `,"id":`...), v...)
			}
			e.Detail = append(d, '}')
			return &e
		}
		m.ID = id
	}
	if m.ID == "" && (m.typ == nil || !m.typ.Bare) {
		m.ID = NewID()
	}
	if !typeOK {
		e := ErrInvalid.about(m.ID)
		e.Reason = "type"
		return e
	}
	return m.settleVersion()
}

// settleVersion is the version rule of A2E §2.2: a2e, else version, else scp,
// else 1.0; two that differ are a mismatch.
func (m *Envelope) settleVersion() *Error {
	m.Version = Version
	var seen string
	for _, name := range [...]string{"a2e", "version", "scp"} {
		v := m.member(name)
		if v == nil || name == "scp" && (seen != "" || v[0] != '"') {
			continue
		}
		s, ok := Version, true
		if string(v) != `"`+Version+`"` {
			s, ok = m.text(name)
		}
		if !ok {
			e := ErrSchema.about(m.ID)
			e.Detail = faultDetail([]schemaFault{{Path: name, Reason: "string_type"}})
			return e
		}
		if seen != "" && s != seen || s != Version && !acceptedVersion.MatchString(s) {
			return ErrVersion.about(m.ID)
		}
		seen = s
	}
	if seen != "" {
		m.Version = seen
	}
	return nil
}

var acceptedVersion = regexp.MustCompile(`^1(\.[0-9]{1,8})?$`)

// Raw gives the message exactly as it was received, without the line end. The
// caller must not change it.
func (m *Envelope) Raw() []byte { return m.raw }

// Known reports whether the registry knows the type.
func (m *Envelope) Known() bool { return m.typ != nil }

// Capability is the namespace that the type belongs to; empty for the core and
// for unknown types.
func (m *Envelope) Capability() string {
	if m.typ == nil {
		return ""
	}
	return m.typ.Capability
}

// Check compares the message with the schema of its type: an [*Error]
// schema_violation whose detail lists path and reason of each fault, or nil. A
// type that the registry does not know has only the base members to check.
func (m *Envelope) Check() error {
	if e := m.check(); e != nil {
		return e
	}
	return nil
}

func (m *Envelope) check() *Error {
	var c checker
	if v := m.member("ts"); v != nil {
		if reason := notNumber(v[0], "float"); reason != "" {
			c.add("ts", reason)
		}
	}
	if m.typ != nil {
		c.checkFields(m.raw, m.ms, m.typ.Fields, "")
	}
	if len(c.faults) == 0 {
		return nil
	}
	e := ErrSchema.about(m.ID)
	e.Detail = faultDetail(c.faults)
	return e
}

func faultDetail(faults []schemaFault) json.RawMessage {
	v, _ := jsonx.Encode(map[string]any{"errors": faults})
	return appendASCII(nil, v)
}

// member gives the value of a member as it was sent, nil if absent.
func (m *Envelope) member(name string) []byte { return lookup(m.raw, m.ms, name) }

// Get gives the value of a member as it was sent, numbers with their
// literals, or else the default of its type; nil if there is neither. The
// caller must not change it.
func (m *Envelope) Get(name string) json.RawMessage {
	if v := m.member(name); v != nil {
		return v
	}
	if f := m.typ.field(name); f != nil && f.Default != "" && generated[f.Default] == nil {
		return json.RawMessage(f.Default)
	}
	return nil
}

// Str gives a string member, or else its default, or else "". A lone
// surrogate in it becomes U+FFFD.
func (m *Envelope) Str(name string) string {
	s, _ := textOf(m.Get(name))
	return s
}

// Int gives an integer member (also one written 30.0), or else its default, or else 0.
// A value beyond 64 bits gives the nearest that fits.
func (m *Envelope) Int(name string) int64 { return intOf(m.Get(name)) }

// Bool gives a boolean member, or else its default, or else false.
func (m *Envelope) Bool(name string) bool { return string(m.Get(name)) == "true" }

// Float gives a number member, or else its default, or else 0. It is rounded to a
// float64; [Envelope.Get] is exact.
func (m *Envelope) Float(name string) float64 {
	v := m.Get(name)
	if len(v) == 0 || !isNumber(v[0]) {
		return 0
	}
	f, _ := strconv.ParseFloat(string(v), 64)
	return f
}

// Strings gives a member that is an array of strings, or else its default.
func (m *Envelope) Strings(name string) []string {
	var out []string
	for _, e := range m.Values(name) {
		if s, ok := textOf(e); ok {
			out = append(out, s)
		}
	}
	return out
}

// Values gives the elements of a member that is an array, or else its default.
func (m *Envelope) Values(name string) []json.RawMessage {
	v := m.Get(name)
	if len(v) == 0 || v[0] != '[' {
		return nil
	}
	var out []json.RawMessage
	elements(v, func(_ int, e []byte) bool {
		out = append(out, e)
		return true
	})
	return out
}

func intOf(v []byte) int64 {
	if len(v) == 0 || !isNumber(v[0]) {
		return 0
	}
	if n, err := strconv.ParseInt(string(v), 10, 64); err == nil {
		return n
	}
	f, _ := strconv.ParseFloat(string(v), 64)
	switch {
	case f >= math.MaxInt64:
		return math.MaxInt64
	case f <= math.MinInt64:
		return math.MinInt64
	}
	return int64(f)
}

// integral reports whether a number literal denotes an integer.
func integral(v []byte) bool {
	if !bytes.ContainsAny(v, ".eE") {
		return true
	}
	f, err := strconv.ParseFloat(string(v), 64)
	return err == nil && f == math.Trunc(f)
}
