package a2e

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"slices"
)

// Identity is who a session was authenticated as. It wins over the agent_id
// that the agent gives itself (A2E §3).
type Identity struct {
	Name string

	// Capabilities that this agent may use; nil means all that the host has.
	Capabilities []string
}

func (id Identity) may(capability string) bool {
	return id.Capabilities == nil || capability == "" || slices.Contains(id.Capabilities, capability)
}

// Credentials are what a handshake/req brings. Token is a secret: it must not
// be logged or sent on.
type Credentials struct {
	AgentID string // self-asserted; random in SDK agents that configure none
	Token   string
}

// Authenticator decides who an agent is. An error refuses the handshake with
// the reason auth_failed, whatever its text.
type Authenticator interface {
	Authenticate(ctx context.Context, c Credentials) (Identity, error)
}

// StaticTokens is an [Authenticator] with one secret for each identity, which
// are its keys. Secrets are compared as hashes in constant time, all of them
// every time. An agent_id that is the name of another identity is refused;
// any other is accepted and ignored, because SDK agents make up a random one.
// An empty secret matches nothing.
type StaticTokens map[string]string

// Authenticate finds the identity whose secret was given.
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

// Anonymous is an [Authenticator] for development: it accepts everybody as the
// one identity that it names (A2E §3, the unauthenticated mode).
type Anonymous string

// Authenticate accepts.
func (a Anonymous) Authenticate(context.Context, Credentials) (Identity, error) {
	return Identity{Name: string(a)}, nil
}
