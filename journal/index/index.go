package index

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"github.com/parley-hub/parley/journal"
)

// Config of an [Index]. Journal must be set.
type Config struct {
	Journal *journal.Journal
	Path    string // of the file; "": in memory

	NoText bool // keep no content

	Log *slog.Logger // nil discards

	// Progress reports the state of indexing when more than a batch is missing:
	// done of total sequences (which have gaps) since the index was opened or
	// thrown away, over all partitions. There is one call at a time; the last call of
	// a run has done equal to total.
	Progress func(done, total uint64)

	queue  int           // records between the journal and the index, up to 64 MiB; default 65,536
	batch  int           // records in one transaction; default 8,192
	gather time.Duration // how long a batch is filled, unless a caller waits; default 1 second
	retry  time.Duration // pause after a failure; default 1 second
}

// Index is an open index. Its methods are safe for concurrent use.
type Index struct {
	c        Config
	name     string // of the file, for SQLite
	identity string
	log      *slog.Logger
	queue    *queue
	stop     func()
	cancel   context.CancelFunc
	done     chan struct{}
	jobs     chan func(*store)
	few      int // fewMessages
	probe    int // probeRows
	looks    int // countRows
	waiters  atomic.Int32
	broken   atomic.Bool // a query found damage

	mu       sync.Mutex
	indexed  []uint64      // by partition
	base     []uint64      // indexed, as it was when the index was opened
	advanced chan struct{} // closed when indexed changes
	rebuilds uint64
	records  uint64
	skipped  uint64
	lastErr  error
	at       time.Time // of the last record that was indexed

	dbMu sync.RWMutex // held for reading by queries, for writing where the file is replaced
	pool *sqlitex.Pool
}

// Stats of an index.
type Stats struct {
	Lag      uint64    `json:"lag"`            // sequences of the journal that are not indexed yet
	Queued   int       `json:"queued"`         // records waiting in memory
	Indexed  uint64    `json:"indexed"`        // records since Open
	Overflow uint64    `json:"overflow"`       // times that the queue was full and records were read from the journal
	Rebuilds uint64    `json:"rebuilds"`       // times that the file was thrown away
	Skipped  uint64    `json:"skipped"`        // records of the journal that could not be read
	Last     time.Time `json:"last,omitzero"`  // time of the last indexed record
	Error    string    `json:"error,omitzero"` // why the index does not follow now; "": it does
}

// maxText bounds the searchable bytes of a message's text.
const maxText = 8 << 10

var memories atomic.Uint64

// Open opens the index of a journal, or makes it, and begins to follow the journal.
// Close it before the journal.
func Open(ctx context.Context, c Config) (*Index, error) {
	if c.Journal == nil {
		return nil, errors.New("index: Journal must be set")
	}
	c.queue = cmp.Or(c.queue, 65536)
	c.batch = cmp.Or(c.batch, 8192)
	c.gather = cmp.Or(c.gather, time.Second)
	c.retry = cmp.Or(c.retry, time.Second)
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	n := c.Journal.Partitions()
	x := &Index{c: c, log: c.Log, queue: newQueue(n, c.queue), few: fewMessages, probe: probeRows, looks: countRows,
		done: make(chan struct{}), jobs: make(chan func(*store)), advanced: make(chan struct{}),
		indexed: make([]uint64, n), base: make([]uint64, n)}
	var err error
	if x.identity, err = identityOf(ctx, c.Journal); err != nil {
		return nil, err
	}
	s, err := x.open(ctx)
	if err != nil {
		return nil, err
	}
	for p := range s.marks {
		x.advance(p, s.marks[p].sequence)
	}
	copy(x.base, x.indexed)
	x.stop = c.Journal.Watch(x.queue.push)
	x.queue.readAll(c.Journal)
	run, cancel := context.WithCancel(context.Background())
	x.cancel = cancel
	go x.run(run, s)
	return x, nil
}

// identityOf returns the random identity of a journal, which is drawn once and kept
// in the journal's state.
func identityOf(ctx context.Context, j *journal.Journal) (string, error) {
	s := j.State("index")
	for range 3 {
		v, err := s.Get(ctx, "identity")
		if err == nil {
			return hex.EncodeToString(v.Data), nil
		}
		if !errors.Is(err, journal.ErrNotFound) {
			return "", fmt.Errorf("read the journal's identity: %w", err)
		}
		b := make([]byte, 16)
		if _, err := io.ReadFull(rand.Reader, b); err != nil {
			return "", err
		}
		if _, err := s.Create(ctx, "identity", b, time.Time{}); err == nil {
			return hex.EncodeToString(b), nil
		} else if !errors.Is(err, journal.ErrExists) {
			return "", fmt.Errorf("keep the journal's identity: %w", err)
		}
	}
	return "", errors.New("the journal's identity changes while it is read")
}

// open opens the file for writing and reading. A file that is unfit is thrown away
// first.
func (x *Index) open(ctx context.Context) (*store, error) {
	for again := false; ; again = true {
		if err := x.createFile(); err != nil {
			return nil, fmt.Errorf("open the index: %w", err)
		}
		s, err := openStore(x.name, len(x.indexed), x.identity, x.c.NoText)
		if err == nil {
			if err = x.belongs(ctx, s); err != nil {
				err = errors.Join(err, s.c.Close())
			}
		}
		switch {
		case err == nil:
			if err := x.openReaders(); err != nil {
				return nil, errors.Join(err, s.c.Close())
			}
			return s, nil
		case again || !errors.Is(err, errOther) && !unfit(err):
			return nil, fmt.Errorf("open the index: %w", err)
		}
		x.log.Warn("the index is rebuilt", "file", x.c.Path, "why", err)
		x.startOver()
		if err := x.remove(); err != nil {
			return nil, err
		}
	}
}

// createFile makes the file if there is none. A database in memory exists while a
// connection has it open; each has a name of its own.
func (x *Index) createFile() error {
	if x.name = x.c.Path; x.name == "" {
		x.name = fmt.Sprintf("file:/parley-index-%d?vfs=memdb", memories.Add(1))
		return nil
	}
	// The file has content: no other user may read it.
	f, err := os.OpenFile(x.name, os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		err = f.Close()
	}
	return err
}

// startOver resets the positions: nothing is indexed.
func (x *Index) startOver() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.rebuilds++
	clear(x.indexed)
	clear(x.base)
}

// belongs compares the last record of each partition in the file with the
// journal's.
func (x *Index) belongs(ctx context.Context, s *store) error {
	stats := x.c.Journal.Stats()
	for p, m := range s.marks {
		if m.sequence == 0 {
			continue
		}
		if m.sequence > stats.Partitions[p].Applied {
			return fmt.Errorf("%w: it is ahead of the journal", errOther)
		}
		r, err := x.c.Journal.Read(ctx, journal.Position{Partition: p, Sequence: m.sequence})
		switch {
		case errors.Is(err, journal.ErrNotFound), errors.Is(err, journal.ErrCorrupt):
			// The record was removed since. The next records will be indexed.
		case err != nil:
			return err
		case digestOf(r) != m.digest:
			return fmt.Errorf("%w: record %s is another one", errOther, r.Position)
		}
	}
	return nil
}

func (x *Index) openReaders() error {
	prepare := func(c *sqlite.Conn) error {
		c.SetBusyTimeout(busyTimeout)
		return errors.Join(execute(c, "PRAGMA query_only=1", nil), execute(c, "PRAGMA cache_size=-8192", nil))
	}
	pool, err := sqlitex.NewPool(x.name, sqlitex.PoolOptions{Flags: openFlags, PoolSize: 4, PrepareConn: prepare})
	x.dbMu.Lock()
	defer x.dbMu.Unlock()
	x.pool = pool
	return err
}

// closeReaders waits for running queries.
func (x *Index) closeReaders() (err error) {
	x.dbMu.Lock()
	defer x.dbMu.Unlock()
	if x.pool != nil {
		err = x.pool.Close()
	}
	x.pool = nil
	return err
}

// remove removes the file, and files that earlier versions had beside it. Nothing
// may have it open.
func (x *Index) remove() error {
	if x.c.Path == "" {
		return nil // the next database in memory has another name
	}
	for _, path := range []string{x.c.Path, x.c.Path + "-search"} {
		for _, suffix := range []string{"", "-wal", "-shm", "-journal"} {
			if err := os.Remove(path + suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("throw the index away: %w", err)
			}
		}
	}
	return nil
}

// Close stops following. The rest is indexed when the index is opened again.
func (x *Index) Close() error {
	x.stop()
	x.cancel()
	<-x.done
	return x.closeReaders()
}

// lag counts the sequences up to the targets that are not indexed yet. The channel is
// closed when the number has changed.
func (x *Index) lag(targets []uint64) (lag uint64, changed <-chan struct{}) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for p, t := range targets {
		lag += t - min(t, x.indexed[p])
	}
	return lag, x.advanced
}

// HasText reports whether the index finds words of the content.
func (x *Index) HasText() bool { return !x.c.NoText }

// Stats returns the index's figures.
func (x *Index) Stats() (s Stats) {
	s.Lag, _ = x.lag(x.queue.targets())
	s.Queued, s.Overflow = x.queue.waiting()
	x.mu.Lock()
	defer x.mu.Unlock()
	s.Rebuilds, s.Indexed, s.Skipped, s.Last = x.rebuilds, x.records, x.skipped, x.at
	if x.lastErr != nil {
		s.Error = x.lastErr.Error()
	}
	return s
}

// Wait returns when every message that the journal had reported before the call can
// be found.
func (x *Index) Wait(ctx context.Context) error {
	targets := x.queue.targets()
	x.waiters.Add(1)
	defer x.waiters.Add(-1)
	x.queue.wakeWriter()
	for {
		lag, changed := x.lag(targets)
		if lag == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-x.done:
			return errClosed
		}
	}
}

var errClosed = errors.New("the index is closed")

// run is the writer's loop.
func (x *Index) run(ctx context.Context, s *store) {
	defer close(x.done)
	defer func() { x.closeStore(s) }()
	var room []*journal.Record
	for ctx.Err() == nil {
		if x.waiters.Load() == 0 {
			x.gather(ctx)
		}
		list, behind := x.queue.take(room)
		err := errNoStore
		if s != nil {
			err = x.write(ctx, s, list, behind)
		}
		clear(list)
		room = list
		if err == nil && x.broken.CompareAndSwap(true, false) {
			err = fmt.Errorf("a query found the file damaged: %w", sqlite.ResultCorrupt.ToError())
		}
		if err != nil && ctx.Err() == nil {
			s = x.recover(ctx, s, err)
			continue
		}
		x.setError(nil)
		idle := x.queue.wake
		if n, _ := x.queue.waiting(); n > 0 {
			idle = ready
		}
		select {
		case f := <-x.jobs:
			f(s)
		case <-idle:
		case <-ctx.Done():
		}
	}
}

// ready is a closed channel.
var ready = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// closeStore closes the writer's connection.
func (x *Index) closeStore(s *store) {
	if s == nil {
		return
	}
	if err := s.c.Close(); err != nil {
		x.log.Warn("the index was not closed in order", "error", err)
	}
}

// gather waits for more records, unless a caller waits or there are many.
func (x *Index) gather(ctx context.Context) {
	if n, _ := x.queue.waiting(); n >= x.c.batch {
		return
	}
	full := time.After(x.c.gather)
	for x.waiters.Load() == 0 {
		select {
		case <-x.queue.wake:
			if n, _ := x.queue.waiting(); n >= x.c.batch {
				return
			}
		case <-full:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (x *Index) setError(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.lastErr = err
}

// recover repairs the store after a failure, or throws the file away. The missing
// records are then read from the journal.
func (x *Index) recover(ctx context.Context, s *store, err error) *store {
	x.setError(err)
	x.log.Warn("the index does not follow; trying again", "error", err, "lag", x.Stats().Lag)
	x.queue.readAll(x.c.Journal)
	// Without a free descriptor SQLite opens the file for reading only.
	if s != nil && !unfit(err) && codeOf(err) != sqlite.ResultReadOnly && s.load() == nil {
		x.pause(ctx)
		return s
	}
	x.closeStore(s)
	if err := x.closeReaders(); err != nil {
		x.log.Warn("the index was not closed in order", "error", err)
	}
	if unfit(err) || x.c.Path == "" {
		x.startOver()
		if err := x.remove(); err != nil {
			x.setError(err)
		}
	}
	x.pause(ctx)
	s, err = x.open(ctx)
	if err != nil {
		x.setError(err)
		return nil
	}
	return s
}

func (x *Index) pause(ctx context.Context) {
	select {
	case <-time.After(x.c.retry):
	case <-ctx.Done():
	}
}

var errNoStore = errors.New("the index is not open")

// write indexes records and commits. It also reads the partitions that are behind
// from the journal.
func (x *Index) write(ctx context.Context, s *store, list []*journal.Record, behind []int) error {
	for _, r := range list {
		if err := x.add(s, r, 1); err != nil {
			return err
		}
	}
	err := x.commit(s)
	for _, p := range behind {
		if err == nil {
			err = x.catchUp(ctx, s, p)
		}
	}
	return err
}

// add indexes a record, and commits after the given number of batches. A larger
// transaction costs less per record; a smaller one is visible sooner.
func (x *Index) add(s *store, r *journal.Record, batches int) error {
	if err := s.add(r); err != nil {
		return err
	}
	if s.records < batches*x.c.batch && s.bytes < maxBytes {
		return nil
	}
	return x.commit(s)
}

func (x *Index) commit(s *store) error {
	n := s.records
	if err := s.commit(); err != nil {
		return err
	}
	for p, m := range s.marks {
		x.advance(p, m.sequence)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.records += uint64(n)
	for _, m := range s.marks {
		if at := time.UnixMicro(m.clock); m.clock > 0 && at.After(x.at) {
			x.at = at
		}
	}
	return nil
}

// advance notes that a partition is indexed up to a sequence, which need not have a
// record.
func (x *Index) advance(p int, sequence uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if sequence > x.indexed[p] {
		x.indexed[p] = sequence
		close(x.advanced)
		x.advanced = make(chan struct{})
	}
}

// catchUp reads a partition from the journal, at least up to its present end. A
// record that cannot be decoded is skipped: it would block everything behind it.
func (x *Index) catchUp(ctx context.Context, s *store, p int) error {
	target := x.c.Journal.Stats().Partitions[p].Applied
	x.queue.setLatest(p, target)
	x.mu.Lock()
	from := max(s.marks[p].sequence, x.indexed[p]) + 1
	x.mu.Unlock()
	batches, progress := 1, func() {}
	if target+1 > from+uint64(8*x.c.batch) {
		batches, progress = 4, x.progress
	}
	for bad := true; bad && from <= target; {
		bad = false
		for r, err := range x.c.Journal.Records(ctx, p, journal.From{Sequence: from}) {
			if bad = errors.Is(err, journal.ErrCorrupt); bad {
				x.log.Error("a record of the journal cannot be read; it is left out of the index", "partition", p,
					"error", err)
				x.mu.Lock()
				x.skipped++
				x.mu.Unlock()
				from++
				break
			}
			if err == nil {
				from = r.Position.Sequence + 1
				err = x.add(s, r, batches)
			}
			if err != nil {
				return err
			}
			if s.records == 0 {
				progress()
			}
		}
	}
	if err := x.commit(s); err != nil {
		return err
	}
	x.advance(p, target)
	progress()
	return nil
}

// progress calls Config.Progress.
func (x *Index) progress() {
	if x.c.Progress == nil {
		return
	}
	targets := x.queue.targets()
	x.mu.Lock()
	var done, total uint64
	for p, at := range x.indexed {
		done += at - min(at, x.base[p])
		total += max(at, targets[p]) - min(at, x.base[p])
	}
	x.mu.Unlock()
	x.c.Progress(done, total)
}
