// Package pairs has one small agent of each of the five protocols, and proves
// with them that every protocol reaches every other.
//
// A [Peer] speaks its own protocol alone, through a socket of its own, by
// nothing but that protocol's package: it learns the hub's address and what an
// agent of any protocol learns from its operator, no more. What a peer is asked
// says what it does, so that answers are the same every time:
//
//	say TEXT     answers TEXT
//	fail TEXT    fails, and says TEXT
//	count N      says N pieces where its protocol has them, then "counted N"
//	hold         answers nothing until it is cancelled
//	later …      does the rest when its gate is opened (by tests of this package)
//	begin …      says that it has begun, and then is like later
//	note TEXT    is heard; answers "noted" to who wants an answer
//
// [New] makes peers before there is a hub, [Peer.Agent] says what the hub's
// configuration must know of them, and [Peer.Join] brings them to a hub that
// runs: in this process, in another, or one of several nodes.
package pairs
