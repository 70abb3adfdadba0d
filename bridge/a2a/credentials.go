package a2a

import "crypto/tls"

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
