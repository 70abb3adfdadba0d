package sqlite

import (
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

// A Rescue gets what Salvage finds. An error ends it.
type Rescue struct {
	Meta   func(store.Meta) error // first, if it can be read; there is a copy: both, where they differ
	Value  func(bucket string, v store.Value) error
	Record func(partition int, r store.Record) error // in order, partition by partition
	Lost   func(Damage) error
}

// Salvage reads everything that can be read of the journal in a file, which may
// be damaged in any way. It works on a copy, in a directory that it makes in
// temp and removes: three times the file's size must be free there. The file
// stays as it is.
//
// It first asks for ranges of rows, and where that fails for ever smaller ones.
// That cannot reach rows below a damaged inner page of a tree. So for what is
// then missing it has SQLite take each page of the file for a table of its own,
// and looks for the missing rows there. So only rows on a damaged page are lost.
func Salvage(ctx context.Context, file, temp string, to Rescue) (err error) {
	dir, err := os.MkdirTemp(temp, "salvage-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	v := &salvage{path: filepath.Join(dir, FileName), dir: dir, to: to}
	for _, suffix := range []string{"", "-wal"} {
		if err := copyFile(v.path+suffix, file+suffix); err != nil && (suffix == "" || !errors.Is(err, fs.ErrNotExist)) {
			return err
		}
	}
	if err := v.openFound(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.found.Close()) }()
	whole, err := v.survey(ctx)
	if err != nil {
		return err
	}
	if !whole {
		if err := v.searchPages(ctx); err != nil {
			return fmt.Errorf("search the pages: %w", err)
		}
	}
	return v.tell(ctx)
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

// salvage is a Salvage under way. All rows that are found go into a second
// database, found, from which they are told in order.
type salvage struct {
	dir, path string
	to        Rescue
	found     *conn
	metas     []store.Meta
	parts     []partition
	counted   bool   // parts is what the file says
	listed    bool   // wanted has all values there should be
	rows      uint64 // of the state that could not be read
}

func (v *salvage) openFound() (err error) {
	v.found, err = sqliteConn(filepath.Join(v.dir, "found.db"), sqlite.OpenReadWrite|sqlite.OpenCreate)
	if err != nil {
		return err
	}
	return v.found.script(`CREATE TABLE log (partition INTEGER, sequence INTEGER, tag TEXT, data BLOB,
  PRIMARY KEY (partition, sequence));
CREATE TABLE state (id INTEGER PRIMARY KEY, bucket TEXT, key TEXT, revision INTEGER, until INTEGER, data BLOB);
CREATE TABLE wanted (bucket TEXT, key TEXT, id INTEGER);
BEGIN`)
}

// sqliteConn opens a database of which nothing has to last.
func sqliteConn(path string, flags sqlite.OpenFlags) (*conn, error) {
	raw, err := sqlite.OpenConn(path, flags)
	if err != nil {
		return nil, err
	}
	c := &conn{raw}
	for _, p := range []string{"synchronous = OFF", "temp_store = MEMORY", "cell_size_check = OFF"} {
		if err := c.exec("PRAGMA " + p); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	return c, nil
}

// survey takes what a damaged file's tables give. Whole: that is all.
func (v *salvage) survey(ctx context.Context) (whole bool, err error) {
	c, errOpen := sqliteConn(v.path, sqlite.OpenReadWrite)
	if errOpen != nil {
		return false, nil // not even its header can be read
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	whole = true
	ask := func(sql string, row func(*sqlite.Stmt)) bool {
		err := c.query(sql, func(st *sqlite.Stmt) bool { row(st); return true })
		whole = whole && err == nil
		return err == nil
	}
	number := func(sql string) (n uint64) {
		ask(sql, func(st *sqlite.Stmt) { n = uint64(max(0, st.ColumnInt64(0))) })
		return n
	}
	var saving error
	save := func(err error) {
		if saving == nil {
			saving = err
		}
	}
	for _, table := range []string{"meta", "meta_copy"} {
		ask("SELECT value FROM "+table+" WHERE name = 'journal'", func(st *sqlite.Stmt) { v.keepMeta(bytesOf(st, 0)) })
	}
	whole = whole && len(v.metas) == 1
	v.counted = ask("SELECT first, last, missing FROM partitions ORDER BY partition", func(st *sqlite.Stmt) {
		v.parts = append(v.parts, partition{
			first: uint64(st.ColumnInt64(0)), last: uint64(st.ColumnInt64(1)), missing: uint64(st.ColumnInt64(2)),
		})
	})
	// The index tells which values there should be.
	v.listed = ask(stateListed, func(st *sqlite.Stmt) {
		save(v.found.exec("INSERT INTO wanted VALUES (?,?,?)", st.ColumnText(0), st.ColumnText(1), st.ColumnInt64(2)))
	})
	low, high := number("SELECT min(id) FROM state"), number("SELECT max(id) FROM state")
	listed, err := v.found.int("SELECT max(id) FROM wanted")
	save(err)
	save(c.resolve(ctx, stateScan, max(1, low), max(high, uint64(listed)), func(st *sqlite.Stmt) { save(v.keepValue(st)) },
		func(first, last uint64, why error) {
			if why != nil {
				whole = false
				v.rows += last - first + 1
			}
		}))
	for n := range v.parts {
		p := &v.parts[n]
		high := number(fmt.Sprintf("SELECT max(sequence) FROM log_%d", n))
		query := fmt.Sprintf("SELECT sequence, tag, data FROM log_%[1]d "+
			"WHERE sequence BETWEEN ? AND ? AND partition = %[1]d ORDER BY sequence LIMIT ?", n)
		save(c.resolve(ctx, query, 1, high, func(st *sqlite.Stmt) { save(v.keepRecord(n, st)) },
			func(_, _ uint64, why error) { whole = whole && why == nil }))
		if p.last < high {
			p.last = high
		}
		have, err := v.found.int("SELECT count(*) FROM log WHERE partition = ? AND sequence >= ?", n, p.first)
		save(err)
		whole = whole && uint64(have)+p.missing == p.last+1-p.first
	}
	return whole && v.listed, saving
}

func (v *salvage) keepMeta(text []byte) {
	var m store.Meta
	if json.Unmarshal(text, &m) == nil && m.Partitions > 0 && !slices.Contains(v.metas, m) {
		v.metas = append(v.metas, m)
	}
}

// keepValue takes a row: id, bucket, key, revision, until, data.
func (v *salvage) keepValue(st *sqlite.Stmt) error {
	if st.ColumnType(1) != sqlite.TypeText {
		return nil // one without a value
	}
	return v.found.exec("INSERT OR IGNORE INTO state VALUES (?,?,?,?,?,?)", st.ColumnInt64(0), st.ColumnText(1),
		st.ColumnText(2), st.ColumnInt64(3), integerOrNull(st, 4), bytesOf(st, 5))
}

func integerOrNull(st *sqlite.Stmt, col int) any {
	if st.ColumnIsNull(col) {
		return nil
	}
	return st.ColumnInt64(col)
}

// keepRecord takes a row: sequence, tag, data.
func (v *salvage) keepRecord(partition int, st *sqlite.Stmt) error {
	var tag, data any
	if st.ColumnType(1) == sqlite.TypeText {
		tag = st.ColumnText(1)
	}
	if !st.ColumnIsNull(2) {
		data = bytesOf(st, 2)
	}
	return v.found.exec("INSERT OR IGNORE INTO log VALUES (?,?,?,?)", partition, st.ColumnInt64(0), tag, data)
}

// searchPages takes each page of the file for a table and keeps what rows it
// has. SQLite reads the pages; the file gets another first page for it, of a
// database that has no other content.
func (v *salvage) searchPages(ctx context.Context) (err error) {
	if c, err := sqliteConn(v.path, sqlite.OpenReadWrite); err == nil {
		// What the WAL holds into the file, as far as that can be done.
		_ = errors.Join(c.exec("PRAGMA wal_checkpoint(TRUNCATE)"), c.Close()) // or it is searched without
	}
	info, err := os.Stat(v.path)
	if err != nil {
		return err
	}
	pages := info.Size() / pageSize
	vessel := filepath.Join(v.dir, "vessel.db")
	if err := v.makeVessel(vessel, pages); err != nil {
		return err
	}
	if err := copyBehind(vessel, v.path, pageSize); err != nil {
		return err
	}
	c, err := sqliteConn(vessel, sqlite.OpenReadWrite)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	if err := c.script("PRAGMA journal_mode = MEMORY"); err != nil {
		return err
	}
	const batch = 100
	for from := int64(2); from <= pages; from += batch {
		if err := ctx.Err(); err != nil {
			return err
		}
		to := min(pages, from+batch-1)
		var b strings.Builder
		b.WriteString("BEGIN; PRAGMA writable_schema = ON;")
		for page := from; page <= to; page++ {
			fmt.Fprintf(&b, "INSERT INTO sqlite_schema VALUES ('table', 'p%[1]d', 'p%[1]d', %[1]d, "+
				"'CREATE TABLE p%[1]d (id INTEGER PRIMARY KEY, a, b, c, d, e, f, g, h)');", page)
		}
		b.WriteString("PRAGMA writable_schema = RESET")
		if err := c.script(b.String()); err != nil {
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
	// A row without data that has none elsewhere may be one of another table.
	return v.found.exec("DELETE FROM log WHERE data IS NULL AND partition || '/' || sequence NOT IN "+
		"(SELECT key FROM state WHERE bucket = ?)", replaced)
}

// searchPage keeps the rows of a page, from both ends. A row of the log has its
// partition in a, its message's ID or nothing in e and its data or nothing in h;
// one of the state its bucket and key in a and b, and its data in e.
func (v *salvage) searchPage(c *conn, page int64) (err error) {
	for _, order := range []string{"ASC", "DESC"} {
		st, _, errPage := c.PrepareTransient(fmt.Sprintf("SELECT id, b, h, a, typeof(a), typeof(e), typeof(h), "+
			"id, a, b, c, d, e, g FROM p%d ORDER BY id %s", page, order))
		if errPage != nil {
			return nil // SQLite sees no table in it
		}
		for more := true; more && err == nil; {
			if more, errPage = st.Step(); errPage != nil || !more {
				break
			}
			a, e, h := st.ColumnText(4), st.ColumnText(5), st.ColumnText(6)
			switch p := st.ColumnInt64(3); {
			case a == "integer" && (e == "text" || e == "null") && (h == "blob" || h == "null") &&
				p >= 0 && p < maxPartitions:
				err = v.keepRecord(int(p), st)
			case a == "text" && e == "null" && st.ColumnIsNull(1): // of meta
				v.keepMeta(bytesOf(st, 3))
			case a == "text" && e == "blob" && h == "null" && st.ColumnIsNull(13):
				err = v.found.exec("INSERT OR IGNORE INTO state VALUES (?,?,?,?,?,?)", st.ColumnInt64(7), st.ColumnText(8),
					st.ColumnText(9), st.ColumnInt64(10), integerOrNull(st, 11), bytesOf(st, 12))
			}
		}
		_ = st.Finalize() // it repeats what Step said
		if err != nil {
			return err
		}
		if errPage == nil {
			return nil
		}
	}
	return nil
}

const stateListed = "SELECT bucket, key, id FROM state INDEXED BY state_key WHERE bucket IS NOT NULL"

const savedValue = "SELECT data FROM state WHERE bucket = ? AND key = ? ORDER BY revision"

// makeVessel makes a database of at least some pages.
func (v *salvage) makeVessel(path string, pages int64) (err error) {
	c, err := sqliteConn(path, sqlite.OpenReadWrite|sqlite.OpenCreate)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	if err := c.script(fmt.Sprintf("PRAGMA page_size = %d; PRAGMA auto_vacuum = NONE; PRAGMA journal_mode = OFF; "+
		"CREATE TABLE filler (data)", pageSize)); err != nil {
		return err
	}
	for {
		have, err := c.int("PRAGMA page_count")
		if err != nil || have >= pages {
			return err
		}
		if err := c.exec("INSERT INTO filler VALUES (zeroblob(?))", min(16<<20, (pages-have)*pageSize)); err != nil {
			return err
		}
	}
}

// copyBehind copies a file's content from an offset on to the same place.
func copyBehind(to, from string, offset int64) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if _, err := in.Seek(offset, io.SeekStart); err != nil {
		return err
	}
	if _, err := out.Seek(offset, io.SeekStart); err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return err
}

// tell gives what was found, and names what was not.
func (v *salvage) tell(ctx context.Context) error {
	lost := func(partition int, sequence uint64, format string, args ...any) error {
		return v.to.Lost(Damage{Partition: partition, Sequence: sequence, What: fmt.Sprintf(format, args...)})
	}
	partitions := len(v.parts)
	for _, m := range v.metas {
		if err := v.to.Meta(m); err != nil {
			return err
		}
		partitions = max(partitions, min(m.Partitions, maxPartitions))
	}
	if len(v.metas) == 0 {
		if err := lost(-1, 0, "what was fixed when the journal was made cannot be read"); err != nil {
			return err
		}
	}
	each := func(sql string, row func(*sqlite.Stmt) error, args ...any) error {
		var bad error
		err := v.found.query(sql, func(st *sqlite.Stmt) bool {
			if bad = row(st); bad == nil {
				bad = ctx.Err()
			}
			return bad == nil
		}, args...)
		return errors.Join(bad, err)
	}
	err := each("SELECT key, data, revision, until, bucket FROM state WHERE bucket <> ? ORDER BY revision",
		func(st *sqlite.Stmt) error { return v.to.Value(st.ColumnText(4), value(st)) }, replaced)
	if err != nil {
		return err
	}
	err = each("SELECT bucket, key FROM wanted WHERE id NOT IN (SELECT id FROM state) AND bucket <> ?",
		func(st *sqlite.Stmt) error {
			return lost(-1, 0, "the value %q of %q cannot be read", st.ColumnText(1), st.ColumnText(0))
		}, replaced)
	if err == nil && !v.listed {
		err = lost(-1, 0, "the list of the state's values cannot be read; up to %d values that nothing else names are lost",
			v.rows)
	}
	if err != nil {
		return err
	}
	most, err := v.found.int("SELECT ifnull(max(partition) + 1, 0) FROM log")
	if err != nil {
		return err
	}
	for n := range max(int(most), partitions) {
		if err := v.tellPartition(n, each, lost); err != nil {
			return err
		}
	}
	return nil
}

func (v *salvage) tellPartition(n int, each func(string, func(*sqlite.Stmt) error, ...any) error,
	lost func(int, uint64, string, ...any) error,
) error {
	low, err := v.found.int("SELECT ifnull(min(sequence), 1) FROM log WHERE partition = ?", n)
	if err != nil {
		return err
	}
	high, err := v.found.int("SELECT ifnull(max(sequence), 0) FROM log WHERE partition = ?", n)
	if err != nil {
		return err
	}
	// What begins and ends where is damaged as easily as a record. A row that is
	// there is a record: Remove leaves none that has its partition.
	const doubtful = 1 << 16
	p := partition{first: uint64(low), last: uint64(high)}
	if v.counted && n < len(v.parts) {
		known := v.parts[n]
		if p.missing = known.missing; high == 0 {
			p.first = known.first
		} else if known.first < p.first && p.first-known.first < doubtful {
			p.first = known.first
		}
		if known.last > p.last && known.last-p.last < doubtful {
			p.last = known.last
		}
	} else if err := lost(n, 0, "where it begins and ends cannot be read"); err != nil {
		return err
	}
	have, err := v.found.int("SELECT count(*) FROM log WHERE partition = ?", n)
	if err != nil {
		return err
	}
	whole := uint64(have)+p.missing == p.last+1-p.first
	next := p.first
	gap := func(to uint64) error {
		if !whole && next < to && to-next >= doubtful {
			err := lost(n, next, "it and all up to %d cannot be read, or were left out by a restore", to-1)
			next = to
			return err
		}
		for ; !whole && next < to; next++ {
			if err := lost(n, next, "it cannot be read"); err != nil {
				return err
			}
		}
		return nil
	}
	err = each("SELECT sequence, tag, data FROM log WHERE partition = ? ORDER BY sequence",
		func(st *sqlite.Stmt) error {
			r := store.Record{Sequence: uint64(st.ColumnInt64(0)), Tag: st.ColumnText(1), Data: bytesOf(st, 2)}
			if err := gap(r.Sequence); err != nil {
				return err
			}
			next = r.Sequence + 1
			if st.ColumnIsNull(2) {
				found := false
				err := each(savedValue, func(st *sqlite.Stmt) error {
					r.Data, found = bytesOf(st, 0), true
					return nil
				}, replaced, replacedKey(n, r.Sequence))
				if err != nil {
					return err
				}
				if !found {
					return lost(n, r.Sequence, "its content cannot be read")
				}
			}
			return v.to.Record(n, r)
		}, n)
	if err != nil {
		return err
	}
	return gap(p.last + 1)
}
