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
	s := scanner{b: b}
	if !s.next('{') {
		return nil
	}
	e := &Envelope{raw: b}
	p := &parsed{Envelope: e}
	seen := uint32(0)
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
			if member == memberExpires && s.null() {
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
			if member != memberBody && s.null() {
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
			if member >= memberOptional && s.null() {
				break
			}
			v, ok := s.string()
			if !ok {
				return nil
			}
			p.set(member, v)
			if member >= memberReplyTo && (len(v) == 0 || len(v) > maxID) {
				return nil
			}
		}
		if s.next(',') {
			continue
		}
		if !s.next('}') || !s.end() {
			return nil
		}
		break
	}
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

// set puts a string in its place, as parse does. What is the same in all
// messages is not made anew.
func (p *parsed) set(member int, v []byte) {
	e := p.Envelope
	switch member {
	case memberProtocol:
		if p.protocol = Protocol; string(v) != Protocol {
			p.protocol = string(v)
		}
	case memberID:
		e.ID = strings.TrimSpace(string(v))
	case memberWorkspace:
		e.WorkspaceID = strings.TrimSpace(string(v))
	case memberKind:
		for _, k := range [...]Kind{KindSay, KindTrace, KindReceipt, KindCapability, KindGreet, KindWhois} {
			if string(v) == string(k) {
				e.Kind = k
				return
			}
		}
		e.Kind = Kind(v)
	case memberChannel:
		e.Channel = string(v)
	case memberFrom:
		e.From = string(v)
	case memberSurface:
		p.has.surface = true
		switch string(v) {
		case string(SurfaceThread):
			e.Surface = SurfaceThread
		case string(SurfaceDirect):
			e.Surface = SurfaceDirect
		default:
			e.Surface = Surface(v)
		}
	case memberThread:
		p.has.threadID, e.ThreadID = true, strings.TrimSpace(string(v))
	case memberDirect:
		p.has.directID, e.DirectID = true, string(v)
	case memberTo:
		p.has.to, e.To = true, string(v)
	case memberWork:
		p.has.workID, e.WorkID = true, string(v)
	case memberReplyTo:
		p.has.replyTo, e.ReplyTo = true, strings.TrimSpace(string(v))
	case memberTrace:
		e.TraceID = strings.TrimSpace(string(v))
	case memberCause:
		e.CausationID = strings.TrimSpace(string(v))
	}
}

// quickBody reads the body of a say that holds a text and perhaps an intent,
// and nothing else; the body step takes it as read.
func (p *parsed) quickBody() bool {
	if p.Kind != KindSay {
		return false
	}
	s := scanner{b: p.Body}
	if !s.next('{') {
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
		if s.next(',') {
			continue
		}
		if !text || !s.next('}') || !s.end() {
			return false
		}
		p.said = say
		return true
	}
}

// scanner reads JSON as most write it.
type scanner struct {
	b []byte
	i int
}

func (s *scanner) space() {
	for s.i < len(s.b) && (s.b[s.i] == ' ' || s.b[s.i] == '\n' || s.b[s.i] == '\t' || s.b[s.i] == '\r') {
		s.i++
	}
}

// next takes one character behind white space.
func (s *scanner) next(c byte) bool {
	s.space()
	if s.i >= len(s.b) || s.b[s.i] != c {
		return false
	}
	s.i++
	return true
}

func (s *scanner) end() bool {
	s.space()
	return s.i == len(s.b)
}

// name takes the name of a member and its colon.
func (s *scanner) name() ([]byte, bool) {
	v, ok := s.string()
	return v, ok && s.next(':')
}

// string takes a string in which nothing is escaped.
func (s *scanner) string() ([]byte, bool) {
	if !s.next('"') {
		return nil, false
	}
	begin, high := s.i, byte(0)
	for ; s.i < len(s.b); s.i++ {
		switch c := s.b[s.i]; {
		case c == '"':
			v := s.b[begin:s.i]
			s.i++
			return v, high < utf8.RuneSelf || utf8.Valid(v)
		case c == '\\' || c < ' ':
			return nil, false
		default:
			high |= c
		}
	}
	return nil, false
}

func (s *scanner) null() bool {
	s.space()
	if len(s.b)-s.i < 4 || string(s.b[s.i:s.i+4]) != "null" {
		return false
	}
	s.i += 4
	return true
}

// integer takes an integer of up to 18 digits.
func (s *scanner) integer() (n int64, ok bool) {
	s.space()
	begin := s.i
	for ; s.i < len(s.b) && '0' <= s.b[s.i] && s.b[s.i] <= '9'; s.i++ {
		if s.i-begin >= 18 {
			return 0, false
		}
		n = 10*n + int64(s.b[s.i]-'0')
	}
	digits := s.i - begin
	return n, digits == 1 || digits > 1 && s.b[begin] != '0'
}

// object takes an object up to its end, and looks at nothing but its brackets
// and strings.
func (s *scanner) object() (json.RawMessage, bool) {
	s.space()
	begin, level := s.i, 0
	if s.i >= len(s.b) || s.b[s.i] != '{' {
		return nil, false
	}
	for ; s.i < len(s.b); s.i++ {
		switch s.b[s.i] {
		case '{', '[':
			level++
		case '}', ']':
			if level--; level == 0 {
				s.i++
				return json.RawMessage(s.b[begin:s.i]), true
			}
		case '"':
			for s.i++; s.i < len(s.b) && s.b[s.i] != '"'; s.i++ {
				if s.b[s.i] == '\\' {
					s.i++
				}
			}
		}
	}
	return nil, false
}
