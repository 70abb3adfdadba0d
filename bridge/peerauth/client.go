package peerauth

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/internal/netguard"
	"github.com/parley-hub/parley/internal/recorder"
)

// Config of a Client. The zero value is valid.
type Config struct {
	// Allow gives further addresses that may be called, besides public ones; nil: none. It is asked before each
	// connection, so the list may change.
	Allow     func() []netip.Prefix
	RootCAs   *x509.CertPool                            // that servers are checked against; nil: the system's
	Transport func(http.RoundTripper) http.RoundTripper // around all requests, for tokens too; nil: nothing
	// Exchange makes each exchange with an agent, by calling do; nil: do alone. It may change the request, which is a
	// copy. Exchanges with a token endpoint do not pass it.
	Exchange func(r *http.Request, do func(*http.Request) (*http.Response, error)) (*http.Response, error)
	Resource string           // that a token endpoint is asked to give tokens for (RFC 8707); "": it is not told
	Now      func() time.Time // nil: time.Now
}

// A Client calls one agent elsewhere. It shows credentials to the origin that the operator enrolled, and sends
// requests to other origins without them. It is an http.RoundTripper, so an http.Client over it that follows a
// redirect shows nothing to another origin either. It bounds neither the time of an exchange nor the size of an
// answer, which may be a stream: the caller does.
type Client struct {
	origin  string // that gets credentials
	c       Credentials
	config  Config
	trusted *http.Client // for origin: it shows the client certificate
	other   *http.Client // for other origins
	tokens  *http.Client // for the token endpoint

	turn    chan struct{} // held by the call that gets a token
	token   string
	expires time.Time
}

const (
	maxToken      = 64 << 10 // bytes of a token endpoint's answer
	tokenTimeout  = 10 * time.Second
	tokenLifetime = 5 * time.Minute // of a token whose expiry is not stated
	tokenMargin   = 10 * time.Second
	maxErrorCode  = 100 // bytes
)

// NewClient makes a client that shows the credentials to the origin of a URL.
func NewClient(at *url.URL, c Credentials, config Config) *Client {
	if config.Now == nil {
		config.Now = time.Now
	}
	guard := netguard.Live(config.Allow, netguard.HubAdvice)
	client := func(o netguard.Options) *http.Client {
		o.MaxRedirects, o.RootCAs = -1, config.RootCAs
		h := guard.Client(o)
		if config.Transport != nil {
			h.Transport = config.Transport(h.Transport)
		}
		return h
	}
	n := &Client{origin: netguard.Origin(at), c: c, config: config, turn: make(chan struct{}, 1),
		trusted: client(netguard.Options{Timeout: -1, MaxResponseBytes: -1, Certificate: c.Certificate}),
		tokens:  client(netguard.Options{Timeout: tokenTimeout, MaxResponseBytes: maxToken})}
	n.other = n.trusted
	if c.Certificate != nil {
		n.other = client(netguard.Options{Timeout: -1, MaxResponseBytes: -1})
	}
	return n
}

// CloseIdleConnections closes the connections that no request uses.
func (c *Client) CloseIdleConnections() {
	for _, h := range []*http.Client{c.trusted, c.other, c.tokens} {
		h.CloseIdleConnections()
	}
}

// RoundTrip implements http.RoundTripper. An OAuth token that the agent does not take any more is renewed once, if
// the request has no body or can give it again. The error is a [TokenError] if no token can be had.
func (c *Client) RoundTrip(r *http.Request) (*http.Response, error) {
	body := r.Body
	r = r.Clone(r.Context())
	if netguard.Origin(r.URL) != c.origin {
		return c.exchange(r, c.other)
	}
	token, err := c.authorize(r, "")
	if err != nil {
		if body != nil {
			_ = body.Close() // nothing was sent
		}
		return nil, err
	}
	resp, err := c.exchange(r, c.trusted)
	if err != nil || resp.StatusCode != http.StatusUnauthorized || c.c.TokenURL == "" ||
		r.Body != nil && r.GetBody == nil {
		return resp, err
	}
	_ = resp.Body.Close()
	if _, err := c.authorize(r, token); err != nil {
		return nil, err
	}
	if r.GetBody != nil {
		if r.Body, err = r.GetBody(); err != nil {
			return nil, err
		}
	}
	return c.exchange(r, c.trusted)
}

func (c *Client) exchange(r *http.Request, h *http.Client) (*http.Response, error) {
	if c.config.Exchange == nil {
		return h.Do(r)
	}
	return c.config.Exchange(r, h.Do)
}

// Authorize adds the credentials that are headers to a request, if it goes to the enrolled origin. The client that
// sends it must not follow redirects to other origins.
func (c *Client) Authorize(r *http.Request) error {
	if netguard.Origin(r.URL) != c.origin {
		return nil
	}
	_, err := c.authorize(r, "")
	return err
}

// authorize adds the credentials to a request, and gives the token among them. refused is a token that the agent did
// not take; "": none.
func (c *Client) authorize(r *http.Request, refused string) (token string, err error) {
	if c.c.APIKey != "" {
		r.Header.Set(cmp.Or(c.c.Header, "X-API-Key"), c.c.APIKey)
	}
	token = c.c.Token
	if c.c.TokenURL != "" {
		if token, err = c.oauth(r.Context(), refused); err != nil {
			return "", err
		}
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	return token, nil
}

// A TokenError is a failure to get an OAuth token: the agent was not called with one.
type TokenError struct {
	Status int // of the token endpoint's answer; 0: none came
	Err    error
}

func (e *TokenError) Error() string { return "get an OAuth token: " + e.Err.Error() }

// Unwrap gives the cause.
func (e *TokenError) Unwrap() error { return e.Err }

// oauth gives an access token: the one in use, unless it expired or was refused.
func (c *Client) oauth(ctx context.Context, refused string) (string, error) {
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return "", &TokenError{Err: ctx.Err()}
	}
	if c.token != "" && c.token != refused && c.config.Now().Before(c.expires) {
		return c.token, nil
	}
	form := url.Values{"grant_type": {"client_credentials"}}
	if len(c.c.Scopes) > 0 {
		form.Set("scope", strings.Join(c.c.Scopes, " "))
	}
	if c.config.Resource != "" {
		form.Set("resource", c.config.Resource)
	}
	r, err := http.NewRequestWithContext(recorder.Aside(ctx), http.MethodPost, c.c.TokenURL,
		strings.NewReader(form.Encode()))
	if err != nil {
		return "", &TokenError{Err: err}
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Accept", "application/json")
	r.SetBasicAuth(url.QueryEscape(c.c.ClientID), url.QueryEscape(c.c.ClientSecret)) // RFC 6749, section 2.3.1
	resp, err := c.tokens.Do(r)
	if err != nil {
		return "", &TokenError{Err: err}
	}
	defer resp.Body.Close()
	b, err := netguard.ReadAll(resp.Body, maxToken)
	if err != nil {
		return "", &TokenError{Err: err}
	}
	if resp.StatusCode != http.StatusOK {
		return "", &TokenError{resp.StatusCode, fmt.Errorf("the token endpoint answered with HTTP status %d %s",
			resp.StatusCode, errorCode(b))}
	}
	var answer struct {
		Token   string  `json:"access_token"`
		Type    string  `json:"token_type"`
		Seconds float64 `json:"expires_in"`
	}
	if err := jsonx.Decode(b, &answer); err != nil {
		return "", &TokenError{resp.StatusCode, fmt.Errorf("the token endpoint's answer: %w", err)}
	}
	if answer.Token == "" || !strings.EqualFold(answer.Type, "bearer") || strings.ContainsFunc(answer.Token, unprintable) {
		return "", &TokenError{resp.StatusCode, errors.New("the token endpoint gave no bearer token")}
	}
	lifetime := tokenLifetime
	if answer.Seconds > 0 {
		lifetime = time.Duration(min(answer.Seconds, 24*3600) * float64(time.Second))
	}
	c.token, c.expires = answer.Token, c.config.Now().Add(max(lifetime-tokenMargin, lifetime/2))
	return c.token, nil
}

// errorCode is the code in the answer of a token endpoint that refuses (RFC 6749, section 5.2); "": none.
func errorCode(answer []byte) string {
	var refusal struct {
		Code string `json:"error"`
	}
	if jsonx.Decode(answer, &refusal) != nil || strings.ContainsFunc(refusal.Code, func(r rune) bool {
		return r != ' ' && unprintable(r)
	}) {
		return ""
	}
	return refusal.Code[:min(len(refusal.Code), maxErrorCode)]
}
