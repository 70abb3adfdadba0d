package agh

import (
	"encoding/json"
	"strings"
	"unicode/utf8"

	"github.com/parley-hub/parley/internal/jsonx"
)

// quick is parse for an envelope as most are written: members of the page,
// strings without escapes, integers, objects. It reads each byte once where the
// decoder reads by reflection, and knows nothing of errors: of all that it does
// not know, and of all that is wrong, it gives nil, and parse says what it is.
func (d *Decoder) quick(b []byte) *parsed {
	if len(b) > d.Limits.envelope() || d.Limits.Depth > 0 || jsonx.TooDeep(b, 0) {
		return nil
	}
	s := scanner{jsonx.Scan(b)}
	if !s.Take('{') {
		return nil
	}
	e := &Envelope{raw: b}
	p := &parsed{Envelope: e}
	seen := uint32(0)
	var texts [memberCause + 1][]byte
	for {
		name, ok := s.name()
		if !ok {
			return nil
		}
		member, ok := members[string(name)]
		if !ok || seen&(1<<member) != 0 {
			return nil
		}
		seen |= 1 << member
		switch member {
		case memberTS, memberExpires:
			if member == memberExpires && s.Literal("null") {
				break
			}
			n, ok := s.integer()
			if !ok {
				return nil
			}
			if member == memberTS {
				e.TS = n
			} else {
				e.ExpiresAt, e.expired = n, n == 0
			}
		case memberBody, memberProof, memberExt:
			if member != memberBody && s.Literal("null") {
				break
			}
			v, ok := s.object()
			if !ok {
				return nil
			}
			switch member {
			case memberBody:
				e.Body = v
			case memberProof:
				e.Proof = v
			default:
				e.Ext = v
			}
			if member != memberBody && jsonx.Valid(v, 0) != nil {
				return nil
			}
		default:
			if member >= memberOptional && s.Literal("null") {
				break
			}
			v, ok := s.string()
			if !ok {
				return nil
			}
			if member >= memberReplyTo && len(v) == 0 {
				return nil
			}
			texts[member] = v
		}
		if s.Take(',') {
			continue
		}
		if !s.Take('}') || !s.End() {
			return nil
		}
		break
	}
	p.keep(&texts)
	if e.Body == nil || !p.quickBody() && jsonx.Valid(e.Body, 0) != nil {
		return nil
	}
	return p
}

// The members, in groups: those that must be given, those that may be null,
// and of these those that must not be empty.
const (
	memberTS = iota
	memberExpires
	memberBody
	memberProof
	memberExt
	memberProtocol
	memberID
	memberWorkspace
	memberKind
	memberChannel
	memberFrom
	memberSurface
	memberThread
	memberDirect
	memberTo
	memberWork
	memberReplyTo
	memberTrace
	memberCause

	memberOptional = memberSurface
)

var members = map[string]int{"protocol": memberProtocol, "id": memberID, "workspace_id": memberWorkspace, "kind": memberKind, "channel": memberChannel,
	"surface": memberSurface, "thread_id": memberThread, "direct_id": memberDirect, "from": memberFrom, "to": memberTo, "work_id": memberWork,
	"reply_to": memberReplyTo, "trace_id": memberTrace, "causation_id": memberCause, "ts": memberTS, "expires_at": memberExpires,
	"body": memberBody, "proof": memberProof, "ext": memberExt}

// keep puts the strings in their places. They are parts of one, unless that would
// be so long that who keeps one of them should not keep all.
func (p *parsed) keep(texts *[memberCause + 1][]byte) {
	const long = 1024
	size := 0
	for _, v := range texts {
		size += len(v)
	}
	var all strings.Builder
	if size <= long {
		all.Grow(size)
		for _, v := range texts {
			all.Write(v)
		}
	}
	rest := all.String()
	for member, v := range texts {
		switch {
		case v == nil:
		case size <= long:
			p.set(member, rest[:len(v)])
			rest = rest[len(v):]
		default:
			p.set(member, string(v))
		}
	}
}

// set puts a string in its place, as parse does.
func (p *parsed) set(member int, v string) {
	e := p.Envelope
	switch member {
	case memberProtocol:
		p.protocol = v
	case memberID:
		e.ID = strings.TrimSpace(v)
	case memberWorkspace:
		e.WorkspaceID = strings.TrimSpace(v)
	case memberKind:
		e.Kind = Kind(v)
	case memberChannel:
		e.Channel = v
	case memberFrom:
		e.From = v
	case memberSurface:
		p.has.surface, e.Surface = true, Surface(v)
	case memberThread:
		p.has.threadID, e.ThreadID = true, strings.TrimSpace(v)
	case memberDirect:
		p.has.directID, e.DirectID = true, v
	case memberTo:
		p.has.to, e.To = true, v
	case memberWork:
		p.has.workID, e.WorkID = true, v
	case memberReplyTo:
		p.has.replyTo, e.ReplyTo = true, strings.TrimSpace(v)
	case memberTrace:
		e.TraceID = strings.TrimSpace(v)
	case memberCause:
		e.CausationID = strings.TrimSpace(v)
	}
}

// quickBody reads the body of a say that holds a text and perhaps an intent,
// and nothing else; the body step takes it as read.
func (p *parsed) quickBody() bool {
	if p.Kind != KindSay {
		return false
	}
	s := scanner{jsonx.Scan([]byte(p.Body))}
	if !s.Take('{') {
		return false
	}
	say, text := &Say{}, false
	for intent := false; ; {
		name, ok := s.name()
		if !ok {
			return false
		}
		v, ok := s.string()
		switch {
		case !ok:
			return false
		case string(name) == "text" && !text:
			text, say.Text = true, string(v)
		case string(name) == "intent" && !intent:
			intent, say.Intent = true, string(v)
		default:
			return false
		}
		if s.Take(',') {
			continue
		}
		if !text || !s.Take('}') || !s.End() {
			return false
		}
		p.said = say
		return true
	}
}

// scanner reads JSON as most write it.
type scanner struct{ jsonx.Scanner[[]byte] }

// name takes the name of a member and its colon.
func (s *scanner) name() ([]byte, bool) {
	v, ok := s.string()
	return v, ok && s.Take(':')
}

// string takes a string in which nothing is escaped.
func (s *scanner) string() ([]byte, bool) {
	v, form, ok := s.String()
	return v, ok && (form == 0 || form == jsonx.Beyond && utf8.Valid(v))
}

// integer takes an integer of up to 18 digits.
func (s *scanner) integer() (n int64, ok bool) {
	v, ok := s.Number()
	if !ok || len(v) > 18 {
		return 0, false
	}
	for _, c := range v {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + int64(c-'0')
	}
	return n, true
}

// object takes an object, of which nothing is known but where it ends.
func (s *scanner) object() (json.RawMessage, bool) {
	if s.Next() != '{' {
		return nil, false
	}
	return s.Skim()
}
