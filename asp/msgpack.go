package asp

import (
	"bytes"
	"encoding/base64"
	"errors"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"

	"github.com/parley-hub/parley/internal/jsonx"
)

// MessagePack, "Encoding": the same schema as JSON. Hash and signature are
// over the canonical JSON of the decoded value (project), so that one message
// has one hash in both forms.

// msgpackAsJSON gives one MessagePack value as JSON. Integers of every width,
// both float widths and all header sizes are read; binary becomes unpadded
// base64url, as the vendor's rule for binary in JSON says. Refused:
// unsupported_ext, number_range (NaN, infinities), non_string_key,
// invalid_utf8, too_deep, and as malformed_msgpack everything that is cut
// short, followed by more, reserved, or announces more than is there.
// Duplicate keys and inexact integers are found when the JSON is read.
func msgpackAsJSON(b []byte) ([]byte, error) {
	text, _, err := msgpackToJSON(b)
	return text, err
}

// msgpackToJSON also tells where in b the value of sender.trustScore lies.
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

// location says where a value lies, as far as the trust score needs to know.
type location int

const (
	elsewhere location = iota
	atRoot
	inSender
	atScore
)

type unpacker struct {
	b     []byte
	r     *bytes.Reader // does no buffering of its own: its position is the decoder's
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
	default: // the other integers; 0xc1 is no integer and fails
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
		return broken(errOr(err))
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
		return broken(errOr(err))
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
		return nil, broken(errOr(err))
	}
	at := m.pos()
	if _, err := m.r.Seek(int64(n), 1); err != nil {
		return nil, broken(err)
	}
	return m.b[at : at+n], nil
}

var errShort = errors.New("a length exceeds what is left")

func errOr(err error) error {
	if err == nil {
		return errShort
	}
	return err
}

func broken(err error) error {
	if err == nil {
		return nil
	}
	return refuseCause("malformed_msgpack", "", err)
}

// jsonToMsgpack gives one strict JSON value as MessagePack. Numbers without a
// fraction that fit become integers of the smallest width, all others float64.
func jsonToMsgpack(b []byte) ([]byte, error) {
	n, err := parseJSON(b)
	if err != nil {
		return nil, err
	}
	return appendMsgpack(nil, n), nil
}

func appendMsgpack(dst []byte, n *node) []byte {
	switch n.kind {
	case '{':
		dst = packHeader(dst, len(n.kids), 0x80, 15, 0, 0xde)
		for i := range n.kids {
			dst = packString(dst, n.names[i].raw)
			dst = appendMsgpack(dst, &n.kids[i])
		}
		return dst
	case '[':
		dst = packHeader(dst, len(n.kids), 0x90, 15, 0, 0xdc)
		for i := range n.kids {
			dst = appendMsgpack(dst, &n.kids[i])
		}
		return dst
	case '"':
		return packString(dst, n.str)
	case 't':
		return append(dst, msgpcode.True)
	case 'f':
		return append(dst, msgpcode.False)
	case 'n':
		return append(dst, msgpcode.Nil)
	}
	if i, ok := n.integer(); ok {
		return packInt(dst, i)
	}
	bits := math.Float64bits(n.number())
	dst = append(dst, msgpcode.Double)
	return packUint(dst, bits, 8)
}

func packString(dst []byte, s string) []byte {
	return append(packHeader(dst, len(s), 0xa0, 31, msgpcode.Str8, msgpcode.Str16), s...)
}

// packHeader writes a length: in the fixed form up to fixedMax, in an 8 bit
// form if there is one, else in 16 or 32 bits (the code after c16).
func packHeader(dst []byte, n int, fixed byte, fixedMax int, c8, c16 byte) []byte {
	switch {
	case n <= fixedMax:
		return append(dst, fixed|byte(n))
	case c8 != 0 && n <= math.MaxUint8:
		return append(dst, c8, byte(n))
	case n <= math.MaxUint16:
		return packUint(append(dst, c16), uint64(n), 2)
	}
	return packUint(append(dst, c16+1), uint64(n), 4)
}

func packUint(dst []byte, v uint64, width int) []byte {
	for shift := 8 * (width - 1); shift >= 0; shift -= 8 {
		dst = append(dst, byte(v>>shift))
	}
	return dst
}

func packInt(dst []byte, v int64) []byte {
	u := uint64(v)
	switch {
	case v >= -32 && v <= 127:
		return append(dst, byte(v))
	case v > 0 && u <= math.MaxUint8:
		return packUint(append(dst, msgpcode.Uint8), u, 1)
	case v > 0 && u <= math.MaxUint16:
		return packUint(append(dst, msgpcode.Uint16), u, 2)
	case v > 0 && u <= math.MaxUint32:
		return packUint(append(dst, msgpcode.Uint32), u, 4)
	case v > 0:
		return packUint(append(dst, msgpcode.Uint64), u, 8)
	case v >= math.MinInt8:
		return packUint(append(dst, msgpcode.Int8), u, 1)
	case v >= math.MinInt16:
		return packUint(append(dst, msgpcode.Int16), u, 2)
	case v >= math.MinInt32:
		return packUint(append(dst, msgpcode.Int32), u, 4)
	}
	return packUint(append(dst, msgpcode.Int64), u, 8)
}
