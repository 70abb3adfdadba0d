package agh

import (
	"fmt"
	"strings"
)

// fields is step 2: required fields and grammar. Members whose grammar is only
// "non-empty" (id, workspace_id, thread_id and the correlation ids) may be
// padded with white space, which does not count; patterns are exact.
func (d *Decoder) fields(p *parsed) error {
	switch {
	case p.protocol != Protocol:
		return malformed(StepFields, "protocol", "must be "+Protocol)
	case p.ID == "":
		return malformed(StepFields, "id", "must not be empty")
	case !ValidWorkspaceID(p.WorkspaceID):
		return badWorkspace(p.WorkspaceID)
	case !p.Kind.known():
		return refuse(ErrUnsupportedKind, StepFields, "kind", "must be greet, whois, say, capability, receipt or trace")
	case !ValidChannel(p.Channel):
		return badChannel(p.Channel)
	case !d.validPeer(p.From):
		return badName("from", p.From, maxPeer, "must be a peer id")
	case p.has.to && !d.validPeer(p.To):
		return badName("to", p.To, maxPeer, "must be a peer id or null")
	case p.TS <= 0:
		return malformed(StepFields, "ts", "must be a positive integer of Unix seconds")
	case p.ExpiresAt < 0:
		return malformed(StepFields, "expires_at", "must not be negative")
	case len(p.Body) == 0 || p.Body[0] != '{':
		return malformed(StepFields, "body", "must be an object")
	}
	return nil
}

// badName refuses a name that breaks its grammar, or its bound in bytes.
func badName(field, name string, most int, grammar string) *Error {
	if len(name) > most {
		grammar = fmt.Sprintf("has %d bytes; at most %d are allowed", len(name), most)
	}
	return malformed(StepFields, field, grammar)
}

func badWorkspace(id string) *Error {
	return badName("workspace_id", id, maxWorkspace, "must be a subject-safe id")
}

func badChannel(name string) *Error {
	return badName("channel", name, maxChannel, "must match [a-z0-9][a-z0-9_-]{0,63}")
}

func badPeer(id string) *Error { return badName("peer_id", id, maxPeer, "must be a peer id") }

// surface is step 4: the conversation members that a kind must or must not have
// (envelope page, "Conversation surface fields").
func (d *Decoder) surface(p *parsed) error {
	if p.Kind.discovery() {
		if p.has.surface || p.has.threadID || p.has.directID || p.has.workID {
			return malformed(StepSurface, "surface", "discovery messages have no conversation members")
		}
		return nil
	}
	switch p.Surface {
	case SurfaceThread:
		switch {
		case p.has.directID:
			return malformed(StepSurface, "direct_id", "must be absent in a thread")
		case p.ThreadID == "" || len(p.ThreadID) > maxThread || strings.ContainsFunc(p.ThreadID, slashOrControl):
			return malformed(StepSurface, "thread_id", "must be 1 to 128 bytes without slashes and controls")
		}
	case SurfaceDirect:
		switch {
		case p.has.threadID:
			return malformed(StepSurface, "thread_id", "must be absent in a direct room")
		case !validDirectID(p.DirectID):
			return malformed(StepSurface, "direct_id", "must match direct_[a-f0-9]{32}")
		case p.To == "":
			return malformed(StepSurface, "to", "a direct room has two peers: to names the other")
		}
	default:
		return malformed(StepSurface, "surface", "must be thread or direct")
	}
	if p.has.workID && !acceptableWorkID(p.WorkID) {
		return malformed(StepSurface, "work_id", "must be 1 to 128 bytes without padding, slashes and controls")
	}
	if !p.has.workID && (p.Kind == KindReceipt || p.Kind == KindTrace) {
		return malformed(StepSurface, "work_id", "is required")
	}
	return nil
}

const (
	hexDigits = "0123456789abcdef"
	alnum     = "abcdefghijklmnopqrstuvwxyz0123456789"
)

// only reports whether s has 1 to max bytes, all of them in the set.
func only(s, set string, max int) bool {
	return s != "" && len(s) <= max && strings.Trim(s, set) == ""
}

// ident is [only], and s must begin with a character of alnum, part of the set.
func ident(s, set string, max int) bool {
	return only(s, set, max) && strings.IndexByte(alnum, s[0]) >= 0
}

// ValidChannel reports whether s matches [a-z0-9][a-z0-9_-]{0,63}.
func ValidChannel(s string) bool { return ident(s, alnum+"_-", maxChannel) }

// ValidPeerID reports whether s matches [a-z0-9][a-z0-9._-]{0,127}. A verified
// handle does not; see [SplitHandle].
func ValidPeerID(s string) bool { return ident(s, alnum+"._-", maxPeer) }

// ValidWorkspaceID reports whether s may be a token of a subject: 1 to 1024
// bytes, no dot, space, wildcard or control character, no padding.
func ValidWorkspaceID(s string) bool {
	return s != "" && len(s) <= maxWorkspace && s == strings.TrimSpace(s) &&
		!strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f || strings.ContainsRune(". *>", r) })
}

// validDirectID reports whether s matches direct_[a-f0-9]{32}.
func validDirectID(s string) bool {
	hex, ok := strings.CutPrefix(s, "direct_")
	return ok && len(hex) == 32 && only(hex, hexDigits, 32)
}

// ValidThreadID reports whether s has the narrow form that every
// implementation takes, thread_[a-z0-9][a-z0-9_-]{2,95} (RFC 003). Send only
// this form. [Decode] accepts any non-empty string, as the envelope page says.
func ValidThreadID(s string) bool {
	rest, ok := strings.CutPrefix(s, "thread_")
	return ok && len(rest) >= 3 && ident(rest, alnum+"_-", 96)
}

// validWorkID reports whether s has the form of the envelope page,
// work_[a-zA-Z0-9_-]{1,64}. Send only this form. Implementations send other
// forms, which [Decode] accepts up to 128 bytes.
func validWorkID(s string) bool {
	rest, ok := strings.CutPrefix(s, "work_")
	return ok && only(rest, alnum+"ABCDEFGHIJKLMNOPQRSTUVWXYZ_-", 64)
}

func acceptableWorkID(s string) bool {
	return s != "" && len(s) <= maxWork && s == strings.TrimSpace(s) && !strings.ContainsFunc(s, slashOrControl)
}

func slashOrControl(r rune) bool {
	return r < ' ' || 0x7f <= r && r <= 0x9f || r == '/' || r == '\\'
}

func (d *Decoder) validPeer(s string) bool {
	if ValidPeerID(s) {
		return true
	}
	_, _, ok := SplitHandle(s)
	return d.Handles && ok
}
