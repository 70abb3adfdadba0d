package a2e

// SetRoom sets the room for messages in an answer of parley_inbox, so that small
// messages fill it. It is called before there is traffic.
func (b *Binding) SetRoom(bytes int) { b.inboxes.room = bytes }
