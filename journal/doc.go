// Package journal is the durable memory of a hub: an append-only log of
// messages and delivery records, a replay guard, and a key-value state. It is
// kept in a [store.Store]: one SQLite file on one machine (package sqlite), or a
// NATS cluster that several hubs share (package jetstream). The API is the same
// for both, and no caller needs to know which one it has.
//
// # What each call promises
//
// [Journal.Append] and [Journal.Accept] return without error only when the entry
// is as durable as the store promises: after the fsync, or after a quorum of
// replicas has stored it, or, if the configuration names memory, once it is in
// memory. One [Entry] is one record, and is recorded whole or not at all.
// [Journal.Promise] states the promise in words for the users of a hub.
//
// Accept is append and replay check in one. Of concurrent entries with the same
// key in the same scope exactly one is recorded; all others get a [Prior] with
// its position. This holds over restarts and between hubs, until the key expires.
//
// An append whose context ends while it waits in the queue was not recorded. An
// append that the store already has goes on, and its caller gets [ErrUnknown]. To
// resolve an entry with a key, call Accept again: it records the entry or returns
// the Prior. To find an entry without a key, use [Journal.Delivery] or
// [Journal.Records]. A caller that gives up never harms other entries of the same
// group.
//
// When Append or Accept returns, this hub's view ([Journal.Seen],
// [Journal.Delivery], [Journal.Deliveries]) holds the entry, and every function
// passed to [Journal.Watch] has been called with it.
//
// # Partitions
//
// Entries with the same scope are ordered; each protocol defines its scopes. A
// hash of the scope selects the partition. Replay keys, chains, fences and
// delivery steps are checked within one partition, so an entry's scope, its
// [Lease] and the deliveries of its steps must share one. A journal of one machine
// has one partition unless configured otherwise, and callers never notice it. The
// number of partitions is fixed when the journal is made.
//
// # Deliveries
//
// An [Opening] opens the delivery of a message to one recipient; a [Step] changes
// its state. The journal checks every step against the recorded state:
//
//	Waiting     → Delivering, Waiting (postponed), Delivered, Answered, Dead, Expired, Abandoned
//	Delivering  → Delivering (the attempt's outcome is unknown), and as from Waiting
//	Delivered   → Waiting (lost with its connection), Answered, Dead, Expired, Abandoned
//	Dead        → Waiting (retry, same ID), Answered (a late reply), Dropped
//
// A step to Delivering bears the number of the last attempt plus one. Of two
// steps with the same number one gets [ErrConflict]. Other steps may name the
// attempt whose outcome they record, and get ErrConflict if it is no longer the
// last. So a recipient sees a message at most as often as attempts were recorded.
// Unsettled deliveries and dead letters are held in memory without their
// messages, at most [Config.MaxOpen]. At start they are rebuilt from a
// checkpoint and the end of the log.
//
// # How an entry is recorded
//
// Each partition has one writer. Entries that arrive while it is busy form the
// next group, which is bounded in number and bytes. There is no timer: a lone
// entry is written at once. Only an [Entry] with Late set, for which no caller
// waits, is held back for up to 5 ms to share the sync of others.
//
// The writer checks the group against this hub's view, which holds every record
// up to a known position. The store then appends the group behind exactly that
// position. With many callers the writer checks the next group meanwhile. If
// another hub appended first, nothing was recorded: the writer reads the new
// records, checks the group again and repeats the append. So the store needs to
// know nothing of replay keys, steps, chains and fences.
//
// Records and values bear a checksum, or are encrypted, with their position or
// key as associated data. Damage is found when they are read, and gives
// ErrCorrupt. "parley journal check" looks for it; "parley journal salvage" saves
// everything that can still be read. Checkpoints and the index are rebuilt.
//
// # Errors
//
// Failures match one of the sentinels (ErrBusy, ErrNoSpace, …) with errors.Is.
// They also carry a [parley.Error]: its code and text may be sent to guests, and it
// says whether a repeat may help. Their own text tells the operator what to do.
package journal
