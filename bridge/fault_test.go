package bridge_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/internal/fixedport"
	"github.com/parley-hub/parley/internal/netguard"
)

// TestNetworkFault meets each fault on a real connection.
func TestNetworkFault(t *testing.T) {
	loopback := &netguard.Guard{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}
	get := func(g *netguard.Guard, o netguard.Options, url string) error {
		r, err := g.Client(o).Get(url)
		if err != nil {
			return err
		}
		defer r.Body.Close()
		_, err = io.ReadAll(r.Body)
		return err
	}
	closed := fixedport.Address(t)
	private := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(private.Close)
	roots := x509.NewCertPool()
	roots.AddCert(private.Certificate())
	hangsUp := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		panic(http.ErrAbortHandler)
	}))
	t.Cleanup(hangsUp.Close)
	silent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	t.Cleanup(silent.Close)
	tests := []struct {
		name   string
		err    error
		reason parley.Reason
		detail string
	}{
		{"connection refused", get(loopback, netguard.Options{}, "http://"+closed),
			parley.ConnectionRefused, "connection refused by " + closed},
		{"address guard", get(&netguard.Guard{Advice: netguard.HubAdvice}, netguard.Options{}, hangsUp.URL), parley.AddressGuard,
			`[network] allow = ["127.0.0.1/32"]`},
		{"certificate unknown", get(loopback, netguard.Options{}, private.URL), parley.CertificateUnknown,
			"certificate unknown"},
		{"certificate of another host", tlsTo(private, &tls.Config{RootCAs: roots, ServerName: "other.corp"}),
			parley.CertificateName, `not for host "other.corp"`},
		{"certificate expired", tlsTo(private, &tls.Config{RootCAs: roots, ServerName: "example.com",
			Time: func() time.Time { return private.Certificate().NotAfter.Add(time.Hour) }}),
			parley.CertificateExpired, "expired on"},
		{"hangs up", get(loopback, netguard.Options{}, hangsUp.URL), parley.ConnectionLost, "connection lost"},
		{"silent", get(loopback, netguard.Options{Timeout: 50 * time.Millisecond}, silent.URL), parley.NoAnswer,
			"no answer in time"},
		{"no such host", &net.OpError{Op: "dial", Err: &net.DNSError{Name: "a.invalid", IsNotFound: true}},
			parley.HostUnknown, `host "a.invalid" has no address`},
		{"deadline", fmt.Errorf("wait: %w", context.DeadlineExceeded), parley.NoAnswer, "no answer in time"},
		{"something else", errors.New("the answer is no JSON"), "", ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			reason, detail := bridge.NetworkFault(test.err)
			if reason != test.reason || !strings.Contains(detail, test.detail) {
				t.Errorf("NetworkFault(%v) = %q, %q; want %q and %q", test.err, reason, detail, test.reason, test.detail)
			}
			e := bridge.Unreachable(parley.Fail(parley.Unavailable, test.err, "the agent cannot be reached"), test.err)
			if want := parley.ByNetwork; reason == "" != (e.Source != want) || e.Detail != detail {
				t.Errorf("Unreachable gives %q, %q", e.Source, e.Detail)
			}
		})
	}
}

func tlsTo(s *httptest.Server, c *tls.Config) error {
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		return err
	}
	defer conn.Close()
	return tls.Client(conn, c).Handshake()
}
