// Package journal is the durable memory of a hub: an append-only log of
// messages and of what became of each delivery, the guard against replays,
// and a key-value state. It lies in a [store.Store]: one file of SQLite on one
// machine (package sqlite), or a NATS cluster that several hubs share (package
// jetstream). The journal is the same on both; no caller need know which it is.
//
// # What each call promises
//
// [Journal.Append] and [Journal.Accept] return without error only when the
// entry is as durable as the store promises: after the fsync, after a quorum of
// replicas has it, or, only where memory was asked for, once it is in memory. One
// [Entry] is one record and is recorded whole or not at all. [Journal.Promise]
// says it in words for the users of a hub.
//
// Accept is Append and replay check in one: of concurrent entries with the
// same key in the same scope exactly one is recorded, and all others get a
// [Prior] that says where; this holds over restarts and between nodes until
// the key's time has run out.
//
// An append whose context ends while it waits in the queue was not recorded.
// One that was already given to the store goes on without its caller, who
// gets [ErrUnknown]: a keyed entry is resolved by calling Accept again, which
// either records it or returns the Prior; an entry without a key can be looked
// for with [Journal.Delivery] or [Journal.Records]. A caller that gives up
// never harms others of the same group.
//
// When Append or Accept returns, this node's view ([Journal.Seen],
// [Journal.Delivery], [Journal.Deliveries]) holds the entry and every
// function of [Journal.Watch] has been called with it.
//
// # Partitions
//
// A scope names what is ordered together: each protocol defines its own. The
// partition of a scope is its hash. Replay keys, chains, fences and the steps
// of a delivery are checked within one partition, so that an entry's scope,
// its [Lease] and the deliveries its steps speak of must share one. A journal of
// one machine has one partition unless told otherwise; then none of this is ever
// noticed. The number is fixed when the journal is made.
//
// # Deliveries
//
// An [Opening] opens the delivery of a message to one recipient, a [Step]
// moves it on. The journal checks every step against the recorded state:
//
//	Waiting     → Delivering, Waiting (postponed), Delivered, Answered, Dead, Expired, Abandoned
//	Delivering  → Delivering (the attempt's outcome is unknown), Waiting, Delivered, Answered, Dead, Expired, Abandoned
//	Delivered   → Waiting (lost with its connection), Answered, Dead, Expired, Abandoned
//	Dead        → Waiting (retry, same ID), Answered (a late reply), Dropped
//
// A step to Delivering must bear the number of the last attempt plus one, and
// of two that bear the same number one gets [ErrConflict]; other steps may
// name the attempt they are the outcome of, and get ErrConflict if it is no
// longer the last. So a recipient sees a message at most as often as attempts
// were recorded. What is unsettled, and what is dead, is held in memory
// without bodies, at most [Config.MaxOpen]; it is rebuilt at start from a
// checkpoint and the log's tail.
//
// # How an entry is recorded
//
// Each partition has one writer. Entries that wait while it is busy form the next
// group, bounded in number and bytes; there is no timer, so a lone entry is
// written at once. (Only one that nobody waits for, [Entry].Late, is held back for
// up to 5 ms, to share the sync of others.) The writer checks the group against this node's view, which is
// everything up to a known position, and has the store append the group behind
// exactly that position. While the store does so, the writer checks the next group
// where there are many callers. If another node was sooner, nothing was recorded: the
// writer reads what is new, checks again and tries again. So replay keys, steps,
// chains and fences need no help of the store.
//
// Records and values bear a checksum, or are encrypted with their place as
// associated data where there is a key. Damage is found when they are read, and is
// ErrCorrupt; "parley journal check" looks for it, "parley journal salvage" saves
// everything that can be read. What can be made again (checkpoints of the view, the
// index) is made again.
//
// # Errors
//
// Failures match one of the sentinels (ErrBusy, ErrNoSpace, …) with errors.Is,
// and carry a [parley.Error] whose code and text are safe for strangers and
// which says whether a repeat may help; their own text tells the operator what
// to do.
package journal
