package sqlite

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/bits"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"zombiezen.com/go/sqlite"

	"github.com/parley-hub/parley/internal/disk"
	"github.com/parley-hub/parley/journal/store"
)

// FileName is the journal's file in its directory.
const FileName = "journal.db"

const (
	pageSize = 4096
	readers  = 4

	maxPartitions = 256
)

// Config describes a store.
type Config struct {
	Dir    string // made if missing
	Memory bool   // no files: everything is lost when the store is closed

	Now func() time.Time // for values that expire; default time.Now
	Log *slog.Logger     // default discards
}

// A Store is a [store.Store] in a file.
type Store struct {
	cfg    Config
	path   string
	lock   io.Closer
	writer *writer
	idle   chan *conn // readers
	opened []*conn
	wal    *os.File // to sync it

	contentMu sync.RWMutex
	content   state // as committed
	failed    atomic.Pointer[error]

	followers followers
	recent    recent

	mu     sync.Mutex
	closed bool
	calls  sync.WaitGroup // in flight
}

var _ store.Store = (*Store)(nil)

// Open opens the journal of a directory, or makes an empty one. Errors:
// [store.ErrLocked], [store.ErrForeign], [store.ErrFormat], [store.ErrCorrupt],
// [store.ErrNoSpace].
func Open(ctx context.Context, cfg Config) (_ *Store, err error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	s := &Store{cfg: cfg, followers: followers{all: map[*func(string, store.Value)]bool{}}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.release())
		}
	}()
	if cfg.Memory {
		c, err := s.open(":memory:", sqlite.OpenReadWrite, 2<<10)
		if err != nil {
			return nil, err
		}
		if err := create(c); err != nil {
			return nil, s.explain(err)
		}
		s.idle = make(chan *conn, 1)
		s.idle <- c
		s.writer = &writer{s: s, conn: c}
	} else if err := s.openFile(); err != nil {
		return nil, err
	}
	if err := s.load(s.writer.conn); err != nil {
		return nil, s.explain(err)
	}
	s.writer.now.set(&s.content)
	s.writer.wake, s.writer.ended = make(chan struct{}, 1), make(chan struct{})
	go s.writer.run()
	return s, ctx.Err()
}

func (s *Store) openFile() error {
	if s.cfg.Dir == "" {
		return errors.New("a journal needs a directory")
	}
	if err := os.MkdirAll(s.cfg.Dir, 0o700); err != nil {
		return err
	}
	if err := checkDir(s.cfg.Dir); err != nil {
		return err
	}
	if err := s.lockDir(filepath.Join(s.cfg.Dir, lockName)); err != nil {
		return err
	}
	s.path = filepath.Join(s.cfg.Dir, FileName)
	switch err := inspect(s.path); {
	case errors.Is(err, fs.ErrNotExist):
		if err := s.create(); err != nil {
			return s.explain(err)
		}
	case err != nil:
		return fmt.Errorf("%s: %w", s.path, err)
	}
	c, err := s.open(s.path, sqlite.OpenReadWrite, 16<<10)
	if err != nil {
		return err
	}
	s.writer = &writer{s: s, conn: c}
	// A write lock makes SQLite open all files now: later it needs no free file
	// descriptors.
	if err := errors.Join(c.exec("BEGIN IMMEDIATE"), c.exec("ROLLBACK")); err != nil {
		return s.explain(err)
	}
	if s.wal, err = os.OpenFile(s.path+"-wal", os.O_RDWR, 0); err != nil {
		return s.explain(err)
	}
	if _, _, err := s.writer.copyWAL("PASSIVE"); err != nil {
		return s.explain(err)
	}
	s.idle = make(chan *conn, readers)
	for range readers {
		c, err := s.open(s.path, sqlite.OpenReadWrite, 2<<10)
		if err != nil {
			return err
		}
		if _, err := c.int("SELECT count(*) FROM meta"); err != nil {
			return s.explain(err)
		}
		s.idle <- c
	}
	return nil
}

func (s *Store) open(path string, flags sqlite.OpenFlags, cacheKiB int) (*conn, error) {
	c, err := openConn(path, flags, cacheKiB)
	if err != nil {
		return nil, s.explain(err)
	}
	s.opened = append(s.opened, c)
	return c, nil
}

const lockName = "lock"

// checkDir refuses a directory that has other files, without changing it.
func checkDir(dir string) error {
	list, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range list {
		switch name := e.Name(); {
		case name == "journal.json":
			return fmt.Errorf("%w: %s holds the journal of an older release: make a backup with that release, "+
				`then "parley restore" it into an empty directory`, store.ErrFormat, dir)
		case strings.HasPrefix(name, FileName) || name == lockName || name == "lost+found":
		default:
			err = fmt.Errorf("%w: %s holds %q; give an empty directory, or the one that a journal was made in",
				store.ErrForeign, dir, name)
		}
	}
	return err
}

// lockDir locks the directory, and writes this process's number into the lock file.
func (s *Store) lockDir(path string) error {
	lock, err := disk.Lock(path)
	if errors.Is(err, disk.ErrLocked) {
		by := ""
		if b, err := os.ReadFile(path); err == nil && len(b) > 0 {
			by = fmt.Sprintf(" (process %s)", b)
		}
		return fmt.Errorf("%w: another process%s has the journal in %s open", store.ErrLocked, by, s.cfg.Dir)
	}
	if err != nil {
		return err
	}
	s.lock = lock
	if err := lock.Truncate(0); err != nil {
		return err
	}
	_, err = lock.WriteAt(strconv.AppendInt(nil, int64(os.Getpid()), 10), 0)
	return err
}

// inspect checks the header of a file without changing it, after SQLite's "Database
// File Format".
func inspect(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	head := make([]byte, 72)
	if _, err := io.ReadFull(f, head); err != nil {
		return fmt.Errorf("%w: it is shorter than a journal", store.ErrForeign)
	}
	want := binary.BigEndian.AppendUint32([]byte("SQLite format 3\x00"), applicationID)
	wrong := 0
	for i, b := range append(head[:16:16], head[68:]...) {
		wrong += bits.OnesCount8(b ^ want[i])
	}
	version := binary.BigEndian.Uint32(head[60:])
	switch {
	case wrong > 8:
		return fmt.Errorf("%w: it is not a journal", store.ErrForeign)
	case wrong > 0 || version > 255 || version == 0:
		return fmt.Errorf(`%w: its header ("parley journal salvage" saves the records)`, store.ErrCorrupt)
	case version != formatVersion:
		return fmt.Errorf("%w: it is %d, this release knows %d", store.ErrFormat, version, formatVersion)
	}
	return nil
}

// create makes the file under another name first, so that journal.db is always
// complete.
func (s *Store) create() error {
	path := s.path + ".new"
	if err := os.Remove(path + "-journal"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return err
	}
	c, err := openConn(path, sqlite.OpenReadWrite, 2<<10)
	if err != nil {
		return err
	}
	err = create(c)
	if err == nil {
		err = c.exec("PRAGMA journal_mode = WAL")
	}
	if err := errors.Join(err, c.Close()); err != nil {
		return err
	}
	if err := os.Rename(path, s.path); err != nil {
		return err
	}
	return disk.SyncDir(s.cfg.Dir)
}

// create makes the tables of a new file, except those of partitions.
func create(c *conn) error {
	if err := c.pragmas(fmt.Sprintf("page_size = %d", pageSize), "auto_vacuum = INCREMENTAL"); err != nil {
		return err
	}
	return c.script(fmt.Sprintf("PRAGMA application_id = %d; PRAGMA user_version = %d; %s",
		applicationID, formatVersion, schemaBase))
}

// load reads the state of the file: a few rows.
func (s *Store) load(c *conn) error {
	t := &s.content
	revision, err := c.int("SELECT max(id) FROM state_log")
	if err != nil {
		return err
	}
	t.revision = uint64(revision)
	err = c.query("SELECT first, last, missing, bytes FROM partitions ORDER BY partition", func(st *sqlite.Stmt) error {
		t.parts = append(t.parts, partition{
			first: uint64(st.ColumnInt64(0)), last: uint64(st.ColumnInt64(1)), missing: uint64(st.ColumnInt64(2)),
			bytes: st.ColumnInt64(3),
		})
		return nil
	})
	if err != nil {
		return err
	}
	for n := range t.parts {
		p := &t.parts[n]
		last, err := c.int(ofLog(n, "SELECT max(sequence) FROM log_N"))
		if err != nil {
			return err
		}
		p.last = max(p.last, uint64(last))
		if p.first > p.last+1 || p.first < 1 || p.missing > p.last+1-p.first {
			return s.corrupt(fmt.Errorf("the limits of partition %d are impossible: %+v", n, *p))
		}
	}
	return nil
}

// committed returns the committed state of a partition.
func (s *Store) committed(n int) (partition, bool) {
	s.contentMu.RLock()
	defer s.contentMu.RUnlock()
	if p := s.content.part(n); p != nil {
		return *p, true
	}
	return partition{}, false
}

// reading calls do with a reader's connection.
func (s *Store) reading(ctx context.Context, do func(*conn) error) error {
	if err := s.beginCall(); err != nil {
		return err
	}
	defer s.endCall()
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case c := <-s.idle:
		defer func() { s.idle <- c }()
		return s.explain(do(c))
	case <-ctx.Done():
		return ctx.Err()
	}
}

// beginCall begins a call, endCall ends it. Close waits for calls.
func (s *Store) beginCall() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("%w: %s", store.ErrClosed, s.label())
	}
	s.calls.Add(1)
	return nil
}

func (s *Store) endCall() { s.calls.Done() }

// fail makes the store refuse everything until it is opened again.
func (s *Store) fail(err error) {
	s.failed.CompareAndSwap(nil, &err)
	s.cfg.Log.Error("The journal takes nothing until it is opened again.", "file", s.path, "error", err)
}

func (s *Store) broken() error {
	if err := s.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// Meta implements [store.Store].
func (s *Store) Meta(ctx context.Context) (m store.Meta, err error) {
	var text string
	err = s.reading(ctx, func(c *conn) error {
		return c.query("SELECT value FROM meta WHERE name = 'journal'", func(st *sqlite.Stmt) error {
			text = st.ColumnText(0)
			return nil
		})
	})
	switch {
	case err != nil:
		return m, err
	case text == "":
		return m, fmt.Errorf("%w: %s is empty", store.ErrNotFound, s.label())
	}
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		return m, s.corrupt(err)
	}
	return m, nil
}

// Init implements [store.Store].
func (s *Store) Init(ctx context.Context, m store.Meta) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	was, err := s.Meta(ctx)
	switch {
	case err == nil && (!was.Restoring || was.Partitions != m.Partitions):
		return fmt.Errorf("%w: %s", store.ErrExists, s.label())
	case err != nil && !errors.Is(err, store.ErrNotFound):
		return err
	}
	if m.Partitions < 1 || m.Partitions > maxPartitions {
		return fmt.Errorf("%d partitions; 1 to %d are possible", m.Partitions, maxPartitions)
	}
	return s.change(ctx, 1<<20, func(w *writer) (refused, failed error) {
		if len(w.now.parts) == 0 {
			sql := schemaView(m.Partitions)
			for p := range m.Partitions {
				sql = schemaPartition(p) + sql
				w.now.parts = append(w.now.parts, partition{first: 1})
			}
			if err := w.script(sql); err != nil {
				return nil, err
			}
		}
		for _, table := range []string{"meta", "meta_copy"} {
			if err := w.exec("INSERT OR REPLACE INTO "+table+" VALUES (1, 'journal', ?)", string(text)); err != nil {
				return nil, err
			}
		}
		return nil, nil
	})
}

// Exclusive implements [store.Store].
func (s *Store) Exclusive() bool { return true }

// MaxRecord implements [store.Store].
func (s *Store) MaxRecord() int { return maxRecord }

// Space implements [store.Store].
func (s *Store) Space() (free, total uint64, err error) {
	if s.cfg.Memory {
		return 0, 0, nil
	}
	return disk.Space(s.cfg.Dir)
}

// Promise implements [store.Store].
func (s *Store) Promise() string {
	if s.cfg.Memory {
		return "Accepted means that the message is in this program's memory: it is gone when the program ends."
	}
	return "Accepted means that the message is on this machine's disk: " +
		"it survives the end of the program and a power cut."
}

// Healthy implements [store.Store].
func (s *Store) Healthy() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return store.ErrClosed
	}
	return s.broken()
}

// Close implements [store.Store]. Afterwards the file alone has the journal.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return fmt.Errorf("%w: %s", store.ErrClosed, s.label())
	}
	s.closed = true
	s.mu.Unlock()
	s.calls.Wait()
	s.writer.close()
	s.recent.clear()
	err := s.broken()
	if err == nil && !s.cfg.Memory {
		if err = s.writer.tidy(time.Time{}); err == nil {
			_, _, err = s.writer.copyWAL("TRUNCATE")
		}
		err = s.explain(err)
	}
	return errors.Join(err, s.release())
}

// release closes all files.
func (s *Store) release() (err error) {
	if s.wal != nil {
		err = s.wal.Close()
		s.wal = nil
	}
	for i := len(s.opened) - 1; i >= 0; i-- { // the writer last: it removes the WAL
		err = errors.Join(err, s.opened[i].Close())
	}
	s.opened = nil
	if s.lock != nil {
		err = errors.Join(err, s.lock.Close())
		s.lock = nil
	}
	return err
}
