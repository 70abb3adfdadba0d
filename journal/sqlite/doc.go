// Package sqlite keeps a journal in one SQLite file: [Open] gives a
// [store.Store]. The file is journal.db in the journal's directory; while it is
// open there are SQLite's own journal.db-wal and journal.db-shm beside it, and
// "lock", which keeps a second process out. The program sqlite3 opens it, also
// while a hub runs; docs/journal.md shows what may be asked.
//
// # Tables
//
// log_0, log_1, … hold the records of a partition, the view log all of them with
// their partition; meta what is fixed; partitions where each begins and ends;
// state_log the key-value state and what Replace was given for records, the view
// state the former. What each column means is in schema.go, which is also in the
// file itself (".schema").
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
// So no row that has content is ever moved between pages:
//
//   - A row is added at the end of its table only. SQLite then begins a new page
//     and leaves the others alone. That is why each partition has a table.
//   - A row that changes gets shorter where it is. Replace and Put erase it, all but
//     its key and, of a record, its tag, and add a row to state_log.
//   - A row is deleted in two steps: it is erased; and it leaves the table when it
//     and so many rows behind it are erased that SQLite, which joins pages that are
//     nearly empty with their neighbours, moves nothing but rows without content.
//
// Old values between newer ones would keep state_log from ever getting smaller. So
// when the WAL is copied, the oldest values are added at the end once more, one for
// two rows that were erased since: there are about three rows for a value at most.
//
// Keys, tags and the tables' other small numbers are not content in this sense.
package sqlite
