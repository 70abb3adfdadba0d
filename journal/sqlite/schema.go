package sqlite

import (
	"fmt"
	"strconv"
	"strings"
)

// What a file of this package says in its header.
const (
	applicationID = 0x50524c59 // "PRLY"
	formatVersion = 1
)

// schemaBase is made with the file, the rest by Init.
const schemaBase = `
CREATE TABLE meta (
  id    INTEGER PRIMARY KEY,
  name  TEXT,
  value -- "journal": what was fixed when the journal was made, JSON; "state": the table that values are put into
);
CREATE TABLE meta_copy ( -- of "journal", on another page: without it an encrypted journal is lost
  id    INTEGER PRIMARY KEY,
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
CREATE TABLE replaced (
  id        INTEGER PRIMARY KEY,
  partition INTEGER, -- NULL in a row that has nothing in it any more
  sequence  INTEGER,
  data      BLOB -- what Replace was given for the record
);
CREATE UNIQUE INDEX replaced_record ON replaced (partition, sequence) WHERE partition IS NOT NULL;
CREATE VIEW state AS SELECT * FROM state_0 UNION ALL SELECT * FROM state_1;
INSERT INTO meta VALUES (2, 'revision', 0), (3, 'state', 0);
`

// schemaState is one of the two tables of the state; see "Erasure" in doc.go.
func schemaState(table int) string {
	return strings.ReplaceAll(`
CREATE TABLE state_N (
  id       INTEGER PRIMARY KEY,
  bucket   TEXT,
  key      TEXT,
  revision INTEGER,
  until    INTEGER, -- Unix time in milliseconds; NULL: for ever
  data     BLOB
);
CREATE UNIQUE INDEX state_N_key ON state_N (bucket, key);
CREATE INDEX state_N_until ON state_N (until) WHERE until IS NOT NULL;
`, "state_N", stateTable(table))
}

func stateTable(n int) string { return "state_" + strconv.Itoa(n) }

// schemaPartition is a partition's own part. A table for each, because records
// are then added at the end of a tree only; see "Erasure" in doc.go.
func schemaPartition(p int) string {
	return strings.ReplaceAll(ofLog(p, `
CREATE TABLE log_N (
  sequence  INTEGER PRIMARY KEY,
  partition INTEGER, -- N, so that a page of the table can be recognised; see Salvage
  tag       TEXT,
  time      INTEGER, -- Unix time in milliseconds
  kind      TEXT,
  message   TEXT,
  sender    TEXT,
  recipient TEXT,
  data      BLOB -- NULL: it is in replaced
);
CREATE INDEX log_N_tag ON log_N (tag) WHERE tag IS NOT NULL;
INSERT INTO partitions VALUES (:N, 1, 0, 0, 1, 0, 0);
`), ":N", strconv.Itoa(p))
}

// schemaView is the log of all partitions, for people.
func schemaView(partitions int) string {
	var parts []string
	for p := range partitions {
		parts = append(parts, fmt.Sprintf(`SELECT partition, sequence, tag,
  strftime('%%Y-%%m-%%dT%%H:%%M:%%fZ', time / 1000.0, 'unixepoch') AS time, kind, message, sender, recipient,
  coalesce(data, (SELECT data FROM replaced WHERE partition = %[1]d AND sequence = log_%[1]d.sequence)) AS data
FROM log_%[1]d WHERE sequence >= (SELECT first FROM partitions WHERE partition = %[1]d)
`, p))
	}
	return "CREATE VIEW log AS\n" + strings.Join(parts, "UNION ALL\n")
}

// ofLog is a statement about log_N for a partition.
func ofLog(partition int, sql string) string {
	return strings.ReplaceAll(sql, "log_N", "log_"+strconv.Itoa(partition))
}

// What is left of an erased row is at most eraseTo bytes of zeros. A row that
// was so long that SQLite had split it had more of the page to itself.
const eraseTo = 400

const (
	logInsert = "INSERT INTO log_N VALUES (?,?,?,?,?,?,?,?,?)"
	logRead   = "SELECT sequence, tag, data FROM log_N WHERE sequence BETWEEN ? AND ? ORDER BY sequence LIMIT ?"
	logTagged = "SELECT sequence, tag, data FROM log_N WHERE tag = ? AND sequence >= ? ORDER BY sequence DESC LIMIT 1"
	logSizes  = "SELECT sequence, length(data) FROM log_N WHERE sequence BETWEEN ? AND ? ORDER BY sequence LIMIT ?"
	logBlank  = "UPDATE log_N SET time=NULL, kind=NULL, message=NULL, sender=NULL, recipient=NULL, data=NULL " +
		"WHERE sequence = ?"
	logErase = "UPDATE log_N SET partition=NULL, tag=NULL, time=NULL, kind=NULL, message=NULL, sender=NULL, " +
		"recipient=NULL, data=zeroblob(min(ifnull(length(data), 0), ?)) WHERE sequence BETWEEN ? AND ?"

	replacedGet    = "SELECT data FROM replaced WHERE partition = ? AND sequence = ?"
	replacedInsert = "INSERT INTO replaced VALUES (NULL,?,?,?)"
	replacedErase  = "UPDATE replaced SET partition=NULL, sequence=NULL, data=zeroblob(min(length(data), ?)) " +
		"WHERE partition = ? AND sequence BETWEEN ? AND ?"

	stateGet     = "SELECT key, data, revision, until FROM state WHERE bucket = ? AND key = ?"
	stateRange   = "SELECT revision, key FROM state WHERE bucket = ? AND key >= ? AND key < ?"
	stateChanged = "SELECT key, data, revision, until FROM state " +
		"WHERE bucket = ? AND key >= ? AND key < ? AND revision > ?"
	metaSet = "UPDATE meta SET value = ? WHERE name = ?"
)

// Statements about the state, with the table that values are put into and the
// one before.
var (
	statePut = ofState("INSERT INTO state_now (bucket, key, revision, until, data) VALUES (?,?,?,?,?) " +
		"ON CONFLICT (bucket, key) DO UPDATE SET revision=excluded.revision, until=excluded.until, data=excluded.data")
	stateDelete       = ofState("DELETE FROM state_now WHERE bucket = ? AND key = ?")
	stateDeleteBefore = ofState("DELETE FROM state_before WHERE bucket = ? AND key = ?")
	stateExpire       = ofState("DELETE FROM state_now WHERE id IN (SELECT id FROM state_now WHERE until < ? LIMIT ?)")
	stateOldest       = ofState("SELECT id, length(data) FROM state_before ORDER BY id LIMIT ?")
	stateMove         = ofState("INSERT INTO state_now (bucket, key, revision, until, data) " +
		"SELECT bucket, key, revision, until, data FROM state_before " +
		"WHERE id <= ? AND (until IS NULL OR until >= ?) ORDER BY id")
	stateMoved = ofState("DELETE FROM state_before WHERE id <= ?")
	stateClear = ofState("DELETE FROM state_before")
)

// ofState gives a statement for each table that may be the one to put values in.
func ofState(sql string) (out [2]string) {
	for n := range out {
		out[n] = strings.NewReplacer("state_now", stateTable(n), "state_before", stateTable(1-n)).Replace(sql)
	}
	return out
}
