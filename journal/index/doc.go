// Package index finds messages, conversations, traces and failures of a
// journal: by agent, time, state, trace, id and text. It is two SQLite files
// that are fed from the journal and can be made from it again at any time; they
// are never the truth. What it knows of a message is enough for lists;
// the message itself is read from the journal, at the position that the index
// gives.
//
// # How it follows
//
// [Open] begins behind the last record that the file holds and returns at
// once; the index catches up in the background. It then follows the journal's
// Watch through a bounded queue. What does not fit the queue is read from the
// journal, so that no record is ever missing and the journal never waits.
// [Index.Lag] tells how many records it is behind; [Index.Wait] waits until
// what was recorded before the call can be found.
//
// # Two files
//
// The second one holds what is searched by: the messages of each agent, and the
// words. Each follows the journal by itself and knows how far it has come, so that
// they are written at the same time, and a crash may leave one behind the other: it
// is read on from where the one that is behind stands. A record counts as indexed
// when both have it; queries see both.
//
// A rebuild does not wait for the disk until it ends, and shows what it has from
// the beginning: queries meanwhile find what is indexed so far. It holds some tens
// of thousands of records in memory, and the words of a hundred thousand, however
// many there are.
//
// # When it is thrown away
//
// The files name the version of their schema and the journal they belong to. Where
// one is of another version or journal, is ahead of its journal (which was put back
// to an earlier state) or is damaged, both are removed and made anew. So they are
// where the machine stopped, rather than the process, during a rebuild.
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
