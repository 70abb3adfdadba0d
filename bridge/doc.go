// Package bridge holds what the bindings of all protocols share: the table of
// what each protocol can say of a message ([Table]), the losses of a message
// on its way into one ([Losses]), and the words in which the hub states where
// a message comes from ([Provenance]).
//
// docs/translation.md is generated from the table. The tests of bridge/… hold
// each binding to it: what the table says survives is on the wire, and what is
// not on the wire is reported.
package bridge
