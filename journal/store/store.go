// Package store says what a journal needs of its engine: to append records to
// numbered partitions, to read them, and to keep a key-value state. Everything
// else, replay keys, deliveries, chains, leases, encryption, backups, is the
// journal's own and written once, above it.
//
// An example of its job: the journal has checked two messages against
// everything up to record 41 of partition 0. It calls Append(ctx, 0, 41, two).
// When that returns nil, they are records 42 and 43, as durable as the store
// promises. If another hub has appended since, the call gives ErrConflict; the
// journal reads what is new, checks again and calls again.
//
// Package sqlite keeps a journal in one file, package jetstream in a NATS
// cluster.
package store

import (
	"context"
	"errors"
	"time"
)

// What may go wrong. Match with errors.Is; the text that wraps one of these
// says what to do about it.
var (
	ErrConflict = errors.New("the recorded state is another")                       // nothing of the call was recorded
	ErrUnknown  = errors.New("the journal cannot say whether it was recorded")      // see Append
	ErrNotFound = errors.New("not in the journal")                                  //
	ErrExists   = errors.New("exists already")                                      //
	ErrNoSpace  = errors.New("no space left for the journal")                       // nothing was recorded; retryable
	ErrBusy     = errors.New("the journal takes nothing now")                       // nothing was recorded; retryable
	ErrTooLarge = errors.New("too large for the journal")                           // says size and limit
	ErrCorrupt  = errors.New("the journal is damaged")                              // the text names what helps
	ErrForeign  = errors.New("this belongs to something else")                      // nothing was touched
	ErrFormat   = errors.New("the journal has a format this program does not know") // newer or older
	ErrLocked   = errors.New("the journal is in use")                               // says by which process
	ErrClosed   = errors.New("the journal is closed")                               //
)

// A Store keeps one journal. Its methods are safe for concurrent use; for each
// partition at most one Append is under way at a time.
type Store interface {
	// Meta gives what was fixed when the journal was made, or ErrNotFound where
	// none was made yet.
	Meta(ctx context.Context) (Meta, error)
	// Init makes an empty journal. ErrExists: there is one.
	Init(ctx context.Context, m Meta) error

	// Append adds records to the end of a partition, whose last sequence must be
	// after, and returns when they are durable. They get the sequences that
	// follow; a Record whose Sequence is set and larger gets that one, which
	// leaves a gap (only a restore does so).
	//
	// ErrConflict: the last sequence is another. ErrUnknown: a first part of the
	// records, or all, or nothing was recorded, or still will be; the same call may
	// be repeated, and gives ErrConflict where something was. After every other
	// error nothing was recorded.
	Append(ctx context.Context, partition int, after uint64, records []Record) error
	// Skip has the next record of a partition get at least the sequence behind
	// last. Only a restore calls it.
	Skip(ctx context.Context, partition int, last uint64) error
	// Read calls fn for each record from the sequence first to last, in order,
	// until fn gives false. A Record's Data is good for the call only.
	Read(ctx context.Context, partition int, first, last uint64, fn func(Record) bool) error
	// Tagged gives the newest record with a tag, or ErrNotFound.
	Tagged(ctx context.Context, partition int, tag string) (Record, error)
	// Span tells what a partition holds. Last is never behind what an Append or
	// Follow of this store has told before.
	Span(ctx context.Context, partition int) (Span, error)
	// Follow calls fn for each record behind after, in order and without one
	// missing, own ones included, until ctx ends or an error. A store of one process
	// returns at once.
	Follow(ctx context.Context, partition int, after uint64, fn func(Record)) error
	// Replace gives records that are there other data, and returns when that is
	// durable and the old data is in no file of the store any more. (What a
	// cluster's own logs keep for a while its documentation says.)
	Replace(ctx context.Context, partition int, records []Record) error
	// Remove removes all records of a partition before a sequence. The last
	// sequence stays what it is.
	Remove(ctx context.Context, partition int, before uint64) error

	// Get gives the value of a key, or ErrNotFound.
	Get(ctx context.Context, bucket, key string) (Value, error)
	// Put sets a value and gives its revision, when it is durable. Expect, if not
	// nil, is the revision that must be there, 0: none; else ErrConflict. A value
	// whose Until has passed may be removed by the store from a minute later on.
	Put(ctx context.Context, bucket string, v Value, expect *uint64) (revision uint64, err error)
	// Delete removes a key, with expect as in Put; its old value is in no file of
	// the store any more when Scrub returns. It gives the revision of the removal.
	Delete(ctx context.Context, bucket, key string, expect *uint64) (revision uint64, err error)
	// Range calls fn for all values of a bucket whose key begins with prefix, in
	// the order of their revisions, until fn gives false. One that changes meanwhile
	// may come again, and is never missed.
	Range(ctx context.Context, bucket, prefix string, fn func(Value) bool) error
	// Buckets lists the buckets that hold values.
	Buckets(ctx context.Context) ([]string, error)
	// FollowState calls fn for each change of the state behind the revision after,
	// of all processes, in the order of revisions, until ctx ends or an error; after
	// 0 is from now on. Of changes of one key that follow each other only the last
	// may be told. It calls ready once, when every change from then on is told. A
	// store of one process calls fn before the Put or Delete that made the change
	// returns, and need not heed after. fn does not block.
	FollowState(ctx context.Context, after uint64, ready func(), fn func(bucket string, v Value)) error
	// Scrub returns when values that were replaced, removed or are past their
	// Until at now are in no file of the store any more. (As for Replace: what a
	// cluster keeps its documentation says.)
	Scrub(ctx context.Context, now time.Time) error

	// Exclusive reports that no other process writes to the store while it is open.
	Exclusive() bool
	// MaxRecord is the size of the largest Data, in bytes.
	MaxRecord() int
	// Space tells how much may still be written. Total 0: not known.
	Space() (free, total uint64, err error)
	// Promise says in a sentence what durable means here.
	Promise() string
	// Healthy says why the store takes nothing just now, nil if it does.
	Healthy() error
	// Close ends it, when all calls have returned.
	Close() error
}

// Meta is what is fixed when a journal is made.
type Meta struct {
	Format     int       `json:"format"`
	Created    time.Time `json:"created"`
	Prefix     string    `json:"prefix"` // begins the names of what a shared engine holds
	Partitions int       `json:"partitions"`
	Salt       string    `json:"salt,omitempty"`  // of the encryption key, hex; empty: not encrypted
	Check      string    `json:"check,omitempty"` // tells whether a key is the right one, hex

	// Restoring is set while a backup is being restored: the journal is not whole.
	// Init with it clear ends that.
	Restoring bool `json:"restoring,omitempty"`
}

// A Record is one record of a partition.
type Record struct {
	Sequence uint64
	Tag      string // by which Tagged finds the newest; letters, digits, ".", "-" and "_"; empty: most have none
	Data     []byte

	// About is for a person who looks into the store; nobody else reads it. A store
	// may leave it out.
	About About
}

// About says what a record is, in clear. It is empty where the journal is
// encrypted.
type About struct {
	Time    time.Time
	Kind    string // "request", "response", ...; "step" where there is no message
	Message string // its ID
	From    string
	To      string
}

// A Value is one of the state.
type Value struct {
	Key      string
	Data     []byte
	Revision uint64    // grows with every change of the state
	Until    time.Time // zero: for ever
	Deleted  bool      // only from FollowState
}

// Span is what a partition holds.
type Span struct {
	First   uint64 // sequence of the oldest record; Last + 1 where there is none
	Last    uint64 // what the next record follows
	Records uint64
	Bytes   uint64 // about
}
