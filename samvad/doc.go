// Package samvad speaks SAMVAD 1.2, a request protocol between agents: one
// signed JSON envelope over HTTP in three delivery modes (sync, async, stream).
//
// It implements the message format of docs.samvad.dev (§ numbers in comments
// are those of protocol-v1.2 and of the agent-card, task-status, request and
// response schemas), RFC 9421 signatures in the protocol's own profile, and
// RFC 9530 digests. The body signature of SAMVAD 1.1 is understood when
// [Verifier.Legacy] asks for it.
//
// # The parts
//
//   - [Decode] reads an envelope strictly; [Envelope.Raw] keeps its bytes.
//   - [Identity] holds a private key; [Sign] makes the three headers.
//   - [Verifier] checks a request and gives [Verified]: the envelope and the
//     [Verdict], check by check. The zero value of every option is the strict one.
//   - [Keys] says which keys a sender has: [StaticKeys], [CardStore], [FirstOf].
//   - [Memory] remembers nonces; [NewMemory] is the bounded default.
//   - [Server] is an http.Handler for one agent or for thousands; [Client]
//     calls agents of every known SDK.
//   - [Card] is the agent card; [Delegation] the delegation token.
//
// # Promises
//
// A message changes nothing before its signature is verified: it takes no quota,
// burns no nonce and fills no memory. A message that was authenticated but refused
// does consume its nonce; one that was answered with 429 does not. Every failure
// under /agent/ is answered with a JSON error envelope whose text is safe for guests;
// the cause stays behind [errors.Unwrap]. Numbers in payloads keep their literals. No
// request can stop the process.
//
// Responses are not signed in SAMVAD: a client trusts the TLS connection.
package samvad

// Version is the protocol version that this package emits.
const Version = "1.2"
