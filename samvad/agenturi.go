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

// CardURL gives the address of the card of an identity (SAMVAD 1.2 §3).
// Whether it may be fetched is for the guard to decide.
func CardURL(id string) (string, error) {
	origin, err := AgentOrigin(id)
	if err != nil {
		return "", err
	}
	return origin + cardPath, nil
}

// splitAgent gives the host in its ASCII form, without brackets, and the port.
func splitAgent(id string) (host, port string, err error) {
	bad := func() (string, string, error) { return "", "", fmt.Errorf("%w: %q", ErrIdentity, clip(id)) }
	rest, ok := strings.CutPrefix(id, agentScheme)
	if !ok || rest == "" || len(id) > maxAgent {
		return bad()
	}
	host = rest
	if rest[0] == '[' {
		end := strings.IndexByte(rest, ']')
		if end < 0 {
			return bad()
		}
		a, err := netip.ParseAddr(rest[1:end])
		if err != nil || !a.Is6() || a.Zone() != "" {
			return bad()
		}
		host = a.String()
		rest = rest[end+1:]
		if rest == "" {
			return host, "", nil
		}
		if rest[0] != ':' {
			return bad()
		}
		port = rest[1:]
	} else {
		colon := strings.IndexByte(rest, ':')
		if colon >= 0 {
			host, port = rest[:colon], rest[colon+1:]
		}
		host, ok = asciiHost(host)
		if !ok {
			return bad()
		}
		if colon < 0 {
			return host, "", nil
		}
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 || port[0] == '0' || port[0] == '+' {
		return bad()
	}
	return host, port, nil
}

// asciiHost gives a host name in lower-case ASCII: letters, digits, hyphen,
// underscore and dots between non-empty labels.
func asciiHost(h string) (string, bool) {
	ascii, lower := true, true
	for i := 0; i < len(h); i++ {
		if h[i] >= 0x80 {
			ascii = false
		}
		if 'A' <= h[i] && h[i] <= 'Z' {
			lower = false
		}
	}
	if !ascii {
		if !utf8.ValidString(h) {
			return "", false
		}
		var err error
		if h, err = idna.Lookup.ToASCII(h); err != nil {
			return "", false
		}
	} else if !lower {
		h = strings.ToLower(h)
	}
	if h == "" || len(h) > 254 {
		return "", false
	}
	label := 0
	for i := 0; i < len(h); i++ {
		switch c := h[i]; {
		case c == '.':
			if label == 0 {
				return "", false
			}
			label = 0
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '-', c == '_':
			label++
			if label > 63 {
				return "", false
			}
		default:
			return "", false
		}
	}
	return h, true
}

// clip bounds the text that a stranger can put into an error.
func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}
