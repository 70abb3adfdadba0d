// Package a2e implements the A2E message protocol, version 1.0: the NDJSON
// contract between an agent and its environment, the host.
//
// # What it implements
//
//   - Framing (A2E §2.1): [Reader] splits a stream into lines within limits
//     and always finds the next line again; everything written is compact
//     ASCII JSON, one object and one LF per write.
//   - Messages (A2E §2.2, §6): [Decode] and [Envelope]; [Registry] holds all
//     message types with members, defaults and enumerations, and takes those of
//     plugins. Unknown types stay whole, unknown members and number literals
//     are kept.
//   - The host (A2E §5.2, §8): [Host] authenticates agents by token,
//     negotiates capabilities, runs requests in parallel within limits, sends
//     events before the one final answer of each request, drops repeated ids,
//     answers pings at any time and drains on shutdown. It is an
//     [net/http.Handler] (HTTP + SSE, A2E §7.1), serves stdio and any other
//     stream with [Host.ServeConn], and TCP, with TLS if wanted, with
//     [Host.Serve].
//   - The agent (A2E §5.3): [Client] over HTTP + SSE, TCP, a child process or
//     any stream, with concurrent requests, events, reconnection.
//   - Capabilities as Go interfaces that the embedder supplies: [Tools],
//     [Skills], [Memories], [MultiAgent], or [Provider] for everything else;
//     [MemoryStore] and [Chains] are ready to use.
//
// # What it promises
//
// Every request gets exactly one final frame, whatever its handler does, and
// no error is answered with an error. Malformed input costs its sender one
// error frame, never the connection or the process. Tokens are compared in
// constant time and appear in no error, log or answer. Queues, sessions,
// frames, depths and waits are bounded by [Limits], whose zero value is the
// documented default. A2E has no signatures: what arrives is proved by the
// session's token alone, so relay it as "session", never as "signed".
//
// Where the last of several equal member names counts (A2E §2.1), it does so
// both for checking and for use, base members and nested ones alike. The raw
// bytes of a nested value still hold all of them; internal/jsonx refuses such
// a value when a handler decodes it.
//
// Section numbers (A2E §…) refer to the protocol digest; numbers like A2E-040
// to its conformance checklist.
package a2e
