// Package samvadtest helps to test programs that use package samvad.
//
// A [Peer] is an agent in memory, without sockets. It signs requests, and forges them:
//
//   - [Peer.Forgeries] are requests for your http.Handler, each with the error that a
//     [samvad.Verifier] gives for it.
//   - [Peer.Client] calls your agent.
//   - [Peer.Skill] and [Peer.HTTP] answer your client; [Peer.Received] says what came.
//
// [TestMemory], [TestKeys], [TestTasks] and [TestSigner] check your own implementations
// of the interfaces of package samvad, in the manner of testing/fstest:
// the error names each rule that is broken.
//
// Everything works inside a testing/synctest bubble.
package samvadtest
