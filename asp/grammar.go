package asp

import (
	"cmp"
	"strings"
	"time"
)

// A Performative is the act of a message, one of the thirteen of "Field
// reference: performative".
type Performative string

// The performatives.
const (
	Propose  Performative = "PROPOSE"
	Accept   Performative = "ACCEPT"
	Reject   Performative = "REJECT"
	Counter  Performative = "COUNTER"
	Inform   Performative = "INFORM"
	Query    Performative = "QUERY"
	Clarify  Performative = "CLARIFY"
	Commit   Performative = "COMMIT"
	Delegate Performative = "DELEGATE"
	Escalate Performative = "ESCALATE"
	Withdraw Performative = "WITHDRAW"
	Observe  Performative = "OBSERVE"
	Close    Performative = "CLOSE"
)

// Valid reports whether p is one of the thirteen, upper case.
func (p Performative) Valid() bool {
	switch p {
	case Propose, Accept, Reject, Counter, Inform, Query, Clarify, Commit, Delegate, Escalate, Withdraw, Observe, Close:
		return true
	}
	return false
}

// Versions. This package writes Version, and also reads VersionDraft, because the
// vendor's specification pages still show it.
const (
	Version      = "asp/1.0"
	VersionDraft = "asp/0.1"
)

// supportedVersion reports whether this package reads messages of version v.
func supportedVersion(v string) bool { return v == Version || v == VersionDraft }

// versionForm reports whether v is asp/MAJOR.MINOR.
func versionForm(v string) bool {
	rest, ok := strings.CutPrefix(v, "asp/")
	major, minor, dot := strings.Cut(rest, ".")
	return ok && dot && decimalNumber(major) && decimalNumber(minor)
}

func decimalNumber(s string) bool {
	return s != "" && len(s) <= 9 && (s == "0" || s[0] != '0') && strings.Trim(s, "0123456789") == ""
}

// ValidUUID reports whether s is a lower-case UUID of version 7. The time in it is
// not checked: in the vendor's example it differs from the timestamp.
func ValidUUID(s string) bool {
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' || s[14] != '7' {
		return false
	}
	variant := s[19]
	return (variant == '8' || variant == '9' || variant == 'a' || variant == 'b') &&
		lowerHex(s[:8]) && lowerHex(s[9:13]) && lowerHex(s[15:18]) && lowerHex(s[20:23]) && lowerHex(s[24:])
}

func lowerHex(s string) bool {
	return strings.Trim(s, "0123456789abcdef") == ""
}

// validHash reports whether s is "sha256:" and 64 lower-case hex digits.
func validHash(s string) bool { return prefixedHex(s, "sha256:", 64) }

// validSignature reports whether s is "ed25519:" and 128 lower-case hex digits.
func validSignature(s string) bool { return prefixedHex(s, "ed25519:", 128) }

func prefixedHex(s, prefix string, n int) bool {
	return len(s) == len(prefix)+n && s[:len(prefix)] == prefix && lowerHex(s[len(prefix):])
}

// timeLayout is the only form of timestamps: milliseconds and Z.
const timeLayout = "2006-01-02T15:04:05.000Z"

// Timestamp formats t as the protocol requires.
func Timestamp(t time.Time) string { return t.UTC().Format(timeLayout) }

// ParseTimestamp parses a timestamp in exactly that form. The text is signed, so
// another spelling of the same instant is another timestamp.
func ParseTimestamp(s string) (time.Time, bool) {
	t, err := time.Parse(timeLayout, s)
	return t, err == nil && t.Format(timeLayout) == s
}

// ValidAgentID reports whether s is an agent URI:
// agent://DOMAIN/DEPARTMENT/NAME. A URI without department is accepted, because
// the vendor's commitments page shows one; this package never makes one. The
// character set is the project's. It excludes NUL, which would split the signing
// string.
func ValidAgentID(s string) bool {
	rest, ok := strings.CutPrefix(s, "agent://")
	if !ok || len(rest) > 253+2*65 {
		return false
	}
	parts := strings.Split(rest, "/")
	if len(parts) != 2 && len(parts) != 3 || !domain(parts[0]) {
		return false
	}
	for _, seg := range parts[1:] {
		if !segment(seg) {
			return false
		}
	}
	return true
}

func domain(s string) bool {
	if s == "" || len(s) > 253 {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for i := range len(label) {
			if c := label[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
				return false
			}
		}
	}
	return true
}

func segment(s string) bool {
	if s == "" || len(s) > 64 || s == "." || s == ".." {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && strings.IndexByte("._~-", c) < 0 {
			return false
		}
	}
	return true
}

// Compare orders messages by ("timestamp", "sender.agentId", "sequenceNumber"),
// "How the hash chain works". It only breaks ties for display: the order of a
// session is that of its links.
func Compare(a, b *Envelope) int {
	return cmp.Or(strings.Compare(a.Timestamp, b.Timestamp), strings.Compare(a.Sender.AgentID, b.Sender.AgentID),
		cmp.Compare(a.SequenceNumber, b.SequenceNumber))
}
