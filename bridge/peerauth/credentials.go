package peerauth

import (
	"crypto/tls"
	"errors"
	"net/url"
	"strings"

	"github.com/parley-hub/parley/internal/jsonx"
)

// Credentials are what the hub shows to an agent elsewhere. The zero value: nothing.
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
		if strings.ContainsFunc(s, unprintable) {
			return errors.New("a token, an API key and the name of a header are printable ASCII without spaces")
		}
	}
	return nil
}

// unprintable reports that a character cannot be in a credential.
func unprintable(r rune) bool { return r < '!' || r > '~' }

// Empty reports that there is nothing to show.
func (c *Credentials) Empty() bool {
	return c.Token == "" && c.APIKey == "" && c.TokenURL == "" && c.Certificate == nil
}

// Kinds names what there is, without any secret: "bearer token, client certificate".
func (c *Credentials) Kinds() string {
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

// Text is the JSON form of credentials on their way to the hub.
type Text struct {
	Token        string   `json:"token,omitzero"`
	APIKey       string   `json:"apiKey,omitzero"`
	Header       string   `json:"apiKeyHeader,omitzero"`
	TokenURL     string   `json:"tokenUrl,omitzero"`
	ClientID     string   `json:"clientId,omitzero"`
	ClientSecret string   `json:"clientSecret,omitzero"`
	Scopes       []string `json:"scopes,omitzero"`
	Certificate  string   `json:"certificate,omitzero"` // PEM
	Key          string   `json:"key,omitzero"`         // PEM
}

// Parse reads credentials as operators give them to the hub: one JSON object, a [Text]. Without any bytes there are
// none. Errors quote nothing of it.
func Parse(raw []byte) (c Credentials, err error) {
	if len(raw) == 0 {
		return c, nil
	}
	var v Text
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
	if c.Empty() {
		return Credentials{}, errors.New("there is nothing to show: give a token, an API key, OAuth client credentials " +
			"or a certificate")
	}
	return c, nil
}
