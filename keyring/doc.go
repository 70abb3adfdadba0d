// Package keyring keeps what the hub must keep secret, and the public keys of
// others that somebody vouched for.
//
// A [Ring] holds private keys by owner (an agent's name, or "hub") and purpose
// ("samvad", "uagents", "asp", "agh", "admin", …), hands out a [Signer] for
// them, and knows no protocol: which key a protocol wants, and what it signs
// with it, is the protocol's affair. Beside them it holds enrolled public keys
// ([Enrolled]) and random secrets such as the journal's encryption key
// ([Ring.Secret]).
//
// # Life of a key
//
// A key is active, then retiring, then over. [Ring.Rotate] makes a new active
// key and lets the old one stay valid for an overlap, so that peers who learn
// of the change late still understand; [Ring.Keys] gives both while that
// lasts. [Ring.Revoke] ends a key at once and erases its private half.
// [Ring.Signer] always gives the newest active key and costs a map look-up.
//
// # At rest
//
// Everything is in one file, keyring.json, of mode 0600 in a directory of mode
// 0700; looser modes are refused with the command that mends them. A change is
// written to a temporary file, synced, renamed over the old file and the
// directory synced: after a full disk or a crash the old state or the new one
// is there, whole. A change waits for other processes that change the same
// ring and starts from what they wrote.
//
// With a passphrase or an identity file the contents are encrypted in the age
// format (https://age-encryption.org/v1). An identity file is one made by
// age-keygen. A passphrase protects, by scrypt, a random X25519 identity, to
// which the contents are encrypted; the cost of scrypt is paid once per
// [Open]. A wrong passphrase, one that is missing, and one that is given for a
// ring that is not encrypted are errors, found before anything is written; no
// ring is ever partly encrypted. [Ring.Protect] changes the protection, after
// writing a backup.
//
// The hubs of a cluster keep their ring in a [Store], sealed in the same way: one
// value says what opens the ring, and each owner's keys for a purpose are a value
// of their own. There a change of the passphrase replaces the first value, which
// then also holds the former identity, sealed to the new one; the others are
// sealed anew after that.
//
// # What is stable
//
// The file names its format, "parley-keyring/1", and every later version of
// this package reads it. A file of a format that is not known is refused
// untouched.
//
// Nothing secret appears in an error, in what fmt, log/slog and encoding/json
// make of this package's types, or in a file name.
package keyring
