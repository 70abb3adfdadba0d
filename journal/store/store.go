// Package store defines what a journal needs from its storage: append records to
// numbered partitions, read them, and keep a key-value state. Package journal does
// everything else above it: replay keys, deliveries, chains, leases, encryption,
// backups.
//
// An example of its job: the journal has checked two messages against
// everything up to record 41 of partition 0. It calls Append(ctx, 0, 41, two).
// When that returns nil, they are records 42 and 43, as durable as the store
// promises. If another hub appended first, the call returns ErrConflict; the
// journal reads the new records, checks again and calls again.
//
// Package sqlite keeps a journal in one file, package jetstream in a NATS
// cluster.
package store

import (
	"context"
	"errors"
	"time"
)

// Match these with errors.Is; the text of the error that wraps one of them says what
// to do.
var (
	ErrConflict = errors.New("the recorded state is another")                       // nothing was recorded
	ErrUnknown  = errors.New("the journal cannot say whether it was recorded")      // see Append
	ErrNotFound = errors.New("not in the journal")                                  //
	ErrExists   = errors.New("exists already")                                      //
	ErrNoSpace  = errors.New("no space left for the journal")                       // nothing was recorded; retryable
	ErrBusy     = errors.New("the journal takes nothing now")                       // nothing was recorded; retryable
	ErrTooLarge = errors.New("too large for the journal")                           // says size and limit
	ErrCorrupt  = errors.New("the journal is damaged")                              // see the commands in its text
	ErrForeign  = errors.New("the place holds other data")                          // nothing was touched
	ErrFormat   = errors.New("the journal has a format this program does not know") // newer or older
	ErrLocked   = errors.New("the journal is in use")                               // says by which process
	ErrClosed   = errors.New("the journal is closed")                               //
)

// A Store keeps one journal. Its methods are safe for concurrent use. For each
// partition at most one Append is in flight at a time.
type Store interface {
	// Meta returns the journal's settings, or ErrNotFound if none was made yet.
	Meta(ctx context.Context) (Meta, error)
	// Init makes an empty journal. ErrExists: there is one.
	Init(ctx context.Context, m Meta) error

	// Append adds records to the end of a partition and returns when they are
	// durable. after must be the partition's last sequence. The records get the
	// following sequences; a Record with a larger Sequence gets that one, which
	// leaves a gap (only a restore does so).
	//
	// ErrConflict: the partition ends at another sequence. ErrUnknown: all, some of
	// the first, or none of the records were recorded or still will be. The call may
	// be repeated; it returns ErrConflict if a record was recorded. After every
	// other error no record was recorded.
	Append(ctx context.Context, partition int, after uint64, records []Record) error
	// Skip gives the next record of a partition at least the sequence last + 1.
	// Only a restore calls it.
	Skip(ctx context.Context, partition int, last uint64) error
	// Read calls fn for each record from the sequence first to last, in order,
	// until fn returns false. A Record's Data is valid during the call only.
	Read(ctx context.Context, partition int, first, last uint64, fn func(Record) bool) error
	// Tagged returns the newest record with a tag, or ErrNotFound.
	Tagged(ctx context.Context, partition int, tag string) (Record, error)
	// Span describes a partition. Last is never less than a sequence that an Append
	// or Follow of this store has reported before.
	Span(ctx context.Context, partition int) (Span, error)
	// Follow calls fn for each record behind after, in order and without gaps, those
	// of this process included, until ctx ends or an error. The store of one process
	// returns at once.
	Follow(ctx context.Context, partition int, after uint64, fn func(Record)) error
	// Replace replaces the data of existing records. It returns when the new data
	// is durable and the old data is in none of the store's files. (A cluster's own
	// logs keep it for a while; see its documentation.)
	Replace(ctx context.Context, partition int, records []Record) error
	// Remove removes all records of a partition before a sequence. The last
	// sequence stays.
	Remove(ctx context.Context, partition int, before uint64) error

	// Get returns the value of a key, or ErrNotFound.
	Get(ctx context.Context, bucket, key string) (Value, error)
	// Put sets a value, and returns its revision when it is durable. expect, if not
	// nil, is the required present revision, 0: no value; else ErrConflict. The
	// store may remove a value from one minute after its Until.
	Put(ctx context.Context, bucket string, v Value, expect *uint64) (revision uint64, err error)
	// Delete removes a key, with expect as in Put, and returns the revision of the
	// removal. After the next Scrub the old value is in none of the store's files.
	Delete(ctx context.Context, bucket, key string, expect *uint64) (revision uint64, err error)
	// Range calls fn for all values of a bucket whose key begins with prefix, in
	// the order of their revisions, until fn returns false. A value that changes
	// meanwhile may come again, and is never missed.
	Range(ctx context.Context, bucket, prefix string, fn func(Value) bool) error
	// Buckets lists the buckets that have values.
	Buckets(ctx context.Context) ([]string, error)
	// FollowState calls fn for each change of the state behind the revision after,
	// by all processes, in the order of revisions, until ctx ends or an error;
	// after 0: from now on. If a key changes several times in a row, fn may get
	// only the last change. ready is called once, when no later change will be
	// missed. The store of one process calls fn before the Put or Delete returns,
	// and may ignore after. fn does not block.
	FollowState(ctx context.Context, after uint64, ready func(), fn func(bucket string, v Value)) error
	// Scrub returns when values that were replaced, removed or have expired before
	// now are in none of the store's files. (For a cluster see Replace.)
	Scrub(ctx context.Context, now time.Time) error

	// Exclusive: no other process writes to the store while it is open.
	Exclusive() bool
	// MaxRecord is the size of the largest Data, in bytes.
	MaxRecord() int
	// Space returns the bytes that can still be written. Total 0: unknown.
	Space() (free, total uint64, err error)
	// Promise says in a sentence what "durable" means for this store.
	Promise() string
	// Healthy says why the store accepts no changes now; nil: it accepts them.
	Healthy() error
	// Close closes the store when all calls have returned.
	Close() error
}

// Meta is fixed when a journal is made.
type Meta struct {
	Format     int       `json:"format"`
	Created    time.Time `json:"created"`
	Prefix     string    `json:"prefix"` // of all names in a shared store
	Partitions int       `json:"partitions"`
	Salt       string    `json:"salt,omitempty"`  // of the encryption key, hex; empty: not encrypted
	Check      string    `json:"check,omitempty"` // to compare a key with, hex

	// Restoring is set during a restore: the journal is incomplete. Init without it
	// ends the restore.
	Restoring bool `json:"restoring,omitempty"`
}

// A Record is one record of a partition.
type Record struct {
	Sequence uint64
	Tag      string // for Tagged: letters, digits, ".", "-" and "_"; most records have none
	Data     []byte

	// About is for people with a database tool; no program reads it. A store may omit
	// it.
	About About
}

// About describes a record without encryption. It is empty if the journal is
// encrypted.
type About struct {
	Time    time.Time
	Kind    string // "request", "response", ...; "step" where there is no message
	Message string // its ID
	From    string
	To      string
}

// A Value is one value of the state.
type Value struct {
	Key      string
	Data     []byte
	Revision uint64    // grows with every change of the state
	Until    time.Time // zero: for ever
	Deleted  bool      // only from FollowState
}

// Span describes the records of a partition.
type Span struct {
	First   uint64 // sequence of the oldest record; Last + 1: there is none
	Last    uint64 // sequence that the next record follows
	Records uint64
	Bytes   uint64 // approximately
}
