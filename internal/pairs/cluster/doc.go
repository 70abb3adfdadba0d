// Package cluster proves that several hubs on one journal act as one hub. Agents of all
// protocols, each connected to one of the hubs, go on talking to each other while hubs
// and servers of the journal's cluster are killed, frozen and cut off. No acknowledged
// message is lost or comes twice.
//
// Each test runs five or six processes for two minutes. The tests need a build tag:
//
//	go test -tags cluster ./internal/pairs/cluster
//
// TestNodeAndServerKilled has three hubs, and kills one of them and a server at once.
// With -short, as in the gate, it kills a hub with responders; else, in a second round,
// also a hub with requesters.
//
// TestTwoHubs has two hubs. It measures how soon one hub knows of an agent that was
// changed at the other. Then it loses packets between a hub and its server, kills and
// freezes each server and each hub in turn, and kills two of three servers. With -short
// it freezes one server and one hub, and kills only the two servers. For each outage it
// prints the longest time without an acknowledgement.
//
// A test that fails prints a trace of each message concerned: the events that the
// agents saw, the records of the journal, and the logs of the hubs.
//
//	PARLEY_CLUSTER_OUTCOME  at-least-once sets delivery.outcome
//	PARLEY_CLUSTER_ROUNDS   how often TestTwoHubs does all of it; when not set, once
package cluster
