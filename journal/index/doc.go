// Package index finds messages, conversations, traces and failures of a journal: by
// agent, time, state, trace, id and text. It is one SQLite file that is fed from the
// journal and can be rebuilt from it at any time. It has the fields of a message that
// lists show; the message itself is read from the journal, at the position in the
// index.
//
// # How it follows
//
// [Open] returns at once. The index catches up in the background, from the last
// record in the file, and then follows the journal's Watch through a bounded queue.
// Records that do not fit into the queue are read from the journal later: none is
// ever missing, and the journal never waits. [Index.Stats] says how far the index is
// behind; [Index.Wait] waits until every message recorded before the call can be
// found.
//
// # One file, one writer
//
// One goroutine gathers records and writes them in transactions; a query sees a
// transaction whole or not at all. During a rebuild, records can be found from the
// beginning. Memory holds some tens of thousands of records, however long the
// journal is.
//
// The words are in a table of FTS5, SQLite's full-text index. It has words and their
// positions; the texts are in the journal.
//
// # When it is thrown away
//
// The file names the version of its schema and its journal. It is removed and
// rebuilt if it has another version, belongs to another journal, is ahead of the
// journal (which was restored from a backup) or is damaged. A power cut costs only
// the last transactions, which are repeated.
//
// # What it contains
//
// Senders, recipients, times, states, and the first characters and the words of the
// content, not encrypted. With [Config.NoText] it has no content, and there is no
// search by text: use that if the journal is encrypted.
//
// # Order
//
// Messages are ordered by the time at which they were recorded; within a partition
// by their sequence, even if a clock went back. Cursors stay valid over rebuilds.
package index
