// Package httpsig implements the parts of HTTP Message Signatures (RFC 9421)
// and Digest Fields (RFC 9530) that SAMVAD needs: reading Signature-Input and
// Signature, building the signature base for the components that the signer
// declared, and checking Content-Digest. It signs and verifies nothing: keys
// and algorithms are the caller's.
//
// Component parameters (";sf", ";key", ";bs", ";tr", ";req") are refused with
// [ErrComponent], as are derived components outside the list at
// [Message.AppendBase].
package httpsig

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/dunglas/httpsfv"
)

// Errors of the headers.
var (
	ErrSyntax    = errors.New("httpsig: malformed structured field")                       // RFC 8941
	ErrComponent = errors.New("httpsig: component cannot be evaluated")                    // RFC 9421 §2
	ErrDuplicate = errors.New("httpsig: component covered twice")                          // RFC 9421 §2
	ErrTooMany   = errors.New("httpsig: too many signatures or components")                // a bound of ours
	ErrParameter = errors.New("httpsig: signature parameter of the wrong type")            // RFC 9421 §2.3
	ErrDigest    = errors.New("httpsig: content digest does not match")                    // RFC 9530 §2
	ErrNoDigest  = errors.New("httpsig: content digest lacks the algorithm that is asked") // RFC 9530 §2
)

// Bounds on the header of a guest.
const (
	MaxSignatures = 8
	MaxComponents = 32
)

// A Signature is one labelled member of Signature-Input with the member of
// Signature that bears the same label (RFC 9421 §4).
type Signature struct {
	Label      string
	Components []string // in declared order
	Params     string   // the serialised @signature-params value: list and parameters

	KeyID      string
	Alg        string
	Nonce      string
	Tag        string
	Created    int64 // Unix seconds
	Expires    int64 // Unix seconds
	HasKeyID   bool
	HasAlg     bool
	HasCreated bool
	HasExpires bool

	Bytes []byte // the signature; nil when Signature has no such label
}

// Covers reports whether all names are among the covered components.
func (s *Signature) Covers(names ...string) bool {
	return !slices.ContainsFunc(names, func(n string) bool { return !slices.Contains(s.Components, n) })
}

// Parse reads the values of Signature-Input and Signature. Members of
// Signature-Input are returned in order.
func Parse(input, signature string) ([]Signature, error) {
	if s, ok := parseExact(input, signature); ok {
		return []Signature{s}, nil
	}
	return parse(input, signature)
}

const (
	exactComponents = `("@method" "@path" "content-digest")`
	exactKeyID      = `;keyid="`
	exactCreated    = `";alg="ed25519";created=`
)

// exactNames is shared by all signatures of the exact form: Components is read-only.
var exactNames = []string{"@method", "@path", "content-digest"}

// parseExact reads the one form that SAMVAD's SDKs emit without the general parser.
// It leaves other forms to [parse], which reads this form with the same result.
func parseExact(input, signature string) (Signature, bool) {
	const label = "sig1="
	rest, ok := strings.CutPrefix(input, label+exactComponents+exactKeyID)
	if !ok {
		return Signature{}, false
	}
	keyid, digits, ok := strings.Cut(rest, exactCreated)
	if !ok || strings.ContainsFunc(keyid, func(r rune) bool { return r < 0x20 || r > 0x7e || r == '"' || r == '\\' }) {
		return Signature{}, false
	}
	created, err := strconv.ParseUint(digits, 10, 63)
	if err != nil || len(digits) > 15 || digits[0] == '0' && len(digits) > 1 {
		return Signature{}, false
	}
	b64, ok := strings.CutPrefix(signature, label+":")
	if !ok || len(b64) != 89 || b64[88] != ':' || strings.ContainsAny(b64, "\r\n") {
		return Signature{}, false
	}
	sig := make([]byte, 66)
	n, err := base64.StdEncoding.Decode(sig, []byte(b64[:88]))
	if err != nil {
		return Signature{}, false
	}
	return Signature{
		Label: "sig1", Components: exactNames, Params: input[len(label):],
		KeyID: keyid, HasKeyID: true, Alg: "ed25519", HasAlg: true, Created: int64(created), HasCreated: true,
		Bytes: sig[:n:n],
	}, true
}

func parse(input, signature string) ([]Signature, error) {
	in, err := split(input)
	if err != nil {
		return nil, fmt.Errorf("%w: Signature-Input: %w", ErrSyntax, err)
	}
	sigs, err := split(signature)
	if err != nil {
		return nil, fmt.Errorf("%w: Signature: %w", ErrSyntax, err)
	}
	all := make([]Signature, 0, len(in))
	for _, m := range in {
		list, err := httpsfv.UnmarshalList([]string{m.value})
		if err != nil {
			return nil, fmt.Errorf("%w: Signature-Input: %w", ErrSyntax, err)
		}
		inner, ok := httpsfv.InnerList{}, len(list) == 1
		if ok {
			inner, ok = list[0].(httpsfv.InnerList)
		}
		if !ok {
			return nil, fmt.Errorf("%w: Signature-Input: %q is no inner list", ErrSyntax, m.label)
		}
		s, err := member(m.label, inner)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	for _, m := range sigs {
		item, err := httpsfv.UnmarshalItem([]string{pad(m.value)})
		if err != nil {
			return nil, fmt.Errorf("%w: Signature: %w", ErrSyntax, err)
		}
		b, ok := item.Value.([]byte)
		if !ok {
			return nil, fmt.Errorf("%w: Signature: %q is no byte sequence", ErrSyntax, m.label)
		}
		for i := range all {
			if all[i].Label == m.label {
				all[i].Bytes = b
			}
		}
	}
	return all, nil
}

type labelled struct{ label, value string }

// split parses a dictionary (RFC 8941 §4.2.2) into its members. Unlike the RFC, it
// allows upper-case letters in labels, because SAMVAD's vectors count them as legal,
// and refuses a repeated label.
func split(v string) ([]labelled, error) {
	var all []labelled
	for rest, more := v, true; more; {
		var part string
		part, rest, more = cutComma(rest)
		if len(all) == MaxSignatures {
			return nil, ErrTooMany
		}
		part = strings.Trim(part, " \t")
		label, value, ok := strings.Cut(part, "=")
		if !ok || !isLabel(label) {
			return nil, fmt.Errorf("member %d has no label and value", len(all)+1)
		}
		if slices.ContainsFunc(all, func(m labelled) bool { return m.label == label }) {
			return nil, fmt.Errorf("label %q comes twice", label)
		}
		all = append(all, labelled{label, value})
	}
	return all, nil
}

// cutComma cuts at the first comma that is not in a string.
func cutComma(v string) (part, rest string, more bool) {
	quoted := false
	for i := 0; i < len(v); i++ {
		switch v[i] {
		case '\\':
			if quoted {
				i++
			}
		case '"':
			quoted = !quoted
		case ',':
			if !quoted {
				return v[:i], v[i+1:], true
			}
		}
	}
	return v, "", false
}

func isLabel(s string) bool {
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', c == '*':
		case i > 0 && ('0' <= c && c <= '9' || c == '_' || c == '-' || c == '.'):
		default:
			return false
		}
	}
	return s != "" && len(s) <= 64
}

func member(label string, list httpsfv.InnerList) (Signature, error) {
	s := Signature{Label: label, Components: make([]string, 0, len(list.Items))}
	if len(list.Items) > MaxComponents {
		return s, ErrTooMany
	}
	for _, it := range list.Items {
		name, ok := it.Value.(string)
		if !ok {
			return s, fmt.Errorf("%w: Signature-Input: component of %q is no string", ErrSyntax, label)
		}
		if it.Params != nil && len(it.Params.Names()) > 0 {
			return s, fmt.Errorf("%w: parameters of %q", ErrComponent, name)
		}
		if slices.Contains(s.Components, name) {
			return s, fmt.Errorf("%w: %q", ErrDuplicate, name)
		}
		s.Components = append(s.Components, name)
	}
	if list.Params != nil {
		for _, p := range list.Params.Names() {
			v, _ := list.Params.Get(p)
			ok := true
			switch p {
			case "keyid":
				s.KeyID, ok = v.(string)
				s.HasKeyID = ok
			case "alg":
				s.Alg, ok = v.(string)
				s.HasAlg = ok
			case "nonce":
				s.Nonce, ok = v.(string)
			case "tag":
				s.Tag, ok = v.(string)
			case "created":
				s.Created, ok = v.(int64)
				s.HasCreated = ok
			case "expires":
				s.Expires, ok = v.(int64)
				s.HasExpires = ok
			}
			if !ok {
				return s, fmt.Errorf("%w: %s of %q", ErrParameter, p, label)
			}
		}
	}
	text, err := httpsfv.Marshal(httpsfv.List{list})
	if err != nil {
		return s, fmt.Errorf("%w: Signature-Input: %w", ErrSyntax, err)
	}
	s.Params = text
	return s, nil
}

// pad completes byte sequences that lack their padding: RFC 8941 §4.2.7 asks
// parsers not to fail on them, the library does.
func pad(v string) string {
	var b strings.Builder
	quoted, start := false, -1
	for i := 0; i < len(v); i++ {
		switch c := v[i]; {
		case quoted && c == '\\':
			b.WriteByte(c)
			i++
			if i < len(v) {
				b.WriteByte(v[i])
			}
			continue
		case start < 0 && c == '"':
			quoted = !quoted
		case quoted || c != ':':
		case start < 0:
			start = i + 1
		default:
			if n := (i - start) % 4; n > 1 && !strings.Contains(v[start:i], "=") {
				b.WriteString("=="[:4-n])
			}
			start = -1
		}
		b.WriteByte(v[i])
	}
	return b.String()
}

// A Message is the part of an HTTP request that signatures can cover.
type Message struct {
	Method    string
	Scheme    string // "https"; may be empty when it is not covered
	Authority string // the Host header
	Path      string // as sent: still escaped, without the query
	RawQuery  string // as sent, without the question mark
	Header    http.Header
}

// AppendBase appends the signature base of s over m to dst (RFC 9421 §2.5). There is
// no line feed after the last line: a caller that follows SAMVAD §4.1 adds one.
//
// The derived components @method, @target-uri, @authority, @scheme,
// @request-target, @path and @query are evaluated; every other name that
// begins with "@" is refused.
func (m *Message) AppendBase(dst []byte, s *Signature) ([]byte, error) {
	for _, name := range s.Components {
		dst = append(dst, '"')
		dst = append(dst, name...)
		dst = append(dst, `": `...)
		var err error
		if dst, err = m.appendValue(dst, name); err != nil {
			return nil, err
		}
		dst = append(dst, '\n')
	}
	dst = append(dst, `"@signature-params": `...)
	return append(dst, s.Params...), nil
}

func (m *Message) appendValue(dst []byte, name string) ([]byte, error) {
	start := len(dst)
	switch name {
	case "@method":
		dst = append(dst, m.Method...)
	case "@scheme":
		if m.Scheme == "" {
			return nil, fmt.Errorf("%w: @scheme is not known", ErrComponent)
		}
		dst = append(dst, strings.ToLower(m.Scheme)...)
	case "@authority":
		if m.Authority == "" {
			return nil, fmt.Errorf("%w: @authority is not known", ErrComponent)
		}
		dst = append(dst, m.authority()...)
	case "@path":
		dst = append(dst, m.path()...)
	case "@query":
		dst = append(dst, '?')
		dst = append(dst, m.RawQuery...)
	case "@request-target":
		dst = m.appendTarget(dst)
	case "@target-uri":
		if m.Scheme == "" || m.Authority == "" {
			return nil, fmt.Errorf("%w: @target-uri is not known", ErrComponent)
		}
		dst = append(dst, strings.ToLower(m.Scheme)...)
		dst = append(dst, "://"...)
		dst = append(dst, m.authority()...)
		dst = m.appendTarget(dst)
	case "host":
		dst = append(dst, m.Authority...)
	default:
		if name == "" || strings.ToLower(name) != name || name[0] == '@' {
			return nil, fmt.Errorf("%w: %q", ErrComponent, name)
		}
		values := m.Header[http.CanonicalHeaderKey(name)]
		if len(values) == 0 {
			return nil, fmt.Errorf("%w: no field %q", ErrComponent, name)
		}
		for i, v := range values {
			if i > 0 {
				dst = append(dst, ", "...)
			}
			dst = append(dst, strings.Trim(v, " \t")...)
		}
	}
	if bytes.ContainsAny(dst[start:], "\r\n") {
		return nil, fmt.Errorf("%w: line break in %q", ErrComponent, name)
	}
	return dst, nil
}

// path is RFC 9421 §2.2.6: the empty path is "/".
func (m *Message) path() string { return cmp.Or(m.Path, "/") }

func (m *Message) appendTarget(dst []byte) []byte {
	dst = append(dst, m.path()...)
	if m.RawQuery != "" {
		dst = append(dst, '?')
		dst = append(dst, m.RawQuery...)
	}
	return dst
}

// authority is RFC 9421 §2.2.3: lower case, without the scheme's own port.
func (m *Message) authority() string {
	a := strings.ToLower(m.Authority)
	switch strings.ToLower(m.Scheme) {
	case "https":
		a = strings.TrimSuffix(a, ":443")
	case "http":
		a = strings.TrimSuffix(a, ":80")
	}
	return a
}

// AppendParams appends the signature parameters that SAMVAD §2.2 prescribes,
// without the label.
func AppendParams(dst []byte, keyid string, created int64) ([]byte, error) {
	dst = append(dst, exactComponents+exactKeyID...)
	for i := 0; i < len(keyid); i++ {
		c := keyid[i]
		if c < 0x20 || c > 0x7e {
			return nil, fmt.Errorf("%w: keyid %q", ErrParameter, keyid)
		}
		if c == '"' || c == '\\' {
			dst = append(dst, '\\')
		}
		dst = append(dst, c)
	}
	dst = append(dst, exactCreated...)
	return strconv.AppendInt(dst, created, 10), nil
}
