// Package index finds messages, conversations, traces and failures of a
// journal: by agent, time, state, trace, id and text. It is an SQLite file
// that is fed from the journal and can be made from it again at any time; it
// is never the truth. What it knows of a message is enough for lists;
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
// # When it is thrown away
//
// The file names the version of its schema and the journal it belongs to. One
// of another version or journal, one that is ahead of its journal (which was
// put back to an earlier state) and one that is damaged is removed and made
// anew.
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
