// Package keyring keeps a hub's private keys and secrets, and the enrolled public
// keys of agents.
//
// A [Ring] holds private keys by owner (an agent's name, or "hub") and purpose
// ("samvad", "uagents", "asp", "agh", "admin", …), and returns a [Signer] for
// them. It knows no protocol: the caller chooses the algorithm and what to sign.
// A ring also holds enrolled public keys ([Enrolled]) and random secrets, for
// example keys of MACs ([Ring.Secret]).
//
// # Life of a key
//
// A key is active, then retiring, then no longer valid. [Ring.Rotate] makes a new
// active key and keeps the old one valid for an overlap, for peers that learn of the
// change late; meanwhile [Ring.Keys] returns both. [Ring.Revoke] ends a key at once
// and erases its private half. [Ring.Signer] returns the newest active key, at the
// cost of a map look-up.
//
// # At rest
//
// The ring of one machine is a file, keyring.json, of mode 0600 in a directory of
// mode 0700. Other modes are refused; the error has the command that mends them. A
// change is written to a temporary file, which is synced and renamed over the old
// one; then the directory is synced. After a full disk or a crash the file is the
// old one or the new one, whole. A change locks the ring against other processes
// and first loads their changes.
//
// With a passphrase or an identity file the contents are encrypted in the age
// format (https://age-encryption.org/v1). age-keygen makes an identity file. A
// passphrase protects, by scrypt, a random X25519 identity, to which the contents
// are encrypted; the cost of scrypt is paid once per [Open]. A wrong, missing or
// needless passphrase is an error, found before anything is written. A ring is never
// partly encrypted. [Ring.Protect] changes the protection, after writing a backup.
//
// The hubs of a cluster keep their ring in a [Store], encrypted in the same way.
// One value, the head, has the identity that opens the ring; each owner's keys for a
// purpose are a value of their own. A change of the passphrase first replaces the
// head, which then also has the previous identity, encrypted to the new one. The
// other values are encrypted to the new identity after that.
//
// # What is stable
//
// The file names its format, "parley-keyring/1", and every later version of this
// package reads it. A file of an unknown format is refused and not changed.
//
// Nothing secret appears in errors, in file names, or in the output of fmt, log/slog
// and encoding/json for this package's types.
package keyring
