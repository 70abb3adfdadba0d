package sqlite

import (
	"fmt"
	"strconv"
	"strings"
)

// Numbers in the header of the file.
const (
	applicationID = 0x50524c59 // "PRLY"
	formatVersion = 2
)

// schemaBase is made with the file; Init makes the rest.
const schemaBase = `
CREATE TABLE meta (
  id    INTEGER PRIMARY KEY,
  name  TEXT,
  value -- "journal": what was fixed when the journal was made, JSON
);
CREATE TABLE meta_copy ( -- on another page: without it an encrypted journal is lost
  id    INTEGER PRIMARY KEY,
  name  TEXT,
  value
);
CREATE TABLE partitions (
  partition INTEGER PRIMARY KEY,
  first     INTEGER, -- records before are removed
  last      INTEGER, -- what the next record follows, if log_N does not say more
  missing   INTEGER, -- sequences from first on that were left out by a restore
  bytes     INTEGER  -- about
);
CREATE TABLE state_log (
  id       INTEGER PRIMARY KEY, -- the newest is the last revision
  bucket,           -- NULL in a row that has nothing in it any more; a number: the partition of a record
  key,              -- its sequence
  revision INTEGER,
  until    INTEGER, -- Unix time in milliseconds; NULL: for ever
  data     BLOB     -- of a record: what Replace was given
);
CREATE INDEX state_log_key ON state_log (bucket, key) WHERE bucket IS NOT NULL;
CREATE INDEX state_log_until ON state_log (until) WHERE until IS NOT NULL;
CREATE VIEW state AS SELECT bucket, key, revision, until, data FROM state_log WHERE bucket >= '';
`

// schemaPartition is the part of one partition. Each has a table of its own, so
// that records are added only at the end of a tree; see "Erasure" in doc.go.
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
  data      BLOB -- NULL: it is in state_log
);
CREATE INDEX log_N_tag ON log_N (tag) WHERE tag IS NOT NULL;
INSERT INTO partitions VALUES (:N, 1, 0, 0, 0);
`), ":N", strconv.Itoa(p))
}

// schemaView shows the log of all partitions to people.
func schemaView(partitions int) string {
	var parts []string
	for p := range partitions {
		parts = append(parts, fmt.Sprintf(`SELECT partition, sequence, tag,
  strftime('%%Y-%%m-%%dT%%H:%%M:%%fZ', time / 1000.0, 'unixepoch') AS time, kind, message, sender, recipient,
  coalesce(data, (SELECT data FROM state_log WHERE bucket = %[1]d AND key = +sequence)) AS data
FROM log_%[1]d WHERE sequence >= (SELECT first FROM partitions WHERE partition = %[1]d)
`, p))
	}
	return "CREATE VIEW log AS\n" + strings.Join(parts, "UNION ALL\n")
}

// ofLog replaces log_N by the table of a partition.
func ofLog(partition int, sql string) string {
	return strings.ReplaceAll(sql, "log_N", "log_"+strconv.Itoa(partition))
}

const (
	logInsert = "INSERT INTO log_N VALUES (?,?,?,?,?,?,?,?,?)"
	logRead   = "SELECT sequence, tag, data FROM log_N WHERE sequence BETWEEN ? AND ? ORDER BY sequence LIMIT ?"
	logTagged = "SELECT sequence, tag, data FROM log_N WHERE tag = ? AND sequence >= ? ORDER BY sequence DESC LIMIT 1"
	logSizes  = "SELECT sequence, length(data) FROM log_N WHERE sequence BETWEEN ? AND ? ORDER BY sequence LIMIT ?"
	logBlank  = "UPDATE log_N SET time=NULL, kind=NULL, message=NULL, sender=NULL, recipient=NULL, data=NULL " +
		"WHERE sequence = ?"
	logErase = "UPDATE log_N SET partition=NULL, tag=NULL, time=NULL, kind=NULL, message=NULL, sender=NULL, " +
		"recipient=NULL, data=NULL WHERE sequence BETWEEN ? AND ?"

	stateAdd    = "INSERT INTO state_log VALUES (?,?,?,?,?,?)"
	stateFind   = "SELECT id, revision FROM state_log WHERE bucket = ? AND key = ?"
	stateGet    = "SELECT key, data, revision, until FROM state_log WHERE bucket = ? AND key = ?"
	stateRange  = "SELECT revision, key FROM state_log WHERE bucket = ? AND key >= ? AND key < ? AND revision > ?"
	stateOldest = "SELECT id, length(data) FROM state_log NOT INDEXED WHERE bucket IS NOT NULL ORDER BY id"
	stateMove   = "INSERT INTO state_log (bucket, key, revision, until, data) " +
		"SELECT bucket, key, revision, until, data FROM state_log NOT INDEXED " +
		"WHERE id <= ? AND bucket IS NOT NULL ORDER BY id"
	stateErase = "UPDATE state_log SET bucket=NULL, key=NULL, revision=NULL, until=NULL, data=NULL WHERE "
)
