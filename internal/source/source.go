// Package source says what a network address counts as where something is
// bounded for each address.
package source

import (
	"net"
	"net/netip"
)

// Of gives what an address counts as: itself, or the /64 of an IPv6 address.
// The address may have a port; text that is no address gives "".
func Of(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	a, err := netip.ParseAddr(host)
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
