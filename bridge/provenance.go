package bridge

import (
	"crypto/sha256"
	"encoding/base64"
	"strconv"
	"strings"
	"time"

	"github.com/parley-hub/parley"
)

// ProvenanceHeader tells the recipient of an HTTP protocol where a message
// comes from that the hub says in a stand-in's name.
const ProvenanceHeader = "Parley-Provenance"

// Provenance is the value of [ProvenanceHeader]: who spoke, in which protocol,
// how sure that is, what the original was, and what of the message has no
// place in the protocols that use the header. It is ASCII; texts are quoted
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
	if len(m.Origin.Raw) > 0 {
		sum := sha256.Sum256(m.Origin.Raw)
		b = append(b, "; digest=\"sha-256=:"...)
		b = base64.StdEncoding.AppendEncode(b, sum[:])
		b = append(b, `:"`...)
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

func quoted(b []byte, name, value string) []byte {
	b = append(append(append(b, "; "...), name...), '=')
	return strconv.AppendQuoteToASCII(b, value)
}

// clip bounds what a header says of a value that its sender chose.
func clip(s string) string { return s[:min(len(s), 512)] }
