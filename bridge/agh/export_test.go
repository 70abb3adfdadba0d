package agh

import (
	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/agh"
)

// Held is how much waits for peers of which this hub has not heard.
func (b *Binding) Held() (messages, questions int) {
	b.held.mu.Lock()
	defer b.held.mu.Unlock()
	return b.held.count, len(b.held.questions)
}

// WorkKey is the key of some work in the state.
func WorkKey(workspaceID, workID string) string { return workKey(workspaceID, workID) }

// Conversation is that of the thread or room an envelope belongs to.
func (b *Binding) Conversation(e *protocol.Envelope) parley.ID { return b.conversation(e) }
