package index

// version is that of the schema and of what is put into it. A file of another
// version is thrown away.
const version = "4"

// A message's key n is its time in microseconds, made to grow within its
// partition, times 256 plus the partition: it follows from the log alone, so
// that a rebuild gives the same keys and cursors stay good, and it sorts by
// time.
//
// The messages of each agent are in party. The agents of a conversation are listed
// in it, as a JSON array of their keys, up to maxListed. The steps of a delivery are
// in its row, as packStep makes them.
const schema = `
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE progress (partition INTEGER PRIMARY KEY, sequence INT NOT NULL, clock INT NOT NULL, print INT NOT NULL);
CREATE TABLE agents (n INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
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
CREATE TABLE party (agent INT NOT NULL, message INT NOT NULL, PRIMARY KEY (agent, message)) WITHOUT ROWID;
CREATE TABLE traces (trace BLOB NOT NULL, conversation INT NOT NULL, PRIMARY KEY (trace, conversation)) WITHOUT ROWID;
`

// textSchema is the full text index. It holds words and where they are, not the
// texts: those are in the journal.
const textSchema = `
CREATE VIRTUAL TABLE texts USING fts5(body, content='', contentless_delete=1);
INSERT INTO texts (texts, rank) VALUES ('hashsize', 8388608);
INSERT INTO texts (texts, rank) VALUES ('automerge', 8);
INSERT INTO texts (texts, rank) VALUES ('usermerge', 16);
`

// settings are those of the connection that writes.
const settings = `
PRAGMA journal_mode=WAL;
PRAGMA synchronous=NORMAL;
PRAGMA cache_size=-65536;
PRAGMA wal_autocheckpoint=8000;
PRAGMA temp_store=MEMORY;
`

// Flags of a message: what makes it a failure.
const (
	flagRefused     = 1 << iota // proved, and turned away
	flagFailure                 // it says itself that a request failed
	flagUndelivered             // a delivery of it was given up
)
