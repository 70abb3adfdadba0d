package sqlite

import (
	"fmt"
	"strings"
)

// What a file of this package says in its header.
const (
	applicationID = 0x50524c59 // "PRLY"
	formatVersion = 1
)

// replaced is the bucket of the state for what Replace was given and did not
// fit where the record is; its keys are partition/sequence.
const replaced = "store/replaced"

// schemaBase is made with the file, the rest by Init.
const schemaBase = `
CREATE TABLE meta (
  name  TEXT PRIMARY KEY,
  value -- "journal": what was fixed when the journal was made, JSON
);
CREATE TABLE meta_copy ( -- of "journal", on another page: without it an encrypted journal is lost
  name  TEXT,
  value
);
CREATE TABLE partitions (
  partition INTEGER PRIMARY KEY,
  first     INTEGER, -- records before are removed
  last      INTEGER, -- what the next record follows, if log_N does not say more
  missing   INTEGER, -- sequences from first on that were left out by a restore
  erased    INTEGER, -- rows of log_N before have nothing in them any more
  bytes     INTEGER, -- of the records up to counted
  counted   INTEGER
);
CREATE TABLE state (
  id       INTEGER PRIMARY KEY,
  bucket   TEXT, -- NULL in a row whose value was removed or is in a later row
  key      TEXT,
  revision INTEGER,
  until    INTEGER, -- Unix time in milliseconds; NULL: for ever
  data     BLOB
);
CREATE UNIQUE INDEX state_key ON state (bucket, key) WHERE bucket IS NOT NULL;
CREATE INDEX state_until ON state (until) WHERE until IS NOT NULL;
INSERT INTO meta VALUES ('revision', 0), ('values', 0);
`

// schemaPartition is a partition's own part. A table for each, because records
// are then added at the end of a tree only; see "Erasure" in doc.go.
func schemaPartition(p int) string {
	return strings.NewReplacer("log_N", fmt.Sprintf("log_%d", p), ":N", fmt.Sprint(p)).Replace(`
CREATE TABLE log_N (
  sequence  INTEGER PRIMARY KEY,
  partition INTEGER, -- N, so that a page of the table can be recognised; see Salvage
  tag       TEXT,
  time      INTEGER, -- Unix time in milliseconds
  kind      TEXT,
  message   TEXT,
  sender    TEXT,
  recipient TEXT,
  data      BLOB -- NULL: it is in the state, bucket "store/replaced"
);
CREATE INDEX log_N_tag ON log_N (tag) WHERE tag IS NOT NULL;
INSERT INTO partitions VALUES (:N, 1, 0, 0, 1, 0, 0);
`)
}

// schemaView is the log of all partitions, for people.
func schemaView(partitions int) string {
	var b strings.Builder
	for p := range partitions {
		if p > 0 {
			b.WriteString("UNION ALL\n")
		}
		fmt.Fprintf(&b, `SELECT partition, sequence, tag,
  strftime('%%Y-%%m-%%dT%%H:%%M:%%fZ', time / 1000.0, 'unixepoch') AS time, kind, message, sender, recipient,
  coalesce(data, (SELECT data FROM state WHERE bucket = '%[2]s' AND key = '%[1]d/' || sequence)) AS data
FROM log_%[1]d WHERE sequence >= (SELECT first FROM partitions WHERE partition = %[1]d)
`, p, replaced)
	}
	return "CREATE VIEW log AS\n" + b.String()
}

// SQLite keeps a row up to 4061 bytes on a page of 4096. Of a longer one it
// keeps some part there, 489 bytes or more. So a row of at most unsplit bytes
// needs no more of its page when it gets shorter, and one of at most smallest
// bytes never more than a long one did.
const (
	unsplit  = 4000
	smallest = 480
	overhead = 60 // of a row, at most
)

// fits reports whether a row of a size, instead of one of another, needs no
// more of its page, given that no column is longer.
func fits(size, was int64) bool {
	return size <= was && (was+overhead <= unsplit || size+overhead <= smallest)
}

// queries of one partition.
type queries struct{ insert, read, tagged, row, replace, wipe, delete, cushion, sizes string }

func makeQueries(p int) queries {
	q := func(s string) string { return strings.ReplaceAll(s, "log_N", fmt.Sprintf("log_%d", p)) }
	return queries{
		insert: q(fmt.Sprintf("INSERT INTO log_N VALUES (?,%d,?,?,?,?,?,?,?)", p)),
		read:   q("SELECT sequence, tag, data FROM log_N WHERE sequence BETWEEN ? AND ? ORDER BY sequence LIMIT ?"),
		tagged: q("SELECT sequence, tag, data FROM log_N " +
			"WHERE tag = ? AND sequence >= ? ORDER BY sequence DESC LIMIT 1"),
		row:     q("SELECT length(data), time, kind, message, sender, recipient FROM log_N WHERE sequence = ?"),
		replace: q("UPDATE log_N SET time=?, kind=?, message=?, sender=?, recipient=?, data=? WHERE sequence = ?"),
		wipe: q("UPDATE log_N SET partition=NULL, tag=NULL, time=NULL, kind=NULL, message=NULL, sender=NULL, " +
			"recipient=NULL, data=zeroblob(min(length(data), 400)) WHERE sequence BETWEEN ? AND ?"),
		delete: q("DELETE FROM log_N WHERE sequence <= ?"),
		cushion: q("SELECT sequence, min(ifnull(length(data), 0), 400) + 14 FROM log_N " +
			"WHERE sequence < ? ORDER BY sequence DESC"),
		sizes: q("SELECT sequence, length(data) FROM log_N WHERE sequence BETWEEN ? AND ? ORDER BY sequence LIMIT ?"),
	}
}

const (
	stateFind   = "SELECT id, revision, until, length(data) FROM state WHERE bucket = ? AND key = ?"
	stateGet    = "SELECT key, data, revision, until FROM state WHERE bucket = ? AND key = ?"
	stateInsert = "INSERT INTO state VALUES (?,?,?,?,?,?)"
	stateUpdate = "UPDATE state SET revision=?, until=?, data=? WHERE id = ?"
	stateWipe   = "UPDATE state SET bucket=NULL, key=NULL, revision=NULL, until=NULL, " +
		"data=zeroblob(min(length(data), 400)) WHERE id = ?"
	stateExpired = "SELECT id FROM state WHERE until < ? LIMIT ?"
	stateOldest  = "SELECT id, bucket, key, revision, until, data FROM state WHERE id >= ? ORDER BY id LIMIT ?"
	stateScan    = "SELECT id, bucket, key, revision, until, data FROM state " +
		"WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?"
	stateDelete  = "DELETE FROM state WHERE id < ?"
	stateCushion = "SELECT id, min(length(data), 400) + 12 FROM state WHERE id < ? ORDER BY id DESC"
	stateRange   = "SELECT revision, id FROM state WHERE bucket = ? AND key >= ? AND key < ?"
	stateRow     = "SELECT key, data, revision, until FROM state WHERE id = ? AND revision = ?"
	stateChanged = "SELECT key, data, revision, until FROM state " +
		"WHERE bucket = ? AND key >= ? AND key < ? AND revision > ?"
	metaSet = "UPDATE meta SET value = ? WHERE name = ?"
)
