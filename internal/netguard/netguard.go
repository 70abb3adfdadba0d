// Package netguard makes outbound connections to addresses that guests name.
//
// A callback URL, a card, an endpoint from a registry: a peer chooses all of them,
// and may choose an address that only this machine reaches (server-side request
// forgery; SAMVAD digest §8.2 and SAM-076, uAgents digest §9, ASP "SSRF through card
// endpoints"). A [Guard] lets through public unicast addresses and those that the
// operator listed, nothing else.
//
// [Guard.CheckURL] makes the checks that need no network and gives early, clear
// answers. The decision that counts is made by the dialler: each connection of
// [Guard.Client] and [Guard.DialContext] checks the address that it is about to use,
// after name resolution, so that a name which resolves differently the second time
// gains nothing.
//
// Errors say which range an address is in and how to allow it. The builder of a guard
// knows that: [Guard.Advice]. They are for the operator; tell guests less.
package netguard

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"

	"code.dny.dev/ssrf"
)

// ErrBlocked matches every [*BlockedError] in errors.Is.
var ErrBlocked = errors.New("netguard: destination is not allowed")

// Guard decides where connections may go. The zero value and nil allow public unicast
// addresses only. A Guard must not be changed while it is in use, except by
// [Guard.SetAllow].
type Guard struct {
	// Allow lists further addresses, see [ParseAllow]. An IPv4 prefix stands
	// for its IPv4-mapped IPv6 form (::ffff:a.b.c.d) too; an IPv6 prefix
	// never stands for an IPv4 address, not even ::/0.
	Allow []netip.Prefix
	// Advice says in errors how to allow a prefix such as "10.1.2.3/32"; it goes on after
	// "to allow it". nil: errors give none.
	Advice func(prefix string) string

	replaced atomic.Pointer[[]netip.Prefix]
	live     func() []netip.Prefix
}

// Live gives a Guard that asks list, if it is not nil, for Allow each time; see
// [Guard.Advice].
func Live(list func() []netip.Prefix, advice func(prefix string) string) *Guard {
	return &Guard{live: list, Advice: advice}
}

// HubAdvice is the [Guard.Advice] of a hub, whose list is in its configuration.
func HubAdvice(prefix string) string {
	if prefix == loopback4.String() {
		prefix = loopbackWord
	}
	return fmt.Sprintf("add to parley.toml: [network] allow = [%q]", prefix)
}

// ClientAdvice is the [Guard.Advice] of a protocol's Client whose field HTTP is not set.
func ClientAdvice(string) string {
	return "set Client.HTTP to a client that may call it, such as http.DefaultClient"
}

// loopbackWord stands for the loopback addresses in a configuration.
const loopbackWord = "loopback"

// SetAllow replaces Allow, also while the guard is in use. Connections that
// exist go on.
func (g *Guard) SetAllow(list []netip.Prefix) { g.replaced.Store(&list) }

// Prefixes gives the further addresses that are allowed now.
func (g *Guard) Prefixes() []netip.Prefix {
	switch {
	case g == nil:
		return nil
	case g.live != nil:
		return g.live()
	}
	if p := g.replaced.Load(); p != nil {
		return *p
	}
	return g.Allow
}

// Range is a block of addresses that are not public unicast.
type Range struct {
	Name   string // "private", "loopback", …
	Prefix netip.Prefix
}

// BlockedError names the refused destination, and says how to allow it.
type BlockedError struct {
	Host  string     // the requested name; empty when an address was requested
	Addr  netip.Addr // the address refused; the zero value when a name was refused unresolved
	Range Range      // of the address; for a name only Name is set

	advice func(prefix string) string // of the guard
}

func (e *BlockedError) Error() string {
	if !e.Addr.IsValid() {
		return fmt.Sprintf("host %q is a %s%s", e.Host, e.Range.Name, e.advise("the address that it has,"))
	}
	who := "address " + e.Addr.String() + " is"
	if e.Host != "" {
		who = fmt.Sprintf("host %q has the address %s, which is", e.Host, e.Addr)
	}
	where := "in the " + e.Range.Name + " range " + e.Range.Prefix.String()
	if !e.Range.Prefix.IsValid() {
		where = "not in the list of allowed addresses, as a " + e.Range.Name + " must be"
	}
	return who + " " + where + e.advise("it")
}

// Unwrap makes the error [ErrBlocked].
func (e *BlockedError) Unwrap() error { return ErrBlocked }

// advise says how to allow the destination.
func (e *BlockedError) advise(it string) string {
	if e.advice == nil {
		return "; only public addresses can be called here"
	}
	prefix := "10.1.2.3/32"
	switch {
	case e.Addr.IsValid():
		a := e.Addr.WithZone("").Unmap()
		prefix = netip.PrefixFrom(a, a.BitLen()).String()
	case e.Range.Name == loopbackName:
		prefix = loopback4.String()
	}
	return "; to allow " + it + " " + e.advice(prefix)
}

// blocked makes the error of the guard for a destination.
func (g *Guard) blocked(host string, a netip.Addr, r Range) *BlockedError {
	e := &BlockedError{Host: host, Addr: a, Range: r}
	if g != nil {
		e.advice = g.Advice
	}
	return e
}

// CheckAddr reports whether a connection to a may be made: nil, or a
// [*BlockedError].
func (g *Guard) CheckAddr(a netip.Addr) error {
	if g.allows(a) {
		return nil
	}
	if r, ok := special(a); ok {
		return g.blocked("", a, r)
	}
	return nil
}

// allows reports whether a is in the operator's list.
func (g *Guard) allows(a netip.Addr) bool {
	a = a.WithZone("").Unmap()
	if !slices.ContainsFunc(g.Prefixes(), func(p netip.Prefix) bool { return p.Contains(a) }) {
		return false
	}
	// An allowed gateway to IPv4 is no way round the rules of IPv4.
	v4, ok := embedded(a)
	return !ok || g.CheckAddr(v4) == nil
}

// allowsLoopback reports whether any loopback address is in the list.
func (g *Guard) allowsLoopback() bool {
	return slices.ContainsFunc(g.Prefixes(), func(p netip.Prefix) bool {
		return p.Overlaps(loopback4) || p.Overlaps(loopback6)
	})
}

// allowsPrivate reports whether the list has any address that is not loopback.
func (g *Guard) allowsPrivate() bool {
	return slices.ContainsFunc(g.Prefixes(), func(p netip.Prefix) bool {
		return !(loopback4.Contains(p.Addr()) && p.Bits() >= loopback4.Bits()) && p != loopback6
	})
}

// special returns the range that keeps a from being a public unicast address.
func special(a netip.Addr) (Range, bool) {
	a = a.WithZone("")
	if !a.IsValid() {
		return Range{Name: "invalid"}, true
	}
	for _, r := range ranges {
		if r.Prefix.Contains(a) {
			return r, true
		}
	}
	// Networks that IANA reserved and the table above does not name.
	denied := ssrf.IPv4DeniedPrefixes
	if a.Is6() {
		if !ssrf.IPv6GlobalUnicast.Contains(a) {
			return Range{"reserved", netip.PrefixFrom(netip.IPv6Unspecified(), 0)}, true
		}
		denied = ssrf.IPv6DeniedPrefixes
	}
	for _, p := range denied {
		if p.Contains(a) {
			return Range{"special-purpose", p}, true
		}
	}
	return Range{}, false
}

// embedded returns the IPv4 address to which a translator would carry a:
// NAT64 (RFC 6052 §2.1) and 6to4 (RFC 3056 §2).
func embedded(a netip.Addr) (netip.Addr, bool) {
	b := a.As16()
	switch {
	case nat64.Contains(a):
		return netip.AddrFrom4([4]byte(b[12:16])), true
	case sixToFour.Contains(a):
		return netip.AddrFrom4([4]byte(b[2:6])), true
	}
	return netip.Addr{}, false
}

const (
	loopbackName = "loopback name"
	privateName  = "name of a private network"
)

var (
	loopback4 = netip.MustParsePrefix("127.0.0.0/8")
	loopback6 = netip.MustParsePrefix("::1/128")
	mapped    = netip.MustParsePrefix("::ffff:0:0/96")
	nat64     = netip.MustParsePrefix("64:ff9b::/96")
	sixToFour = netip.MustParsePrefix("2002::/16")
)

// ranges names the addresses that are not public unicast: the IANA special-purpose
// address registries (RFC 6890) and ranges that are deprecated or translate to IPv4.
// The first range that contains an address names it.
var ranges = []Range{
	{"unspecified", netip.MustParsePrefix("0.0.0.0/8")},
	{"private", netip.MustParsePrefix("10.0.0.0/8")},
	{"shared (carrier-grade NAT)", netip.MustParsePrefix("100.64.0.0/10")},
	{"loopback", loopback4},
	{"link-local", netip.MustParsePrefix("169.254.0.0/16")},
	{"private", netip.MustParsePrefix("172.16.0.0/12")},
	{"IETF protocol", netip.MustParsePrefix("192.0.0.0/24")},
	{"documentation", netip.MustParsePrefix("192.0.2.0/24")},
	{"AS112", netip.MustParsePrefix("192.31.196.0/24")},
	{"AMT", netip.MustParsePrefix("192.52.193.0/24")},
	{"6to4 relay", netip.MustParsePrefix("192.88.99.0/24")},
	{"private", netip.MustParsePrefix("192.168.0.0/16")},
	{"AS112", netip.MustParsePrefix("192.175.48.0/24")},
	{"benchmarking", netip.MustParsePrefix("198.18.0.0/15")},
	{"documentation", netip.MustParsePrefix("198.51.100.0/24")},
	{"documentation", netip.MustParsePrefix("203.0.113.0/24")},
	{"multicast", netip.MustParsePrefix("224.0.0.0/4")},
	{"broadcast", netip.MustParsePrefix("255.255.255.255/32")},
	{"reserved", netip.MustParsePrefix("240.0.0.0/4")},

	{"unspecified", netip.MustParsePrefix("::/128")},
	{"loopback", loopback6},
	{"IPv4-mapped", mapped},
	{"IPv4-compatible", netip.MustParsePrefix("::/96")},
	{"IPv4-translated", netip.MustParsePrefix("::ffff:0:0:0/96")},
	{"NAT64", nat64},
	{"local-use NAT64", netip.MustParsePrefix("64:ff9b:1::/48")},
	{"discard-only", netip.MustParsePrefix("100::/64")},
	{"Teredo", netip.MustParsePrefix("2001::/32")},
	{"IETF protocol", netip.MustParsePrefix("2001::/23")},
	{"documentation", netip.MustParsePrefix("2001:db8::/32")},
	{"6to4", sixToFour},
	{"AS112", netip.MustParsePrefix("2620:4f:8000::/48")},
	{"documentation", netip.MustParsePrefix("3fff::/20")},
	{"segment routing", netip.MustParsePrefix("5f00::/16")},
	{"private", netip.MustParsePrefix("fc00::/7")},
	{"link-local", netip.MustParsePrefix("fe80::/10")},
	{"site-local", netip.MustParsePrefix("fec0::/10")},
	{"multicast", netip.MustParsePrefix("ff00::/8")},
}

// ParseAllow reads the configuration's list: a prefix ("10.0.0.0/8"), one
// address ("10.1.2.3", "fd00::7"), or "loopback" (127.0.0.0/8 and ::1).
// A prefix with bits beyond its length, a zone, and an IPv4-mapped address are
// errors that say what to write.
func ParseAllow(list []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, s := range list {
		if s == loopbackWord {
			out = append(out, loopback4, loopback6)
			continue
		}
		p, err := parsePrefix(s)
		if err != nil {
			return nil, fmt.Errorf("network.allow: %w", err)
		}
		out = append(out, p)
	}
	return out, nil
}

func parsePrefix(s string) (netip.Prefix, error) {
	var p netip.Prefix
	if strings.Contains(s, "/") {
		var err error
		if p, err = netip.ParsePrefix(s); err != nil {
			return p, fmt.Errorf(`%q is not a prefix such as "10.0.0.0/8"`, s)
		}
	} else {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return p, fmt.Errorf(`%q is neither an address, nor a prefix such as "10.0.0.0/8", nor "loopback"`, s)
		}
		if a.Zone() != "" {
			return p, fmt.Errorf("%q has a zone; write %q", s, a.WithZone(""))
		}
		p = netip.PrefixFrom(a, a.BitLen())
	}
	if a := p.Addr(); a.Is4In6() && p.Bits() >= mapped.Bits() {
		return p, fmt.Errorf("%q is an IPv4-mapped address; write %q, which allows both forms",
			s, netip.PrefixFrom(a.Unmap(), p.Bits()-mapped.Bits()).Masked())
	}
	if m := p.Masked(); m != p {
		return p, fmt.Errorf("%q has bits set beyond its length; write %q or %q",
			s, m, netip.PrefixFrom(p.Addr(), p.Addr().BitLen()))
	}
	return p, nil
}
