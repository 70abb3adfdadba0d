package sqlite

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"zombiezen.com/go/sqlite"

	"github.com/parley-hub/parley/journal/store"
)

// A Rescue receives what Salvage finds. An error ends the salvage.
type Rescue struct {
	Meta   func(store.Meta) error // called first; twice if the two copies in the file differ
	Value  func(bucket string, v store.Value) error
	Record func(partition int, r store.Record) error // in order, partition by partition
	Lost   func(Damage) error
}

// Salvage reads everything readable of the journal in a file, however damaged. It
// works on a copy, in a directory that it makes in temp and removes: three times
// the file's size must be free there. The file is not changed.
//
// Rows below a damaged inner page of a tree cannot be reached through their table.
// So each page of the file is presented to SQLite as a table of its own: only rows
// on damaged pages are lost. The table of partitions and the list of values tell
// which rows are missing.
func Salvage(ctx context.Context, file, temp string, to Rescue) (err error) {
	dir, err := os.MkdirTemp(temp, "salvage-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	v := &salvage{path: filepath.Join(dir, FileName), to: to}
	for _, suffix := range []string{"", "-wal"} {
		if err := copyFile(v.path+suffix, file+suffix); err != nil &&
			(suffix == "" || !errors.Is(err, fs.ErrNotExist)) {
			return err
		}
	}
	if v.found, err = openScratch(filepath.Join(dir, "found.db")); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.found.Close()) }()
	if err := cmp.Or(v.found.script(schemaFound), v.found.exec("BEGIN")); err != nil {
		return err
	}
	if err := v.survey(); err != nil {
		return err
	}
	if err := v.searchPages(ctx, filepath.Join(dir, "empty.db")); err != nil {
		return fmt.Errorf("search the pages: %w", err)
	}
	return v.report(ctx)
}

func copyFile(to, from string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// salvage is a running Salvage. It puts found rows into a second database, found,
// which sorts them.
type salvage struct {
	path    string
	to      Rescue
	found   *conn
	metas   []store.Meta
	parts   []partition
	counted bool // parts was read from the file
	listed  bool // wanted was read from the file
}

const schemaFound = `
CREATE TABLE log (partition INTEGER, sequence INTEGER, tag TEXT, data BLOB, PRIMARY KEY (partition, sequence));
CREATE TABLE state (key, data BLOB, revision INTEGER, until INTEGER, bucket, PRIMARY KEY (bucket, key));
CREATE TABLE wanted (bucket TEXT, key TEXT);`

// openScratch opens a temporary database.
func openScratch(path string, pragmas ...string) (*conn, error) {
	return openWith(path, sqlite.OpenReadWrite|sqlite.OpenCreate, append(pragmas, "synchronous = OFF")...)
}

// survey reads the partitions and the keys of values from a damaged file, and has
// SQLite copy the WAL into it, as far as possible.
func (v *salvage) survey() (saving error) {
	c, err := openScratch(v.path)
	if err != nil {
		return nil // not even its header can be read
	}
	ask := func(sql string, row func(*sqlite.Stmt)) bool {
		return c.query(sql, func(st *sqlite.Stmt) error { row(st); return nil }) == nil
	}
	v.counted = ask("SELECT first, last, missing FROM partitions ORDER BY partition", func(st *sqlite.Stmt) {
		v.parts = append(v.parts, partition{
			first: uint64(st.ColumnInt64(0)), last: uint64(st.ColumnInt64(1)), missing: uint64(st.ColumnInt64(2)),
		})
	})
	for n := range v.parts {
		ask(ofLog(n, "SELECT max(sequence) FROM log_N"), func(st *sqlite.Stmt) {
			v.parts[n].last = max(v.parts[n].last, uint64(st.ColumnInt64(0)))
		})
	}
	// An index has all keys, and is on pages of its own.
	sql := "SELECT bucket, key FROM state_log INDEXED BY state_log_key WHERE bucket IS NOT NULL AND bucket >= ''"
	v.listed = ask(sql, func(st *sqlite.Stmt) {
		saving = errors.Join(saving,
			v.found.exec("INSERT INTO wanted VALUES (?,?)", st.ColumnText(0), st.ColumnText(1)))
	})
	ask("PRAGMA wal_checkpoint(TRUNCATE)", func(*sqlite.Stmt) {}) // if it fails, rows in the WAL are not found
	_ = c.Close()                                                 // an error matters no more
	return saving
}

// searchPages presents each page of the file as a table and keeps its rows. For
// that the file gets the first page of an otherwise empty database, made at the
// path empty.
func (v *salvage) searchPages(ctx context.Context, empty string) (err error) {
	pages, err := v.replaceFirstPage(empty)
	if err != nil {
		return err
	}
	c, err := openScratch(v.path, "journal_mode = MEMORY")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	const batch = 100
	for from := int64(2); from <= pages; from += batch {
		if err := ctx.Err(); err != nil {
			return err
		}
		to := min(pages, from+batch-1)
		var b strings.Builder
		b.WriteString("PRAGMA writable_schema = ON;")
		for page := from; page <= to; page++ {
			fmt.Fprintf(&b, "INSERT INTO sqlite_schema VALUES ('table', 'p%[1]d', 'p%[1]d', %[1]d, "+
				"'CREATE TABLE p%[1]d (id INTEGER PRIMARY KEY, a, b, c, d, e, f, g, h)');", page)
		}
		b.WriteString("PRAGMA writable_schema = RESET")
		if err := cmp.Or(c.exec("BEGIN"), c.script(b.String())); err != nil {
			return err
		}
		for page := from; page <= to; page++ {
			if err := v.searchPage(c, page); err != nil {
				return err
			}
		}
		if err := c.exec("ROLLBACK"); err != nil {
			return err
		}
	}
	return nil
}

// replaceFirstPage overwrites the first page with that of an empty database, and
// returns the number of pages of the file.
func (v *salvage) replaceFirstPage(empty string) (pages int64, err error) {
	c, err := openScratch(empty, fmt.Sprintf("page_size = %d", pageSize), "user_version = 1")
	if err != nil {
		return 0, err
	}
	if err := c.Close(); err != nil {
		return 0, err
	}
	page, err := os.ReadFile(empty)
	if err != nil {
		return 0, err
	}
	clear(page[28:32]) // the number of pages; "Database File Format": 0 has SQLite take the file's size
	if err := os.Remove(v.path + "-wal"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	f, err := os.OpenFile(v.path, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	_, err = f.WriteAt(page[:pageSize], 0)
	return info.Size() / pageSize, err
}

// searchPage keeps the rows of a page, reading from both ends: between two damaged
// rows nothing can be read.
func (v *salvage) searchPage(c *conn, page int64) error {
	for _, order := range []string{"ASC", "DESC"} {
		st, _, err := c.PrepareTransient(fmt.Sprintf("SELECT id, a, b, c, d, e, h FROM p%d ORDER BY id %s", page,
			order))
		if err != nil {
			return nil // SQLite sees no table in it
		}
		var saving error
		more, err := st.Step()
		for more && err == nil && saving == nil {
			if saving = v.keepRow(st); saving == nil {
				more, err = st.Step()
			}
		}
		_ = st.Finalize() // repeats the error of Step
		if saving != nil || err == nil {
			return saving
		}
	}
	return nil
}

// keepRow keeps a row: its key and the columns that tell its table.
func (v *salvage) keepRow(st *sqlite.Stmt) error {
	const number, text, blob, null = sqlite.TypeInteger, sqlite.TypeText, sqlite.TypeBlob, sqlite.TypeNull
	is := func(col int, types ...sqlite.ColumnType) bool { return slices.Contains(types, st.ColumnType(col)) }
	ofPartition := is(1, number) && st.ColumnInt64(1) >= 0 && st.ColumnInt64(1) < maxPartitions
	switch {
	case (ofPartition && is(2, number) || is(1, text) && is(2, text)) && is(3, number) && is(5, blob):
		// The types stay: the bucket and key of replaced data are numbers.
		return v.found.exec("INSERT OR IGNORE INTO state VALUES (?,?,?,?,?)",
			anyOf(st, 2), anyOf(st, 5), anyOf(st, 3), anyOf(st, 4), anyOf(st, 1))
	case ofPartition && is(2, text, null) && is(3, number, null) && is(5, text, null) && is(6, blob, null):
		return v.found.exec("INSERT OR IGNORE INTO log VALUES (?,?,?,?)",
			anyOf(st, 1), anyOf(st, 0), anyOf(st, 2), anyOf(st, 6))
	case is(1, text) && is(2, text) && is(3, null):
		var m store.Meta
		if json.Unmarshal(bytesOf(st, 2), &m) == nil && m.Partitions > 0 && !slices.Contains(v.metas, m) {
			v.metas = append(v.metas, m)
		}
	}
	return nil
}

func anyOf(st *sqlite.Stmt, col int) any {
	switch st.ColumnType(col) {
	case sqlite.TypeInteger:
		return st.ColumnInt64(col)
	case sqlite.TypeText:
		return st.ColumnText(col)
	case sqlite.TypeBlob:
		return bytesOf(st, col)
	}
	return nil
}

// report passes on the found records and values, and names the lost ones.
func (v *salvage) report(ctx context.Context) error {
	partitions := len(v.parts)
	for _, m := range v.metas {
		if err := v.to.Meta(m); err != nil {
			return err
		}
		partitions = max(partitions, min(m.Partitions, maxPartitions))
	}
	if len(v.metas) == 0 {
		if err := v.lost(-1, 0, "what was fixed when the journal was made cannot be read"); err != nil {
			return err
		}
	}
	err := v.each(ctx, "SELECT key, data, revision, until, bucket FROM state WHERE bucket >= '' ORDER BY revision",
		func(st *sqlite.Stmt) error { return v.to.Value(st.ColumnText(4), value(st)) })
	if err != nil {
		return err
	}
	err = v.each(ctx, "SELECT bucket, key FROM wanted EXCEPT SELECT bucket, key FROM state",
		func(st *sqlite.Stmt) error {
			return v.lost(-1, 0, "the value %q of %q cannot be read", st.ColumnText(1), st.ColumnText(0))
		})
	if err == nil && !v.listed {
		err = v.lost(-1, 0, "the list of the state's values cannot be read; values that nothing else names may be lost")
	}
	if err != nil {
		return err
	}
	most, err := v.found.int("SELECT ifnull(max(partition) + 1, 0) FROM log")
	if err != nil {
		return err
	}
	for n := range max(int(most), partitions) {
		if err := v.reportPartition(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

func (v *salvage) lost(partition int, sequence uint64, format string, args ...any) error {
	return v.to.Lost(Damage{Partition: partition, Sequence: sequence, What: fmt.Sprintf(format, args...)})
}

// each queries the found rows, until row returns an error.
func (v *salvage) each(ctx context.Context, sql string, row func(*sqlite.Stmt) error, args ...any) error {
	return v.found.query(sql, func(st *sqlite.Stmt) error { return cmp.Or(row(st), ctx.Err()) }, args...)
}

func (v *salvage) reportPartition(ctx context.Context, n int) error {
	var p partition
	have := uint64(0)
	err := v.each(ctx,
		"SELECT ifnull(min(sequence), 1), ifnull(max(sequence), 0), count(*) FROM log WHERE partition = ?",
		func(st *sqlite.Stmt) error {
			p.first, p.last, have = uint64(st.ColumnInt64(0)), uint64(st.ColumnInt64(1)), uint64(st.ColumnInt64(2))
			return nil
		}, n)
	if err != nil {
		return err
	}
	// The ends of partitions are damaged as easily as a record. A found row is a
	// record: Remove erases the partition from its rows.
	const doubtful = 1 << 16
	if v.counted && n < len(v.parts) {
		known := v.parts[n]
		p.missing = known.missing
		if have == 0 || known.first < p.first && p.first-known.first < doubtful {
			p.first = known.first
		}
		if known.last > p.last && known.last-p.last < doubtful {
			p.last = known.last
		}
	} else if err := v.lost(n, 0, "where it begins and ends cannot be read"); err != nil {
		return err
	}
	next, whole := p.first, have == p.records()
	gap := func(to uint64) error {
		if !whole && next < to && to-next >= doubtful {
			err := v.lost(n, next, "it and all up to %d cannot be read, or were left out by a restore", to-1)
			next = to
			return err
		}
		for ; !whole && next < to; next++ {
			if err := v.lost(n, next, "it cannot be read"); err != nil {
				return err
			}
		}
		return nil
	}
	// A plus removes the type of a column: with it SQLite would not use its index.
	err = v.each(ctx, "SELECT sequence, tag, coalesce(log.data, state.data) FROM log "+
		"LEFT JOIN state ON bucket = +partition AND key = +sequence WHERE partition = ? ORDER BY sequence",
		func(st *sqlite.Stmt) error {
			r := store.Record{Sequence: uint64(st.ColumnInt64(0)), Tag: st.ColumnText(1), Data: bytesOf(st, 2)}
			if err := gap(r.Sequence); err != nil {
				return err
			}
			next = r.Sequence + 1
			if st.ColumnIsNull(2) {
				return v.lost(n, r.Sequence, "its content cannot be read")
			}
			return v.to.Record(n, r)
		}, n)
	if err != nil {
		return err
	}
	return gap(p.last + 1)
}
