package a2e

import (
	"crypto/rand"
	"encoding/hex"
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
	hex.Encode(out[:], b[:])
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
	f := appendHead(make([]byte, 0, headSize+len(body)), m.Type, m.ID, now)
	return append(appendMembers(f, body, bodyMember), '}'), nil
}

// headSize is room for the base members and some more, so that writing a
// message allocates once.
const headSize = 192

// wholeFrame is a complete answer encoded by its provider, from [Request.head] on:
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
	us := max(t.UnixMicro(), 0)
	dst = strconv.AppendInt(dst, us/1e6, 10)
	point := len(dst)
	dst = strconv.AppendInt(dst, 1e6+us%1e6, 10) // its first digit gives way to the point
	dst[point] = '.'
	return dst
}

// encoder is a message, or an object in one, being written member by member.
type encoder []byte

// name begins a member, after a comma unless it is the first of an object.
func (f encoder) name(name string) encoder {
	if len(f) > 0 && f[len(f)-1] != '{' {
		f = append(f, ',')
	}
	return append(appendString(f, name), ':')
}

func (f encoder) text(name, v string) encoder         { return appendString(f.name(name), v) }
func (f encoder) number(name string, v int64) encoder { return strconv.AppendInt(f.name(name), v, 10) }
func (f encoder) flag(name string, v bool) encoder    { return strconv.AppendBool(f.name(name), v) }

// json adds a value that has been checked, see [appendASCII].
func (f encoder) json(name string, v []byte) encoder { return appendASCII(f.name(name), v) }

// nullable adds a text, null if empty.
func (f encoder) nullable(name, v string) encoder {
	if v == "" {
		return f.json(name, null)
	}
	return f.text(name, v)
}

func (f encoder) time(name string, t time.Time) encoder { return appendTime(f.name(name), t) }

var null = json.RawMessage("null")

// appendHead opens a frame with the base members.
func appendHead(dst []byte, typ, id string, now time.Time) encoder {
	return encoder(append(dst, '{')).text("a2e", Version).text("type", typ).text("id", id).text("version", Version).
		time("ts", now)
}

// bodyMember reports whether a member may stand in a body. The others belong to the
// frame.
func bodyMember(name string) bool {
	switch name {
	case "a2e", "version", "scp", "id", "type", "ts":
		return false
	}
	return true
}

// appendMembers adds the members of an object, if there is one.
func appendMembers(f encoder, object []byte, keep func(name string) bool) encoder {
	var few [fewMembers]member
	for _, m := range membersInto(few[:0], object) {
		if name, _ := unquote(m.name.of(object)); keep(name) {
			f = f.json(name, m.value.of(object))
		}
	}
	return f
}

// errorFrame writes an error with all six members (A2E-072).
func errorFrame(e *Error, now time.Time) []byte {
	detail := e.Detail
	if checkObject(detail, DefaultMaxDepth) != "" {
		detail = nil
	}
	f := appendHead(nil, "error", NewID(), now).text("req_id", e.ReqID).text("code", string(e.Code)).
		text("message", clip(e.Text, maxText))
	f = append(f.name("detail"), '{')
	if e.Reason != "" {
		f = f.text("reason", e.Reason)
	}
	f = appendMembers(f, detail, func(name string) bool { return name != "reason" || e.Reason == "" })
	f = append(f, '}')
	return append(f.flag("retryable", e.Retryable).text("capability_name", e.Capability), '}')
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
	from := 0 // start of the bytes to copy unchanged
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

// appendASCII writes a checked JSON value compactly and in ASCII, with numbers and
// escapes unchanged (A2E §2.1, the output rule).
func appendASCII(dst, v []byte) []byte {
	inside := false
	from := 0 // start of the bytes to copy unchanged
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
