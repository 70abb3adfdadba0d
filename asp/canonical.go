package asp

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/text/unicode/norm"

	"github.com/parley-hub/parley/internal/jsonx"
)

// Canonical JSON, "Integrity chain: hash" of the message format: members
// sorted, no white space, strings in NFC, shortest numbers. Where the page is
// open the rules are those of RFC 8785, applied after NFC (project).

// Canonical gives the canonical form of one JSON value. It refuses what two
// parsers could read differently: malformed_json, invalid_utf8,
// duplicate_key (also after NFC), lone_surrogate, number_range,
// number_precision, too_deep.
func Canonical(b []byte) ([]byte, error) {
	n, err := parseJSON(b)
	if err != nil {
		return nil, err
	}
	return appendCanonical(make([]byte, 0, len(b)), n), nil
}

// ContentHash gives the hash of one content object, "sha256:" and 64
// lower-case hexadecimal digits, for any JSON spelling of it.
func ContentHash(content []byte) (string, error) {
	c, err := Canonical(content)
	if err != nil {
		return "", err
	}
	return hashOf(c), nil
}

// ZeroHash is the previousHash of the first message of a session.
const ZeroHash = "sha256:0000000000000000000000000000000000000000000000000000000000000000"

func hashOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// maxDepth is the nesting allowed, objects and arrays alike (project).
const maxDepth = 64

// A node is one JSON value of a document that stays in memory.
type node struct {
	kind  byte   // one of { [ " 0 t f n
	raw   []byte // as written: a part of the document, whose capacity tells its place
	str   string // of a string: decoded, not normalised
	names []name // of an object, in the order written
	kids  []node // elements, or the values of names
}

type name struct {
	text string // decoded and in NFC: the form that is sorted and compared
	raw  string // decoded as written
}

// get gives the member called s, or nil; a nil node has none, and no value.
func (n *node) get(s string) *node {
	if n == nil {
		return nil
	}
	for i := range n.names {
		if n.names[i].raw == s {
			return &n.kids[i]
		}
	}
	return nil
}

// elements are those of an array.
func (n *node) elements() iter.Seq[*node] {
	return func(yield func(*node) bool) {
		if n == nil {
			return
		}
		for i := range n.kids {
			if !yield(&n.kids[i]) {
				return
			}
		}
	}
}

func (n *node) number() float64 {
	f, _ := strconv.ParseFloat(string(n.raw), 64)
	return f
}

// integer gives the value of a number without a fraction in the range of
// exact doubles.
func (n *node) integer() (int64, bool) {
	if n == nil || n.kind != '0' {
		return 0, false
	}
	if len(n.raw) <= 15 && !slices.ContainsFunc(n.raw, func(c byte) bool { return c < '0' || c > '9' }) {
		i := int64(0) // exact, as most
		for _, c := range n.raw {
			i = 10*i + int64(c-'0')
		}
		return i, true
	}
	if f := n.number(); f == math.Trunc(f) && math.Abs(f) <= 1<<53 {
		return int64(f), true
	}
	return 0, false
}

// parseJSON reads one strict value.
func parseJSON(b []byte) (*node, error) { return parseWithin(b, maxDepth) }

// parseWithin is parseJSON for a value that may nest depth deep. It accepts the
// same documents as jsonx, which explains a refusal, less those that only ASP
// refuses (number_range, number_precision, names equal after NFC).
func parseWithin(b []byte, depth int) (*node, error) {
	p := newParser(b, depth)
	n, ok := p.document()
	if !ok {
		err := jsonx.Valid(b, depth)
		return nil, refuseCause(jsonCode(b, err), "", err)
	}
	if p.fault != "" {
		return nil, refuse(p.fault, "")
	}
	return &n, nil
}

func jsonCode(b []byte, err error) string {
	var e *jsonx.Error
	if !errors.As(err, &e) {
		return "malformed_json"
	}
	switch e.Is {
	case jsonx.ErrDuplicate:
		return "duplicate_key"
	case jsonx.ErrUTF8:
		return "invalid_utf8"
	case jsonx.ErrDepth:
		return "too_deep"
	case jsonx.ErrSyntax:
		// With its half replaced, the text has no error here, or none before this.
		var rest *jsonx.Error
		if whole, replaced := jsonx.ReplaceHalves(b); replaced &&
			(!errors.As(jsonx.Valid(whole, 0), &rest) || rest.Offset > e.Offset) {
			return "lone_surrogate"
		}
	}
	return "malformed_json"
}

// parser reads a document. The decoder checks the syntax, UTF-8, and that no name
// comes twice.
type parser struct {
	*jsontext.Decoder
	b     []byte
	text  string // b, of which strings without escapes are parts
	depth int    // how much deeper values may nest
	fault string // the first that is none of the syntax
}

func newParser(b []byte, depth int) parser {
	return parser{Decoder: jsontext.NewDecoder(bytes.NewBuffer(b)), b: b, text: string(b), depth: depth}
}

// document reads one value with nothing behind it; false if it is not strict
// JSON.
func (p *parser) document() (n node, ok bool) {
	n, ok = p.value()
	if !ok {
		return n, false
	}
	_, err := p.ReadToken()
	return n, err == io.EOF
}

func (p *parser) refuse(code string) {
	if p.fault == "" {
		p.fault = code
	}
}

func (p *parser) value() (n node, ok bool) {
	n.kind = byte(p.PeekKind())
	if n.kind == '{' || n.kind == '[' {
		ok = p.container(&n)
		return n, ok
	}
	v, err := p.ReadValue()
	if err != nil {
		return n, false
	}
	end := int(p.InputOffset())
	n.raw = p.b[end-len(v) : end]
	switch n.kind {
	case '"':
		n.str, ok = p.unquote(v)
		return n, ok
	case '0':
		if code := numberFault(v); code != "" {
			p.refuse(code)
		}
	}
	return n, true
}

// unquote decodes the string that was read last.
func (p *parser) unquote(quoted []byte) (string, bool) {
	if bytes.IndexByte(quoted, '\\') < 0 {
		end := int(p.InputOffset())
		return p.text[end-len(quoted)+1 : end-1], true
	}
	s, err := jsontext.AppendUnquote(nil, quoted)
	return string(s), err == nil
}

// container reads an object or an array.
func (p *parser) container(n *node) bool {
	if _, err := p.ReadToken(); err != nil || p.depth == 0 {
		return false
	}
	start := p.InputOffset() - 1
	p.depth--
	normalised := false
	for end := jsontext.Kind(n.kind + 2); p.PeekKind() != end; { // as '{' and '}', '[' and ']'
		if n.kind == '{' && !p.name(n, &normalised) {
			return false
		}
		kid, ok := p.value()
		if !ok {
			return false
		}
		n.kids = append(n.kids, kid)
	}
	p.depth++
	if _, err := p.ReadToken(); err != nil {
		return false
	}
	n.raw = p.b[start:p.InputOffset()]
	if normalised && duplicateNames(n.names) {
		p.refuse("duplicate_key")
	}
	return true
}

// name reads the name of a member. normalised is set if its NFC is another text.
func (p *parser) name(n *node, normalised *bool) bool {
	v, err := p.ReadValue()
	if err != nil {
		return false
	}
	raw, ok := p.unquote(v)
	nfc := raw
	if !ascii(raw) && !norm.NFC.IsNormalString(raw) {
		nfc, *normalised = norm.NFC.String(raw), true
	}
	n.names = append(n.names, name{text: nfc, raw: raw})
	return ok
}

// duplicateNames reports whether two members have the same name in NFC.
func duplicateNames(names []name) bool {
	seen := make(map[string]bool, len(names))
	for _, n := range names {
		if seen[n.text] {
			return true
		}
		seen[n.text] = true
	}
	return false
}

func ascii(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// numberFault names what is wrong with a number literal: number_range when a
// double overflows, or underflows to 0; number_precision when a literal
// without a fraction is not the number that its shortest form says (project:
// two parsers would read different amounts from one signed hash).
func numberFault(lit []byte) string {
	if len(lit) <= 15 && bytes.IndexByte(lit, '.') < 0 && bytes.IndexByte(lit, 'e') < 0 &&
		bytes.IndexByte(lit, 'E') < 0 {
		return "" // an integer below 10^15 is exact
	}
	f, err := strconv.ParseFloat(string(lit), 64)
	if err != nil || math.IsInf(f, 0) {
		return "number_range"
	}
	digits, exp := decimal(lit)
	if digits == "" {
		return ""
	}
	if f == 0 {
		return "number_range"
	}
	if exp < 0 {
		return "" // a fraction: the nearest double is what it means
	}
	short, shortExp := decimal(strconv.AppendFloat(nil, f, 'e', -1, 64))
	if short != digits || shortExp != exp {
		return "number_precision"
	}
	return ""
}

// decimal gives |lit| as digits × 10^exp with no zero at either end of
// digits; zero has no digits.
func decimal(lit []byte) (digits string, exp int) {
	mantissa, e := lit, 0
	if at := bytes.IndexAny(lit, "eE"); at >= 0 {
		mantissa = lit[:at]
		e, _ = strconv.Atoi(string(lit[at+1:]))
	}
	mantissa = bytes.TrimPrefix(mantissa, []byte("-"))
	whole, frac, _ := bytes.Cut(mantissa, []byte("."))
	all := string(whole) + string(frac)
	exp = e - len(frac)
	trimmed := strings.TrimRight(all, "0")
	exp += len(all) - len(trimmed)
	return strings.TrimLeft(trimmed, "0"), exp
}

func appendCanonical(dst []byte, n *node) []byte {
	switch n.kind {
	case '{':
		dst = append(dst, '{')
		var few [16]int
		for i, at := range n.sorted(few[:0]) {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = jsonx.AppendText(dst, n.names[at].text)
			dst = append(dst, ':')
			dst = appendCanonical(dst, &n.kids[at])
		}
		return append(dst, '}')
	case '[':
		dst = append(dst, '[')
		for i := range n.kids {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = appendCanonical(dst, &n.kids[i])
		}
		return append(dst, ']')
	case '"':
		s := n.str
		if !ascii(s) && !norm.NFC.IsNormalString(s) {
			s = norm.NFC.String(s)
		}
		return jsonx.AppendText(dst, s)
	case '0':
		return appendNumber(dst, n.number())
	}
	return append(dst, n.raw...)
}

// sorted gives the order of the members: UTF-16 code units of the NFC names,
// as RFC 8785 §3.2.3. It uses order's memory if that is enough.
func (n *node) sorted(order []int) []int {
	for i := range n.names {
		order = append(order, i)
	}
	slices.SortFunc(order, func(a, b int) int { return compareUTF16(n.names[a].text, n.names[b].text) })
	return order
}

// compareUTF16 compares valid UTF-8 strings by their UTF-16 code units. It
// differs from byte order only where a character beyond U+FFFF meets one of
// U+E000–U+FFFF.
func compareUTF16(a, b string) int {
	if ascii(a) || ascii(b) {
		return strings.Compare(a, b)
	}
	return slices.Compare(utf16.Encode([]rune(a)), utf16.Encode([]rune(b)))
}

// appendNumber writes f as ECMAScript's Number::toString does.
func appendNumber(dst []byte, f float64) []byte {
	if f == 0 {
		return append(dst, '0') // also -0
	}
	if abs := math.Abs(f); abs >= 1e-6 && abs < 1e21 {
		return strconv.AppendFloat(dst, f, 'f', -1, 64)
	}
	dst = strconv.AppendFloat(dst, f, 'e', -1, 64)
	// Go writes e-07, ECMAScript e-7.
	if n := len(dst); n >= 4 && dst[n-4] == 'e' && dst[n-2] == '0' {
		dst[n-2] = dst[n-1]
		dst = dst[:n-1]
	}
	return dst
}
