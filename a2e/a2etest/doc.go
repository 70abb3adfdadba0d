// Package a2etest helps to test programs that use package a2e.
//
//   - [Connect] gives an agent of your host, over a connection in memory.
//   - A [Host] is a host in memory for your agent: [Host.Tool] answers its calls, and
//     [Host.Calls] says what came.
//   - [Forgeries] are the lines of agents that a host must refuse, each with the error
//     that a [a2e.Host] answers; [Exchange] sends them. A2E signs no messages: an agent
//     proves itself by its token alone.
//
// [TestAuthenticator], [TestMemory], [TestMemories], [TestMultiAgent], [TestProvider],
// [TestSkills], [TestStore], [TestRelay] and [TestTools] check your own implementations
// of the interfaces of package a2e, in the manner of testing/fstest:
// the error names each rule that is broken.
//
// Everything works inside a testing/synctest bubble.
package a2etest
