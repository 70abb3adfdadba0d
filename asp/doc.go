// Package asp implements the Agent Session Protocol: sessions between
// authenticated agents. Every message carries the hash of its content, a link to
// the message before it, an Ed25519 signature and a DPoP proof.
//
// It follows the page "Message format" of the vendor's documentation
// (envelope, context objects, integrity chain, DPoP proof, constraints,
// limits), and where that page is silent the pages on performatives, the
// state machine, the transports, commitments, disputes and trust scoring.
// The vendor publishes no reference implementation. Rules that no page settles
// are decisions of this project, marked "project" in the comments. They are not
// requirements of the protocol.
//
// Each part is usable by itself:
//
//   - [Decode], [DecodeMsgpack]: strict envelopes; the original bytes are kept.
//   - [Canonical], [ContentHash]: canonical JSON with NFC and UTF-16 order.
//   - [Identity], [Draft]: the two keys of an agent; signing.
//   - [Verifier]: checks one message: hash, signature, proof, freshness.
//   - [Chain], [VerifyTranscript]: check a whole session offline and name every fault.
//   - [Next]: the table of the nine-state machine.
//   - [Server] over a [Store]: the sequencer, its HTTP, SSE and WebSocket
//     bindings, tokens and the registry of agents.
//   - [Client]: opens and joins sessions, keeps the head, re-links when it
//     loses a race, resumes after a restart.
//
// Promises: the server records a message only after it has verified the
// signature, and keeps its bytes as received; a retransmission has no second
// effect; the cost of a message does not grow with the length of its session;
// every map, body, depth and wait has a bound.
//
// Names are the protocol's own: performative, sequenceNumber, previousHash.
package asp
