// Package source says what a network address counts as where something is
// bounded for each address.
package source

import (
	"cmp"
	"net"
	"net/netip"
)

// Host is an address without its port; one that has none stands for itself.
func Host(address string) string {
	host, _, _ := net.SplitHostPort(address)
	return cmp.Or(host, address)
}

// Of gives what an address counts as: itself, or the /64 of an IPv6 address.
// The address may have a port; text that is no address gives "".
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
