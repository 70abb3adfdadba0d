// Package cluster proves that several hubs on one journal are one hub: agents
// of all protocols, each connected to one of the hubs, go on speaking with each
// other while hubs and servers of the journal's cluster are killed, frozen and cut
// off, and nothing that was acknowledged is lost or comes twice.
//
// Its tests run five or six processes besides themselves for two minutes each, and
// only when they are asked for:
//
//	go test -tags cluster ./internal/pairs/cluster
//
// TestNodeAndServerKilled has three hubs, and kills one of them and a server at
// once: with -short, as in the gate, a hub to which those are connected that are
// asked; else once more, a hub to which those are connected that ask.
//
// TestTwoHubs has two hubs. It measures how soon the one knows of an agent that was
// changed at the other. Then it loses packets between a hub and its server, kills
// and freezes each server and each hub in turn, and kills two of three servers. With
// -short it freezes one server and one hub, and kills only the two servers. It
// prints, for each, the longest time without an acknowledgement.
//
// Where a test fails, it tells the whole story of each message that it is about:
// what the agents saw of it, what the journal holds, and what the hubs wrote.
//
//	PARLEY_CLUSTER_OUTCOME  at-least-once sets delivery.outcome
//	PARLEY_CLUSTER_ROUNDS   how often TestTwoHubs does all of it; when not set, once
package cluster
