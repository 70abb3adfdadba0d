package index

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/parley-hub/parley/journal"
)

// file is what the two files of an index have in common. Each follows the
// journal by itself: it says how far it has come, and passes over what it has.
// So they are filled side by side, and a crash may leave one behind the other.
type file struct {
	c       *conn
	marks   []mark // by partition
	begun   bool   // a transaction is open
	hasty   bool   // see hasten
	records int    // in the transaction
	bytes   int    // that it holds in memory

	progressPut *stmt
}

// mark is how far a partition is indexed.
type mark struct {
	sequence uint64
	clock    int64           // of the last n
	print    uint64          // of the last record: a journal that was put back to an earlier state is noticed by it
	last     *journal.Record // of which print is still to be made
}

var errOther = errors.New("the index is of another version or journal")

const commonSchema = `
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE progress (partition INTEGER PRIMARY KEY, sequence INT NOT NULL, clock INT NOT NULL, print INT NOT NULL);
`

// openFile opens a file, or makes it with the tables of its schema.
func openFile(name, schema, version, identity string, partitions, cacheKB int) (*file, error) {
	c, err := openConn(name)
	if err != nil {
		return nil, err
	}
	f := &file{c: c, marks: make([]mark, partitions)}
	if err := f.open(schema, version, identity, cacheKB); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return f, nil
}

func (f *file) open(schema, version, identity string, cacheKB int) error {
	for _, p := range []string{"PRAGMA journal_mode=WAL", "PRAGMA synchronous=NORMAL", fmt.Sprintf("PRAGMA cache_size=-%d", cacheKB), "PRAGMA wal_autocheckpoint=4000", "PRAGMA temp_store=MEMORY"} {
		if err := f.c.exec(p); err != nil {
			return err
		}
	}
	count, err := f.number("SELECT count(*) FROM sqlite_schema")
	if err != nil {
		return err
	}
	if count == 0 {
		if err := f.create(schema, version, identity); err != nil {
			return err
		}
	}
	meta, err := f.c.prepare("SELECT key, value FROM meta")
	if err != nil {
		return err
	}
	found := map[string]string{}
	for {
		more, err := meta.row()
		if err != nil {
			return err
		}
		if !more {
			break
		}
		found[meta.colText(0)] = meta.colText(1)
	}
	if err := f.c.finalize(meta); err != nil {
		return err
	}
	if found["version"] != version || found["journal"] != identity {
		return errOther
	}
	if boot, hasty := found[hastyKey]; hasty {
		now, err := bootID()
		if err != nil {
			return err
		}
		if boot == "" || boot != now {
			return fmt.Errorf("%w: the machine stopped while it was being made", errOther)
		}
		f.hasty = true // only the process stopped: what it had written is there
	}
	f.progressPut, err = f.c.prepare("INSERT OR REPLACE INTO progress VALUES (?,?,?,?)")
	return err
}

func (f *file) create(schema, version, identity string) error {
	if err := f.c.exec("BEGIN IMMEDIATE;" + commonSchema + schema); err != nil {
		return err
	}
	put, err := f.c.prepare("INSERT INTO meta VALUES (?,?)")
	if err != nil {
		return err
	}
	for _, kv := range [][2]string{{"version", version}, {"journal", identity}} {
		if err := put.text(kv[0]).text(kv[1]).run(); err != nil {
			return err
		}
	}
	return errors.Join(f.c.finalize(put), f.c.exec("COMMIT"))
}

// number runs a query that gives one.
func (f *file) number(sql string) (n int64, err error) {
	q, err := f.c.prepare(sql)
	if err != nil {
		return 0, err
	}
	found, err := q.row()
	if found {
		n = q.colInt(0)
	}
	return n, errors.Join(err, f.c.finalize(q))
}

// load reads how far the partitions are indexed.
func (f *file) load() error {
	clear(f.marks)
	q, err := f.c.prepare("SELECT partition, sequence, clock, print FROM progress")
	if err != nil {
		return err
	}
	for {
		more, err := q.row()
		if err != nil {
			return err
		}
		if !more {
			return f.c.finalize(q)
		}
		if p := q.colInt(0); p >= 0 && int(p) < len(f.marks) {
			f.marks[p] = mark{sequence: uint64(q.colInt(1)), clock: q.colInt(2), print: uint64(q.colInt(3))}
		}
	}
}

// next begins with a record: it gives the key of its message, 0 where the file
// has the record.
func (f *file) next(r *journal.Record) (n int64, err error) {
	p := r.Position.Partition
	mk := &f.marks[p]
	if r.Position.Sequence <= mk.sequence {
		return 0, nil
	}
	if !f.begun {
		if err := f.c.exec("BEGIN IMMEDIATE"); err != nil {
			return 0, err
		}
		f.begun = true
	}
	mk.sequence, mk.clock, mk.last = r.Position.Sequence, max(mk.clock+1, r.Time.UnixMicro()), r
	f.records++
	return mk.clock<<8 | int64(p), nil
}

// full reports whether the transaction holds enough. A great one costs less
// for each record; a small one lets others see sooner what is new.
func (f *file) full(batch int) bool {
	most := maxBytes
	if f.hasty {
		batch, most = 4*batch, 2*maxBytes
	}
	return f.records >= batch || f.bytes >= most
}

const maxBytes = 32 << 20

// end ends the transaction.
func (f *file) end() error {
	for p := range f.marks {
		m := &f.marks[p]
		if m.last == nil {
			continue
		}
		m.print, m.last = printOf(m.last), nil
		if err := f.progressPut.int(int64(p)).int(int64(m.sequence)).int(m.clock).int(int64(m.print)).run(); err != nil {
			return err
		}
	}
	if err := f.c.exec("COMMIT"); err != nil {
		return err
	}
	f.begun, f.records, f.bytes = false, 0, 0
	return f.c.keep()
}

// undo ends the transaction without its changes, and reads the marks again.
func (f *file) undo() error {
	f.begun, f.records, f.bytes = false, 0, 0
	// There may be no transaction any more: SQLite ends it by itself at some
	// failures.
	_ = f.c.exec("ROLLBACK")
	return f.load()
}

// hastyKey of meta stands in a file as long as the disk was not waited for.
const hastyKey = "hasty"

// bootID tells one run of the machine from others; "" where nothing does.
func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return "", nil
	}
	return strings.TrimSpace(string(b)), err
}

// hasten stops waiting for the disk while much is written: an index can be
// made again. The file says so before it is true, so that one of which the
// machine may have lost something is never taken for whole.
func (f *file) hasten() error {
	if f.hasty {
		return f.c.exec(hastyMode)
	}
	boot, err := bootID()
	if err != nil {
		return err
	}
	q, err := f.c.prepare("INSERT OR REPLACE INTO meta VALUES ('" + hastyKey + "',?)")
	if err != nil {
		return err
	}
	if err := errors.Join(q.text(cmp.Or(boot, "unknown")).run(), f.c.finalize(q)); err != nil {
		return err
	}
	f.hasty = true
	if ok, err := f.checkpoint(); err != nil || !ok {
		return err // a reader keeps the mark from the disk: no haste this time
	}
	return f.c.exec(hastyMode)
}

const (
	hastyMode  = "PRAGMA synchronous=OFF; PRAGMA wal_autocheckpoint=16000"
	steadyMode = "PRAGMA synchronous=NORMAL; PRAGMA wal_autocheckpoint=4000"
)

// settle ends the haste once all that was written is on the disk. Where a
// reader keeps it from getting there, the mark stays until the next time.
func (f *file) settle() error {
	if !f.hasty {
		return nil
	}
	if err := f.c.exec(steadyMode); err != nil {
		return err
	}
	// The write is there for the checkpoint: with nothing to bring home it
	// would sync nothing.
	if err := f.c.exec("UPDATE meta SET value=value WHERE key='" + hastyKey + "'"); err != nil {
		return err
	}
	if ok, err := f.checkpoint(); err != nil || !ok {
		return err
	}
	f.hasty = false
	return f.c.exec("DELETE FROM meta WHERE key='" + hastyKey + "'")
}

// close ends the haste, if all was written, and lets go of the file.
func (f *file) close() error {
	if f.begun {
		_ = f.c.exec("ROLLBACK") // it was interrupted
	}
	return errors.Join(f.settle(), f.c.close())
}

// checkpoint brings what was committed home into the file, and reports whether
// all of it got there and was synced.
func (f *file) checkpoint() (bool, error) {
	q, err := f.c.prepare("PRAGMA wal_checkpoint(TRUNCATE)")
	if err != nil {
		return false, err
	}
	found, err := q.row()
	ok := err == nil && found && q.colInt(0) == 0
	return ok, errors.Join(err, f.c.finalize(q))
}
