package node

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
)

// refuseForeign answers a page of another origin.
func (n *Node) refuseForeign(w http.ResponseWriter, r *http.Request) {
	const why = "pages of this origin may not call the hub; the operator can allow it with listen.origins"
	source, _, _ := net.SplitHostPort(r.RemoteAddr)
	ref := n.hub.Refuse(hub.Refusal{Protocol: "other", Source: source, Claim: r.Header.Get("Origin"), To: r.URL.Path,
		Step: "origin", Code: parley.Forbidden, Text: why, Cause: r.Method + " " + r.Host})
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Parley-Ref", ref)
	w.WriteHeader(http.StatusForbidden)
	_, _ = fmt.Fprintf(w, "{\"error\":%q}\n", why)
}

// foreign reports whether a request that may change something comes from a page of a
// foreign origin, through the browser of a person who can reach the hub. Browsers name
// the origin. Agents send neither Origin nor Sec-Fetch-Site.
func (n *Node) foreign(r *http.Request) bool {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return false
	}
	origins, site := r.Header["Origin"], r.Header.Get("Sec-Fetch-Site")
	if len(origins) == 0 && (site == "" || site == "none") {
		return false
	}
	allowed := n.c.Listen.Origins
	if len(origins) == 1 && (slices.Contains(allowed, "*") || slices.Contains(allowed, origins[0])) {
		return false
	}
	if len(origins) <= 1 && (site == "" || site == "same-origin") && n.ownHost(r.Host) {
		if len(origins) == 0 {
			return false
		}
		if u, err := url.Parse(origins[0]); err == nil && u.Host != "" && strings.EqualFold(u.Host, r.Host) {
			return false
		}
	}
	return true
}

// ownHost reports whether a Host header names this hub: an IP address, which no name
// server can redirect, localhost, or a name of the configuration. A page of that origin
// is then the hub's own.
func (n *Node) ownHost(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.ToLower(strings.TrimSuffix(strings.Trim(name, "[]"), "."))
	if _, err := netip.ParseAddr(name); err == nil || name == "localhost" {
		return true
	}
	if u, err := url.Parse(n.c.PublicURL); err == nil && strings.EqualFold(u.Hostname(), name) {
		return true
	}
	return slices.ContainsFunc(n.bindings, func(b *Binding) bool {
		return b.Domain != "" && (name == b.Domain || strings.HasSuffix(name, "."+b.Domain))
	})
}

// listeners gives the listeners of the configuration.
func (c *Config) listeners() []Listener {
	out := []Listener{
		{"listen.http", c.Listen.HTTP, c.secure() || len(c.TLS.Proxy) > 0,
			"set tls.cert and tls.key, or tls.acme, or tls.proxy for a proxy before it"},
		{"listen.admin", c.Listen.Admin, false, "tokens can be read on the way; use 127.0.0.1, and a tunnel from " +
			"elsewhere"},
	}
	for _, p := range Protocols {
		if p.Listeners != nil {
			out = append(out, p.Listeners(c)...)
		}
	}
	return out
}

// Exposures lists the listeners at public addresses that speak no TLS.
func (c *Config) Exposures() []string {
	var out []string
	for _, l := range c.listeners() {
		if l.Address != "" && !l.Secure && !local(l.Address) {
			out = append(out, fmt.Sprintf("%s = %q is reached from other machines without TLS: %s", l.Key, l.Address,
				l.Advice))
		}
	}
	return out
}

// local reports whether only this machine can reach an address.
func local(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}
