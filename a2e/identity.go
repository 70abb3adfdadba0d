package a2e

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"slices"
)

// Identity is the authenticated identity of a session. It takes precedence over the
// agent_id that the agent claims (A2E §3).
type Identity struct {
	Name string

	// allowed for this agent; nil means all of the host's
	Capabilities []string
}

func (id Identity) may(capability string) bool {
	return id.Capabilities == nil || capability == "" || slices.Contains(id.Capabilities, capability)
}

// Credentials are the content of a handshake/req. Token is a secret: it must not be
// logged or sent on.
type Credentials struct {
	AgentID string // claimed; random in SDK agents that configure none
	Token   string
}

// Authenticator decides who an agent is. An error refuses the handshake with
// the reason auth_failed, whatever its text.
type Authenticator interface {
	Authenticate(ctx context.Context, c Credentials) (Identity, error)
}

// StaticTokens is an [Authenticator] that maps each identity to its secret. Secrets are
// compared as hashes in constant time, all of them every time. An agent_id that is the
// name of another identity is refused; any other is accepted and ignored, because SDK
// agents make up a random one. An empty secret matches no token.
type StaticTokens map[string]string

// Authenticate finds the identity of the given secret.
func (t StaticTokens) Authenticate(_ context.Context, c Credentials) (Identity, error) {
	given := sha256.Sum256([]byte(c.Token))
	found, name := 0, ""
	for identity, secret := range t {
		want := sha256.Sum256([]byte(secret))
		if subtle.ConstantTimeCompare(given[:], want[:]) == 1 && secret != "" {
			found++
			name = identity
		}
	}
	if found != 1 {
		return Identity{}, ErrUnknownKey
	}
	if _, other := t[c.AgentID]; other && c.AgentID != name {
		return Identity{}, ErrUnknownKey
	}
	return Identity{Name: name}, nil
}

// Anonymous is an [Authenticator] for development: it accepts every agent as the one
// identity that it names (A2E §3, the unauthenticated mode).
type Anonymous string

// Authenticate accepts.
func (a Anonymous) Authenticate(context.Context, Credentials) (Identity, error) {
	return Identity{Name: string(a)}, nil
}
