package netguard

import "net/netip"

// OnThisMachine reports whether the host of a URL names this machine itself.
func OnThisMachine(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.IsLoopback()
}
