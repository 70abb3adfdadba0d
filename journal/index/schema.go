package index

// version is that of the schema and of what is put into it. A file of another
// version is thrown away.
const version = "5"

// A message's key n is its time in microseconds, made to grow within its
// partition, times 256 plus the partition: it follows from the log alone, so
// that a rebuild gives the same keys and cursors stay good, and it sorts by
// time.
//
// The messages of each agent are in party, those of each trace in traces, the agents
// of each conversation in members. The steps of a delivery are in its row, a line each: sequence, state,
// attempt, time and code.
//
// What is counted of a conversation is added when a batch is written; the
// triggers keep it where a message is marked or removed.
const schema = `
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE progress (partition INTEGER PRIMARY KEY, sequence INT NOT NULL, clock INT NOT NULL, print INT NOT NULL);
CREATE TABLE agents (n INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE messages (
	n INTEGER PRIMARY KEY, sequence INT NOT NULL, id BLOB NOT NULL, kind INT NOT NULL, state INT NOT NULL,
	number INT NOT NULL, sender INT NOT NULL, recipient INT NOT NULL, conversation INT, reply_to BLOB,
	skill TEXT, act TEXT, protocol TEXT, assurance INT NOT NULL, trace BLOB,
	time INT NOT NULL, size INT NOT NULL, code TEXT, error TEXT, flags INT NOT NULL, preview TEXT);
CREATE INDEX messages_id ON messages (id);
CREATE INDEX messages_conversation ON messages (conversation) WHERE conversation IS NOT NULL;
CREATE INDEX messages_failed ON messages (n) WHERE flags <> 0;
CREATE TABLE deliveries (
	message INT NOT NULL, recipient INT NOT NULL, state INT NOT NULL, open INT NOT NULL, attempts INT NOT NULL,
	postponed INT NOT NULL, opened INT NOT NULL, changed INT NOT NULL, next INT NOT NULL, code TEXT,
	error TEXT, reply BLOB, losses TEXT, steps BLOB NOT NULL,
	PRIMARY KEY (message, recipient)) WITHOUT ROWID;
CREATE INDEX deliveries_open ON deliveries (state, message) WHERE state NOT IN (3, 4);
CREATE TABLE conversations (
	n INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE, first INT, last INT, messages INT NOT NULL, open INT NOT NULL, failed INT NOT NULL);
CREATE INDEX conversations_last ON conversations (last);
CREATE TABLE members (conversation INT NOT NULL, agent INT NOT NULL, PRIMARY KEY (conversation, agent)) WITHOUT ROWID;
CREATE TABLE party (agent INT NOT NULL, message INT NOT NULL, PRIMARY KEY (agent, message)) WITHOUT ROWID;
CREATE TABLE traces (trace BLOB NOT NULL, message INT NOT NULL, PRIMARY KEY (trace, message)) WITHOUT ROWID;
CREATE TRIGGER message_marked AFTER UPDATE OF flags ON messages WHEN (old.flags <> 0) <> (new.flags <> 0) BEGIN
	UPDATE conversations SET failed = failed + (new.flags <> 0) - (old.flags <> 0) WHERE n = new.conversation;
END;
CREATE TRIGGER message_removed AFTER DELETE ON messages BEGIN
	DELETE FROM party WHERE message = old.n AND agent IN (
		SELECT old.sender UNION SELECT old.recipient UNION SELECT recipient FROM deliveries WHERE message = old.n);
	UPDATE conversations SET messages = messages - 1, failed = failed - (old.flags <> 0),
		open = open - (SELECT count(*) FROM deliveries WHERE message = old.n AND open),
		first = (SELECT min(n) FROM messages WHERE conversation = old.conversation),
		last = (SELECT max(n) FROM messages WHERE conversation = old.conversation) WHERE n = old.conversation;
	DELETE FROM deliveries WHERE message = old.n;
	DELETE FROM members WHERE conversation = old.conversation
		AND NOT EXISTS (SELECT 1 FROM messages WHERE conversation = old.conversation);
	DELETE FROM traces WHERE trace = old.trace AND message = old.n;
	DELETE FROM conversations WHERE n = old.conversation AND messages <= 0;
END;
`

// textSchema is the full text index. It holds words and where they are, not the
// texts: those are in the journal.
const textSchema = `
CREATE VIRTUAL TABLE texts USING fts5(body, content='', contentless_delete=1);
INSERT INTO texts (texts, rank) VALUES ('hashsize', 8388608);
INSERT INTO texts (texts, rank) VALUES ('automerge', 8);
INSERT INTO texts (texts, rank) VALUES ('usermerge', 16);
CREATE TRIGGER text_removed AFTER DELETE ON messages BEGIN DELETE FROM texts WHERE rowid = old.n; END;
`

// settings are those of the connection that writes.
var settings = []string{"journal_mode = WAL", "synchronous = NORMAL", "cache_size = -65536",
	"wal_autocheckpoint = 8000", "temp_store = MEMORY"}

// Flags of a message: what makes it a failure.
const (
	flagRefused     = 1 << iota // proved, and turned away
	flagFailure                 // it says itself that a request failed
	flagUndelivered             // a delivery of it was given up
)
