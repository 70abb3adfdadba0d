package uagents

import protocol "github.com/parley-hub/parley/uagents"

// Stores gives what the binding keeps of registrations, mailboxes and profiles.
func (b *Binding) Stores() (protocol.AlmanacStore, protocol.MailboxStore, protocol.ProfileStore) {
	return b.almanac, b.mailbox, b.accounts
}
