// Package asp implements the Agent Session Protocol: sessions between agents
// that prove themselves. Every message carries the hash of its content, a
// link to the message before it, an Ed25519 signature and a DPoP proof.
//
// It follows the page "Message format" of the vendor's documentation
// (envelope, context objects, integrity chain, DPoP proof, constraints,
// limits), and where that page is silent the pages on performatives, the
// state machine, the transports, commitments, disputes and trust scoring.
// The vendor publishes no reference implementation; rules that no page
// settles are decisions of this project and marked "project" in the comments.
// They must not be taken for requirements of the protocol.
//
// The parts, each usable without the others:
//
//   - [Decode], [DecodeMsgpack]: strict envelopes; the original bytes are kept.
//   - [Canonical], [ContentHash]: canonical JSON with NFC and UTF-16 order.
//   - [Identity], [Draft]: the two keys of an agent; signing.
//   - [Verifier]: one message: hash, signature, proof, freshness.
//   - [Chain], [VerifyTranscript]: a whole session, offline, every fault named.
//   - [Next]: the nine-state machine, a table.
//   - [Server] over a [Store]: the sequencer, its HTTP, SSE and WebSocket
//     bindings, tokens and the registry of agents.
//   - [Client]: opens and joins sessions, keeps the head, re-links when it
//     loses a race, resumes after a restart.
//
// Promises: nothing is recorded before the signature holds; messages are kept
// byte for byte as received; a retransmission has no second effect; the
// cost of a message does not grow with the length of its session; every map,
// body, depth and wait has a bound.
//
// Names are the protocol's own: performative, sequenceNumber, previousHash.
package asp
