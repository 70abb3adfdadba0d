package uagents

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/parley-hub/parley/internal/jsonx"
)

// This file writes the texts that are hashed: an envelope's fields, and JSON as
// CPython's json module writes it, for the digests of schemas, manifests and
// attestations.

// Digest is the SHA-256 that an envelope's signature covers: sender, target,
// canonical session, schema digest, payload text, expires and nonce, without
// separators (envelope.py). It does not cover version, protocol digest and
// signature. The error is ErrRange, for numbers that do not fit 64 bits.
func (e *Envelope) Digest() ([32]byte, error) {
	var sum [32]byte
	var tail [16]byte
	n := 0
	for _, i := range [2]Int{e.Expires, e.Nonce} {
		if i.IsNull() {
			continue
		}
		u, ok := i.Uint64()
		if !ok {
			return sum, ErrRange
		}
		binary.BigEndian.PutUint64(tail[n:], u)
		n += 8
	}
	h := sha256.New()
	// io.WriteString reaches the hash without copying the text.
	for _, s := range [4]string{e.Sender, e.Target, e.Session, e.SchemaDigest} {
		io.WriteString(h, s)
	}
	if e.Payload != nil {
		io.WriteString(h, *e.Payload)
	}
	h.Write(tail[:n])
	h.Sum(sum[:0])
	return sum, nil
}

// A node is one JSON value that keeps the order of its members and the
// literals of its numbers.
type node struct {
	kind byte // n t f " 0 [ { as jsontext names them ('t' and 'f' are booleans)
	text string
	keys []string
	vals []*node
}

// maxSchemaDepth bounds the nesting of schemas, manifests and messages.
const maxSchemaDepth = 64

// parse reads strict JSON: duplicate names, bad UTF-8 and deep nesting are
// refused.
func parse(b []byte) (*node, error) {
	if err := jsonx.Valid(b, maxSchemaDepth); err != nil {
		return nil, err
	}
	return readNode(jsontext.NewDecoder(bytes.NewReader(b)))
}

// parseChat parses the content of a chat message. Of members with the same name the
// last counts, as in Python; duplicate reports whether there are any.
func parseChat(b []byte) (n *node, duplicate bool, err error) {
	n, err = parse(b)
	if !errors.Is(err, jsonx.ErrDuplicate) || jsonx.TooDeep(b, maxSchemaDepth) {
		return n, false, err
	}
	d := jsontext.NewDecoder(bytes.NewReader(b), jsontext.AllowDuplicateNames(true))
	if n, err = readNode(d); err != nil {
		return nil, true, err
	}
	if _, err := d.ReadToken(); err != io.EOF {
		return nil, true, jsonx.ErrTrailing
	}
	n.lastWins()
	return n, true, nil
}

// lastWins leaves one member of each name: the last value at the place of the first.
func (n *node) lastWins() {
	at := make(map[string]int, len(n.keys))
	keys, vals := n.keys[:0], n.vals[:0]
	for i, v := range n.vals {
		v.lastWins()
		if n.kind != '{' {
			vals = append(vals, v)
			continue
		}
		k := n.keys[i]
		if first, twice := at[k]; twice {
			vals[first] = v
			continue
		}
		at[k] = len(keys)
		keys, vals = append(keys, k), append(vals, v)
	}
	n.keys, n.vals = keys, vals
}

func readNode(d *jsontext.Decoder) (*node, error) {
	t, err := d.ReadToken()
	if err != nil {
		return nil, err
	}
	n := &node{kind: byte(t.Kind())}
	switch n.kind {
	case '"', '0':
		n.text = t.String()
	case '[':
		for d.PeekKind() != ']' {
			v, err := readNode(d)
			if err != nil {
				return nil, err
			}
			n.vals = append(n.vals, v)
		}
		_, err = d.ReadToken()
	case '{':
		for d.PeekKind() != '}' {
			k, err := d.ReadToken()
			if err != nil {
				return nil, err
			}
			// The token is only valid until the next read.
			n.keys = append(n.keys, strings.Clone(k.String()))
			v, err := readNode(d)
			if err != nil {
				return nil, err
			}
			n.vals = append(n.vals, v)
		}
		_, err = d.ReadToken()
	}
	return n, err
}

// get is the named member, or nil.
func (n *node) get(name string) *node {
	if n == nil || n.kind != '{' {
		return nil
	}
	if i := slices.Index(n.keys, name); i >= 0 {
		return n.vals[i]
	}
	return nil
}

// set adds or replaces a member.
func (n *node) set(name string, v *node) {
	if i := slices.Index(n.keys, name); i >= 0 {
		n.vals[i] = v
		return
	}
	n.keys = append(n.keys, name)
	n.vals = append(n.vals, v)
}

// str is the text of a string, or "".
func (n *node) str() string {
	if n == nil || n.kind != '"' {
		return ""
	}
	return n.text
}

func str(s string) *node { return &node{kind: '"', text: s} }
func null() *node        { return &node{kind: 'n'} }
func number(i int64) *node {
	return &node{kind: '0', text: strconv.FormatInt(i, 10)}
}
func boolean(b bool) *node {
	if b {
		return &node{kind: 't'}
	}
	return &node{kind: 'f'}
}
func list(vals ...*node) *node { return &node{kind: '[', vals: vals} }
func texts(all []string) *node {
	out := list()
	for _, s := range all {
		out.vals = append(out.vals, str(s))
	}
	return out
}
func object(name, text string) *node {
	return &node{kind: '{', keys: []string{name}, vals: []*node{str(text)}}
}

// A pyStyle is one way to call Python's json.dumps.
type pyStyle struct {
	item, colon string
	sorted      bool
}

var (
	pyDefault = pyStyle{item: ", ", colon: ": "}               // json.dumps(x)
	pySorted  = pyStyle{item: ", ", colon: ": ", sorted: true} // json.dumps(x, sort_keys=True)
	pyCompact = pyStyle{item: ",", colon: ":"}                 // separators=(",", ":")
	pySigned  = pyStyle{item: ",", colon: ":", sorted: true}   // both
)

// errNumber is a number that Python would print as Infinity.
var errNumber = errors.New("number beyond the doubles")

// write appends n as Python prints it: non-ASCII characters as \uXXXX, whole
// numbers verbatim, others as repr prints the double.
func (s pyStyle) write(b []byte, n *node) ([]byte, error) {
	var err error
	switch n.kind {
	case 'n':
		return append(b, "null"...), nil
	case 't':
		return append(b, "true"...), nil
	case 'f':
		return append(b, "false"...), nil
	case '"':
		return pyString(b, n.text), nil
	case '0':
		text, err := pyNumber(n.text)
		return append(b, text...), err
	case '[':
		b = append(b, '[')
		for i, v := range n.vals {
			if i > 0 {
				b = append(b, s.item...)
			}
			if b, err = s.write(b, v); err != nil {
				return nil, err
			}
		}
		return append(b, ']'), nil
	case '{':
		var order []int
		if s.sorted {
			order = make([]int, len(n.keys))
			for i := range order {
				order[i] = i
			}
			// Python compares code points, which is the order of UTF-8 bytes.
			slices.SortFunc(order, func(i, j int) int { return strings.Compare(n.keys[i], n.keys[j]) })
		}
		b = append(b, '{')
		for i := range n.keys {
			at := i
			if s.sorted {
				at = order[i]
			}
			if i > 0 {
				b = append(b, s.item...)
			}
			b = pyString(b, n.keys[at])
			b = append(b, s.colon...)
			if b, err = s.write(b, n.vals[at]); err != nil {
				return nil, err
			}
		}
		return append(b, '}'), nil
	}
	return nil, fmt.Errorf("unexpected JSON kind %q", n.kind)
}

const hexDigits = "0123456789abcdef"

// pyString appends a string as json.dumps with ensure_ascii does.
func pyString(b []byte, s string) []byte {
	b = append(b, '"')
	plain := 0 // start of the unwritten characters, none of which needs an escape
	for i, r := range s {
		if r >= ' ' && r <= '~' && r != '"' && r != '\\' {
			continue
		}
		if plain < i {
			b = append(b, s[plain:i]...)
		}
		_, size := utf8.DecodeRuneInString(s[i:])
		plain = i + size
		switch {
		case r == '"', r == '\\':
			b = append(b, '\\', byte(r))
		case r == '\n':
			b = append(b, `\n`...)
		case r == '\r':
			b = append(b, `\r`...)
		case r == '\t':
			b = append(b, `\t`...)
		case r == '\b':
			b = append(b, `\b`...)
		case r == '\f':
			b = append(b, `\f`...)
		case r > 0xffff:
			r -= 0x10000
			b = pyEscape(b, 0xd800+r>>10)
			b = pyEscape(b, 0xdc00+r&0x3ff)
		default:
			b = pyEscape(b, r)
		}
	}
	return append(append(b, s[plain:]...), '"')
}

func pyEscape(b []byte, r rune) []byte {
	return append(b, '\\', 'u', hexDigits[r>>12&15], hexDigits[r>>8&15], hexDigits[r>>4&15], hexDigits[r&15])
}

// pyNumber prints a JSON number literal as Python prints it after reading it.
func pyNumber(lit string) (string, error) {
	if !strings.ContainsAny(lit, ".eE") {
		if lit == "-0" {
			return "0", nil
		}
		return lit, nil
	}
	f, err := strconv.ParseFloat(lit, 64)
	if err != nil || math.IsInf(f, 0) {
		return "", errNumber
	}
	return pyFloat(f), nil
}

// pyFloat is Python's repr of a finite double: the shortest digits that give the same
// double, with an exponent below 1e-4 and from 1e16.
func pyFloat(f float64) string {
	if f == 0 {
		if math.Signbit(f) {
			return "-0.0"
		}
		return "0.0"
	}
	if a := math.Abs(f); a < 1e-4 || a >= 1e16 {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// MessageJSON rewrites the JSON text of a message as an agent of the reference
// sends it: member order kept, ", " and ": " as separators, non-ASCII escaped.
func MessageJSON(b []byte) ([]byte, error) { return pyText(b, pyDefault) }

// compactJSON is [MessageJSON] without spaces: the form of the reference's
// core helper library.
func compactJSON(b []byte) ([]byte, error) { return pyText(b, pyCompact) }

func pyText(b []byte, s pyStyle) ([]byte, error) {
	n, err := parse(b)
	if err != nil {
		return nil, err
	}
	return s.write(nil, n)
}

// digestOf hashes n as the reference's digests do: sorted, with spaces.
func digestOf(prefix string, n *node) (string, error) {
	canonical, err := pySorted.write(nil, n)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s%x", prefix, sha256.Sum256(canonical)), nil
}
