// Package admin is the interface for a hub's operators: an HTTP API for the
// command line and scripts, described by the OpenAPI document that it serves at
// /v1/openapi.json.
//
// # Three ways to use it
//
// [Admin] is the Go interface. Every method takes the [Actor] on whose behalf it
// works and checks the actor's role itself, so that no caller can forget to. It
// is also the [http.Handler] of the HTTP API; [Client] calls that.
//
// # Who may do what
//
// Every call but health and ready needs a token ([OpenTokens]). A token has a
// role: [Observe] sees senders, recipients and the state of deliveries, [Read]
// sees content too, [Operate] sends, reads inboxes, pauses agents and handles dead
// letters, [Administer] changes agents, keys and tokens and sees the audit trail. A
// token also names the agents for which it may send, and may expire. A token that
// is issued, expires or is revoked is so at once at every hub of the journal.
//
// Each change by an operator is written to the audit trail before it is made, and
// again with its outcome; a change that cannot be written there is not made.
// Messages are not repeated there: the journal holds them, with the token's
// name as [parley.Origin.Peer].
//
// # Browsers
//
// Requests that a browser makes for a page of another origin are refused, and
// so is every request whose Host is neither an IP address, nor localhost, nor
// one of [Config.Hosts]. This stops DNS rebinding: a foreign domain name that
// suddenly points to this machine.
//
// # Messages
//
// A message that enters here has Origin.Protocol "api" and the assurance
// [parley.Session]. An agent with an inbox reads its messages with
// GET /v1/agents/{name}/inbox and answers with POST /v1/messages. A message read
// from an inbox counts as delivered; if its reader disconnects before the message
// is written to it, the next reader of this process gets it.
package admin
