package asp

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"errors"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"

	"github.com/parley-hub/parley/internal/jsonx"
)

// MessagePack, "Encoding": the same schema as JSON. Hash and signature cover the
// canonical JSON of the decoded value (project), so that a message has the same
// hash in both forms.

// msgpackAsJSON gives one MessagePack value as JSON. It reads integers of every
// width, both float widths and all header sizes; binary becomes unpadded base64url,
// the vendor's rule for binary in JSON. Its errors are unsupported_ext,
// number_range (NaN, infinities), non_string_key, invalid_utf8, too_deep, and
// malformed_msgpack for truncated input, trailing bytes, reserved codes and lengths
// beyond the input. The JSON parser finds duplicate keys and inexact integers.
func msgpackAsJSON(b []byte) ([]byte, error) {
	text, _, err := msgpackToJSON(b)
	return text, err
}

// msgpackToJSON also gives the position of the value of sender.trustScore in b.
func msgpackToJSON(b []byte) ([]byte, span, error) {
	r := bytes.NewReader(b)
	m := &unpacker{b: b, r: r, d: msgpack.NewDecoder(r)}
	m.out = make([]byte, 0, len(b)*5/4+64)
	if err := m.value(1, atRoot); err != nil {
		return nil, span{}, err
	}
	if r.Len() > 0 {
		return nil, span{}, refuse("malformed_msgpack", "")
	}
	return m.out, m.score, nil
}

// location is the place of a value in the message, as far as needed to find
// sender.trustScore.
type location int

const (
	elsewhere location = iota
	atRoot
	inSender
	atScore
)

type unpacker struct {
	b     []byte
	r     *bytes.Reader // unbuffered: its position is the decoder's
	d     *msgpack.Decoder
	out   []byte
	score span
}

func (m *unpacker) pos() int { return len(m.b) - m.r.Len() }

func (m *unpacker) value(depth int, at location) error {
	from := m.pos()
	c, err := m.d.PeekCode()
	if err != nil {
		return broken(err)
	}
	switch {
	case msgpcode.IsFixedMap(c) || c == msgpcode.Map16 || c == msgpcode.Map32:
		return m.object(depth, at)
	case msgpcode.IsFixedArray(c) || c == msgpcode.Array16 || c == msgpcode.Array32:
		return m.array(depth)
	case msgpcode.IsString(c):
		s, err := m.text()
		if err != nil {
			return err
		}
		m.out = jsonx.AppendText(m.out, string(s))
		return nil
	case msgpcode.IsBin(c):
		data, err := m.bytes()
		if err != nil {
			return err
		}
		m.out = append(m.out, '"')
		m.out = base64.RawURLEncoding.AppendEncode(m.out, data)
		m.out = append(m.out, '"')
		return nil
	case msgpcode.IsExt(c):
		return refuse("unsupported_ext", "")
	case c == msgpcode.Nil:
		m.out = append(m.out, "null"...)
		return broken(m.d.DecodeNil())
	case c == msgpcode.True, c == msgpcode.False:
		v, err := m.d.DecodeBool()
		m.out = strconv.AppendBool(m.out, v)
		return broken(err)
	}
	if err := m.number(c); err != nil {
		return err
	}
	if at == atScore {
		m.score = span{from, m.pos()}
	}
	return nil
}

func (m *unpacker) number(c byte) error {
	var f float64
	switch c {
	case msgpcode.Float:
		v, err := m.d.DecodeFloat32()
		if err != nil {
			return broken(err)
		}
		f = float64(v)
	case msgpcode.Double:
		v, err := m.d.DecodeFloat64()
		if err != nil {
			return broken(err)
		}
		f = v
	case msgpcode.Uint64:
		v, err := m.d.DecodeUint64()
		m.out = strconv.AppendUint(m.out, v, 10)
		return broken(err)
	default: // the other integers; 0xc1 is reserved and fails
		v, err := m.d.DecodeInt64()
		m.out = strconv.AppendInt(m.out, v, 10)
		return broken(err)
	}
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return refuse("number_range", "")
	}
	m.out = appendNumber(m.out, f)
	return nil
}

func (m *unpacker) object(depth int, at location) error {
	n, err := m.d.DecodeMapLen()
	if err != nil || n < 0 || n > m.r.Len()/2 {
		return broken(cmp.Or(err, errShort))
	}
	if depth > maxDepth {
		return refuse("too_deep", "")
	}
	m.out = append(m.out, '{')
	for i := range n {
		if i > 0 {
			m.out = append(m.out, ',')
		}
		c, err := m.d.PeekCode()
		if err != nil {
			return broken(err)
		}
		if !msgpcode.IsString(c) {
			return refuse("non_string_key", "")
		}
		key, err := m.text()
		if err != nil {
			return err
		}
		m.out = append(jsonx.AppendText(m.out, string(key)), ':')
		next := elsewhere
		switch {
		case at == atRoot && string(key) == "sender":
			next = inSender
		case at == inSender && string(key) == "trustScore":
			next = atScore
		}
		if err := m.value(depth+1, next); err != nil {
			return err
		}
	}
	m.out = append(m.out, '}')
	return nil
}

func (m *unpacker) array(depth int) error {
	n, err := m.d.DecodeArrayLen()
	if err != nil || n < 0 || n > m.r.Len() {
		return broken(cmp.Or(err, errShort))
	}
	if depth > maxDepth {
		return refuse("too_deep", "")
	}
	m.out = append(m.out, '[')
	for i := range n {
		if i > 0 {
			m.out = append(m.out, ',')
		}
		if err := m.value(depth+1, elsewhere); err != nil {
			return err
		}
	}
	m.out = append(m.out, ']')
	return nil
}

func (m *unpacker) text() ([]byte, error) {
	s, err := m.bytes()
	if err == nil && !utf8.Valid(s) {
		return nil, refuse("invalid_utf8", "")
	}
	return s, err
}

// bytes gives the content of a string or binary, without copying.
func (m *unpacker) bytes() ([]byte, error) {
	n, err := m.d.DecodeBytesLen()
	if err != nil || n < 0 || n > m.r.Len() {
		return nil, broken(cmp.Or(err, errShort))
	}
	at := m.pos()
	if _, err := m.r.Seek(int64(n), 1); err != nil {
		return nil, broken(err)
	}
	return m.b[at : at+n], nil
}

var errShort = errors.New("a length exceeds what is left")

func broken(err error) error {
	if err == nil {
		return nil
	}
	return refuseCause("malformed_msgpack", "", err)
}

// jsonToMsgpack gives one strict JSON value as MessagePack. A number without a
// fraction becomes an integer of the smallest width if it fits, any other number a
// float64.
func jsonToMsgpack(b []byte) ([]byte, error) {
	n, err := parseJSON(b)
	if err != nil {
		return nil, err
	}
	return packed(n), nil
}

func packed(n *node) []byte {
	var b bytes.Buffer
	pack(msgpack.NewEncoder(&b), n)
	return b.Bytes()
}

// pack writes to a buffer, which never fails.
func pack(w *msgpack.Encoder, n *node) {
	switch n.kind {
	case '{':
		_ = w.EncodeMapLen(len(n.kids))
		for i := range n.kids {
			_ = w.EncodeString(n.names[i].raw)
			pack(w, &n.kids[i])
		}
	case '[':
		_ = w.EncodeArrayLen(len(n.kids))
		for i := range n.kids {
			pack(w, &n.kids[i])
		}
	case '"':
		_ = w.EncodeString(n.str)
	case 't', 'f':
		_ = w.EncodeBool(n.kind == 't')
	case 'n':
		_ = w.EncodeNil()
	default:
		if i, ok := n.integer(); ok {
			_ = w.EncodeInt(i)
		} else {
			_ = w.EncodeFloat64(n.number())
		}
	}
}
