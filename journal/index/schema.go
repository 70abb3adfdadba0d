package index

import "github.com/parley-hub/parley"

// version is the version of the schema and of the data in it. A file of another
// version is thrown away.
const version = "12"

// The key n of a message is its time in microseconds, made to grow within its
// partition, times 256, plus the partition. It follows from the log alone, so that
// a rebuild makes the same keys and cursors stay valid, and it sorts by time.
//
// The deliveries and the error of a message are JSON in its row. The agents of a conversation are
// a JSON list of numbers in its row.
//
// The column last of a request is the key of the last record that changed its state, at first its
// own; other messages have none.
//
// The messages of an agent and of a trace are in lists. A row has the messages that
// one batch adds within a partition and a span of time, as a JSON list of their
// distances from the last. One row with many keys costs little more than a row with
// one key.
//
// So that a page of the few messages with some value is quick, such values have lists too: the kind,
// the proof and the protocol of a message, the protocols by which it went out, and the steps of
// slowness that its answer reached. Their owners are in agents, by names that no agent has. A filter
// of several values reads what their lists have in common.
//
// The counters of a conversation are written with each batch; the trigger updates
// them if a message is removed. See [flagFailed] for 993; kind 1 is a request.
const schema = `
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE progress (partition INTEGER PRIMARY KEY, sequence INT NOT NULL, clock INT NOT NULL, print INT NOT NULL);
CREATE TABLE agents (n INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE messages (
	n INTEGER PRIMARY KEY, sequence INT NOT NULL, id BLOB NOT NULL, kind INT NOT NULL, state INT NOT NULL,
	number INT NOT NULL, sender INT NOT NULL, recipient INT NOT NULL, conversation INT, reply_to BLOB,
	skill TEXT, act TEXT, protocol TEXT, assurance INT NOT NULL, trace BLOB, trace_owner INT,
	time INT NOT NULL, size INT NOT NULL, error TEXT, preview TEXT,
	flags INT NOT NULL, open INT NOT NULL, deliveries TEXT, last INT, answer INT);
CREATE INDEX messages_id ON messages (id);
CREATE INDEX messages_conversation ON messages (conversation) WHERE conversation IS NOT NULL;
CREATE INDEX messages_reply ON messages (reply_to) WHERE reply_to IS NOT NULL;
CREATE INDEX messages_requests ON messages (sender, recipient, last) WHERE last IS NOT NULL;
CREATE INDEX messages_failed ON messages (n, flags) WHERE flags & 993 <> 0;
CREATE INDEX messages_refused ON messages (n, flags) WHERE flags & 1 <> 0;
CREATE INDEX messages_open ON messages (n, flags) WHERE open > 0;
CREATE INDEX messages_asked ON messages (n, time) WHERE open > 0 AND kind = 1 AND answer IS NULL;
CREATE TABLE lists (owner INT NOT NULL, last INT NOT NULL, list TEXT NOT NULL, PRIMARY KEY (owner, last)) WITHOUT ROWID;
CREATE TABLE conversations (
	n INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE, first INT, last INT,
	messages INT NOT NULL, open INT NOT NULL, failed INT NOT NULL, agents TEXT NOT NULL);
CREATE INDEX conversations_last ON conversations (last);
CREATE INDEX conversations_failed ON conversations (last) WHERE failed > 0;
CREATE INDEX conversations_open ON conversations (last) WHERE open > 0;
` + mendedSchema + `CREATE TRIGGER message_removed AFTER DELETE ON messages BEGIN
	DELETE FROM lists WHERE last = old.n AND owner IN (
		SELECT old.sender UNION SELECT old.recipient UNION SELECT old.trace_owner
		UNION SELECT n FROM agents WHERE name > char(1) || 'slow ' AND name < char(1) || 'slow!'
		UNION SELECT n FROM agents WHERE name IN (
			VALUES (char(1) || 'kind ' || old.kind), (char(1) || 'proof ' || old.assurance),
				(char(1) || 'protocol ' || old.protocol)
			UNION ALL SELECT value ->> 'to' FROM json_each(old.deliveries)
			UNION ALL SELECT char(1) || 'via ' || (value ->> 'o') FROM json_each(old.deliveries)
			UNION ALL SELECT char(1) || 'via ' || w.value FROM json_each(old.deliveries) d, json_each(d.value, '$.w') w));
	UPDATE conversations SET messages = messages - 1, failed = failed - (old.flags & 993 <> 0), open = open - old.open,
		first = (SELECT min(n) FROM messages WHERE conversation = old.conversation),
		last = (SELECT max(n) FROM messages WHERE conversation = old.conversation) WHERE n = old.conversation;
	DELETE FROM conversations WHERE n = old.conversation AND messages <= 0;
END;
`

// textSchema is the full-text index. It has words and their positions; the texts are
// in the journal.
const textSchema = `
CREATE VIRTUAL TABLE texts USING fts5(body, content='', contentless_delete=1);
INSERT INTO texts (texts, rank) VALUES ('hashsize', 8388608);
INSERT INTO texts (texts, rank) VALUES ('automerge', 8);
INSERT INTO texts (texts, rank) VALUES ('usermerge', 16);
CREATE TRIGGER text_removed AFTER DELETE ON messages BEGIN DELETE FROM texts WHERE rowid = old.n; END;
`

// settings of the writer's connection.
var settings = []string{"journal_mode = WAL", "synchronous = NORMAL", "cache_size = -65536",
	"wal_autocheckpoint = 8000", "temp_store = MEMORY"}

// Flags of a message: a bit for each state of its deliveries, and two of its own.
const (
	flagRefused = 1      // verified, but not admitted
	flagFailure = 1 << 9 // its kind is Failure

	flagFailed = flagRefused | flagFailure | // or a delivery was given up
		1<<parley.Dead | 1<<parley.Dropped | 1<<parley.Expired | 1<<parley.Abandoned
)
