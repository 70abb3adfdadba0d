package index

// version is that of the schema and of what is put into it. A file of another
// version is thrown away.
const version = "1"

const busyMillis = 10_000

// A message's key n is its time in microseconds, made to grow within its
// partition, times 256 plus the partition: it follows from the log alone, so
// that a rebuild gives the same keys and cursors stay good, and it sorts by
// time.
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
CREATE TABLE party (agent INT NOT NULL, message INT NOT NULL, PRIMARY KEY (agent, message)) WITHOUT ROWID;
CREATE TABLE deliveries (
	message INT NOT NULL, recipient INT NOT NULL, state INT NOT NULL, attempts INT NOT NULL, postponed INT NOT NULL,
	opened INT NOT NULL, changed INT NOT NULL, next INT, code TEXT, error TEXT, reply BLOB, losses TEXT,
	PRIMARY KEY (message, recipient)) WITHOUT ROWID;
CREATE INDEX deliveries_open ON deliveries (state, message) WHERE state NOT IN (3, 4);
CREATE TABLE steps (
	message INT NOT NULL, recipient INT NOT NULL, sequence INT NOT NULL, state INT NOT NULL, attempt INT NOT NULL, time INT NOT NULL, code TEXT,
	PRIMARY KEY (message, recipient, sequence)) WITHOUT ROWID;
CREATE TABLE conversations (
	n INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE, first INT NOT NULL, last INT NOT NULL,
	messages INT NOT NULL, open INT NOT NULL, failed INT NOT NULL);
CREATE INDEX conversations_last ON conversations (last);
CREATE TABLE members (agent INT NOT NULL, conversation INT NOT NULL, PRIMARY KEY (agent, conversation)) WITHOUT ROWID;
CREATE INDEX members_conversation ON members (conversation);
CREATE TABLE traces (trace BLOB NOT NULL, conversation INT NOT NULL, PRIMARY KEY (trace, conversation)) WITHOUT ROWID;
CREATE VIRTUAL TABLE texts USING fts5(body, content='', contentless_delete=1);
INSERT INTO texts (texts, rank) VALUES ('hashsize', 8388608);
INSERT INTO texts (texts, rank) VALUES ('automerge', 8);
`

// Flags of a message: what makes it a failure.
const (
	flagRefused     = 1 << iota // proved, and turned away
	flagFailure                 // it says itself that a request failed
	flagUndelivered             // a delivery of it was given up
)
