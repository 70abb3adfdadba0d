package a2e

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
)

// Tokens authenticate agents.

// NewToken makes a token: 256 random bits.
func NewToken() (string, error) {
	b := make([]byte, 32)
	if _, err := rand.Read(b); err != nil {
		return "", err
	}
	return hex.EncodeToString(b), nil
}

// TokenID is the identity of an agent with a long random token, as [NewToken] makes it:
// the token's hash.
func TokenID(token string) string {
	sum := sha256.Sum256([]byte(token))
	return "sha-256:" + hex.EncodeToString(sum[:])
}

// Identity is the identity of an agent with a token of the configuration, or of a host
// at a URL.
func (b *Binding) Identity(token, hostURL string) (parley.Identity, error) {
	switch {
	case hostURL != "":
		u, err := url.Parse(hostURL)
		if err != nil || u.Host == "" && u.Scheme != "unix" ||
			!slices.Contains([]string{"http", "https", "tcp", "tls", "unix"}, u.Scheme) || u.User != nil {
			return parley.Identity{}, fmt.Errorf("url = %q: want http(s)://, tcp://, tls:// or unix://", hostURL)
		}
		return parley.Identity{Protocol: Protocol, ID: hostURL, URL: hostURL}, nil
	case len(token) < 16:
		return parley.Identity{},
			errors.New("the token has fewer than 16 characters: make one with `openssl rand -hex 32`")
	}
	return parley.Identity{Protocol: Protocol, ID: b.secretID(token)}, nil
}

// SetToken sets the token that the hub shows to the host of an agent; it is lost at a
// restart.
func (b *Binding) SetToken(agent, token string) { b.hosts.setToken(agent, token) }

func (b *Binding) secretID(token string) string {
	mac := hmac.New(sha256.New, b.tokens)
	_, _ = io.WriteString(mac, token) // never fails
	return "hmac-sha-256:" + hex.EncodeToString(mac.Sum(nil))
}

// agent finds an agent that may connect here.
func (b *Binding) agent(name string) (*directory.Entry, bool) {
	e, ok := b.c.Hub.Directory().Agent(name)
	if !ok {
		return nil, false
	}
	return e, slices.ContainsFunc(e.Identities, func(i parley.Identity) bool {
		return i.Protocol == Protocol && !i.StandIn && i.URL == ""
	})
}
