package index

import "fmt"

// version is that of the schema and of what is put into it. A file of another
// version is thrown away.
const version = "3"

const busyMillis = 10_000

// partitionBits are those of a message's key that are its partition.
const partitionBits = 8

// A message's key n is its time in microseconds, made to grow within its
// partition, times 256 plus the partition: it follows from the log alone, so
// that a rebuild gives the same keys and cursors stay good, and it sorts by
// time.
//
// The agents of a conversation are listed in it, as a JSON array of their keys,
// up to maxListed; joined and members are for finding the conversations of an
// agent: joined has those that it was in when they were first written, if it is
// listed, members the others. The steps of a delivery are in its row, as packSteps
// makes them.
var schema = agentsSchema + fmt.Sprintf(listSchema, "joined") + `
CREATE TABLE messages (
	n INTEGER PRIMARY KEY, sequence INT NOT NULL, id BLOB NOT NULL, kind INT NOT NULL, state INT, number INT,
	sender INT NOT NULL, recipient INT, conversation INT, reply_to BLOB, skill TEXT, act TEXT,
	protocol TEXT, assurance INT, trace BLOB, time INT NOT NULL, size INT NOT NULL,
	code TEXT, error TEXT, flags INT NOT NULL, preview TEXT);
CREATE INDEX messages_id ON messages (id);
CREATE INDEX messages_conversation ON messages (conversation);
CREATE INDEX messages_failed ON messages (n) WHERE flags <> 0;
CREATE TABLE deliveries (
	message INT NOT NULL, recipient INT NOT NULL, state INT NOT NULL, attempts INT NOT NULL, postponed INT NOT NULL,
	opened INT NOT NULL, changed INT NOT NULL, next INT, code TEXT, error TEXT, reply BLOB, losses TEXT, steps BLOB NOT NULL,
	PRIMARY KEY (message, recipient)) WITHOUT ROWID;
CREATE INDEX deliveries_open ON deliveries (state, message) WHERE state NOT IN (3, 4);
CREATE TABLE conversations (
	n INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE, first INT NOT NULL, last INT NOT NULL,
	messages INT NOT NULL, open INT NOT NULL, failed INT NOT NULL, agents TEXT NOT NULL);
CREATE INDEX conversations_last ON conversations (last);
CREATE TABLE members (agent INT NOT NULL, conversation INT NOT NULL, PRIMARY KEY (agent, conversation)) WITHOUT ROWID;
CREATE TABLE traces (trace BLOB NOT NULL, conversation INT NOT NULL, PRIMARY KEY (trace, conversation)) WITHOUT ROWID;
`

// Flags of a message: what makes it a failure.
const (
	flagRefused     = 1 << iota // proved, and turned away
	flagFailure                 // it says itself that a request failed
	flagUndelivered             // a delivery of it was given up
)
