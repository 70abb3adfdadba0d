package node

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/jwks"
	"github.com/parley-hub/parley/internal/netguard"
	"github.com/parley-hub/parley/internal/oidc"
	"github.com/parley-hub/parley/internal/source"
	"github.com/parley-hub/parley/policy"
)

// This file finds out who calls a protocol whose messages are not signed: by a token of the
// hub, by a token of an issuer, or by a client certificate. For example, a request with
// "Authorization: Bearer eyJ…" whose subject auth0|7 is mapped to crew/scout comes from
// crew/scout.

// Callers says who callers are at protocols whose messages are not signed, such as A2A.
type Callers struct {
	// issuers whose tokens callers may show, besides the hub's own (parley tokens add NAME --agent AGENT);
	// default: none
	Issuers []Issuer `toml:"issuer"`
	// agents by names in their client certificates, which an authority of tls.client_ca issued; callers with
	// other names are guests; default: none
	Certificates []CertificateName `toml:"certificate"`
}

// Issuer issues tokens by OpenID Connect or OAuth 2.0: signed JSON Web Tokens.
type Issuer struct {
	// its name: lower-case letters, digits and hyphens; with enroll, names of its agents begin with it
	Name string `toml:"name" reload:"yes" example:"\"corp\""`
	// its URL, exactly as in the claim iss of its tokens, e.g. "https://login.example"
	URL string `toml:"url" reload:"yes" example:"\"https://login.example\""`
	// audiences of tokens for this hub: one of them must be in the claim aud; default: public_url
	Audience []string `toml:"audience" reload:"yes" example:"[\"https://hub.example\"]"`
	// claim that names the caller: it must be one that the issuer gives to one caller only, for ever
	Claim string `toml:"claim" default:"\"sub\"" reload:"yes"`
	// vouch for every caller that it names: its agent is NAME/CALLER, or NAME/id/HASH where CALLER cannot be part
	// of an agent's name; without it, callers that are not listed under agent are guests
	Enroll bool `toml:"enroll" reload:"yes"`
	// URL of its public keys; default: as its discovery document says
	JWKS string `toml:"jwks_url" reload:"yes"`
	// file with its public keys, in place of a URL; default: none
	JWKSFile string `toml:"jwks_file" reload:"yes"`
	// agents by their names at the issuer; default: none
	Agents []Subject `toml:"agent"`
}

// Subject is an agent with its name at an issuer.
type Subject struct {
	// value of the claim
	Subject string `toml:"subject" reload:"yes"`
	// directory name of the agent; it need not be in the directory to call others
	Agent string `toml:"agent" reload:"yes"`
}

// CertificateName is an agent with a name in its client certificate.
type CertificateName struct {
	// a URI, DNS name or e-mail address that the certificate is for, or else the common name of its subject
	Name string `toml:"name" reload:"yes"`
	// directory name of the agent; it need not be in the directory to call others
	Agent string `toml:"agent" reload:"yes"`
}

// Names of schemes on cards that no issuer may have.
const (
	schemeToken       = "parley"
	schemeCertificate = "certificate"
)

// checkCallers finds mistakes in [callers] and tls.client_ca.
func (c *Config) checkCallers() error {
	if len(c.TLS.ClientCA) > 0 && !c.secure() {
		return errors.New("tls.client_ca needs tls.cert or tls.acme: client certificates are shown to a listener with TLS")
	}
	names, urls := map[string]bool{schemeToken: true, schemeCertificate: true}, map[string]bool{}
	for n, i := range c.Callers.Issuers {
		if i.empty() {
			continue
		}
		fail := func(key, value, want string) error {
			return fmt.Errorf("callers.issuer %d: %s = %q: want %s", n+1, key, value, want)
		}
		switch {
		case parley.CheckName(i.Name) != nil || strings.ContainsAny(i.Name, "/._") || i.Name == "guest":
			return fail("name", i.Name, "lower-case letters, digits and hyphens")
		case names[i.Name]:
			return fail("name", i.Name, "a name that no other issuer has, nor parley or certificate")
		case !safeURL(i.URL):
			return fail("url", i.URL, "https://host[:port][/path]")
		case urls[i.URL]:
			return fail("url", i.URL, "one that no other issuer has")
		case len(i.Audience) == 0 && c.PublicURL == "":
			return fail("audience", "", "the audiences of tokens for this hub, or set public_url")
		case slices.Contains(i.Audience, ""):
			return fail("audience", "", "no empty audience")
		case i.JWKS != "" && !safeURL(i.JWKS):
			return fail("jwks_url", i.JWKS, "https://host[:port]/path")
		case i.JWKS != "" && i.JWKSFile != "":
			return fmt.Errorf("callers.issuer %d: jwks_url and jwks_file exclude each other", n+1)
		}
		names[i.Name], urls[i.URL] = true, true
		known := map[string]bool{}
		for m, s := range i.Agents {
			if s == (Subject{}) {
				continue
			}
			if err := checkCaller(known, s.Subject, s.Agent); err != nil {
				return fmt.Errorf("callers.issuer %d: agent %d: subject = %q, agent = %q: %w", n+1, m+1, s.Subject, s.Agent, err)
			}
		}
	}
	known := map[string]bool{}
	for n, e := range c.Callers.Certificates {
		if e == (CertificateName{}) {
			continue
		}
		if err := checkCaller(known, e.Name, e.Agent); err != nil {
			return fmt.Errorf("callers.certificate %d: name = %q, agent = %q: %w", n+1, e.Name, e.Agent, err)
		}
	}
	if len(known) > 0 && len(c.TLS.ClientCA) == 0 && c.Listen.HTTP != "" {
		return errors.New("callers.certificate needs tls.client_ca: the authorities that issue client certificates")
	}
	return nil
}

// empty reports whether it is an empty table, as in the file of parley init.
func (i *Issuer) empty() bool {
	return i.Name == "" && i.URL == "" && len(i.Agents) == 0 && i.JWKS == "" && i.JWKSFile == ""
}

func checkCaller(known map[string]bool, name, agent string) error {
	switch {
	case name == "":
		return errors.New("want a name")
	case known[name]:
		return errors.New("the name is listed twice")
	case parley.CheckName(agent) != nil || strings.HasPrefix(agent, "guest/"):
		return errors.New("the agent cannot have that name")
	}
	known[name] = true
	return nil
}

// safeURL reports whether keys may be fetched from a URL: over https, or from this machine.
func safeURL(s string) bool {
	u := httpURL(s)
	if u == nil || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return false
	}
	a, err := netip.ParseAddr(u.Hostname())
	return u.Scheme == "https" || u.Hostname() == "localhost" || err == nil && a.IsLoopback()
}

// clientCAs are the authorities of client certificates; nil: none are asked for.
func (c *Config) clientCAs() (*x509.CertPool, error) {
	if len(c.TLS.ClientCA) == 0 {
		return nil, nil
	}
	pool := x509.NewCertPool()
	for _, path := range c.TLS.ClientCA {
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("tls.client_ca: %w", err)
		}
		if !pool.AppendCertsFromPEM(b) {
			return nil, fmt.Errorf("tls.client_ca: %s has no certificate in PEM form", path)
		}
	}
	return pool, nil
}

// askForCertificates makes a listener ask for client certificates, and refuse those of other
// authorities.
func (c *Config) askForCertificates(t *tls.Config) (*tls.Config, error) {
	pool, err := c.clientCAs()
	if pool != nil {
		t.ClientCAs, t.ClientAuth = pool, tls.VerifyClientCertIfGiven
	}
	return t, err
}

// callerFinder implements bridge.Callers.
type callerFinder struct {
	n      *Node
	client *http.Client // fetches keys of issuers
	known  atomic.Pointer[knownCallers]
}

// knownCallers is what a configuration says about callers. A reload replaces it.
type knownCallers struct {
	issuers      map[string]*knownIssuer // by URL
	certificates []CertificateName
	schemes      []bridge.CallerScheme
}

type knownIssuer struct {
	Issuer
	tokens oidc.Issuer
	agents map[string]string // by subject
	remote *jwks.Remote      // nil: the keys are from a file
}

// callers says who calls, for bindings.
func (n *Node) callers() bridge.Callers { return n.finder }

// openCallers reads what the configuration says about callers.
func (n *Node) openCallers() error {
	f := &callerFinder{n: n, client: n.guard.Client(netguard.Options{MaxResponseBytes: jwks.MaxBytes, RootCAs: n.rootCAs})}
	known, err := f.read(&n.c)
	if err != nil {
		return err
	}
	f.known.Store(known)
	n.finder = f
	return nil
}

// read makes the known callers of a configuration. Issuers that stay keep their keys.
func (f *callerFinder) read(c *Config) (*knownCallers, error) {
	out := &knownCallers{issuers: map[string]*knownIssuer{},
		schemes: []bridge.CallerScheme{{Name: schemeToken, Bearer: true}}}
	for n, i := range c.Callers.Issuers {
		if i.empty() {
			continue
		}
		k := &knownIssuer{Issuer: i, agents: map[string]string{}}
		for _, s := range i.Agents {
			if s != (Subject{}) {
				k.agents[s.Subject] = s.Agent
			}
		}
		k.tokens = oidc.Issuer{URL: i.URL, Audience: i.Audience, Claim: cmp.Or(i.Claim, "sub")}
		if len(i.Audience) == 0 {
			k.tokens.Audience = []string{c.PublicURL}
		}
		if i.JWKSFile != "" {
			b, err := os.ReadFile(i.JWKSFile)
			var set jwks.Set
			if err == nil {
				set, err = jwks.Parse(b)
			}
			if err != nil {
				return nil, fmt.Errorf("callers.issuer %d: jwks_file: %w", n+1, err)
			}
			k.tokens.Keys = oidc.Static(set)
		}
		out.issuers[i.URL] = k
		out.schemes = append(out.schemes, bridge.CallerScheme{Name: i.Name, OpenID: oidc.Discovery(i.URL),
			Issuer: i.URL})
	}
	for _, e := range c.Callers.Certificates {
		if e != (CertificateName{}) {
			out.certificates = append(out.certificates, e)
		}
	}
	if len(c.TLS.ClientCA) > 0 || len(out.certificates) > 0 {
		out.schemes = append(out.schemes, bridge.CallerScheme{Name: schemeCertificate, MTLS: true})
	}
	// Nothing can fail any more: only now fetches may begin.
	old := f.known.Load()
	for url, k := range out.issuers {
		if k.tokens.Keys != nil {
			continue
		}
		if old != nil && old.issuers[url] != nil && old.issuers[url].JWKS == k.JWKS {
			k.remote = old.issuers[url].remote
		}
		if k.remote == nil {
			fetch := func(ctx context.Context) (jwks.Set, error) { return f.fetch(ctx, k.URL, k.JWKS) }
			k.remote = jwks.NewRemote(fetch, f.n.c.Now)
		}
		k.tokens.Keys = k.remote
	}
	return out, nil
}

// fetch gets the keys of an issuer.
func (f *callerFinder) fetch(ctx context.Context, issuer, at string) (set jwks.Set, err error) {
	if at == "" {
		at, err = oidc.Discover(ctx, f.client, issuer)
	}
	if err == nil {
		set, err = jwks.Fetch(ctx, f.client, at)
	}
	if err != nil {
		f.n.log.Warn("cannot fetch the keys of an issuer", "issuer", issuer, "error", err)
	}
	return set, err
}

// replace puts other known callers in force.
func (f *callerFinder) replace(known *knownCallers) {
	old := f.known.Swap(known)
	for url, k := range old.issuers {
		if now := known.issuers[url]; k.remote != nil && (now == nil || now.remote != k.remote) {
			k.remote.Close()
		}
	}
}

// close ends the fetches in flight.
func (f *callerFinder) close() {
	for _, k := range f.known.Load().issuers {
		if k.remote != nil {
			k.remote.Close()
		}
	}
	f.client.CloseIdleConnections()
}

// Schemes implements bridge.Callers.
func (f *callerFinder) Schemes() []bridge.CallerScheme { return f.known.Load().schemes }

// Identify implements bridge.Callers. A token counts before a certificate: a wrong one is
// refused whatever else the caller shows.
func (f *callerFinder) Identify(ctx context.Context, protocol string, h http.Header, t *tls.ConnectionState,
	remote string) (bridge.Caller, error) {
	known := f.known.Load()
	var c bridge.Caller
	var err error
	switch {
	case len(h.Values("Authorization")) > 0:
		c, err = f.byToken(ctx, known, protocol, h.Values("Authorization"))
	case t != nil && len(t.VerifiedChains) > 0:
		c, err = f.byCertificate(known, protocol, t.VerifiedChains[0][0])
	default:
		at := cmp.Or(source.Of(remote), source.Host(remote))
		c = guest(protocol, at, "", parley.Verdict{})
	}
	if err != nil {
		return bridge.Caller{}, f.refuse(protocol, remote, c.Peer, err)
	}
	if !c.Guest {
		policy.Vouch(ctx)
	}
	return c, nil
}

// guest makes the caller for whom nobody vouches.
func guest(protocol, peer, fingerprint string, v parley.Verdict) bridge.Caller {
	v.Assurance = parley.Unsigned
	return bridge.Caller{Name: directory.GuestName(protocol, peer, fingerprint), Peer: peer, Guest: true, Verdict: v}
}

// byToken finds the caller of a bearer token. With an error, its Peer is who it claims to be.
func (f *callerFinder) byToken(ctx context.Context, known *knownCallers, protocol string, headers []string) (
	c bridge.Caller, err error) {
	if len(headers) != 1 {
		return c, errors.New("it has the header Authorization more than once")
	}
	scheme, secret, _ := strings.Cut(headers[0], " ")
	if secret = strings.TrimSpace(secret); !strings.EqualFold(scheme, "bearer") || secret == "" {
		return c, errors.New("the header Authorization has no bearer token")
	}
	if len(known.issuers) > 0 && oidc.IsToken(secret) {
		return f.bySubject(ctx, known, protocol, secret)
	}
	by, agent, err := f.n.tokens.Agent(secret)
	if by.Name != "" {
		c.Peer = "token " + by.Name
	}
	if err != nil {
		return c, err
	}
	c.Name, c.Verdict = agent, session("token", by.Name, "")
	c.During = func(ctx context.Context) (context.Context, func()) { return f.n.tokens.During(ctx, by) }
	return c, nil
}

// session is the verdict about credentials that hold.
func session(check, detail, key string) parley.Verdict {
	return parley.Verdict{Assurance: parley.Session, KeyID: key,
		Checks: []parley.Check{{Name: check, OK: true, Detail: detail}}}
}

// bySubject finds the caller of an issuer's token.
func (f *callerFinder) bySubject(ctx context.Context, known *knownCallers, protocol, token string) (
	c bridge.Caller, err error) {
	url, err := oidc.IssuerOf(token)
	if err != nil {
		return c, err
	}
	i := known.issuers[url]
	if i == nil {
		return c, fmt.Errorf("its issuer %.200q is not in the configuration (callers.issuer)", url)
	}
	tokens := i.tokens
	if uris := bridge.ResourcesOf(ctx); len(uris) > 0 { // public_url is above them, so a token for it is for them too
		tokens.Audience = slices.DeleteFunc(slices.Concat(tokens.Audience, uris, []string{f.n.c.PublicURL}),
			func(a string) bool { return a == "" })
	}
	who, err := tokens.Verify(ctx, token, f.n.c.Now())
	if err != nil {
		return bridge.Caller{Peer: "a caller of " + i.Name}, err
	}
	c.Peer, c.Verdict = who.Subject+" at "+i.Name, session("token", "issuer "+i.URL, who.KeyID)
	switch agent := i.agents[who.Subject]; {
	case agent != "":
		c.Name = agent
	case i.Enroll:
		c.Name = i.agentNamed(who.Subject)
	default:
		c = guest(protocol, c.Peer, i.URL, c.Verdict)
	}
	c.During = f.until(who.Until)
	return c, nil
}

// until gives Caller.During for credentials that are valid until t.
func (f *callerFinder) until(t time.Time) func(context.Context) (context.Context, func()) {
	return func(ctx context.Context) (context.Context, func()) {
		ctx, end := context.WithTimeout(ctx, t.Sub(f.n.c.Now()))
		return ctx, end
	}
}

// agentNamed is the agent of a subject for which the issuer vouches. Different subjects have
// different agents.
func (i *Issuer) agentNamed(subject string) string {
	if name := i.Name + "/" + subject; !strings.Contains(subject, "/") && parley.CheckName(name) == nil {
		return name
	}
	sum := sha256.Sum256([]byte(subject))
	return i.Name + "/id/" + hex.EncodeToString(sum[:16])
}

// byCertificate finds the caller of a client certificate, which was verified.
func (f *callerFinder) byCertificate(known *knownCallers, protocol string, leaf *x509.Certificate) (
	c bridge.Caller, err error) {
	var names []string
	for _, u := range leaf.URIs {
		names = append(names, u.String())
	}
	names = slices.Concat(names, leaf.DNSNames, leaf.EmailAddresses)
	if len(names) == 0 && leaf.Subject.CommonName != "" {
		names = []string{leaf.Subject.CommonName}
	}
	if len(names) == 0 {
		return c, errors.New("the certificate names nobody")
	}
	c.Peer = "certificate " + names[0]
	if now := f.n.c.Now(); now.After(leaf.NotAfter) { // it was valid when the connection began
		return c, fmt.Errorf("the certificate expired at %s", leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	c.Verdict = session("certificate", names[0], leaf.SerialNumber.Text(16))
	i := slices.IndexFunc(known.certificates, func(e CertificateName) bool { return slices.Contains(names, e.Name) })
	if i < 0 {
		c = guest(protocol, c.Peer, leaf.Issuer.String(), c.Verdict)
	} else {
		c.Name, c.Peer = known.certificates[i].Agent, "certificate "+known.certificates[i].Name
	}
	c.During = f.until(leaf.NotAfter)
	return c, nil
}

// refuse notes that credentials do not hold. Only the operator learns why.
func (f *callerFinder) refuse(protocol, remote, claim string, why error) error {
	e := parley.Refuse(parley.Unauthenticated, "the hub does not accept these credentials")
	if errors.Is(why, oidc.ErrKeys) {
		e = parley.Refuse(parley.Unavailable, "the issuer of these credentials cannot be asked at the moment")
		e.Retryable, e.After = true, time.Minute
	}
	e.Ref = f.n.hub.Refuse(hub.Refusal{Protocol: protocol, Source: source.Host(remote), Claim: claim, Step: "caller",
		Code: e.Code, Text: e.Text, Cause: why.Error()})
	return e.Because(why)
}

var _ bridge.Callers = (*callerFinder)(nil)
