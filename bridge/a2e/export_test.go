package a2e

// SetRoom sets the room for messages in an answer of parley_inbox, so that small
// messages fill it. Tests call it before any traffic.
func (b *Binding) SetRoom(bytes int) { b.inboxes.room = bytes }
