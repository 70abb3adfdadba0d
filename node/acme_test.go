package node

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// authority is an ACME server (RFC 8555) of one process, with the challenge tls-alpn-01
// (RFC 8737). It checks the challenge by a call to the hub, at dial instead of port 443
// of the name.
type authority struct {
	*httptest.Server
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	life func(serial int64) (from, until time.Time)
	dial func() string

	mu       sync.Mutex
	nonces   map[string]bool
	accounts map[string]*jose.JSONWebKey // by URL
	orders   []*order
	serial   int64
	contacts []string
}

type order struct {
	account, name, token string
	proved               bool
	chain                []byte
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{nonces: map[string]bool{}, accounts: map[string]*jose.JSONWebKey{}, serial: 100}
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	root := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Test Authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, root, root, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /directory", func(w http.ResponseWriter, _ *http.Request) {
		a.json(w, http.StatusOK, map[string]any{"newNonce": a.URL + "/nonce", "newAccount": a.URL +
			"/account", "newOrder": a.URL + "/order", "revokeCert": a.URL + "/revoke", "keyChange": a.URL + "/rollover",
			"meta": map[string]any{"termsOfService": a.URL + "/terms"}})
	})
	mux.HandleFunc("HEAD /nonce", func(w http.ResponseWriter,
		_ *http.Request) {
		w.Header().Set("Replay-Nonce", a.nonce())
	})
	mux.HandleFunc("POST /", func(w http.ResponseWriter, r *http.Request) {
		if err := a.serve(w, r); err != nil {
			t.Logf("refused %s: %v", r.URL.Path, err)
			a.json(w, http.StatusForbidden, map[string]any{"type": "urn:ietf:params:acme:error:malformed",
				"detail": err.Error()})
		}
	})
	a.Server = httptest.NewTLSServer(mux)
	t.Cleanup(a.Close)
	return a
}

func (a *authority) json(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Replay-Nonce", a.nonce())
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

func (a *authority) nonce() string {
	n := rand.Text()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.nonces[n] = true
	return n
}

// verify checks the signature, URL and nonce of a request.
func (a *authority) verify(r *http.Request) (payload []byte, account string, key *jose.JSONWebKey, err error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, "", nil, err
	}
	s, err := jose.ParseSignedJSON(string(body), []jose.SignatureAlgorithm{jose.ES256})
	if err != nil {
		return nil, "", nil, err
	}
	h := s.Signatures[0].Protected
	a.mu.Lock()
	defer a.mu.Unlock()
	if key = h.JSONWebKey; key == nil {
		if key = a.accounts[h.KeyID]; key == nil {
			return nil, "", nil, fmt.Errorf("account %q is not known", h.KeyID)
		}
	}
	if payload, err = s.Verify(key); err != nil {
		return nil, "", nil, err
	}
	if url := h.ExtraHeaders["url"]; url != a.URL+r.URL.Path {
		return nil, "", nil, fmt.Errorf("signed for %v", url)
	}
	if !a.nonces[h.Nonce] {
		return nil, "", nil, fmt.Errorf("nonce %q was used", h.Nonce)
	}
	delete(a.nonces, h.Nonce)
	return payload, h.KeyID, key, nil
}

func (a *authority) serve(w http.ResponseWriter, r *http.Request) error {
	payload, account, key, err := a.verify(r)
	if err != nil {
		return err
	}
	what, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch what {
	case "account":
		var v struct {
			Contact []string `json:"contact"`
			Agreed  bool     `json:"termsOfServiceAgreed"`
		}
		if err := json.Unmarshal(payload, &v); err != nil || !v.Agreed {
			return fmt.Errorf("the terms were not agreed to: %v", err)
		}
		a.mu.Lock()
		url := fmt.Sprintf("%s/account/%d", a.URL, len(a.accounts)+1)
		a.accounts[url], a.contacts = key, v.Contact
		a.mu.Unlock()
		w.Header().Set("Location", url)
		a.json(w, http.StatusCreated, map[string]any{"status": "valid"})
		return nil
	case "order":
		if rest != "" {
			break
		}
		var v struct {
			Identifiers []struct{ Type, Value string } `json:"identifiers"`
		}
		if err := json.Unmarshal(payload, &v); err != nil || len(v.Identifiers) != 1 || v.Identifiers[0].Type != "dns" {
			return fmt.Errorf("want one name, not %s: %v", payload, err)
		}
		a.mu.Lock()
		a.orders = append(a.orders, &order{account: account, name: v.Identifiers[0].Value, token: rand.Text()})
		n := len(a.orders) - 1
		a.mu.Unlock()
		w.Header().Set("Location", fmt.Sprintf("%s/order/%d", a.URL, n))
		a.json(w, http.StatusCreated, a.view(n))
		return nil
	}
	var n int
	if _, err := fmt.Sscanf(rest, "%d", &n); err != nil || n < 0 || n >= a.count() {
		return fmt.Errorf("%s is not there", r.URL.Path)
	}
	a.mu.Lock()
	o := a.orders[n]
	a.mu.Unlock()
	if o.account != account {
		return fmt.Errorf("order %d is of another account", n)
	}
	switch what {
	case "order":
		a.json(w, http.StatusOK, a.view(n))
	case "authz":
		a.json(w, http.StatusOK, a.authorization(n))
	case "challenge":
		if err := a.prove(r.Context(), o, key); err != nil {
			return err
		}
		a.json(w, http.StatusOK, a.challenge(n))
	case "finalize":
		var v struct{ CSR string }
		a.mu.Lock()
		proved := o.proved
		a.mu.Unlock()
		if err := json.Unmarshal(payload, &v); err != nil || !proved {
			return fmt.Errorf("the name is not proved: %v", err)
		}
		if err := a.issue(o, v.CSR); err != nil {
			return err
		}
		w.Header().Set("Location", fmt.Sprintf("%s/order/%d", a.URL, n))
		a.json(w, http.StatusOK, a.view(n))
	case "certificate":
		w.Header().Set("Replay-Nonce", a.nonce())
		w.Header().Set("Content-Type", "application/pem-certificate-chain")
		a.mu.Lock()
		defer a.mu.Unlock()
		_, _ = w.Write(o.chain)
	default:
		return fmt.Errorf("%s is not there", r.URL.Path)
	}
	return nil
}

// count gives the number of orders.
func (a *authority) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.orders)
}

func (a *authority) view(n int) map[string]any {
	a.mu.Lock()
	defer a.mu.Unlock()
	o := a.orders[n]
	v := map[string]any{"status": "pending", "identifiers": []any{map[string]any{"type": "dns", "value": o.name}},
		"authorizations": []string{fmt.Sprintf("%s/authz/%d", a.URL, n)},
		"finalize":       fmt.Sprintf("%s/finalize/%d", a.URL, n)}
	if o.proved {
		v["status"] = "ready"
	}
	if o.chain != nil {
		v["status"], v["certificate"] = "valid", fmt.Sprintf("%s/certificate/%d", a.URL, n)
	}
	return v
}

func (a *authority) authorization(n int) map[string]any {
	c := a.challenge(n)
	a.mu.Lock()
	defer a.mu.Unlock()
	return map[string]any{"status": c["status"], "identifier": map[string]any{"type": "dns", "value": a.orders[n].name},
		"challenges": []any{c}}
}

func (a *authority) challenge(n int) map[string]any {
	a.mu.Lock()
	defer a.mu.Unlock()
	o := a.orders[n]
	status := "pending"
	if o.proved {
		status = "valid"
	}
	return map[string]any{"type": "tls-alpn-01", "url": fmt.Sprintf("%s/challenge/%d", a.URL, n), "token": o.token,
		"status": status}
}

// prove calls the hub under the name and checks that it shows the certificate of RFC 8737
// §3.
func (a *authority) prove(ctx context.Context, o *order, key *jose.JSONWebKey) error {
	print, err := key.Thumbprint(crypto.SHA256)
	if err != nil {
		return err
	}
	want := sha256.Sum256([]byte(o.token + "." + base64.RawURLEncoding.EncodeToString(print)))
	d := tls.Dialer{Config: &tls.Config{ServerName: o.name, NextProtos: []string{"acme-tls/1"},
		InsecureSkipVerify: true}}
	c, err := d.DialContext(ctx, "tcp", a.dial())
	if err != nil {
		return fmt.Errorf("call the hub: %w", err)
	}
	defer c.Close()
	s := c.(*tls.Conn).ConnectionState()
	leaf := s.PeerCertificates[0]
	if s.NegotiatedProtocol != "acme-tls/1" || len(leaf.DNSNames) != 1 || leaf.DNSNames[0] != o.name {
		return fmt.Errorf("the hub speaks %q for %v", s.NegotiatedProtocol, leaf.DNSNames)
	}
	for _, e := range leaf.Extensions {
		if e.Id.Equal(asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 1, 31}) && e.Critical {
			var got []byte
			if _, err := asn1.Unmarshal(e.Value, &got); err != nil || !bytes.Equal(got, want[:]) {
				return fmt.Errorf("the hub proves %x, want %x: %v", got, want, err)
			}
			a.mu.Lock()
			defer a.mu.Unlock()
			o.proved = true
			return nil
		}
	}
	return fmt.Errorf("the hub's certificate proves nothing")
}

func (a *authority) issue(o *order, csr string) error {
	der, err := base64.RawURLEncoding.DecodeString(csr)
	if err != nil {
		return err
	}
	r, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return err
	}
	if err := r.CheckSignature(); err != nil || len(r.DNSNames) != 1 || r.DNSNames[0] != o.name {
		return fmt.Errorf("a request for %v: %v", r.DNSNames, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.serial++
	from, until := a.life(a.serial)
	cert := &x509.Certificate{SerialNumber: big.NewInt(a.serial), DNSNames: r.DNSNames, NotBefore: from,
		NotAfter: until,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	leaf, err := x509.CreateCertificate(rand.Reader, cert, a.cert, r.PublicKey, a.key)
	if err != nil {
		return err
	}
	for _, der := range [][]byte{leaf, a.cert.Raw} {
		o.chain = append(o.chain, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	return nil
}

// TestACME: the hub proves its name to an authority, serves the certificate it
// gets, renews it before it ends, and serves it again after a restart.
func TestACME(t *testing.T) {
	a := newAuthority(t)
	now := time.Now()
	kept := make(chan struct{})
	firstKept := sync.OnceFunc(func() { close(kept) })
	t.Cleanup(firstKept)
	a.life = func(serial int64) (time.Time, time.Time) {
		if serial == 101 {
			return now.Add(-2000 * time.Hour), now.Add(time.Hour) // it should have been renewed long ago
		}
		<-kept // the renewal begins before the first is in its file, which must not replace the second
		return now.Add(-time.Hour), now.Add(2000 * time.Hour)
	}
	data := t.TempDir()
	ca := put(t, filepath.Join(t.TempDir(), "ca.pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE",
		Bytes: a.Certificate().Raw}))
	c := Config{Data: data, TLS: TLS{ACME: []string{"hub.test"}, Email: "operator@hub.test", Directory: a.URL +
		"/directory", CA: []string{ca}}}
	n := running(t, c)
	a.dial = n.httpListen.Addr().String
	roots := x509.NewCertPool()
	roots.AddCert(a.cert)
	served := func(n *Node) int64 {
		t.Helper()
		conn, err := tls.Dial("tcp", n.httpListen.Addr().String(), &tls.Config{ServerName: "hub.test", RootCAs: roots})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	got := served(n)
	firstKept()
	for got == 101 && ctx.Err() == nil {
		got = served(n) // the renewal runs in the background
	}
	if got != 102 {
		t.Fatalf("certificate %d is served", got)
	}
	s, orders := serial(n, "other.test"), a.count()
	a.mu.Lock()
	if s != 0 || orders != 2 || len(a.accounts) != 1 || len(a.contacts) != 1 ||
		a.contacts[0] != "mailto:operator@hub.test" {
		t.Errorf("serial %d, %d orders, %d accounts, %v", s, orders, len(a.accounts), a.contacts)
	}
	a.mu.Unlock()
	files, err := os.ReadDir(filepath.Join(data, "acme"))
	if err != nil || len(files) < 2 {
		t.Errorf("kept: %v, %v", files, err)
	}
	for _, f := range files {
		if i, err := f.Info(); err != nil || i.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %s, %v", f.Name(), i.Mode(), err)
		}
	}
	again := running(t, c)
	if got := served(again); got != 102 || a.count() != 2 {
		t.Errorf("after a restart: certificate %d, %d orders", got, a.count())
	}
}
