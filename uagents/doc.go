// Package uagents speaks the Exchange protocol of Fetch.ai's uAgents: signed
// envelopes, posted as JSON from agent to agent, with the registry (Almanac)
// and the mailbox that agents expect of Agentverse.
//
// It implements the public page "Exchange protocol" and, where that page is
// silent, the behaviour of the reference (uagents 0.25.5, uagents-core 0.4.9):
// envelopes and their digest (envelope.go, canonical.go), identities and
// addresses (identity.go), signatures (sign.go), their verification
// (verify.go), models and schema digests (schema.go, validate.go), protocol
// manifests (manifest.go), the chat, payment and subscription protocols
// (chat.go, payment.go, subscription.go), attestation tokens (token.go),
// Almanac attestations (attestation.go), serving agents (server.go, rest.go),
// calling them (client.go, resolver.go, register.go, poll.go), and the server
// side of the registry (almanac.go), of mailboxes (mailbox.go) and of identity
// proofs (agentverse.go).
//
// # Promises
//
// An [Envelope] keeps the payload text byte for byte, and [Envelope.Raw] the
// bytes it was read from, so that forwarding never breaks a signature.
//
// The zero [Verifier] is strict where the reference is open: it enforces
// expiry, refuses addresses that are not the canonical spelling of their key,
// schema digests outside their grammar, a nonce without an expiry (the digest
// cannot tell the two apart), an expiry beyond a horizon, duplicate member
// names, and a second use of the same envelope. High-S signatures are
// accepted, because half of all real signatures are high-S; signatures made here
// are deterministic (RFC 6979) and low-S.
//
// Unsigned senders ("user…") carry no proof at all. They are always marked
// [Unsigned], and a [Server] takes only the messages that an agent opens to them.
//
// Caches, queues and waits are bounded; the bounds are fields with documented
// defaults.
package uagents
