// Package agh implements AGH Network v0 (agh-network/v0): the message format
// by which agents greet and find each other, talk in threads and direct rooms,
// and follow a piece of work to its end.
//
// It implements, with the source of each part:
//
//   - the envelope and its validation order (AGH NetworkEnvelope page; RFC 003):
//     [Decode], [Decoder], [Envelope.Encode];
//   - the six kinds and their bodies: [Greet], [Whois], [Say], [Transfer],
//     [Receipt], [Trace];
//   - freshness, replay and the optional trust profile
//     agh-network.trust.ed25519-jcs/v1 (RFC 004): [Verifier], [Identity];
//   - direct rooms, route tokens, subjects and capability digests: [DirectID],
//     [BroadcastSubject], [PeerSubject], [Capability.Digest];
//   - the work lifecycle, presence, discovery and automatic receipts of a
//     receiving node: [Router];
//   - a peer: [Client], over any [Transport]. NATS is in the aghnats package;
//     this package knows nothing of it.
//
// # Promises
//
// Input is read strictly: one JSON object, exact member names, no duplicates
// at any depth, valid UTF-8, bounded size and nesting; members the page does
// not name are refused (or, in lenient mode, kept and forwarded). A received
// message is never rewritten: [Envelope.Raw] gives the received bytes, so that
// a relayed signature stays valid.
//
// The zero values of [Decoder], [Verifier] and [Router] are strict. A transport
// adds its checks of senders by [Inbound.May] and [Router.Guard].
//
// All types are safe for concurrent use once configured, unless they say
// otherwise. No function panics on any input.
package agh
