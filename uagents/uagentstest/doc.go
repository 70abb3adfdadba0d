// Package uagentstest helps to test programs that use package uagents.
//
// A [Peer] is an agent in memory, without sockets. It signs envelopes, and forges them:
//
//   - [Peer.Forgeries] are envelopes for your http.Handler or [uagents.Verifier], each
//     with the error that a verifier gives for it.
//   - [Peer.Client] calls your agent.
//   - [Peer.Handle], [Peer.HTTP] and [Peer.Resolver] answer your client; [Peer.Received]
//     says what came.
//
// [TestMemory], [TestResolver], [TestAlmanacStore], [TestMailboxStore],
// [TestProfileStore] and [TestCurve] check your own implementations of the interfaces of
// package uagents, in the manner of testing/fstest:
// the error names each rule that is broken.
//
// Everything works inside a testing/synctest bubble.
package uagentstest
