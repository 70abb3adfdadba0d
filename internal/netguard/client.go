package netguard

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/parley-hub/parley/internal/recorder"
)

// ErrRedirect is the cause of errors about a peer that sends the client to
// another origin, or too often.
var ErrRedirect = errors.New("netguard: redirect refused")

// Defaults of [Options].
const (
	DefaultTimeout          = 10 * time.Second
	DefaultMaxRedirects     = 3
	DefaultMaxResponseBytes = 8 << 20
)

// Options shape a client. The zero value is safe.
type Options struct {
	// Timeout bounds a whole exchange, the reading of the body included.
	// 0 means [DefaultTimeout]; negative means none: for streams and
	// WebSockets, whose caller bounds them by context.
	Timeout time.Duration

	// MaxRedirects is how many redirects, all within one origin, are followed. 0
	// means [DefaultMaxRedirects]; negative gives a redirect to the caller as a
	// response.
	MaxRedirects int

	// MaxResponseBytes bounds the body of a response; reading on gives
	// [ErrTooLarge]. 0 means [DefaultMaxResponseBytes]; negative means no
	// bound: for streams, whose caller bounds each event.
	MaxResponseBytes int64

	// RootCAs are the authorities that servers are checked against; nil means
	// the system's.
	RootCAs *x509.CertPool

	// Certificate is shown to servers that ask for one; nil means none.
	Certificate *tls.Certificate

	resolver *net.Resolver // of tests; nil means the system's
}

// Client returns an HTTP client that connects where g allows. Each request,
// first or redirected, passes [Guard.CheckURL]; each connection is checked by
// its resolved address. Make one and share it: it keeps connections.
func (g *Guard) Client(o Options) *http.Client {
	timeout := max(cmp.Or(o.Timeout, DefaultTimeout), 0)
	maxBody := cmp.Or(o.MaxResponseBytes, DefaultMaxResponseBytes)
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		return g.dial(ctx, o.resolver, network, address)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: o.RootCAs}
	if o.Certificate != nil {
		config.Certificates = []tls.Certificate{*o.Certificate}
	}
	return &http.Client{
		Timeout:       timeout,
		CheckRedirect: redirectPolicy(o.MaxRedirects),
		Transport: &transport{guard: g, maxBody: maxBody, base: &http.Transport{
			DialContext:            dial,
			TLSClientConfig:        config,
			ForceAttemptHTTP2:      true,
			TLSHandshakeTimeout:    10 * time.Second,
			ExpectContinueTimeout:  time.Second,
			IdleConnTimeout:        60 * time.Second,
			MaxIdleConns:           512,
			MaxIdleConnsPerHost:    32,
			MaxConnsPerHost:        256, // busy and idle
			MaxResponseHeaderBytes: 64 << 10,
		}},
	}
}

// DialContext connects to address ("host:port") by TCP, where g allows. It is
// for protocols that are not HTTP.
func (g *Guard) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return g.dial(ctx, nil, network, address)
}

func (g *Guard) dial(ctx context.Context, resolver *net.Resolver, network, address string) (net.Conn, error) {
	switch network {
	case "tcp", "tcp4", "tcp6":
	default:
		return nil, fmt.Errorf("netguard: network %q is not TCP", network)
	}
	name, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("netguard: %w", err)
	}
	h, err := parseHost(name, name)
	if err != nil {
		return nil, err
	}
	nd := net.Dialer{
		Timeout:   10 * time.Second,
		KeepAlive: 30 * time.Second,
		Resolver:  resolver,
		ControlContext: func(_ context.Context, network, address string, _ syscall.RawConn) error {
			return g.checkDial(h, network, address)
		},
	}
	return nd.DialContext(ctx, network, address)
}

// checkDial judges the connection to address that is about to be made for h.
func (g *Guard) checkDial(h host, network, address string) error {
	if network != "tcp4" && network != "tcp6" {
		return fmt.Errorf("netguard: network %q is not TCP", network)
	}
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("netguard: dialler gave %q, which is no address: %w", address, err)
	}
	err = g.CheckAddr(ap.Addr())
	if err == nil && h.class != "" && !g.allows(ap.Addr()) {
		// An internal name that resolves to an address outside the list.
		err = g.blocked("", ap.Addr(), Range{Name: h.class})
	}
	if blocked, ok := errors.AsType[*BlockedError](err); ok {
		blocked.Host = h.name
	}
	return err
}

type transport struct {
	guard   *Guard
	maxBody int64
	base    *http.Transport
}

func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := t.guard.CheckURL(r.URL); err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // RoundTrip must close it; the refusal matters more than an error here
		}
		return nil, err
	}
	resp, err := recorder.RoundTrip(r, t.base.RoundTrip)
	if err != nil || t.maxBody < 0 || resp.StatusCode == http.StatusSwitchingProtocols {
		return resp, err
	}
	if resp.ContentLength > t.maxBody && r.Method != http.MethodHead {
		_ = resp.Body.Close()
		return nil, &tooLarge{t.maxBody}
	}
	resp.Body = &limitedBody{limited{resp.Body, t.maxBody, t.maxBody}, resp.Body}
	return resp, nil
}

// CloseIdleConnections serves [http.Client.CloseIdleConnections].
func (t *transport) CloseIdleConnections() { t.base.CloseIdleConnections() }

func redirectPolicy(limit int) func(*http.Request, []*http.Request) error {
	limit = cmp.Or(limit, DefaultMaxRedirects)
	return func(r *http.Request, via []*http.Request) error {
		if limit < 0 {
			return http.ErrUseLastResponse
		}
		if len(via) > limit {
			return fmt.Errorf("%w: more than %d", ErrRedirect, limit)
		}
		if from, to := Origin(via[0].URL), Origin(r.URL); from != to {
			return fmt.Errorf("%w: from %s to another origin, %s", ErrRedirect, from, to)
		}
		return nil
	}
}

// Origin is scheme, host and port, RFC 6454 §4.
func Origin(u *url.URL) string {
	scheme, port := strings.ToLower(u.Scheme), u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[scheme]
	}
	return scheme + "://" + net.JoinHostPort(strings.ToLower(u.Hostname()), port)
}

// ErrTooLarge is the cause of errors about input beyond its bound.
var ErrTooLarge = errors.New("netguard: input is too large")

type tooLarge struct{ max int64 }

func (e *tooLarge) Error() string { return fmt.Sprintf("%v: more than %d bytes", ErrTooLarge, e.max) }
func (e *tooLarge) Unwrap() error { return ErrTooLarge }

// ReadAll reads r to its end, which must come within max bytes; otherwise the
// error wraps [ErrTooLarge] and nothing is returned.
func ReadAll(r io.Reader, max int64) ([]byte, error) {
	b, err := io.ReadAll(&limited{r, max, max})
	if err != nil {
		return nil, err
	}
	return b, nil
}

// limited is a reader that fails, instead of ending, beyond its limit.
type limited struct {
	r         io.Reader
	left, max int64
}

func (l *limited) Read(p []byte) (int, error) {
	if l.left < 0 {
		return 0, &tooLarge{l.max}
	}
	if int64(len(p))-1 > l.left {
		p = p[:l.left+1] // one byte more shows whether the input ends here
	}
	n, err := l.r.Read(p)
	l.left -= int64(n)
	if l.left < 0 {
		return n - 1, &tooLarge{l.max}
	}
	return n, err
}

type limitedBody struct {
	limited
	io.Closer
}
