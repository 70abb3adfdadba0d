// Package cluster proves that several hubs on one journal are one hub: agents
// of all protocols, each connected to one of three nodes, go on speaking with
// each other while a node and a server of the journal's cluster are killed.
//
// Its test runs six processes besides itself for a minute or two, and only when
// it is asked for:
//
//	go test -tags cluster ./pairs/cluster
//
// With -short, as in the gate, it kills once, a hub to which those are connected
// that are asked; else once more, a hub to which those are connected that ask.
// Where it fails, it tells the whole story of each message that it is about:
// what the agents saw of it, what the journal holds, and what the hubs wrote.
// PARLEY_CLUSTER_OUTCOME=at-least-once sets delivery.outcome.
package cluster
