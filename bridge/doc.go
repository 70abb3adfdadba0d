// Package bridge is shared by the bindings of all protocols. For example, a chat
// message with a named part goes to a SAMVAD agent: [Table] says that SAMVAD has no
// place for the name, [Losses] reports it for the delivery record, and [Provenance]
// tells the recipient the original sender in an HTTP header.
//
// docs/translation.md is generated from the table. The tests of each binding check it
// against the table: each aspect of a message is on the wire, or reported as lost.
//
// Each binding, bridge/<protocol>, has the same files: binding.go wires and
// configures it, inbound.go and outbound.go are the two ways, translate.go has pure
// functions, state.go its state in the journal, standins.go the identities that the
// hub keeps for agents, forget.go removes a forgotten agent.
package bridge
