package samvad

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/idna"
)

const (
	agentScheme = "agent://"
	cardPath    = "/.well-known/agent.json"
	maxAgent    = 300 // bytes; a DNS name has at most 253
)

// CheckAgent reports whether id is an agent identity: "agent://", a host name
// or IP address, and an optional port; nothing else (SAM-036). The error wraps
// [ErrIdentity].
func CheckAgent(id string) error {
	_, _, err := splitAgent(id)
	return err
}

// AgentOrigin gives the https origin that an identity stands for: the host in
// ASCII lower case, without the default port.
func AgentOrigin(id string) (string, error) {
	host, port, err := splitAgent(id)
	if err != nil {
		return "", err
	}
	if port == "" || port == "443" {
		if strings.Contains(host, ":") {
			host = "[" + host + "]"
		}
		return "https://" + host, nil
	}
	return "https://" + net.JoinHostPort(host, port), nil
}

// splitAgent gives the host in its ASCII form, without brackets, and the port.
func splitAgent(id string) (host, port string, err error) {
	bad := func() (string, string, error) { return "", "", fmt.Errorf("%w: %q", ErrIdentity, clip(id)) }
	rest, ok := strings.CutPrefix(id, agentScheme)
	if !ok || rest == "" || len(id) > maxAgent {
		return bad()
	}
	host = rest
	colon := strings.LastIndexByte(rest, ':')
	if colon < strings.LastIndexByte(rest, ']') {
		colon = -1 // the colon is part of an IPv6 address
	}
	if colon >= 0 {
		host, port = rest[:colon], rest[colon+1:]
	}
	if inside, v6 := strings.CutPrefix(host, "["); v6 {
		inside, ok = strings.CutSuffix(inside, "]")
		a, err := netip.ParseAddr(inside)
		if !ok || err != nil || !a.Is6() || a.Zone() != "" {
			return bad()
		}
		host = a.String()
	} else {
		host, ok = asciiHost(host)
		if !ok {
			return bad()
		}
	}
	if colon < 0 {
		return host, "", nil
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 || port[0] == '0' {
		return bad()
	}
	return host, port, nil
}

// asciiHost gives a host name in lower-case ASCII: letters, digits, hyphen,
// underscore and dots between non-empty labels.
func asciiHost(h string) (string, bool) {
	if strings.IndexFunc(h, func(r rune) bool { return r >= utf8.RuneSelf }) >= 0 {
		if !utf8.ValidString(h) {
			return "", false
		}
		var err error
		if h, err = idna.Lookup.ToASCII(h); err != nil {
			return "", false
		}
	}
	h = strings.ToLower(h)
	if len(h) > 254 {
		return "", false
	}
	foreign := func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '_' }
	for label := range strings.SplitSeq(strings.TrimSuffix(h, "."), ".") {
		if label == "" || len(label) > 63 || strings.IndexFunc(label, foreign) >= 0 {
			return "", false
		}
	}
	return h, true
}

// clip bounds the text that a guest can put into an error.
func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}
