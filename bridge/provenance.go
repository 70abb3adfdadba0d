package bridge

import (
	"crypto/sha256"
	"encoding/base64"
	"strconv"
	"strings"
	"time"

	"github.com/parley-hub/parley"
)

// ProvenanceHeader tells the recipient of an HTTP protocol the original sender of a
// message that the hub sends in a stand-in's name.
const ProvenanceHeader = "Parley-Provenance"

// Provenance is the value of [ProvenanceHeader]: the sender, its protocol, the
// assurance and the checks that held, the digest of the original, and the fields for
// which the protocols with this header have no place. It is ASCII; texts are quoted
// with Go's escapes.
func Provenance(m *parley.Message) string {
	b := make([]byte, 0, 512)
	b = append(b, "message="...)
	b = append(b, m.ID.String()...)
	b = append(b, "; protocol="...)
	b = append(b, m.Origin.Protocol...)
	b = quoted(b, "sender", m.From)
	b = append(b, "; assurance="...)
	b = append(b, m.Origin.Verdict.Assurance.String()...)
	b = quoted(b, "hops", strings.Join(m.Hops, " "))
	if k := m.Origin.Verdict.KeyID; k != "" {
		b = quoted(b, "key", clip(k))
	}
	if p := Proved(m.Origin.Verdict); len(p) > 0 {
		b = quoted(b, "proved", clip(strings.Join(p, " ")))
	}
	if d := Digest(m); d != "" {
		b = quoted(b, "digest", d)
	}
	if !m.Conversation.IsZero() {
		b = append(b, "; conversation="...)
		b = append(b, m.Conversation.String()...)
	}
	if m.Act != "" {
		b = quoted(b, "act", clip(m.Act))
	}
	if m.Schema != "" {
		b = quoted(b, "schema", clip(m.Schema))
	}
	if m.Trace.Parent != "" {
		b = quoted(b, "trace", clip(m.Trace.Parent))
	}
	for _, t := range [...]struct {
		name string
		at   time.Time
	}{{"sent", m.Sent}, {"deadline", m.Deadline}, {"expires", m.Expires}} {
		if !t.at.IsZero() {
			b = append(append(append(b, "; "...), t.name...), '=')
			b = t.at.UTC().AppendFormat(b, time.RFC3339Nano)
		}
	}
	return string(b)
}

// A ProvenanceObject is provenance for protocols with a place for JSON: what [Provenance]
// says, as an object.
type ProvenanceObject struct {
	Protocol  string    `json:"protocol"`
	Sender    string    `json:"sender"`
	Peer      string    `json:"peer,omitzero"`
	Assurance string    `json:"assurance"`
	Key       string    `json:"key,omitzero"`     // by which it was proved, in that protocol's words
	Proved    []string  `json:"proved,omitempty"` // checks that held
	Digest    string    `json:"digest,omitzero"`  // of the original envelope, RFC 9530 form
	Message   parley.ID `json:"message"`
	Hub       string    `json:"hub"`
	Hops      []string  `json:"hops,omitempty"`
	Rest
}

// ProvenanceOf gives the provenance of a message that a hub sends on a way.
func ProvenanceOf(way Way, m *parley.Message, hub string) ProvenanceObject {
	v := m.Origin.Verdict
	return ProvenanceObject{Protocol: m.Origin.Protocol, Sender: m.From, Peer: m.Origin.Peer,
		Assurance: v.Assurance.String(), Key: v.KeyID, Proved: Proved(v), Digest: Digest(m), Message: m.ID, Hub: hub,
		Hops: m.Hops, Rest: RestOf(way, m)}
}

// Rest has the fields of a message for which a protocol has no place: they go with
// the provenance.
type Rest struct {
	Conversation parley.ID `json:"conversation,omitzero"`
	Act          string    `json:"act,omitzero"`
	Schema       string    `json:"schema,omitzero"`
	Trace        string    `json:"trace,omitzero"` // W3C traceparent
	Sent         time.Time `json:"sent,omitzero"`
	Deadline     time.Time `json:"deadline,omitzero"`
	Expires      time.Time `json:"expires,omitzero"`
	Audience     []string  `json:"audience,omitzero"`
	Retryable    bool      `json:"retryable,omitzero"`
	RetryAfter   float64   `json:"retry_after,omitzero"` // seconds
}

// MaxAudience is how many others a provenance names.
const MaxAudience = 64

// RestOf gives the fields of a message that go with the provenance on a way.
func RestOf(way Way, m *parley.Message) Rest {
	r := Rest{Sent: utc(m.Sent)}
	inbox := way == Inbox || way == MCPClient && InInbox(m.Kind)
	meta := !inbox && (way == MCPClient || way == MCPServer) // _meta has places for the trace and the error
	if way != AGH && !meta {
		r.Trace = m.Trace.Parent
	}
	if inbox {
		return r // a message of parley_inbox has a place for the others
	}
	r.Schema = m.Schema
	if len(m.Audience) <= MaxAudience && way != MCPServer {
		r.Audience = m.Audience
	}
	if way != AGH {
		r.Act = m.Act
	}
	if way == ASP || way == A2A || meta {
		r.Conversation = m.Conversation
	}
	if way == Call || way == ASP || way == A2A || meta {
		r.Deadline, r.Expires = utc(m.Deadline), utc(m.Expires)
	}
	if m.Error != nil && way != Call && !meta {
		r.Retryable, r.RetryAfter = m.Error.Retryable, m.Error.After.Seconds()
	}
	return r
}

func utc(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.UTC()
}

// Digest gives the digest of a message's envelope as the hub recorded it, in the form
// of RFC 9530; "" for a message without one.
func Digest(m *parley.Message) string {
	if len(m.Origin.Raw) == 0 {
		return ""
	}
	sum := sha256.Sum256(m.Origin.Raw)
	return "sha-256=:" + base64.StdEncoding.EncodeToString(sum[:]) + ":"
}

// Proved names the checks that held, in order.
func Proved(v parley.Verdict) []string {
	var out []string
	for _, c := range v.Checks {
		if c.OK {
			out = append(out, c.Name)
		}
	}
	return out
}

func quoted(b []byte, name, value string) []byte {
	b = append(append(append(b, "; "...), name...), '=')
	for i := range len(value) {
		if c := value[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return strconv.AppendQuoteToASCII(b, value)
		}
	}
	return append(append(append(b, '"'), value...), '"')
}

// clip bounds a value of the sender's choice in a header.
func clip(s string) string { return s[:min(len(s), 512)] }
