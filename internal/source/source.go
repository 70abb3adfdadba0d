// Package source groups network addresses for limits per address.
package source

import (
	"cmp"
	"net"
	"net/netip"
)

// Host is an address without its port, if it has one.
func Host(address string) string {
	host, _, _ := net.SplitHostPort(address)
	return cmp.Or(host, address)
}

// Of gives the group of an address: itself, or the /64 of an IPv6 address. The
// address may have a port; text that is no address gives "".
func Of(address string) string {
	a, err := netip.ParseAddr(Host(address))
	if err != nil {
		return ""
	}
	a = a.Unmap().WithZone("")
	if a.Is4() {
		return a.String()
	}
	p, err := a.Prefix(64)
	if err != nil {
		return ""
	}
	return p.String()
}
