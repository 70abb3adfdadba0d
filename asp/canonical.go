package asp

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

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
	raw   []byte // as written
	str   string // of a string: decoded, not normalised
	names []name // of an object, in the order written
	kids  []node // elements, or the values of names
}

type name struct {
	text string // decoded and in NFC: what is sorted and compared
	raw  string // decoded as written
}

// get gives the member called s, or nil.
func (n *node) get(s string) *node {
	for i := range n.names {
		if n.names[i].raw == s {
			return &n.kids[i]
		}
	}
	return nil
}

func (n *node) number() float64 {
	f, _ := strconv.ParseFloat(string(n.raw), 64)
	return f
}

// integer gives the value of a number without a fraction in the range of
// exact doubles.
func (n *node) integer() (int64, bool) {
	if n.kind != '0' {
		return 0, false
	}
	if f := n.number(); f == math.Trunc(f) && math.Abs(f) <= 1<<53 {
		return int64(f), true
	}
	return 0, false
}

// parseJSON reads one strict value. The syntax is jsonx's business; this adds
// what only ASP refuses.
func parseJSON(b []byte) (*node, error) {
	if err := jsonx.Valid(b, maxDepth); err != nil {
		return nil, refuseCause(jsonCode(b, err), "", err)
	}
	p := parser{b: b, src: string(b), nodes: make([]node, 0, 16), names: make([]name, 0, 16)}
	n, err := p.value()
	if err != nil {
		return nil, err
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
		if loneSurrogateAt(b, int(e.Offset)) {
			return "lone_surrogate"
		}
	}
	return "malformed_json"
}

// loneSurrogateAt reports whether the syntax error at offset is an unpaired
// \uD800–\uDFFF escape. The decoder points at the escape or just behind it.
func loneSurrogateAt(b []byte, offset int) bool {
	from, to := max(offset-12, 0), min(offset+12, len(b))
	for i := from; i+6 <= to; i++ {
		if unit, ok := escapeUnit(b[i:]); ok && utf16.IsSurrogate(rune(unit)) {
			if unit < 0xdc00 && i+12 <= len(b) {
				if low, ok := escapeUnit(b[i+6:]); ok && low >= 0xdc00 && low < 0xe000 {
					i += 11
					continue
				}
			}
			return true
		}
	}
	return false
}

func escapeUnit(b []byte) (uint16, bool) {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return 0, false
	}
	u, err := strconv.ParseUint(string(b[2:6]), 16, 16)
	return uint16(u), err == nil
}

// parser walks a document that jsonx found valid.
type parser struct {
	b     []byte
	src   string // b: strings without escapes are parts of it
	i     int
	nodes []node // the members and elements of what is open
	names []name
}

func (p *parser) space() {
	for p.i < len(p.b) {
		switch p.b[p.i] {
		case ' ', '\t', '\n', '\r':
			p.i++
		default:
			return
		}
	}
}

func (p *parser) value() (n node, err error) {
	p.space()
	start := p.i
	switch c := p.b[p.i]; c {
	case '{':
		n, err = p.object()
	case '[':
		n, err = p.array()
	case '"':
		n.kind, n.str = '"', p.string()
	case 't', 'n':
		n.kind = c
		p.i += 4
	case 'f':
		n.kind = c
		p.i += 5
	default:
		n.kind = '0'
		for p.i < len(p.b) && strings.IndexByte("+-.0123456789Ee", p.b[p.i]) >= 0 {
			p.i++
		}
		if code := numberFault(p.b[start:p.i]); code != "" {
			return n, refuse(code, "")
		}
	}
	n.raw = p.b[start:p.i]
	return n, err
}

func (p *parser) array() (n node, err error) {
	n.kind = '['
	base := len(p.nodes)
	for p.i++; ; {
		p.space()
		switch p.b[p.i] {
		case ']':
			p.i++
			n.kids = p.take(base)
			return n, nil
		case ',':
			p.i++
			continue
		}
		kid, err := p.value()
		if err != nil {
			return n, err
		}
		p.nodes = append(p.nodes, kid)
	}
}

// take gives the nodes from base on, in a slice of just their number.
func (p *parser) take(base int) []node {
	kids := slices.Clone(p.nodes[base:])
	p.nodes = p.nodes[:base]
	return kids
}

func (p *parser) object() (n node, err error) {
	n.kind = '{'
	normalised := false
	base, names := len(p.nodes), len(p.names)
	for p.i++; ; {
		p.space()
		switch p.b[p.i] {
		case '}':
			p.i++
			n.kids, n.names = p.take(base), slices.Clone(p.names[names:])
			p.names = p.names[:names]
			if normalised && duplicateNames(n.names) {
				return n, refuse("duplicate_key", "")
			}
			return n, nil
		case ',':
			p.i++
			continue
		}
		raw := p.string()
		nfc := raw
		if !ascii(raw) && !norm.NFC.IsNormalString(raw) {
			nfc, normalised = norm.NFC.String(raw), true
		}
		p.space()
		p.i++ // the colon
		kid, err := p.value()
		if err != nil {
			return n, err
		}
		p.names = append(p.names, name{text: nfc, raw: raw})
		p.nodes = append(p.nodes, kid)
	}
}

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

// string reads the string at p.i, which is valid.
func (p *parser) string() string {
	p.i++
	start := p.i
	for {
		switch p.b[p.i] {
		case '"':
			s := p.src[start:p.i]
			p.i++
			return s
		case '\\':
			return p.escaped(start)
		}
		p.i++
	}
}

func (p *parser) escaped(start int) string {
	out := append(make([]byte, 0, 2*(p.i-start)+16), p.b[start:p.i]...)
	for {
		c := p.b[p.i]
		switch {
		case c == '"':
			p.i++
			return string(out)
		case c != '\\':
			out = append(out, c)
			p.i++
			continue
		}
		if at := strings.IndexByte(`bfnrt`, p.b[p.i+1]); at >= 0 {
			out = append(out, "\b\f\n\r\t"[at])
			p.i += 2
			continue
		}
		if p.b[p.i+1] != 'u' { // one of " \ /
			out = append(out, p.b[p.i+1])
			p.i += 2
			continue
		}
		unit, _ := escapeUnit(p.b[p.i:])
		p.i += 6
		r := rune(unit)
		if utf16.IsSurrogate(r) { // its other half follows: jsonx looked
			low, _ := escapeUnit(p.b[p.i:])
			p.i += 6
			r = utf16.DecodeRune(r, rune(low))
		}
		out = utf8.AppendRune(out, r)
	}
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
	if len(lit) <= 15 && !bytes.ContainsAny(lit, ".eE") {
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
			dst = appendString(dst, n.names[at].text)
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
		return appendString(dst, s)
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
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	if i == len(a) || i == len(b) {
		return len(a) - len(b)
	}
	if a[i] < 0xee || b[i] < 0xee {
		return int(a[i]) - int(b[i])
	}
	// Both bytes begin a character: continuation bytes are below 0xc0.
	ra, _ := utf8.DecodeRuneInString(a[i:])
	rb, _ := utf8.DecodeRuneInString(b[i:])
	return int(unitOrder(ra)) - int(unitOrder(rb))
}

// unitOrder maps characters beyond U+FFFF below U+E000, where their first
// UTF-16 unit is, and keeps their order.
func unitOrder(r rune) rune {
	if r >= 0x10000 {
		return r - 0x10000 + 0xd800
	}
	if r >= 0xe000 {
		return r + 0x110000
	}
	return r
}

const hexDigits = "0123456789abcdef"

func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, s[start:i]...)
		start = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\b':
			dst = append(dst, '\\', 'b')
		case '\t':
			dst = append(dst, '\\', 't')
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\f':
			dst = append(dst, '\\', 'f')
		case '\r':
			dst = append(dst, '\\', 'r')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	dst = append(dst, s[start:]...)
	return append(dst, '"')
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
