// Package sqlite keeps a journal in one SQLite file: [Open] gives a
// [store.Store]. The file is journal.db in the journal's directory; while it is
// open there are SQLite's own journal.db-wal and journal.db-shm beside it, and
// "lock", which keeps a second process out. The program sqlite3 opens it, also
// while a hub runs; docs/journal.md shows what may be asked.
//
// # Tables
//
// log_0, log_1, … hold the records of a partition, replaced what Replace was
// given for some of them, the view log all of them with their partition; meta
// what is fixed; partitions where each begins and ends; the view state the
// key-value state, which is in state_0 and state_1. What each column means is in
// schema.go, which is also in the file itself (".schema").
//
// # Durability
//
// The file is in WAL mode with synchronous=FULL: a change is synced before its
// caller is told. One goroutine writes. It takes all changes that wait, of all
// partitions and the state, into one transaction with one fsync; it waits for
// none. After an fsync that failed nobody can tell what the disk holds: those
// changes get [store.ErrUnknown], and the store takes nothing more until it is
// opened again. A full disk gives [store.ErrNoSpace]; nothing is recorded then,
// and the store goes on when there is space.
//
// # Erasure
//
// Replace, Remove and Scrub return when the old content is in no file. SQLite's
// secure_delete overwrites what is deleted with zeros, and the WAL is emptied.
// That does not suffice alone: when SQLite moves rows between pages, because one
// has become too full or too empty, copies of rows that are still valid may stay
// in the unused part of a page (in SQLite 3.50 about one in a thousand rows after
// random changes), and secure_delete does not find them when such a row is
// deleted later.
//
// So no row of the log is ever moved between pages:
//
//   - A row is added at the end of its table only. SQLite then begins a new page
//     and leaves the others alone. That is why each partition has a table.
//   - A row that changes gets shorter: Replace empties the record's row and adds a
//     row to the table replaced, which is kept in the same way.
//   - A row is deleted in two steps: it is overwritten; and it leaves the table
//     when it and some pages of rows behind it are overwritten, so that SQLite,
//     which joins pages that are nearly empty with their neighbours, moves
//     nothing but rows without content.
//
// The state changes too often for that. Its values are in a plain table, and a
// Scrub moves all of them into a second, empty one, then clears the first, whose
// pages SQLite zeroes. It moves at most 1,024 values and about 4 MB at a time, and
// appends go on between. So a Scrub writes the whole state once, which costs two
// seconds of processor time for 100 MB in 100,000 values. The next Scrub finishes
// one that was interrupted, and then moves everything once more.
//
// Keys, tags and the tables' other small numbers are not content in this sense.
package sqlite
