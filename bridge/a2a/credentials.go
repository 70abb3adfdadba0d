package a2a

import (
	"bytes"
	"cmp"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/internal/netguard"
)

// Credentials are what the hub shows to an agent elsewhere. The zero value: nothing.
// They go to the origins that the operator enrolled alone (rule A2A-071).
type Credentials struct {
	Token  string // bearer token
	APIKey string
	Header string // that has APIKey; "": X-API-Key

	// OAuth 2.0 client credentials (RFC 6749, section 4.4).
	TokenURL     string
	ClientID     string
	ClientSecret string
	Scopes       []string

	Certificate *tls.Certificate // of the client, for mutual TLS; nil: none
}

// Check refuses credentials that cannot be shown.
func (c *Credentials) Check() error {
	if c.TokenURL != "" || c.ClientID != "" {
		u, err := url.Parse(c.TokenURL)
		if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || c.ClientID == "" {
			return errors.New("OAuth client credentials need the token endpoint's URL and a client ID")
		}
		if c.Token != "" {
			return errors.New("give a bearer token or OAuth client credentials, not both")
		}
	}
	for _, s := range []string{c.Token, c.APIKey, c.Header} {
		if strings.ContainsFunc(s, func(r rune) bool { return r < '!' || r > '~' }) {
			return errors.New("a token, an API key and the name of a header are printable ASCII without spaces")
		}
	}
	return nil
}

// empty reports that there is nothing to show.
func (c *Credentials) empty() bool {
	return c.Token == "" && c.APIKey == "" && c.TokenURL == "" && c.Certificate == nil
}

// kinds names what there is, without any secret.
func (c *Credentials) kinds() string {
	var out []string
	for _, k := range []struct {
		name string
		has  bool
	}{{"bearer token", c.Token != ""}, {"API key", c.APIKey != ""}, {"OAuth client credentials", c.TokenURL != ""},
		{"client certificate", c.Certificate != nil}} {
		if k.has {
			out = append(out, k.name)
		}
	}
	return strings.Join(out, ", ")
}

// ParseCredentials reads credentials as operators give them to the hub: one JSON object with the members token,
// apiKey, apiKeyHeader, tokenUrl, clientId, clientSecret, scopes, and certificate and key in PEM. Errors quote nothing
// of it.
func ParseCredentials(raw []byte) (c Credentials, err error) {
	if len(raw) == 0 {
		return c, nil
	}
	var v CredentialsText
	if jsonx.DecodeKnown(raw, &v) != nil {
		return c, errors.New("want one JSON object with token, apiKey, apiKeyHeader, tokenUrl, clientId, clientSecret, " +
			"scopes, certificate and key, as it needs them")
	}
	c = Credentials{Token: v.Token, APIKey: v.APIKey, Header: v.Header, TokenURL: v.TokenURL, ClientID: v.ClientID,
		ClientSecret: v.ClientSecret, Scopes: v.Scopes}
	if v.Certificate != "" || v.Key != "" {
		pair, err := tls.X509KeyPair([]byte(v.Certificate), []byte(v.Key))
		if err != nil {
			return Credentials{}, errors.New("certificate and key: want a certificate and its private key in PEM")
		}
		c.Certificate = &pair
	}
	if err := c.Check(); err != nil {
		return Credentials{}, err
	}
	if c.empty() {
		return Credentials{}, errors.New("there is nothing to show: give a token, an API key, OAuth client credentials " +
			"or a certificate")
	}
	return c, nil
}

// CredentialsText is the JSON form of credentials on their way to the hub.
type CredentialsText struct {
	Token        string   `json:"token,omitzero"`
	APIKey       string   `json:"apiKey,omitzero"`
	Header       string   `json:"apiKeyHeader,omitzero"`
	TokenURL     string   `json:"tokenUrl,omitzero"`
	ClientID     string   `json:"clientId,omitzero"`
	ClientSecret string   `json:"clientSecret,omitzero"`
	Scopes       []string `json:"scopes,omitzero"`
	Certificate  string   `json:"certificate,omitzero"`
	Key          string   `json:"key,omitzero"`
}

// credentialsOf are those for calls of an agent: of the configuration, else those that
// were stored.
func (b *Binding) credentialsOf(agent string) Credentials {
	if c := b.settingsOf(agent).Credentials; !c.empty() {
		return c
	}
	row := b.secrets.Known(agent)
	if row.Revision == 0 {
		return Credentials{}
	}
	c, err := b.unseal(agent, row.Value)
	if err != nil {
		b.c.Logger.Error("the stored credentials for an agent cannot be read; store them again", "agent", agent,
			"error", err)
		return Credentials{}
	}
	return c
}

// credentialsFor gives the credentials for calls of a peer. A peer at a former origin of its agent
// gets none: the hub only follows the tasks there that began before the agent moved.
func (b *Binding) credentialsFor(p *peer) Credentials {
	e, ok := b.c.Hub.Directory().Agent(p.name)
	if !ok || !slices.ContainsFunc(e.Identities, func(i parley.Identity) bool {
		u, err := url.Parse(i.URL)
		return i.Protocol == Protocol && !i.StandIn && err == nil && urlOrigin(u) == urlOrigin(p.url)
	}) {
		return Credentials{}
	}
	return b.credentialsOf(p.name)
}

// StoreCredentials keeps the credentials for calls of an agent, sealed, for all hubs on
// the journal. Those of the configuration win over them. Empty ones are forgotten.
func (b *Binding) StoreCredentials(ctx context.Context, agent string, c Credentials) error {
	if c.empty() {
		return b.ForgetCredentials(ctx, agent)
	}
	if err := c.Check(); err != nil {
		return err
	}
	s, err := b.seal(agent, c)
	if err == nil {
		_, err = b.secrets.Put(ctx, agent, s, time.Time{})
	}
	if err != nil {
		return fmt.Errorf("store credentials for %q: %w", agent, err)
	}
	b.disconnect(agent)
	return nil
}

// ForgetCredentials removes the stored credentials for an agent.
func (b *Binding) ForgetCredentials(ctx context.Context, agent string) error {
	if b.secrets.Known(agent).Revision == 0 {
		return nil
	}
	if err := b.secrets.Delete(ctx, agent, 0); err != nil {
		return fmt.Errorf("forget the credentials for %q: %w", agent, err)
	}
	b.disconnect(agent)
	return nil
}

// storedCredentials is the sealed form of Credentials.
type storedCredentials struct {
	Credentials
	Certificate []byte `json:",omitempty"` // PEM: the chain, then the private key
}

func (b *Binding) sealer() (cipher.AEAD, error) {
	key, err := b.c.Keys.Secret("a2a credentials", 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

func (b *Binding) seal(agent string, c Credentials) (s sealed, err error) {
	stored := storedCredentials{Credentials: c}
	if c.Certificate != nil {
		var text bytes.Buffer
		for _, der := range c.Certificate.Certificate {
			_ = pem.Encode(&text, &pem.Block{Type: "CERTIFICATE", Bytes: der}) // a Buffer does not fail
		}
		der, err := x509.MarshalPKCS8PrivateKey(c.Certificate.PrivateKey)
		if err != nil {
			return s, fmt.Errorf("the certificate's key: %w", err)
		}
		_ = pem.Encode(&text, &pem.Block{Type: "PRIVATE KEY", Bytes: der})
		stored.Certificate = text.Bytes()
	}
	plain, err := json.Marshal(stored)
	if err != nil {
		return s, err
	}
	aead, err := b.sealer()
	if err != nil {
		return s, err
	}
	s.Nonce = make([]byte, aead.NonceSize())
	if _, err := io.ReadFull(b.c.Rand, s.Nonce); err != nil {
		return s, err
	}
	s.Box = aead.Seal(nil, s.Nonce, plain, []byte(agent)) // not to be moved to another agent
	return s, nil
}

func (b *Binding) unseal(agent string, s sealed) (c Credentials, err error) {
	aead, err := b.sealer()
	if err != nil {
		return c, err
	}
	if len(s.Nonce) != aead.NonceSize() {
		return c, errors.New("the nonce has a wrong size")
	}
	plain, err := aead.Open(nil, s.Nonce, s.Box, []byte(agent))
	if err != nil {
		return c, err
	}
	var stored storedCredentials
	if err := json.Unmarshal(plain, &stored); err != nil {
		return c, err
	}
	c = stored.Credentials
	if len(stored.Certificate) > 0 {
		pair, err := tls.X509KeyPair(stored.Certificate, stored.Certificate)
		if err != nil {
			return Credentials{}, err
		}
		c.Certificate = &pair
	}
	return c, nil
}

// A connection sends requests to one agent elsewhere, with its credentials where they
// may go.
type connection struct {
	enrolled string // the origin that gets credentials
	c        Credentials
	trusted  *http.Client // for the enrolled origin: it shows the client certificate
	other    *http.Client // for other origins
	read     *http.Client // for cards
	tokens   *http.Client // for the token endpoint
	now      func() time.Time

	turn    chan struct{} // held by the call that gets a token
	token   string
	expires time.Time
}

// send makes one exchange. A token that the agent does not take any more is renewed once.
func (n *connection) send(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	nameTrace(r)
	if r.Method == http.MethodGet { // the SDK sends "null"
		r.Body, r.GetBody, r.ContentLength = nil, nil, 0
	}
	if urlOrigin(r.URL) != n.enrolled {
		return traced(r, n.other.Do)
	}
	token, err := n.authorize(r, "")
	if err != nil {
		return nil, err
	}
	resp, err := traced(r, n.trusted.Do)
	if err != nil || resp.StatusCode != http.StatusUnauthorized || n.c.TokenURL == "" ||
		r.Body != nil && r.GetBody == nil {
		return resp, err
	}
	_ = resp.Body.Close()
	if r.GetBody != nil {
		if r.Body, err = r.GetBody(); err != nil {
			return nil, err
		}
	}
	if _, err := n.authorize(r, token); err != nil {
		return nil, err
	}
	return traced(r, n.trusted.Do)
}

// authorize adds the credentials to a request. refused is a token that the agent did not
// take; "": none.
func (n *connection) authorize(r *http.Request, refused string) (token string, err error) {
	if n.c.APIKey != "" {
		r.Header.Set(cmp.Or(n.c.Header, "X-API-Key"), n.c.APIKey)
	}
	token = n.c.Token
	if n.c.TokenURL != "" {
		if token, err = n.oauth(r.Context(), refused); err != nil {
			return "", err
		}
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	return token, nil
}

// A tokenError is a failure to get a token: the agent was not called.
type tokenError struct {
	status int // of the token endpoint's answer; 0: none came
	err    error
}

func (e *tokenError) Error() string { return "get an OAuth token: " + e.err.Error() }
func (e *tokenError) Unwrap() error { return e.err }

const (
	maxToken      = 64 << 10        // bytes of a token endpoint's answer
	tokenLifetime = 5 * time.Minute // of a token whose expiry is not stated
	tokenMargin   = 10 * time.Second
)

// oauth gives an access token: the one in use, unless it expired or was refused.
func (n *connection) oauth(ctx context.Context, refused string) (string, error) {
	select {
	case n.turn <- struct{}{}:
		defer func() { <-n.turn }()
	case <-ctx.Done():
		return "", &tokenError{err: ctx.Err()}
	}
	if n.token != "" && n.token != refused && n.now().Before(n.expires) {
		return n.token, nil
	}
	form := url.Values{"grant_type": {"client_credentials"}}
	if len(n.c.Scopes) > 0 {
		form.Set("scope", strings.Join(n.c.Scopes, " "))
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, n.c.TokenURL, strings.NewReader(form.Encode()))
	if err != nil {
		return "", &tokenError{err: err}
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Accept", "application/json")
	r.SetBasicAuth(url.QueryEscape(n.c.ClientID), url.QueryEscape(n.c.ClientSecret)) // RFC 6749, section 2.3.1
	resp, err := n.tokens.Do(r)
	if err != nil {
		return "", &tokenError{err: err}
	}
	defer resp.Body.Close()
	b, err := netguard.ReadAll(resp.Body, maxToken)
	if err != nil {
		return "", &tokenError{err: err}
	}
	if resp.StatusCode != http.StatusOK {
		return "", &tokenError{resp.StatusCode, fmt.Errorf("the token endpoint answered with HTTP status %d %s",
			resp.StatusCode, clipped(text(jsonx.Member(b, "error")), 100))}
	}
	var answer struct {
		Token   string  `json:"access_token"`
		Type    string  `json:"token_type"`
		Seconds float64 `json:"expires_in"`
	}
	if err := jsonx.Decode(b, &answer); err != nil {
		return "", &tokenError{resp.StatusCode, fmt.Errorf("the token endpoint's answer: %w", err)}
	}
	if answer.Token == "" || !strings.EqualFold(answer.Type, "bearer") ||
		strings.ContainsFunc(answer.Token, func(r rune) bool { return r < '!' || r > '~' }) {
		return "", &tokenError{resp.StatusCode, errors.New("the token endpoint gave no bearer token")}
	}
	lifetime := tokenLifetime
	if answer.Seconds > 0 {
		lifetime = time.Duration(min(answer.Seconds, 24*3600) * float64(time.Second))
	}
	n.token, n.expires = answer.Token, n.now().Add(max(lifetime-tokenMargin, lifetime/2))
	return n.token, nil
}
