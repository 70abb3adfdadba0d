// Package admin is the operator's way into a hub: an HTTP API for the command
// line, scripts and the console, described by the OpenAPI document that it
// serves at /v1/openapi.json.
//
// # Three ways to use it
//
// [Admin] is the Go interface; every method takes the [Actor] on whose behalf
// it works and checks the actor's role itself, so that whoever calls it (the
// HTTP handlers here, the console) cannot forget to. It is also the
// [http.Handler] of the HTTP API, and [Client] is the client of that.
//
// # Who may do what
//
// Every call but health and ready bears a token ([OpenTokens]). A token has a
// role: [Observe] sees who spoke with whom and what became of it, [Read] sees
// content too, [Operate] sends, reads inboxes, pauses and handles dead letters,
// [Administer] changes agents and keys and sees the audit trail. A token also
// says as which agents it may speak.
//
// What operators change is recorded in the audit trail before it is done, and
// again with its outcome; an action that cannot be recorded is not done.
// Messages are not repeated there: the journal holds them, with the token's
// name as [parley.Origin.Peer].
//
// # Browsers
//
// Requests that a browser makes for a page of another origin are refused, and
// so is every request whose Host is neither an IP address, nor localhost, nor
// one of [Config.Hosts]: a stranger's domain name that suddenly points to this
// machine gets nothing (DNS rebinding).
//
// # Messages
//
// A message that enters here has Origin.Protocol "api" and the assurance
// [parley.Session]. An agent with an inbox is one whose messages are read with
// GET /v1/agents/{name}/inbox and which answers with POST /v1/messages. What an
// inbox hands out counts as delivered; if the reader is gone before it has
// been written to it, the next reader of this process gets it.
package admin
