package agh

import (
	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/agh"
)

// Pending is how much waits for peers of which this hub has not heard.
func (b *Binding) Pending() (messages, questions int) {
	b.pending.mu.Lock()
	defer b.pending.mu.Unlock()
	return b.pending.count, len(b.pending.whois)
}

// WorkKey is the key of some work in the state.
func WorkKey(workspaceID, workID string) string { return workKey(workspaceID, workID) }

// Conversation is that of the thread or room an envelope belongs to.
func (b *Binding) Conversation(e *protocol.Envelope) parley.ID { return b.conversation(e) }
