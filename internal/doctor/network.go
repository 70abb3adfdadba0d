package doctor

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/parley-hub/parley/internal/netguard"
)

// defaultPorts are the ports of URLs without one.
var defaultPorts = map[string]string{"http": "80", "https": "443", "nats": "4222"}

// Reach checks the way to a URL step by step: name, address, connection, certificate. A guard of nil does not check the
// address. It gives the URL, or nil if a step failed.
func (d *Doctor) Reach(ctx context.Context, setting, base string, guard *netguard.Guard) *url.URL {
	ends := func(check, fix string, err error) *url.URL {
		d.Failed(check, fix, err)
		return nil
	}
	u, err := url.Parse(base)
	if err != nil || u.Hostname() == "" {
		return ends("URL", setting, fmt.Errorf("%q is no URL", base))
	}
	port := cmp.Or(u.Port(), defaultPorts[u.Scheme])
	if port == "" {
		return ends("URL", setting, fmt.Errorf("%q names no port", base))
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", u.Hostname())
	if err != nil {
		return ends("DNS", setting+", or the name server of this machine", err)
	}
	d.OK("DNS", "%s is %s", u.Hostname(), joinAddrs(addrs))
	if guard != nil {
		for _, ip := range addrs {
			if err := guard.CheckAddr(ip.Unmap()); err != nil {
				return ends("address", fmt.Sprintf("[network] allow = [%q]", prefixFor(ip)), err)
			}
		}
		d.OK("address", "the hub may call it")
	}
	dial := (&net.Dialer{}).DialContext
	if guard != nil {
		dial = guard.DialContext
	}
	conn, err := dial(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
	if err != nil {
		return ends("TCP", setting+"; is it running, and does a firewall lie between?", err)
	}
	defer conn.Close()
	d.OK("TCP", "%s", conn.RemoteAddr())
	if u.Scheme == "https" || u.Scheme == "tls" {
		t := tls.Client(conn, &tls.Config{ServerName: u.Hostname(), RootCAs: d.Roots})
		if err := t.HandshakeContext(ctx); err != nil {
			return ends("TLS", tlsFix(err, setting), err)
		}
		leaf := t.ConnectionState().PeerCertificates[0]
		d.OK("TLS", "%s, until %s", cmp.Or(leaf.Subject.CommonName, strings.Join(leaf.DNSNames, ", ")), stamp(leaf.NotAfter))
	}
	return u
}

// Get sends a request without a body to a URL that reach has checked, and follows no redirect.
func (d *Doctor) Get(ctx context.Context, method, at string, header http.Header,
	guard *netguard.Guard) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, at, nil)
	if err != nil {
		return nil, err
	}
	for name, values := range header {
		r.Header[name] = values
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: d.Roots}, DisableKeepAlives: true}}
	if guard != nil {
		client = guard.Client(netguard.Options{MaxRedirects: -1, RootCAs: d.Roots})
	}
	return client.Do(r)
}

func tlsFix(err error, what string) string {
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return "tls.ca: add the authority's certificate"
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return "the URL's host must be one that the certificate names"
	}
	if e, ok := errors.AsType[x509.CertificateInvalidError](err); ok && e.Reason == x509.Expired {
		return "renew the certificate, or set the clock"
	}
	return "the certificate of " + what
}

func joinAddrs(list []netip.Addr) string {
	var s []string
	for _, a := range list {
		s = append(s, a.Unmap().String())
	}
	slices.Sort(s)
	return strings.Join(slices.Compact(s), ", ")
}

func prefixFor(a netip.Addr) string {
	a = a.Unmap()
	if a.IsLoopback() {
		return "loopback"
	}
	return netip.PrefixFrom(a, a.BitLen()).String()
}

// NATSAddress checks the network to a NATS server. No guard is asked about it: the operator named it.
func (d *Doctor) NATSAddress(ctx context.Context, at WayPoint) {
	d.Reach(ctx, "agh.url", at.Address, nil)
}
