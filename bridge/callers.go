package bridge

import (
	"context"
	"crypto/tls"
	"net/http"

	"github.com/parley-hub/parley"
)

// A Caller is an agent that calls an HTTP protocol without signing its messages. The zero
// value is no caller.
type Caller struct {
	Name  string // in the directory; of a guest that of [directory.GuestName]
	Peer  string // who the credentials say it is: "token NAME", "SUBJECT at ISSUER", a certificate's name
	Guest bool   // it has no credentials, or those of an agent that nobody enrolled
	// Verdict names the checks that held. Its assurance is Session, of a guest Unsigned.
	Verdict parley.Verdict
	// During gives a context for what goes on for long, as a stream. It ends when the credentials
	// are revoked or expire. The caller of During must call end. nil: they hold until the end.
	During func(ctx context.Context) (_ context.Context, end func()) `json:"-"`
}

// Callers identifies callers, for the protocols whose callers show a token, a JWT of an
// issuer that the operator trusts, or a TLS certificate.
type Callers interface {
	// Identify finds the caller of a request with these headers, TLS state (nil without TLS)
	// and network address. Without credentials the caller is a guest. The error is a
	// parley.Error: Unauthenticated for credentials that do not hold, Unavailable if an issuer
	// cannot be asked.
	Identify(ctx context.Context, protocol string, h http.Header, t *tls.ConnectionState, remote string) (Caller, error)
	// Schemes are the ways in which callers may say who they are, for cards.
	Schemes() []CallerScheme
}

// A CallerScheme is one way for callers to identify themselves.
type CallerScheme struct {
	Name   string // "parley", or the issuer's name in the configuration
	Bearer bool   // a token that the hub issued: Authorization: Bearer
	OpenID string // URL of an issuer's discovery document; "": none
	Issuer string // the issuer's own URL; "": none
	MTLS   bool   // a client certificate
}

type resourceKey struct{}

// ForResource says for [Callers.Identify] which resources a request is for (RFC 8707): a token whose audience is the
// URI of one of them is taken too. For example, a client of MCP asks its issuer for a token for https://hub.example/mcp.
func ForResource(ctx context.Context, uris ...string) context.Context {
	return context.WithValue(ctx, resourceKey{}, uris)
}

// ResourcesOf gives the URIs of ForResource.
func ResourcesOf(ctx context.Context) []string {
	uris, _ := ctx.Value(resourceKey{}).([]string)
	return uris
}
