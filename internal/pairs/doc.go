// Package pairs has one small agent of each of the seven protocols, and proves
// with them that every protocol reaches every other.
//
// A [Peer] speaks only its own protocol, through that protocol's package (in A2A and MCP the
// official SDK) and a socket of its own: it knows the hub's address and what an operator tells any agent, no more.
// The text of a question says what the peer does, so answers are the same every time:
//
//	say TEXT     answers TEXT
//	fail TEXT    fails, and says TEXT
//	cry TEXT     says TEXT as a piece, then "cried"
//	count N      says N pieces where its protocol has them, then "counted N"
//	hold         answers nothing until it is cancelled
//	later …      does the rest when its gate is opened (by tests of this package)
//	begin …      says that it has begun, and then is like later
//
// note TEXT    is heard; a requester gets the answer "noted"
//
// [New] makes peers before there is a hub, [Peer.Agent] gives their entries in the
// hub's configuration, and [Peer.Join] connects them to a running hub: in this process,
// in another, or one of several nodes.
package pairs
