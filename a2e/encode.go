package a2e

import (
	"crypto/rand"
	"encoding/json"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/parley-hub/parley/internal/jsonx"
)

// NewID makes a message id: 32 lower-case hex digits, 128 random bits of which
// six spell UUID version 4 (A2E §2.2).
func NewID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	var out [32]byte
	for i, c := range b {
		out[2*i], out[2*i+1] = lowerHex[c>>4], lowerHex[c&15]
	}
	return string(out[:])
}

// Message is one message to send. Body holds the members besides the base
// members: a struct or map that encodes as a JSON object, a [json.RawMessage], or
// nil. Id and time are added.
type Message struct {
	Type string
	ID   string // generated when empty
	Body any
}

// Encode writes m as one line without its end: compact, ASCII only, both
// version keys, plain decimal time (A2E §2.2). A body that is no JSON object
// is an error.
func (m Message) Encode(now time.Time) ([]byte, error) {
	if m.ID == "" {
		m.ID = NewID()
	}
	body, err := bodyOf(m.Body)
	if err != nil {
		return nil, err
	}
	return appendFrame(make([]byte, 0, headSize+len(body)), m.Type, m.ID, now, body), nil
}

// headSize is room for the base members and some more, so that writing a
// message allocates once.
const headSize = 192

// wholeFrame is an answer that its provider wrote whole, from [Request.head] on:
// correct by construction.
type wholeFrame []byte

// bodyOf gives a checked object for anything that encodes as one.
func bodyOf(v any) (json.RawMessage, error) {
	var b []byte
	switch x := v.(type) {
	case nil:
		return nil, nil
	case json.RawMessage:
		b = x
	case []byte:
		b = x
	default:
		var err error
		b, err = jsonx.Encode(v)
		if err != nil {
			return nil, ErrInvalid.Because(err)
		}
	}
	if len(b) == 0 {
		return nil, nil
	}
	if fault := checkObject(b, DefaultMaxDepth); fault != "" {
		e := *ErrInvalid
		e.Text, e.Reason = "the body is not a JSON object", fault
		return nil, &e
	}
	return b, nil
}

// appendTime writes seconds since 1970 in plain decimal with microseconds.
func appendTime(dst []byte, t time.Time) []byte {
	us := t.UnixMicro()
	if us < 0 {
		us = 0
	}
	dst = strconv.AppendInt(dst, us/1e6, 10)
	dst = append(dst, '.')
	frac := us % 1e6
	for unit := int64(1e5); unit > 0; unit /= 10 {
		dst = append(dst, byte('0'+frac/unit%10))
	}
	return dst
}

// appendHead opens a frame with the base members.
func appendHead(dst []byte, typ, id string, now time.Time) []byte {
	dst = append(dst, `{"a2e":"1.0","type":`...)
	dst = appendString(dst, typ)
	dst = append(dst, `,"id":`...)
	dst = appendString(dst, id)
	dst = append(dst, `,"version":"1.0","ts":`...)
	return appendTime(dst, now)
}

// appendFrame writes a whole frame around a body that has been checked. Base
// members inside the body are passed over: they are the frame's own.
func appendFrame(dst []byte, typ, id string, now time.Time, body []byte) []byte {
	dst = appendHead(dst, typ, id, now)
	if len(body) > 0 {
		dst = appendMembers(dst, body, func(name string) bool {
			switch name {
			case "a2e", "version", "scp", "id", "type", "ts":
				return false
			}
			return true
		})
	}
	return append(dst, '}')
}

// appendMembers writes the members of an object, each after a comma.
func appendMembers(dst, object []byte, keep func(name string) bool) []byte {
	var few [fewMembers]member
	for _, m := range membersInto(few[:0], object) {
		name, _ := unquote(m.name.of(object))
		if !keep(name) {
			continue
		}
		dst = append(dst, ',')
		dst = appendString(dst, name)
		dst = append(dst, ':')
		dst = appendASCII(dst, m.value.of(object))
	}
	return dst
}

// appendError writes an error frame with all six members (A2E-072).
func appendError(dst []byte, e *Error, id string, now time.Time) []byte {
	dst = appendHead(dst, "error", id, now)
	dst = append(dst, `,"req_id":`...)
	dst = appendString(dst, e.ReqID)
	dst = append(dst, `,"code":`...)
	dst = appendString(dst, string(e.Code))
	dst = append(dst, `,"message":`...)
	dst = appendString(dst, clip(e.Text, maxText))
	dst = append(dst, `,"detail":`...)
	dst = appendDetail(dst, e)
	dst = append(dst, `,"retryable":`...)
	dst = strconv.AppendBool(dst, e.Retryable)
	dst = append(dst, `,"capability_name":`...)
	dst = appendString(dst, e.Capability)
	return append(dst, '}')
}

// appendDetail writes the detail: always an object, with the reason unless the
// detail itself has one.
func appendDetail(dst []byte, e *Error) []byte {
	detail := e.Detail
	if checkObject(detail, DefaultMaxDepth) != "" {
		detail = json.RawMessage("{}")
	}
	dst = append(dst, '{')
	first := true
	if e.Reason != "" {
		dst = append(dst, `"reason":`...)
		dst = appendString(dst, e.Reason)
		first = false
	}
	for _, m := range members(detail) {
		name, _ := unquote(m.name.of(detail))
		if name == "reason" && e.Reason != "" {
			continue
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = appendString(dst, name)
		dst = append(dst, ':')
		dst = appendASCII(dst, m.value.of(detail))
	}
	return append(dst, '}')
}

const lowerHex = "0123456789abcdef"

func appendEscape(dst []byte, r rune) []byte {
	return append(dst, '\\', 'u', lowerHex[r>>12&15], lowerHex[r>>8&15], lowerHex[r>>4&15], lowerHex[r&15])
}

// appendRune writes a character beyond ASCII as one or two \u escapes.
func appendRune(dst []byte, r rune) []byte {
	if r >= 0x10000 {
		r -= 0x10000
		dst = appendEscape(dst, 0xd800+r>>10)
		return appendEscape(dst, 0xdc00+r&0x3ff)
	}
	return appendEscape(dst, r)
}

// appendString writes s as a JSON string in ASCII. Bytes that are not UTF-8
// become U+FFFD.
func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	from := 0 // what is written as it is
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c < utf8.RuneSelf && c != '"' && c != '\\' {
			i++
			continue
		}
		dst = append(dst, s[from:i]...)
		switch {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c == '\n':
			dst = append(dst, '\\', 'n')
		case c == '\r':
			dst = append(dst, '\\', 'r')
		case c == '\t':
			dst = append(dst, '\\', 't')
		case c < ' ':
			dst = appendEscape(dst, rune(c))
		default:
			r, n := utf8.DecodeRuneInString(s[i:])
			dst = appendRune(dst, r)
			i += n - 1
		}
		i++
		from = i
	}
	return append(append(dst, s[from:]...), '"')
}

// appendASCII writes a checked JSON value compactly and in ASCII, every number
// and every escape as it was written (A2E §2.1, the output rule).
func appendASCII(dst, v []byte) []byte {
	inside := false
	from := 0 // what is written as it is
	for i := 0; i < len(v); i++ {
		switch c := v[i]; {
		case c >= utf8.RuneSelf:
			r, n := utf8.DecodeRune(v[i:])
			dst = appendRune(append(dst, v[from:i]...), r)
			i += n - 1
			from = i + 1
		case c == '"':
			inside = !inside
		case inside:
			if c == '\\' {
				i++
			}
		case isSpace(c):
			dst = append(dst, v[from:i]...)
			from = i + 1
		}
	}
	return append(dst, v[from:]...)
}
