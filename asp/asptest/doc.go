// Package asptest helps to test programs that use package asp.
//
// A [Server] is a sequencer in memory, without sockets. Its peers are registered agents:
// [Peer.Handle] answers your agent, [Peer.Meet] opens a session, and [Peer.Received]
// says what came. A peer also signs, and forges: [Peer.Forgeries] are envelopes, each
// with the error that a [asp.Verifier] gives for it.
//
// [TestMemory], [TestKeys], [TestStore] and [TestClientStore] check your own
// implementations of the interfaces of package asp, in the manner of testing/fstest:
// the error names each rule that is broken.
//
// Everything works inside a testing/synctest bubble.
package asptest
