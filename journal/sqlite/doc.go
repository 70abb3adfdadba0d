// Package sqlite keeps a journal in one SQLite file: [Open] returns a
// [store.Store]. The file is journal.db in the journal's directory. While it is
// open there are also SQLite's own journal.db-wal and journal.db-shm, and "lock",
// which keeps a second process out. The program sqlite3 can read the file, also
// while a hub runs; docs/journal.md has example queries.
//
// # Tables
//
// log_0, log_1, … hold the records of a partition each; the view log shows them
// all with their partition. meta has the journal's settings, and partitions the
// first and last sequence of each. state_log has the key-value state, which the view
// state shows, and the data from Replace for records. schema.go describes each
// column, and so does the file itself (".schema").
//
// # Durability
//
// The file is in WAL mode with synchronous=FULL: a change is synced before the call
// returns. One goroutine writes. It puts all waiting changes, of all partitions and
// the state, into one transaction with one fsync, and waits for no others. After a
// failed fsync the content of the disk is unknown: the changes get
// [store.ErrUnknown], and the store accepts no more until it is opened again. A full
// disk gives [store.ErrNoSpace]: nothing is recorded, and the store goes on when
// there is space.
//
// # Erasure
//
// Replace, Remove and Scrub return when the old content is in no file. SQLite's
// secure_delete overwrites deleted rows with zeros, and the WAL is emptied. That
// is not sufficient. When a page becomes too full or too empty, SQLite moves rows
// between pages, and copies of rows may stay in the unused part of a page (in
// SQLite 3.50 one in about a thousand rows after random changes). secure_delete
// does not find such a copy when the row is deleted later.
//
// So no row with content is ever moved between pages:
//
//   - Rows are added only at the end of a table. SQLite then begins a new page and
//     does not change the others. That is why each partition has a table.
//   - A row that changes becomes shorter. Replace and Put erase all of it except
//     its key and, for a record, its tag; then they add a row to state_log.
//   - A row is deleted in two steps. It is erased first. It is removed from the
//     table when enough rows behind it are erased, too: then SQLite moves only rows
//     without content when it joins nearly empty pages.
//
// Old values between newer ones would keep state_log from shrinking. So when the
// WAL is copied, the oldest values are added at the end again: one for two rows
// that were erased since. There are at most about three rows per value.
//
// Keys, tags and the tables' other small numbers do not count as content.
package sqlite
