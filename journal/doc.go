// Package journal is the durable memory of a hub: an append-only log of
// messages and of what became of each delivery, the guard against replays,
// and a key-value state, all on NATS JetStream. The engine runs inside the
// process by default (no listener, files in one directory) or is an external
// NATS cluster reached by URL; the same code runs on both.
//
// # What each call promises
//
// [Journal.Append] and [Journal.Accept] return without error only when the
// entry is recorded as [Durability] says: with [Disk] after the fsync, with
// [Replicated] after a quorum of replicas has it (see [Config.SyncReplicated]
// for their disks), with [Memory] once it is in memory. One [Entry] is one
// record and is recorded whole or not at all. [Journal.Promise] says it in
// words for the users of a hub.
//
// Accept is Append and replay check in one: of concurrent entries with the
// same key in the same scope exactly one is recorded, and all others get a
// [Prior] that says where; this holds over restarts and between nodes until
// the key's time has run out, at least for [Config.Window].
//
// An append whose context ends while it waits in the queue was not recorded.
// One that was already given to the engine goes on without its caller, who
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
// its [Lease] and the deliveries its steps speak of must share one. The
// embedded engine has one partition unless told otherwise; then none of this
// is ever noticed. The number is fixed when the journal is made.
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
// # How it is made durable
//
// Each partition has one writer. What waits while it is busy forms the next
// group, bounded in number and bytes; there is no timer, so a lone entry is
// written at once. With the embedded engine a group is published message by
// message, which puts it into the file of the stream's last block, then that
// file is synced once, and then all callers of the group are answered. (The
// engine can sync by itself, for each message or for an atomic batch; the first
// costs a sync each, the second a staging store and some ten syncs each time.
// That is what the state uses, whose blocks the engine rewrites as it goes.)
//
// After a crash the engine's files may end in what was written and not synced.
// That was never acknowledged, and is cut off or kept as it is found. Before the
// engine starts its files are checked, because it repairs damage by leaving out
// what is behind it: a bad record before good ones, a missing block or stream, a
// description that does not match its checksum is ErrCorrupt, and nothing is
// touched. After an orderly Close, which leaves an inventory of the files, all
// sizes are compared and the records of the newest 256 MiB are checked; after a
// crash all are.
//
// If the engine fails while it is open (it ran out of space in spite of the
// watermark, the process ran out of file descriptors, or its operator ended it),
// appends get ErrNoSpace or ErrBusy at once, the engine is reopened as soon as it
// can be, and what it was given when it failed is looked for in the log and
// answered; callers wait for that no longer than [Config.Timeout]. Only a disk
// that fails to sync for another reason than these two ends this: what it holds
// cannot be known then without a restart.
//
// The engine removes a stream that it cannot open when it starts. So its files
// have hard links until it has started, from which a start that failed or was
// cut off is undone. A file system without hard links gives no such protection.
//
// # Errors
//
// Failures match one of the sentinels (ErrBusy, ErrNoSpace, …) with errors.Is,
// and carry a [parley.Error] whose code and text are safe for strangers and
// which says whether a repeat may help; their own text tells the operator what
// to do.
package journal
