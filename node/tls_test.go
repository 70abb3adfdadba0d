package node

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// pair makes a certificate of its own authority, PEM of both halves.
func pair(t *testing.T, serial int64, host string, ends time.Time) (cert, key []byte) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: host},
		DNSNames: []string{host}, NotBefore: time.Now().Add(-time.Hour), NotAfter: ends,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, k.Public(), k)
	if err != nil {
		t.Fatal(err)
	}
	kd, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: kd})
}

func put(t *testing.T, path string, b []byte) string {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// serial connects and gives the serial number of the listener's certificate; 0: none.
func serial(n *Node, host string) int64 {
	conn, err := tls.Dial("tcp", n.httpListen.Addr().String(),
		&tls.Config{ServerName: host, InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err != nil {
		return 0
	}
	defer conn.Close()
	if conn.ConnectionState().NegotiatedProtocol != "h2" {
		return -1
	}
	return conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
}

func TestCertificateIsReadAgainWhenItChanges(t *testing.T) {
	dir := t.TempDir()
	far := time.Now().Add(1000 * time.Hour)
	c1, k1 := pair(t, 1, "hub.test", far)
	cert, key := put(t, filepath.Join(dir, "cert.pem"), c1), put(t, filepath.Join(dir, "key.pem"), k1)
	var log bytes.Buffer
	n := running(t, Config{TLS: TLS{Cert: cert, Key: key}, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if got := serial(n, "hub.test"); got != 1 {
		t.Fatalf("certificate %d", got)
	}
	if at, ok := n.certs.ends(); !ok || at.Unix() != far.Unix() {
		t.Errorf("ends %s, %v", at, ok)
	}
	// Half of a new pair: the old pair still serves.
	c2, k2 := pair(t, 2, "hub.test", far)
	put(t, cert, append(c2, '\n'))
	if got := serial(n, "hub.test"); got != 1 {
		t.Errorf("with half a pair: certificate %d", got)
	}
	put(t, key, append(k2, '\n', '\n'))
	if got := serial(n, "hub.test"); got != 2 {
		t.Errorf("with both: certificate %d", got)
	}
	put(t, cert, nil)
	if got := serial(n, "hub.test"); got != 2 {
		t.Errorf("with an empty file: certificate %d", got)
	}
	if err := os.Remove(cert); err != nil {
		t.Fatal(err)
	}
	if got := serial(n, "hub.test"); got != 2 {
		t.Errorf("without the file: certificate %d", got)
	}
}

func TestWrongCertificateRefusesToStart(t *testing.T) {
	dir := t.TempDir()
	c1, _ := pair(t, 1, "hub.test", time.Now().Add(time.Hour))
	_, k2 := pair(t, 2, "hub.test", time.Now().Add(time.Hour))
	c := &certificates{}
	if err := c.use(put(t, filepath.Join(dir, "c"), c1), put(t, filepath.Join(dir, "k"), k2)); err == nil {
		t.Error("two halves of different pairs are taken")
	}
	if err := c.use(filepath.Join(dir, "none"), filepath.Join(dir, "k")); err == nil {
		t.Error("a missing file is taken")
	}
}

// TestACMEServesFromItsCache: a certificate that was fetched before is served without the
// authority, and the hub does not ask for certificates of other names.
func TestACMEServesFromItsCache(t *testing.T) {
	asked := make(chan string, 16)
	ca := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.URL.Path
		http.Error(w, "not today", http.StatusServiceUnavailable)
	}))
	defer ca.Close()
	data := t.TempDir()
	acme := filepath.Join(data, "acme")
	if err := os.MkdirAll(acme, 0o700); err != nil {
		t.Fatal(err)
	}
	cert, key := pair(t, 7, "hub.test", time.Now().Add(80*24*time.Hour))
	put(t, filepath.Join(acme, "hub.test"), append(key, cert...))
	n := running(t, Config{Data: data, TLS: TLS{ACME: []string{"hub.test"}, Directory: ca.URL}})
	if got := serial(n, "hub.test"); got != 7 {
		t.Errorf("certificate %d", got)
	}
	if got := serial(n, "other.test"); got != 0 {
		t.Errorf("a certificate for another name: %d", got)
	}
	if got := n.Addresses().HTTP; got != "https://hub.test" {
		t.Errorf("public_url %s", got)
	}
	select {
	case path := <-asked:
		t.Errorf("the authority was asked for %s", path)
	default:
	}
}

func TestForwarded(t *testing.T) {
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("::1/128")}
	for _, c := range []struct {
		header []string
		want   string
	}{
		{[]string{"203.0.113.7"}, "203.0.113.7"},
		{[]string{"203.0.113.7, 10.0.0.2"}, "203.0.113.7"},
		{[]string{"6.6.6.6, 203.0.113.7, 10.0.0.2"}, "203.0.113.7"}, // any sender may have written the hop before
		{[]string{"6.6.6.6", "203.0.113.7"}, "203.0.113.7"},
		{[]string{"10.0.0.9, 10.0.0.2"}, "10.0.0.9"},
		{[]string{"nonsense, 203.0.113.7"}, "203.0.113.7"},
		{[]string{"203.0.113.7, nonsense"}, ""},
		{[]string{"203.0.113.7:1234"}, "203.0.113.7"},
		{[]string{"[2001:db8::7]"}, "2001:db8::7"},
		{[]string{"::ffff:203.0.113.7"}, "203.0.113.7"},
		{nil, ""},
		{[]string{""}, ""},
	} {
		got := ""
		if a, ok := forwarded(c.header, trusted); ok {
			got = a.String()
		}
		if got != c.want {
			t.Errorf("%q: %q, want %q", c.header, got, c.want)
		}
	}
}

func TestOnlyTrustedProxiesAreBelieved(t *testing.T) {
	n := &Node{}
	proxies := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	n.proxies.Store(&proxies)
	for _, c := range []struct {
		peer, remote string
		secure       bool
		seen         string
	}{
		{"10.0.0.1:99", "203.0.113.7:0", true, "203.0.113.7"},
		{"[::ffff:10.0.0.1]:99", "203.0.113.7:0", true, "203.0.113.7"},
		{"198.51.100.1:99", "198.51.100.1:99", false, ""},
		{"@", "@", false, ""},
	} {
		r := httptest.NewRequest("POST", "/", nil)
		r.RemoteAddr = c.peer
		r.Header.Set("X-Forwarded-For", "203.0.113.7")
		r.Header.Set("X-Forwarded-Proto", "https")
		n.behindProxy(r)
		remote, secure, seen := r.RemoteAddr, r.TLS != nil, r.Header.Get("X-Forwarded-For")
		if remote != c.remote || secure != c.secure || seen != c.seen {
			t.Errorf("from %s: %s, %v, %q", c.peer, remote, secure, seen)
		}
	}
}

// TestRefusalNamesTheClientBehindAProxy: end to end, with a path prefix.
func TestRefusalNamesTheClientBehindAProxy(t *testing.T) {
	n := running(t, Config{PublicURL: "https://hub.test/base", TLS: TLS{Proxy: []string{"127.0.0.0/8"}}})
	r, err := http.NewRequest("POST", n.Addresses().Local+"/base/agents/echo/agent/message",
		bytes.NewReader([]byte("{}")))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-Forwarded-For", "203.0.113.9")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	list := n.Hub().Refused(1)
	if len(list) != 1 || list[0].Source != "203.0.113.9" {
		t.Errorf("%d: %+v", resp.StatusCode, list)
	}
}
