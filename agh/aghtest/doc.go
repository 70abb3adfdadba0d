// Package aghtest helps to test programs that use package agh.
//
// A [Bus] carries messages in memory in place of NATS. A [Peer] is on a bus, answers,
// and says what came. A verified peer also signs, and forges: [Peer.Forgeries] are
// envelopes, each with the error that [Peer.Verifier] gives for it.
//
// [TestMemory], [TestKeys], [TestWorks] and [TestTransport] check your own
// implementations of the interfaces of package agh, in the manner of testing/fstest:
// the error names each rule that is broken.
//
// Everything works inside a testing/synctest bubble.
package aghtest
