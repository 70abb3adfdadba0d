package journal

import (
	"io"
	"log/slog"
	"time"

	"github.com/parley-hub/parley/journal/store"
)

// Durability is what "recorded" means.
type Durability string

const (
	// Disk: synced to the disk of this machine before the answer. The default
	// where no cluster is named.
	Disk Durability = "disk"
	// Replicated: held by a quorum of a cluster. The default where one is named.
	// Unless its servers sync always, the replicas flush to disk later: if they lose
	// power together, what they acknowledged last may be lost.
	Replicated Durability = "replicated"
	// Memory: gone when the process ends. Only by name; for tests and demos.
	Memory Durability = "memory"
)

// Config says where a journal lives and how much it may hold. Every zero value
// is the documented default.
type Config struct {
	// Store is where the journal lies: package sqlite keeps it in a file, package
	// jetstream in a NATS cluster. Open takes it over: Close closes it, and so does
	// an Open that fails.
	Store store.Store

	// Partitions is fixed when the journal is made; another number later is
	// an error. 0: as made, or for a new one 1 where no other process writes, else 8.
	Partitions int

	// Key encrypts records and values of the state (XChaCha20-Poly1305 under a key
	// derived from it) before the store gets them. 16 bytes or more, random. A
	// journal made with a key opens only with it; one made without a key opens only
	// without. Names of the state's keys and tags of records stay in clear.
	Key []byte

	Window      time.Duration // how long a replay key without an end of its own is remembered; default 15 minutes, at most 24 hours
	MaxKeys     int           // replay keys held per partition, in up to 32 bytes each: those that come in a second times the seconds they stay fresh; default 32 Mi. Beyond: ErrBusy
	MaxLongKeys int           // replay keys per sender that outlive Window; default 16384. Beyond: ErrBusy
	MaxOpen     int           // unsettled and dead deliveries held per partition; default 1 Mi. Beyond: ErrBusy

	MaxPayload int // bytes of one encoded record; default 8 MiB less 64 KiB or what the store takes, at most 24 MiB

	// MinFree is the watermark: with less free space, appends get ErrNoSpace before
	// the store's own writes fail. 0: 256 MiB, or a tenth of a file system smaller
	// than 2.5 GiB. FreeSpace tells the free bytes; nil asks the store.
	MinFree   uint64
	FreeSpace func() (uint64, error)

	// Node is the id of this hub among those that share the journal. Default:
	// host name and a random suffix, which cannot recognise its own
	// deliveries after a restart: give one.
	Node string

	// OwnerTTL is how long a silent node keeps its partitions where other processes
	// write, too; default 10 seconds.
	OwnerTTL time.Duration

	// Timeout bounds the wait for the store's answer to one append; after it
	// the outcome is unknown. Default 15 seconds: in a cluster an election may take nine.
	Timeout time.Duration

	Now  func() time.Time // default time.Now
	Rand io.Reader        // default crypto/rand
	Log  *slog.Logger     // default discards

	// Progress is told how much of the log has been read at start: done of
	// total records, at least once, the last time with done equal to total.
	Progress func(done, total uint64)

	maxQueued       int // appends that wait per partition; default 8192. Beyond: ErrBusy
	checkpointEvery int // records between checkpoints at least
}
