package node

import (
	"net"
	"net/http"
	"net/netip"

	"github.com/parley-hub/parley/console"
)

// openConsole puts the console on the admin listener.
func (n *Node) openConsole() error {
	c, err := console.New(console.Config{Admin: n.admin, Now: n.c.Now, Logger: n.log, Public: n.onPublicAddress})
	if err != nil {
		return err
	}
	n.admin.ServeConsole(c)
	return nil
}

// onPublicAddress reports whether a request came in on a public address without TLS. A trusted proxy may say that its
// client speaks TLS.
func (n *Node) onPublicAddress(r *http.Request) bool {
	n.behindProxy(r)
	if r.TLS != nil {
		return false
	}
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if local == nil {
		return true // a server of the program, which did not say
	}
	at, err := netip.ParseAddrPort(local.String())
	if err != nil {
		return local.Network() != "unix"
	}
	ip := at.Addr().Unmap()
	return !ip.IsLoopback() && !ip.IsPrivate() && !ip.IsLinkLocalUnicast()
}

// ConsoleLink gives a link that lets a browser of this machine into the console, once; "" without an admin listener.
func (n *Node) ConsoleLink() (string, error) {
	if n.admin == nil || n.adminListen == nil {
		return "", nil
	}
	l, err := n.admin.LocalLink()
	if err != nil {
		return "", err
	}
	return localURL(n.adminListen.Addr(), false) + l.Path, nil
}
