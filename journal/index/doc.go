// Package index finds messages, conversations, traces and failures of a
// journal: by agent, time, state, trace, id and text. It is one SQLite file that is
// fed from the journal and can be made from it again at any time; it is never the
// truth. What it knows of a message is enough for lists;
// the message itself is read from the journal, at the position that the index
// gives.
//
// # How it follows
//
// [Open] begins behind the last record that the file holds and returns at
// once; the index catches up in the background. It then follows the journal's
// Watch through a bounded queue. What does not fit the queue is read from the
// journal, so that no record is ever missing and the journal never waits.
// [Index.Stats] tells how many records it is behind; [Index.Wait] waits until
// what was recorded before the call can be found.
//
// # One file, one writer
//
// One goroutine gathers records and writes them in transactions, which queries see
// as a whole. A rebuild reads and decodes the next records meanwhile, and shows what
// it has from the beginning. It holds some tens of thousands of records in memory,
// however many there are.
//
// The words are in a table of FTS5, SQLite's full text index, which keeps them and
// their positions but not the texts: those are in the journal.
//
// # When it is thrown away
//
// The file names the version of its schema and the journal it belongs to. Where it
// is of another version or journal, is ahead of its journal (which was put back to
// an earlier state) or is damaged, it is removed and made anew. A machine that stops
// costs only the last transactions, which are made again.
//
// # What lies in it
//
// Who, when, what became of it, the first characters of the content and the
// words of it, in clear. With [Config.NoText] nothing of the content is kept,
// and there is no search by text: so it should be where the journal is
// encrypted.
//
// # Order
//
// Messages are ordered by the time at which they were recorded, within a
// partition by their sequence, also where a clock went back. Cursors stay
// valid over rebuilds.
package index
