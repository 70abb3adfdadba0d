// Package peerauth has the credentials with which the hub calls agents elsewhere. For example, an operator
// enrols https://lab.example/agent with a bearer token: the hub keeps the token in a [Store], and calls the agent
// through a [Client], which shows the token to https://lab.example and to no other origin, whatever URLs the agent
// gives and wherever it redirects.
//
// The kinds are bearer tokens, API keys in a header, OAuth 2.0 client credentials, and client certificates.
// Bindings share the package; each has its own table of the journal, and its own key.
package peerauth
