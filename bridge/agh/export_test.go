package agh

import (
	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/agh"
)

// Pending counts the messages for unknown peers, and the kept whois messages.
func (b *Binding) Pending() (messages, whois int) {
	b.pending.mu.Lock()
	defer b.pending.mu.Unlock()
	return b.pending.count, len(b.pending.whois)
}

// WorkKey is the key of a piece of work in the journal's table.
func WorkKey(workspaceID, workID string) string { return workKey(workspaceID, workID) }

// Conversation is the conversation of an envelope's thread or room.
func (b *Binding) Conversation(e *protocol.Envelope) parley.ID { return b.conversation(e) }
