package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/bridge/peerauth"
)

// PeerCredentials are what the hub shows to an agent elsewhere. The tables of agents embed it.
type PeerCredentials struct {
	// file with the bearer token that the hub shows to it; mode 0600; default: none
	TokenFile string `toml:"token_file" reload:"yes"`
	// file with the API key that the hub shows to it; mode 0600; default: none
	APIKeyFile string `toml:"api_key_file" reload:"yes"`
	// header that has the API key
	APIKeyHeader string `toml:"api_key_header" default:"\"X-API-Key\"" reload:"yes"`
	// OAuth 2.0 client credentials, for which an issuer gives the hub tokens for it
	OAuth OAuthClient `toml:"oauth" reload:"yes"`
	// certificate file (PEM) with which the hub calls it, and its key file, mode 0600; default: none
	Cert string `toml:"cert" reload:"yes"`
	// key file of cert
	Key string `toml:"key" reload:"yes"`
}

// OAuthClient are client credentials of OAuth 2.0 (RFC 6749, section 4.4).
type OAuthClient struct {
	// token endpoint of the issuer, https://…
	TokenURL string `toml:"token_url" reload:"yes"`
	// the hub's id at the issuer
	ClientID string `toml:"client_id" reload:"yes"`
	// file with the hub's secret at the issuer; mode 0600
	ClientSecretFile string `toml:"client_secret_file" reload:"yes"`
	// scopes to ask for; default: none
	Scopes []string `toml:"scopes" reload:"yes"`
}

// credentialFiles are the paths, for those that are relative.
func (p *PeerCredentials) credentialFiles() []*string {
	return []*string{&p.TokenFile, &p.APIKeyFile, &p.OAuth.ClientSecretFile, &p.Cert, &p.Key}
}

// peerFiles is [Protocol.Files] of a protocol whose tables of agents have credentials; of gives nil for no table.
func peerFiles(of func(*Agent) *PeerCredentials) func(*Config) []*string {
	return func(c *Config) (files []*string) {
		for _, a := range c.Agents {
			if p := of(&a); p != nil {
				files = append(files, p.credentialFiles()...)
			}
		}
		return files
	}
}

// namesFiles reports that there are files, which may change while the configuration does not.
func (p *PeerCredentials) namesFiles() bool {
	return slices.ContainsFunc(p.credentialFiles(), func(f *string) bool { return *f != "" })
}

// hasCredentials reports that something is to be shown.
func (p *PeerCredentials) hasCredentials() bool {
	return p.namesFiles() || p.OAuth.TokenURL != "" || p.OAuth.ClientID != ""
}

// checkCredentials gives an error that begins with the key.
func (p *PeerCredentials) checkCredentials() error {
	switch o := p.OAuth; {
	case p.TokenFile != "" && o.TokenURL != "":
		return errors.New("token_file and oauth exclude each other: both are the header Authorization")
	case (o.TokenURL == "") != (o.ClientID == "") || (o.TokenURL == "") != (o.ClientSecretFile == ""):
		return errors.New("oauth: token_url, client_id and client_secret_file go together")
	case o.TokenURL != "" && httpURL(o.TokenURL) == nil:
		return fmt.Errorf("oauth.token_url = %q: want https://host/path", o.TokenURL)
	case (p.Cert == "") != (p.Key == ""):
		return errors.New("cert: cert and key go together")
	}
	return nil
}

// readCredentials reads the files.
func (p *PeerCredentials) readCredentials() (c peerauth.Credentials, err error) {
	c = peerauth.Credentials{Header: p.APIKeyHeader, TokenURL: p.OAuth.TokenURL, ClientID: p.OAuth.ClientID,
		Scopes: p.OAuth.Scopes}
	for _, f := range []struct {
		key, path string
		to        *string
	}{{"token_file", p.TokenFile, &c.Token}, {"api_key_file", p.APIKeyFile, &c.APIKey},
		{"oauth.client_secret_file", p.OAuth.ClientSecretFile, &c.ClientSecret}} {
		if f.path == "" {
			continue
		}
		b, err := secretFile(f.path)
		if err == nil && (len(b) == 0 || len(strings.Fields(string(b))) != 1) {
			err = fmt.Errorf("%s must hold one secret", f.path)
		}
		if err != nil {
			return c, fmt.Errorf("%s: %w", f.key, err)
		}
		*f.to = string(b)
	}
	if p.Cert != "" {
		if _, err := secretFile(p.Key); err != nil {
			return c, fmt.Errorf("key: %w", err)
		}
		pair, err := tls.LoadX509KeyPair(p.Cert, p.Key)
		if err != nil {
			return c, fmt.Errorf("cert and key: %w", err)
		}
		c.Certificate = &pair
	}
	return c, nil
}

// credentialStore is [admin.Protocol.Credentials] over a binding's method.
func credentialStore(store func(ctx context.Context, agent string, c peerauth.Credentials) error) func(admin.Secret) (
	func(context.Context, string) error, error) {
	return func(raw admin.Secret) (func(context.Context, string) error, error) {
		c, err := peerauth.Parse(raw)
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context, agent string) error { return store(ctx, agent, c) }, nil
	}
}
