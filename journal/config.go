package journal

import (
	"io"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
)

// Durability is what "recorded" means.
type Durability string

const (
	// Disk: synced to the disk of the embedded engine, or of an external
	// server that was set up to sync always. The default without URL.
	Disk Durability = "disk"
	// Replicated: held by a quorum of an external cluster. The default with
	// URL. Without [Config.SyncReplicated] the replicas flush to disk later:
	// if they lose power together, what they acknowledged last may be lost.
	Replicated Durability = "replicated"
	// Memory: gone when the process ends. Only by name; for tests and demos.
	Memory Durability = "memory"
)

// Config says where a journal lives and how much it may hold. Every zero value
// is the documented default.
type Config struct {
	// Dir is the data directory of the embedded engine: absent, empty, or
	// made by an earlier Open. Needed for [Disk]; with [Memory] it may be
	// empty, and then a temporary directory is used and removed.
	Dir string

	// URL is an external NATS server or cluster in place of Dir, and NATS what
	// it takes to connect: credentials, TLS.
	URL  string
	NATS []nats.Option

	// Prefix begins the names of all streams and subjects. Default "PARLEY".
	// Hubs that share a journal share the prefix.
	Prefix string

	Durability     Durability
	Replicas       int  // of each stream, external only: 1, 3 or 5; default 3, or 1 where the server is alone
	SyncReplicated bool // external: the operator has set sync_interval: always on every server; changes what Promise says

	// Partitions is fixed when the journal is made; another number later is
	// an error. 0: as made, or 1 embedded and 8 external for a new one.
	Partitions int

	// Key encrypts the embedded engine's files (ChaCha20-Poly1305 under a key
	// derived from it). 16 bytes or more, random. A journal made with a key
	// opens only with it; one made without a key opens only without.
	Key []byte

	Window      time.Duration // how long every replay key is remembered at least; default 15 minutes, at most 24 hours
	MaxKeys     int           // replay keys held per partition within Window; default 4 Mi. Beyond: ErrBusy
	MaxLongKeys int           // replay keys per sender that outlive Window; default 16384. Beyond: ErrBusy
	MaxOpen     int           // unsettled and dead deliveries held per partition; default 1 Mi. Beyond: ErrBusy

	MaxPayload int // bytes of one encoded record; default 8 MiB less 64 KiB embedded, at most 24 MiB; external: default the server's max_payload, more is ErrPayload

	// MinFree is the watermark: with less free space in Dir, appends get
	// ErrNoSpace before the engine's own writes fail. 0: 256 MiB, or a tenth
	// of a file system smaller than 2.5 GiB. FreeSpace tells the free bytes;
	// nil asks the file system.
	MinFree   uint64
	FreeSpace func(dir string) (uint64, error)

	MaxBatch       int // entries in one group commit; default 512, at most 1000
	MaxBatchBytes  int // their bytes; default 8 MiB, at most 16 MiB
	MaxQueued      int // appends waiting per partition; default 8192. Beyond: ErrBusy
	MaxQueuedBytes int // their bytes; default 64 MiB. Beyond: ErrBusy

	// Node is the id of this hub among those that share the journal. Default:
	// host name and a random suffix, which cannot recognise its own
	// deliveries after a restart: give one.
	Node string

	// OwnerTTL is how long a silent node keeps its partitions, external only;
	// default 10 seconds.
	OwnerTTL time.Duration

	// Timeout bounds the wait for the engine's answer to one append; after it
	// the outcome is unknown. Default 10 seconds.
	Timeout time.Duration

	Now  func() time.Time // default time.Now
	Rand io.Reader        // default crypto/rand
	Log  *slog.Logger     // default discards

	// Progress is told how much of the log has been read at start: done of
	// total records, at least once, the last time with done equal to total.
	Progress func(done, total uint64)

	formats         *formats      // nil: those of this release
	checkpointEvery int           // records between checkpoints at least
	reopenEvery     time.Duration // between looks whether a failed engine can go on
	goneAfter       time.Duration // see its default
}
