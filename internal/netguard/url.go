package netguard

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// ErrURL is the cause of errors about URLs that are malformed or of a kind
// that is never followed: another scheme, user information, an unusual
// spelling of an address.
var ErrURL = errors.New("netguard: URL cannot be used")

// CheckURL reports whether u may be followed, as far as the URL alone tells: the
// scheme is http or https, there is no user information, the host is neither an
// address of a blocked range, in any spelling, nor a name that always means this
// machine or the network around it.
//
// localhost and its sub-domains pass when Allow has a loopback address,
// *.local and *.internal when Allow has any other; the dialler then insists
// that the address they resolve to is in Allow. The error is a
// [*BlockedError], or wraps [ErrURL].
func (g *Guard) CheckURL(u *url.URL) error {
	if u == nil {
		return fmt.Errorf("%w: there is none", ErrURL)
	}
	switch strings.ToLower(u.Scheme) {
	case "http", "https":
	case "":
		return fmt.Errorf("%w: it has no scheme; http and https are possible", ErrURL)
	default:
		return fmt.Errorf("%w: scheme %q is neither http nor https", ErrURL, u.Scheme)
	}
	if u.Opaque != "" || u.Host == "" {
		return fmt.Errorf("%w: it names no host", ErrURL)
	}
	if u.User != nil {
		return fmt.Errorf("%w: it holds user information", ErrURL)
	}
	if err := checkPort(u); err != nil {
		return err
	}
	h, err := parseHost(u.Host, u.Hostname())
	if err != nil {
		return err
	}
	if h.addr.IsValid() {
		return g.CheckAddr(h.addr)
	}
	if h.class == loopbackName && !g.allowsLoopback() || h.class == privateName && !g.allowsPrivate() {
		return g.blocked(h.name, netip.Addr{}, Range{Name: h.class})
	}
	return nil
}

func checkPort(u *url.URL) error {
	port := u.Port()
	if port == "" {
		if strings.HasSuffix(u.Host, ":") {
			return fmt.Errorf("%w: its port is empty", ErrURL)
		}
		return nil
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("%w: port %q is not between 1 and 65535", ErrURL, port)
	}
	return nil
}

// host is the target that a URL or a dialler names: an address, or a name with its
// fixed meaning.
type host struct {
	addr  netip.Addr
	name  string // lower case, without trailing dots
	class string // loopbackName, privateName, or nothing known
}

// parseHost reads name. full is the original text, with brackets and port if any.
func parseHost(full, name string) (host, error) {
	bracketed := strings.HasPrefix(full, "[")
	if bracketed || strings.Contains(name, ":") {
		a, err := netip.ParseAddr(name)
		if err != nil || !a.Is6() {
			return host{}, fmt.Errorf("%w: %q is not an IPv6 address", ErrURL, name)
		}
		if a.Zone() != "" && bracketed {
			return host{}, fmt.Errorf("%w: address %q has a zone", ErrURL, name)
		}
		return host{addr: a}, nil
	}
	name, err := foldHost(name)
	if err != nil {
		return host{}, err
	}
	last := name[strings.LastIndexByte(name, '.')+1:]
	if isNumber(last) {
		// Resolvers read 127.1, 0x7f000001, 0177.0.0.1 and 2130706433 as
		// IPv4 addresses (WHATWG URL §3.5, "ends in a number").
		a, err := netip.ParseAddr(name)
		if err != nil {
			return host{}, fmt.Errorf("%w: %q is an unusual spelling of an address; IPv4 is written as four decimal numbers",
				ErrURL, name)
		}
		return host{addr: a}, nil
	}
	h := host{name: name}
	switch last {
	case "localhost", "localdomain", "localhost6", "localdomain6":
		h.class = loopbackName
	case "local", "internal":
		h.class = privateName
	}
	if name == "ip6-localhost" || name == "ip6-loopback" {
		h.class = loopbackName
	}
	return h, nil
}

// foldHost returns the form of a host name that resolvers see, as far as is
// needed to recognise special names: compatibility forms such as full-width
// digits become plain (RFC 5895, UTS 46), letters lower case, trailing dots
// go.
func foldHost(s string) (string, error) {
	bad := func() (string, error) { return "", fmt.Errorf("%w: %q is not a host name", ErrURL, s) }
	name := strings.ReplaceAll(norm.NFKC.String(s), "\u3002", ".")
	name = strings.TrimRight(strings.ToLower(name), ".")
	if name == "" || len(name) > 253 || strings.HasPrefix(name, ".") || strings.Contains(name, "..") {
		return bad()
	}
	for _, r := range name {
		if 'a' <= r && r <= 'z' || '0' <= r && r <= '9' || r == '-' || r == '.' || r == '_' {
			continue
		}
		if r < 0x80 || r == unicode.ReplacementChar || unicode.Is(unicode.Variation_Selector, r) ||
			!unicode.In(r, unicode.L, unicode.M, unicode.N) {
			return bad()
		}
	}
	return name, nil
}

// isNumber reports whether a label makes a host name an IPv4 address.
func isNumber(label string) bool {
	if hex, ok := strings.CutPrefix(label, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(label, "0123456789") == ""
}
