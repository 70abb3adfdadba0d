package journal

import (
	"log/slog"
	"time"

	"github.com/parley-hub/parley/journal/store"
)

// Durability is the meaning of "recorded".
type Durability string

const (
	// Disk: synced to this machine's disk before the answer. The default where no
	// cluster is named.
	Disk Durability = "disk"
	// Replicated: stored by a quorum of a cluster. The default where a cluster is
	// named. Unless its servers sync always, they flush to disk later: if all lose
	// power together, the last acknowledged records may be lost.
	Replicated Durability = "replicated"
	// Memory: lost when the process ends. Never a default; for tests and demos.
	Memory Durability = "memory"
)

// Config describes a journal and its limits. Every zero value is the documented
// default.
type Config struct {
	// Store keeps the journal: package sqlite in a file, package jetstream in a
	// NATS cluster. Open owns it: Close closes it, and so does an Open that fails.
	Store store.Store

	// Partitions is fixed when the journal is made; another number later is an
	// error. 0: the number it was made with; for a new journal 1 if no other
	// process writes to the store, else 8.
	Partitions int

	// Key encrypts records and values before the store gets them
	// (XChaCha20-Poly1305 under a key derived from it): 16 bytes or more, random. A
	// journal made with a key opens only with that key; one made without a key
	// opens only without one. Names of keys of the state and tags of records are
	// not encrypted.
	Key []byte

	// Window is how long a replay key without an expiry of its own is remembered.
	// Default 15 minutes, at most 24 hours.
	Window time.Duration
	// MaxKeys bounds the replay keys held per partition, in up to 32 bytes each: at
	// least the keys per second times the seconds they stay fresh. Default 32 Mi.
	// Beyond: ErrBusy.
	MaxKeys int
	// MaxLongKeys bounds the replay keys per sender that outlive Window. Default
	// 16384. Beyond: ErrBusy.
	MaxLongKeys int
	// MaxOpen bounds the unsettled and dead deliveries held per partition. Default
	// 1 Mi. Beyond: ErrBusy.
	MaxOpen int

	// MaxPayload is the size of the largest encoded record, in bytes. Default 8 MiB
	// less 64 KiB, or the store's limit if that is lower; at most 24 MiB.
	MaxPayload int

	// MinFree is the watermark: with less free space, appends get ErrNoSpace before
	// the store's own writes fail. 0: 256 MiB, or a tenth of a file system smaller
	// than 2.5 GiB. FreeSpace returns the free bytes; nil asks the store.
	MinFree   uint64
	FreeSpace func() (uint64, error)

	// Node is the id of this hub among the hubs that share the journal. Default:
	// host name and a random suffix. With the default a restarted hub does not
	// recognise its own deliveries: set Node for a cluster.
	Node string

	// OwnerTTL is how long a silent hub keeps its partitions in a cluster; default
	// 10 seconds.
	OwnerTTL time.Duration

	// Timeout bounds the wait for the store's answer to one append; after it the
	// outcome is unknown. Default 15 seconds: an election in a cluster may take
	// nine.
	Timeout time.Duration

	Now func() time.Time // default time.Now
	Log *slog.Logger     // default discards

	// Progress reports how much of the log was read at start: done of total
	// records. It is called at least once, the last time with done equal to total.
	Progress func(done, total uint64)

	maxQueued       int // appends that may wait per partition; default 8192. Beyond: ErrBusy
	checkpointEvery int // records between checkpoints at least
}
