package node

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/policy"
)

// A login is an OpenID Connect issuer.
type login struct {
	*httptest.Server
	key     ed25519.PrivateKey
	fetches atomic.Int32
	down    atomic.Bool
}

func newLogin(t *testing.T) *login {
	t.Helper()
	l := &login{}
	var err error
	if _, l.key, err = ed25519.GenerateKey(rand.Reader); err != nil {
		t.Fatal(err)
	}
	l.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l.fetches.Add(1)
		switch {
		case l.down.Load():
			w.WriteHeader(http.StatusInternalServerError)
		case r.URL.Path == "/.well-known/openid-configuration":
			fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":%q}`, l.URL, l.URL+"/keys")
		case r.URL.Path == "/keys":
			w.Write(l.jwks(t))
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(l.Close)
	return l
}

func (l *login) jwks(t *testing.T) []byte {
	t.Helper()
	b, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: l.key.Public(), KeyID: "k1"}}})
	if err != nil {
		t.Error(err)
	}
	return b
}

// token issues a token for the audience hub.
func (l *login) token(t *testing.T, subject, kid string) string {
	t.Helper()
	return l.tokenFor(t, "hub", subject, kid)
}

func (l *login) tokenFor(t *testing.T, audience, subject, kid string) string {
	t.Helper()
	g, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.EdDSA, Key: jose.JSONWebKey{Key: l.key, KeyID: kid}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(g).Claims(map[string]any{"iss": l.URL, "aud": audience, "sub": subject,
		"exp": time.Now().Add(time.Hour).Unix(), "preferred_username": "name of " + subject}).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// identify finds the caller of a request from 192.0.2.7 with these values of Authorization.
func identify(n *Node, values ...string) (bridge.Caller, error) {
	h := http.Header{}
	for _, v := range values {
		h.Add("Authorization", v)
	}
	return n.callers().Identify(context.Background(), "a2a", h, nil, "192.0.2.7:5000")
}

// turnedAway checks that credentials are refused, generically, with a reference that tells the
// operator why, but no secret.
func turnedAway(t *testing.T, n *Node, what string, want parley.Code, cause string, err error, secrets ...string) {
	t.Helper()
	e := parley.AsError(err)
	if err == nil || e.Code != want || e.Ref == "" || !strings.Contains(e.Text, "these credentials") {
		t.Errorf("%s: %+v", what, err)
		return
	}
	r, ok := n.Hub().Explain(e.Ref)
	if !ok || r.Source != "192.0.2.7" || r.Step != "caller" || r.Protocol != "a2a" || !strings.Contains(r.Cause, cause) {
		t.Errorf("%s: %+v, want the cause %q", what, r, cause)
	}
	for _, s := range secrets {
		if s != "" && strings.Contains(fmt.Sprintf("%+v %+v", r, e), s) {
			t.Errorf("%s: the refusal has the secret", what)
		}
	}
}

// A token of the hub speaks for its agent until it is revoked; tokens of the admin API do
// not. A2A-060: the assurance is session.
func TestCallersByToken(t *testing.T) {
	n := running(t, Config{})
	issue := func(name string, k admin.NewToken) string {
		t.Helper()
		k.Name = name
		issued, err := n.Admin().IssueToken(t.Context(), admin.Actor{Name: "test", Role: admin.Administer}, k)
		if err != nil {
			t.Fatal(err)
		}
		return issued.Secret
	}
	scout := issue("scout", admin.NewToken{Agent: "crew/scout"})
	boss := issue("boss", admin.NewToken{Role: admin.Administer})
	for _, header := range []string{"Bearer " + scout, "bearer " + scout, "BEARER  " + scout + " "} {
		c, err := identify(n, header)
		if err != nil || c.Name != "crew/scout" || c.Peer != "token scout" || c.Guest ||
			c.Verdict.Assurance != parley.Session || len(c.Verdict.Checks) != 1 || !c.Verdict.Checks[0].OK {
			t.Errorf("%+v %v", c, err)
		}
	}
	for what, v := range map[string][]string{
		"an admin token": {"Bearer " + boss}, "an unknown token": {"Bearer " + scout[:len(scout)-1]},
		"no token": {"Bearer "}, "another scheme": {"Basic " + scout}, "the token alone": {scout},
		"two": {"Bearer " + scout, "Bearer " + scout}, "empty": {""}, "long": {"Bearer " + strings.Repeat("x", 1<<15)},
	} {
		_, err := identify(n, v...)
		turnedAway(t, n, what, parley.Unauthenticated, "", err, scout, boss, strings.TrimPrefix(v[0], "Bearer "))
	}
	if s := n.callers().Schemes(); len(s) != 1 || s[0] != (bridge.CallerScheme{Name: "parley", Bearer: true}) {
		t.Errorf("schemes: %+v", s)
	}
	err := n.Admin().RevokeToken(t.Context(), admin.Actor{Name: "test", Role: admin.Administer}, "scout", false)
	if err != nil {
		t.Fatal(err)
	}
	_, err = identify(n, "Bearer "+scout)
	turnedAway(t, n, "revoked", parley.Unauthenticated, "does not know this token", err, scout)
}

// A caller without credentials is a guest, one for each address; a proved one is vouched for.
func TestGuestCallers(t *testing.T) {
	n := running(t, Config{})
	issued, err := n.Admin().IssueToken(t.Context(), admin.Actor{Name: "test", Role: admin.Administer},
		admin.NewToken{Name: "scout", Agent: "crew/scout"})
	if err != nil {
		t.Fatal(err)
	}
	at := func(address string) bridge.Caller {
		c, err := n.callers().Identify(t.Context(), "a2a", http.Header{"X-Forwarded-Client-Cert": {"By=x;Subject=CN=boss"}},
			&tls.ConnectionState{PeerCertificates: []*x509.Certificate{{DNSNames: []string{"boss"}}}}, address)
		if err != nil || !c.Guest || c.Verdict.Assurance != parley.Unsigned || !strings.HasPrefix(c.Name, "guest/a2a/") {
			t.Errorf("%+v %v", c, err)
		}
		return c
	}
	if a, b := at("192.0.2.1:80"), at("192.0.2.1:81"); a.Name != b.Name || a.Peer != "192.0.2.1" {
		t.Errorf("one address: %+v %+v", a, b)
	}
	if at("192.0.2.1:80").Name == at("192.0.2.2:80").Name {
		t.Error("two addresses are one guest")
	}
	vouched := 0
	caller := policy.NewCaller("192.0.2.7", func() { vouched++ })
	ctx := policy.WithCaller(t.Context(), caller)
	for _, header := range []http.Header{{}, {"Authorization": {"Bearer x"}}} {
		_, _ = n.callers().Identify(ctx, "a2a", header, nil, "192.0.2.7:1")
	}
	if vouched != 0 {
		t.Error("a guest is vouched for")
	}
	h := http.Header{"Authorization": {"Bearer " + issued.Secret}}
	if _, err := n.callers().Identify(ctx, "a2a", h, nil, "192.0.2.7:1"); err != nil || vouched != 1 {
		t.Errorf("vouched %d times: %v", vouched, err)
	}
}

// Tokens of an issuer: its subjects are the mapped agents, or those of the issuer, or guests.
func TestCallersByIssuer(t *testing.T) {
	l := newLogin(t)
	other := newLogin(t)
	n := running(t, Config{Network: Network{Allow: []string{"loopback"}}, Callers: Callers{Issuers: []Issuer{
		{Name: "corp", URL: l.URL, Audience: []string{"hub"}, Agents: []Subject{{}, {"auth0|7", "crew/scout"}}},
		{},
		{Name: "lab", URL: other.URL, Audience: []string{"hub"}, Enroll: true, JWKS: other.URL + "/keys"},
	}}})
	for token, want := range map[string]bridge.Caller{
		l.token(t, "auth0|7", "k1"):         {Name: "crew/scout", Peer: "auth0|7 at corp"},
		l.token(t, "auth0|7", ""):           {Name: "crew/scout", Peer: "auth0|7 at corp"},
		other.token(t, "bob", "k1"):         {Name: "lab/bob", Peer: "bob at lab"},
		other.token(t, "auth0|7", "k1"):     {Peer: "auth0|7 at lab"},
		other.token(t, "id/x", "k1"):        {Peer: "id/x at lab"},
		other.token(t, "../crew/scout", ""): {Peer: "../crew/scout at lab"},
	} {
		c, err := identify(n, "Bearer "+token)
		if err != nil || c.Peer != want.Peer || c.Guest || c.Verdict.Assurance != parley.Session ||
			len(c.Verdict.Checks) != 1 {
			t.Errorf("%+v %v, want %+v", c, err, want)
		}
		hash, hashed := strings.CutPrefix(c.Name, "lab/id/")
		if want.Name != "" && c.Name != want.Name || want.Name == "" && (!hashed || len(hash) != 32) ||
			parley.CheckName(c.Name) != nil {
			t.Errorf("%s is %s, want %s", c.Peer, c.Name, want.Name)
		}
	}
	one, err := identify(n, "Bearer "+l.token(t, "eve", "k1"))
	again, _ := identify(n, "Bearer "+l.token(t, "eve", "k1"))
	if err != nil || !one.Guest || one.Verdict.Assurance != parley.Unsigned ||
		!strings.HasPrefix(one.Name, "guest/a2a/eve-") || one.Name != again.Name {
		t.Errorf("a subject for whom nobody vouches: %+v %v", one, err)
	}
	valid := strings.Split(l.token(t, "auth0|7", "k1"), ".")
	stranger := newLogin(t)
	for what, v := range map[string]struct{ token, cause string }{
		"another issuer":    {stranger.token(t, "auth0|7", "k1"), "is not in the configuration"},
		"forged":            {(&login{Server: l.Server, key: stranger.key}).token(t, "auth0|7", "k1"), "does not hold"},
		"unknown key":       {l.token(t, "auth0|7", "k2"), "kid"},
		"no algorithm":      {"eyJhbGciOiJub25lIn0." + valid[1] + ".", "does not hold"},
		"shortened":         {valid[0] + "." + valid[1] + ".", "does not hold"},
		"not even a header": {"eyJ.x.y", "does not hold"},
	} {
		_, err := identify(n, "Bearer "+v.token)
		turnedAway(t, n, what, parley.Unauthenticated, v.cause, err, v.token, valid[1])
	}
	if stranger.fetches.Load() != 0 {
		t.Error("the hub asked an issuer that is not in the configuration")
	}
	// A flood of unknown kids: the issuer is asked no more than before.
	before := l.fetches.Load()
	var flood sync.WaitGroup
	for i := range 50 {
		flood.Go(func() { _, _ = identify(n, "Bearer "+l.token(t, "auth0|7", fmt.Sprint("x", i))) })
	}
	flood.Wait()
	if got := l.fetches.Load() - before; got != 0 {
		t.Errorf("%d fetches", got)
	}
	schemes := n.callers().Schemes()
	corp := bridge.CallerScheme{Name: "corp", OpenID: l.URL + "/.well-known/openid-configuration", Issuer: l.URL}
	if len(schemes) != 3 || schemes[1] != corp {
		t.Errorf("schemes: %+v", schemes)
	}
}

// A binding that names the resource of a request takes tokens for it, and for the hub's URL; others do not (MCP-013).
func TestAudienceOfAResource(t *testing.T) {
	l := newLogin(t)
	n := running(t, Config{PublicURL: "https://hub.example", Network: Network{Allow: []string{"loopback"}},
		Callers: Callers{Issuers: []Issuer{{Name: "corp", URL: l.URL, Audience: []string{"hub"},
			Agents: []Subject{{"bob", "crew/bob"}}}}}})
	for audience, want := range map[string][2]bool{ // without a resource, and for …/mcp
		"hub":                       {true, true},
		"https://hub.example":       {false, true},
		"https://hub.example/mcp":   {false, true},
		"https://hub.example/mcp/x": {false, false},
		"https://other.example/mcp": {false, false},
		"":                          {false, false},
	} {
		h := http.Header{"Authorization": {"Bearer " + l.tokenFor(t, audience, "bob", "k1")}}
		for i, ctx := range []context.Context{t.Context(), bridge.ForResource(t.Context(), "https://hub.example/mcp")} {
			c, err := n.callers().Identify(ctx, "mcp", h, nil, "192.0.2.7:5000")
			if (err == nil) != want[i] || err == nil && c.Name != "crew/bob" {
				t.Errorf("audience %q, with a resource: %t: %+v %v", audience, i == 1, c, err)
			}
		}
	}
}

// What goes on for long ends when the token or certificate of its caller expires.
func TestCredentialsThatExpire(t *testing.T) {
	l := newLogin(t)
	var ahead atomic.Int64
	n := running(t, Config{Now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) },
		Network: Network{Allow: []string{"loopback"}}, Callers: Callers{Issuers: []Issuer{{Name: "corp", URL: l.URL,
			Audience: []string{"hub"}, Agents: []Subject{{"bob", "crew/bob"}}}}}})
	callers := map[string]bridge.Caller{}
	for _, who := range []string{"bob", "eve"} {
		c, err := identify(n, "Bearer "+l.token(t, who, "k1"))
		if err != nil {
			t.Fatal(err)
		}
		callers[who] = c
	}
	leaf := &x509.Certificate{DNSNames: []string{"box.corp"}, NotAfter: time.Now().Add(time.Hour)}
	c, err := n.callers().Identify(t.Context(), "a2a", http.Header{},
		&tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{leaf}}}, "192.0.2.7:5000")
	if err != nil {
		t.Fatal(err)
	}
	callers["box"] = c
	for _, expired := range []bool{false, true} {
		if expired {
			ahead.Store(int64(2 * time.Hour))
		}
		for who, c := range callers {
			if c.During == nil {
				t.Fatalf("%s may go on for ever", who)
			}
			ctx, end := c.During(t.Context())
			if (ctx.Err() != nil) != expired {
				t.Errorf("%s: %v, expired: %v", who, ctx.Err(), expired)
			}
			end()
		}
	}
}

// An issuer that cannot be asked is no fault of the caller; keys in a file need no issuer, and
// the guard keeps the hub from private addresses.
func TestIssuerDown(t *testing.T) {
	l, away := newLogin(t), newLogin(t)
	l.down.Store(true)
	keys := put(t, filepath.Join(t.TempDir(), "keys.json"), away.jwks(t))
	n := running(t, Config{Network: Network{Allow: []string{"loopback"}}, Callers: Callers{Issuers: []Issuer{
		{Name: "corp", URL: l.URL, Audience: []string{"hub"}},
		{Name: "lab", URL: away.URL, Audience: []string{"hub"}, JWKSFile: keys, Claim: "preferred_username", Enroll: true}}}})
	_, err := identify(n, "Bearer "+l.token(t, "bob", "k1"))
	turnedAway(t, n, "down", parley.Unavailable, "500", err)
	if e := parley.AsError(err); !e.Retryable || e.After <= 0 {
		t.Errorf("%+v", e)
	}
	if c, err := identify(n, "Bearer "+away.token(t, "bob", "k1")); err != nil || c.Peer != "name of bob at lab" ||
		away.fetches.Load() != 0 {
		t.Errorf("%+v %v", c, err)
	}
	blocked := running(t, Config{Callers: Callers{Issuers: []Issuer{
		{Name: "corp", URL: away.URL, Audience: []string{"hub"}}}}})
	_, err = identify(blocked, "Bearer "+away.token(t, "bob", "k1"))
	turnedAway(t, blocked, "a private address", parley.Unavailable, "loopback", err)
	if away.fetches.Load() != 0 {
		t.Error("the hub called a private address")
	}
}

// A reload applies [callers]; a mistake leaves the old ones in force.
func TestReloadOfCallers(t *testing.T) {
	l := newLogin(t)
	text := "[network]\nallow = [\"loopback\"]\n"
	n, write, _ := fromFile(t, text)
	token := "Bearer " + l.token(t, "bob", "k1")
	if _, err := identify(n, token); err == nil {
		t.Error("an issuer that is not in the configuration")
	}
	issuer := fmt.Sprintf("[[callers.issuer]]\nname = \"corp\"\nurl = %q\naudience = [\"hub\"]\n", l.URL)
	write(text + issuer + "[[callers.issuer.agent]]\nsubject = \"bob\"\nagent = \"crew/bob\"\n")
	out, err := n.Reload(t.Context())
	if err != nil || len(out.Restart) != 0 || strings.Join(out.Changed, " ") != "callers.issuer" {
		t.Errorf("%+v %v", out, err)
	}
	if c, err := identify(n, token); err != nil || c.Name != "crew/bob" {
		t.Errorf("%+v %v", c, err)
	}
	fetches := l.fetches.Load()
	write(text + issuer + "jwks_file = \"/does/not/exist\"\n")
	if _, err := n.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), "callers.issuer 1: jwks_file") {
		t.Error(err)
	}
	write(text + issuer + "enroll = true\n")
	if _, err := n.Reload(t.Context()); err != nil {
		t.Error(err)
	}
	if c, err := identify(n, token); err != nil || c.Name != "corp/bob" || l.fetches.Load() != fetches {
		t.Errorf("%+v %v after %d fetches", c, err, l.fetches.Load())
	}
	write(text)
	if _, err := n.Reload(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := identify(n, token); err == nil {
		t.Error("an issuer that was removed")
	}
}

// clientAuthority issues client certificates.
type clientAuthority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newClientAuthority(t *testing.T) *clientAuthority {
	t.Helper()
	a := &clientAuthority{}
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true,
		BasicConstraintsValid: true, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return a
}

func (a *clientAuthority) client(t *testing.T, c x509.Certificate) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c.SerialNumber, c.NotBefore, c.NotAfter = big.NewInt(7), time.Now().Add(-time.Hour), time.Now().Add(30*time.Minute)
	c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	der, err := x509.CreateCertificate(rand.Reader, &c, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// Client certificates of a known authority are mapped to agents; those of others end the
// connection.
func TestCallersByCertificate(t *testing.T) {
	dir := t.TempDir()
	server, key := pair(t, 1, "hub.test", time.Now().Add(time.Hour))
	known, foreign := newClientAuthority(t), newClientAuthority(t)
	var late atomic.Bool
	n := running(t, Config{
		Now: func() time.Time {
			if late.Load() {
				return time.Now().Add(45 * time.Minute)
			}
			return time.Now()
		},
		TLS: TLS{Cert: put(t, filepath.Join(dir, "cert.pem"), server), Key: put(t, filepath.Join(dir, "key.pem"), key),
			ClientCA: []string{put(t, filepath.Join(dir, "ca.pem"), known.pem)}},
		Callers: Callers{Certificates: []CertificateName{{"spiffe://corp/scout", "crew/scout"}, {"box.corp", "crew/box"},
			{"Old Box", "crew/old"}, {}}}})
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := n.callers().Identify(r.Context(), "a2a", r.Header, r.TLS, "192.0.2.7:1")
		if err != nil {
			w.Header().Set("Parley-Ref", parley.AsError(err).Ref)
			w.WriteHeader(http.StatusUnauthorized)
		}
		_ = json.NewEncoder(w).Encode(c)
	}))
	s.TLS = &tls.Config{GetCertificate: n.certs.get, ClientCAs: n.http.TLSConfig.ClientCAs,
		ClientAuth: n.http.TLSConfig.ClientAuth}
	s.StartTLS()
	t.Cleanup(s.Close)
	call := func(certs ...tls.Certificate) (c bridge.Caller, status int, err error) {
		tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: certs}}
		defer tr.CloseIdleConnections()
		resp, err := (&http.Client{Transport: tr}).Get(s.URL)
		if err != nil {
			return c, 0, err
		}
		defer resp.Body.Close()
		return c, resp.StatusCode, json.NewDecoder(resp.Body).Decode(&c)
	}
	spiffe, err := url.Parse("spiffe://corp/scout")
	if err != nil {
		t.Fatal(err)
	}
	scout := x509.Certificate{URIs: []*url.URL{spiffe}}
	for agent, cert := range map[string]x509.Certificate{
		"crew/scout": scout,
		"crew/box":   {DNSNames: []string{"other.corp", "box.corp"}},
		"crew/old":   {Subject: pkix.Name{CommonName: "Old Box"}},
	} {
		c, _, err := call(known.client(t, cert))
		if err != nil || c.Name != agent || c.Guest || c.Verdict.Assurance != parley.Session ||
			!strings.HasPrefix(c.Peer, "certificate ") {
			t.Errorf("%s: %+v %v", agent, c, err)
		}
	}
	// A common name beside other names says nothing.
	eve := x509.Certificate{DNSNames: []string{"eve.corp"}, Subject: pkix.Name{CommonName: "Old Box"}}
	c, _, err := call(known.client(t, eve))
	if err != nil || !c.Guest || c.Peer != "certificate eve.corp" || c.Verdict.Assurance != parley.Unsigned {
		t.Errorf("not mapped: %+v %v", c, err)
	}
	if c, _, err := call(); err != nil || !c.Guest || c.Peer != "192.0.2.7" {
		t.Errorf("no certificate: %+v %v", c, err)
	}
	if c, _, err := call(foreign.client(t, scout)); err == nil {
		t.Errorf("a foreign authority: %+v", c)
	}
	if s := n.callers().Schemes(); len(s) != 2 || s[1] != (bridge.CallerScheme{Name: "certificate", MTLS: true}) {
		t.Errorf("schemes: %+v", s)
	}
	// A long connection does not outlive its certificate.
	late.Store(true)
	if _, status, err := call(known.client(t, scout)); err != nil || status != http.StatusUnauthorized {
		t.Errorf("expired since: %d %v", status, err)
	}
}

// Mistakes in [callers] name the key.
func TestCallersConfig(t *testing.T) {
	issuer := func(i Issuer) Config {
		if i.Name == "" {
			i.Name = "corp"
		}
		if i.URL == "" {
			i.URL = "https://login.example"
		}
		if i.Audience == nil {
			i.Audience = []string{"hub"}
		}
		return Config{Callers: Callers{Issuers: []Issuer{i}}}
	}
	two := issuer(Issuer{})
	two.Callers.Issuers = append(two.Callers.Issuers, two.Callers.Issuers[0])
	same := issuer(Issuer{})
	same.Callers.Issuers = append(same.Callers.Issuers, Issuer{Name: "lab", URL: "https://login.example",
		Audience: []string{"x"}})
	no := issuer(Issuer{})
	no.Callers.Issuers[0].Audience = nil
	certificate := func(e ...CertificateName) Config {
		return Config{TLS: TLS{Cert: "c", Key: "k", ClientCA: []string{"ca"}}, Callers: Callers{Certificates: e}}
	}
	for want, c := range map[string]Config{
		`callers.issuer 1: name = "Corp"`:                     issuer(Issuer{Name: "Corp"}),
		`callers.issuer 1: name = "a/b"`:                      issuer(Issuer{Name: "a/b"}),
		`callers.issuer 1: name = "guest"`:                    issuer(Issuer{Name: "guest"}),
		`callers.issuer 1: name = "parley"`:                   issuer(Issuer{Name: "parley"}),
		`callers.issuer 2: name = "corp"`:                     two,
		`callers.issuer 2: url = "https://login.example"`:     same,
		`callers.issuer 1: url = "login.example"`:             issuer(Issuer{URL: "login.example"}),
		`callers.issuer 1: url = "http://login.example"`:      issuer(Issuer{URL: "http://login.example"}),
		`callers.issuer 1: url = "https://u:p@login.example"`: issuer(Issuer{URL: "https://u:p@login.example"}),
		`callers.issuer 1: url = "https://login.example?x"`:   issuer(Issuer{URL: "https://login.example?x"}),
		`callers.issuer 1: audience = ""`:                     no,
		`callers.issuer 1: jwks_url = "ftp://x"`:              issuer(Issuer{JWKS: "ftp://x"}),
		`callers.issuer 1: jwks_url and jwks_file exclude`:    issuer(Issuer{JWKS: "https://x/y", JWKSFile: "z"}),
		`callers.issuer 1: agent 1: subject = "", agent = "x": want a name`: issuer(Issuer{
			Agents: []Subject{{"", "x"}}}),
		`callers.issuer 1: agent 2: subject = "s", agent = "y": the name is listed twice`: issuer(Issuer{
			Agents: []Subject{{"s", "x"}, {"s", "y"}}}),
		`callers.issuer 1: agent 1: subject = "s", agent = "guest/a2a/x": the agent cannot`: issuer(Issuer{
			Agents: []Subject{{"s", "guest/a2a/x"}}}),
		`callers.certificate 1: name = "n", agent = "N": the agent cannot`: certificate(CertificateName{"n", "N"}),
		`callers.certificate needs tls.client_ca`: {Listen: Listen{HTTP: ":0"},
			Callers: Callers{Certificates: []CertificateName{{"n", "x"}}}},
		`tls.client_ca needs tls.cert`: {TLS: TLS{ClientCA: []string{"ca"}}},
	} {
		if _, err := c.check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	good := issuer(Issuer{URL: "http://127.0.0.1:9/realm", JWKS: "http://localhost/keys"})
	public := no
	public.Callers.Issuers[0].Audience, public.PublicURL = nil, "https://hub.example"
	for _, c := range []Config{good, public, certificate(CertificateName{"n", "x"}), {}} {
		if _, err := c.check(); err != nil {
			t.Error(err)
		}
	}
	c := Config{TLS: TLS{ClientCA: []string{filepath.Join(t.TempDir(), "none")}}}
	if _, err := c.clientCAs(); err == nil || !strings.Contains(err.Error(), "tls.client_ca: ") {
		t.Error(err)
	}
	c.TLS.ClientCA[0] = put(t, filepath.Join(t.TempDir(), "empty"), nil)
	if _, err := c.clientCAs(); err == nil || !strings.Contains(err.Error(), "no certificate in PEM form") {
		t.Error(err)
	}
}
