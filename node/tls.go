package node

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/acme"
	"golang.org/x/crypto/acme/autocert"

	"github.com/parley-hub/parley/internal/netguard"
)

// Allowed are the addresses of network.allow, which the hub may call besides public ones.
func (c *Config) Allowed() ([]netip.Prefix, error) {
	allow, err := netguard.ParseAllow(c.Network.Allow)
	if err != nil {
		return nil, fmt.Errorf("network.allow: %w", err)
	}
	return allow, nil
}

// Roots are the authorities that outbound calls trust: the system's and those of tls.ca;
// nil stands for the system's alone.
func (c *Config) Roots() (*x509.CertPool, error) {
	if len(c.TLS.CA) == 0 {
		return nil, nil
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	for _, path := range c.TLS.CA {
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("tls.ca: %w", err)
		}
		if !pool.AppendCertsFromPEM(b) {
			return nil, fmt.Errorf("tls.ca: %s has no certificate in PEM form", path)
		}
	}
	return pool, nil
}

// MinFree is the watermark for a disk of total bytes: engine.min_free, or the journal's
// default.
func (c *Config) MinFree(total uint64) uint64 {
	if n, err := parseSize(c.Engine.MinFree); err == nil && n > 0 {
		return n
	}
	return min(256<<20, total/10)
}

// certificates gives the protocol listener its certificate, and reads the
// files again when they change: the program that renews them cannot tell the hub.
type certificates struct {
	log *slog.Logger

	mu        sync.Mutex
	cert, key string
	seen      [2]fileState
	current   *tls.Certificate
}

type fileState struct {
	size int64
	time time.Time
}

func statesOf(cert, key string) (out [2]fileState, err error) {
	for i, f := range [2]struct{ setting, path string }{{"tls.cert", cert}, {"tls.key", key}} {
		info, err := os.Stat(f.path)
		if err != nil {
			return out, fmt.Errorf("%s: %w", f.setting, err)
		}
		out[i] = fileState{info.Size(), info.ModTime()}
	}
	return out, nil
}

// use switches to other files, if certificate and key match.
func (c *certificates) use(cert, key string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.load(cert, key)
}

// load reads a pair; c.mu is held. After an error the old pair stays.
func (c *certificates) load(cert, key string) error {
	states, err := statesOf(cert, key)
	if err != nil {
		return err
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return fmt.Errorf("tls.cert and tls.key: %w", err)
	}
	c.cert, c.key, c.seen, c.current = cert, key, states, &pair
	return nil
}

// get is tls.Config.GetCertificate.
func (c *certificates) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now, err := statesOf(c.cert, c.key); err == nil && now != c.seen {
		if err := c.load(c.cert, c.key); err != nil {
			// Half of a pair may have been written: the old pair serves until both halves
			// match. Each state of the files is tried once.
			c.seen = now
			c.log.Error("the certificate changed and cannot be used; the old one is served", "error", err)
		} else {
			c.log.Info("the certificate was read anew", "file", c.cert)
		}
	}
	return c.current, nil
}

// ends gives the time when the listener's certificate expires, if it comes from files; ACME renews its own.
func (c *certificates) ends() (time.Time, bool) {
	if c == nil {
		return time.Time{}, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current == nil || c.current.Leaf == nil {
		return time.Time{}, false
	}
	return c.current.Leaf.NotAfter, true
}

// secure reports whether the protocol listener speaks TLS itself.
func (c *Config) secure() bool { return c.TLS.Cert != "" || len(c.TLS.ACME) > 0 }

// tlsConfig is the TLS configuration of the protocol listener; nil for plain HTTP.
func (n *Node) tlsConfig() (*tls.Config, error) {
	t := n.c.TLS
	switch {
	case t.Cert != "":
		n.certs = &certificates{log: n.log}
		if err := n.certs.use(t.Cert, t.Key); err != nil {
			return nil, err
		}
		return n.c.askForCertificates(&tls.Config{GetCertificate: n.certs.get, MinVersion: tls.VersionTLS12,
			NextProtos: []string{"h2", "http/1.1"}})
	case len(t.ACME) > 0:
		dir := filepath.Join(n.c.Data, "acme")
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("keep certificates: %w", err)
		}
		m := &autocert.Manager{Prompt: autocert.AcceptTOS, Cache: autocert.DirCache(dir),
			HostPolicy: autocert.HostWhitelist(t.ACME...), Email: t.Email}
		if t.Directory != "" {
			roots, err := n.c.Roots()
			if err != nil {
				return nil, err
			}
			m.Client = &acme.Client{DirectoryURL: t.Directory, HTTPClient: &http.Client{Timeout: time.Minute,
				Transport: &http.Transport{Proxy: http.ProxyFromEnvironment,
					TLSClientConfig: &tls.Config{RootCAs: roots}}}}
		}
		c := m.TLSConfig() // speaks acme-tls/1 too, by which the authority checks the name
		c.MinVersion = tls.VersionTLS12
		return n.c.askForCertificates(c)
	}
	return nil, nil
}

// behindProxy gives a request through a trusted proxy its client's address: the last
// address of X-Forwarded-For that is no trusted proxy. It removes the header from
// requests of other peers, so that later handlers do not trust it.
func (n *Node) behindProxy(r *http.Request) {
	trusted := *n.proxies.Load()
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !anyContains(trusted, peer.Addr()) {
		if r.Header["X-Forwarded-For"] != nil || r.Header["X-Forwarded-Proto"] != nil {
			r.Header.Del("X-Forwarded-For")
			r.Header.Del("X-Forwarded-Proto")
		}
		return
	}
	if client, ok := forwarded(r.Header.Values("X-Forwarded-For"), trusted); ok {
		r.RemoteAddr = net.JoinHostPort(client.String(), "0")
	}
	if r.TLS == nil && strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https") {
		r.TLS = &tls.ConnectionState{} // the client speaks TLS with the proxy, which keeps the details
	}
}

// forwarded goes from the nearest hop outwards to the first address that is no trusted
// proxy's. Any sender may have written the hops before it.
func forwarded(values []string, trusted []netip.Prefix) (netip.Addr, bool) {
	hops := strings.Split(strings.Join(values, ","), ",")
	var last netip.Addr
	for _, hop := range slices.Backward(hops) {
		hop = strings.TrimSpace(hop)
		a, err := netip.ParseAddr(strings.Trim(hop, "[]"))
		if err != nil {
			p, perr := netip.ParseAddrPort(hop)
			if perr != nil {
				return last, last.IsValid()
			}
			a = p.Addr()
		}
		last = a.Unmap().WithZone("")
		if !anyContains(trusted, last) {
			break
		}
	}
	return last, last.IsValid()
}

func anyContains(list []netip.Prefix, a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
}

// isProxy reports whether an address is that of a trusted proxy.
func (n *Node) isProxy(a netip.Addr) bool { return anyContains(*n.proxies.Load(), a) }
