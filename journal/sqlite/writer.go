package sqlite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"zombiezen.com/go/sqlite"

	"github.com/parley-hub/parley/journal/store"
)

// Bounds of a group, and of the WAL before it is copied into the file.
const (
	maxGroup      = 1024
	maxGroupBytes = 16 << 20
	walBytes      = 4 << 20
	walBound      = 64 << 20
)

// A request is a change that waits for the writer.
type request struct {
	// do makes the change in the group's transaction. A refusal is for the caller:
	// nothing was changed. failed ends the transaction.
	do   func(w *writer) (refused, failed error)
	size int

	// betweenGroups runs between groups, instead of do.
	betweenGroups func(w *writer) error

	phase atomic.Int32
	done  chan struct{}
	err   error
}

const (
	queued int32 = iota
	taken
	abandoned // the caller gave up
)

func (r *request) finish(err error) {
	r.err = err
	close(r.done)
}

// A writer makes all changes, on a connection of its own: all waiting requests
// share one transaction and one fsync.
type writer struct {
	s *Store
	*conn

	mu    sync.Mutex
	queue []*request
	wake  chan struct{}
	ended chan struct{}

	group    []*request
	now      state         // after the transaction
	changes  []stateChange // of the state, in the transaction
	expired  bool          // values past their Until may have been removed in it
	erased   int           // values since the last tidy
	unsynced int64         // bytes in the WAL that are not in the file, about
}

// state is the part of the file's content that the store holds in memory.
type state struct {
	parts    []partition
	revision uint64 // the last row of state_log has this id
}

// partition is the state of one partition.
type partition struct {
	first, last, missing uint64
	bytes                int64
	dirty                bool // differs from the state that the records show
}

// skip makes last + 1 the next record's sequence.
func (p *partition) skip(last uint64) {
	if p.records() == 0 {
		p.first = last + 1
	} else {
		p.missing += last - p.last
	}
	p.last, p.dirty = last, true
}

func (p *partition) records() uint64 { return p.last + 1 - p.first - p.missing }

// part returns a partition; nil: there is none.
func (t *state) part(n int) *partition {
	if n < 0 || n >= len(t.parts) {
		return nil
	}
	return &t.parts[n]
}

// set copies from.
func (t *state) set(from *state) {
	t.parts, t.revision = append(t.parts[:0], from.parts...), from.revision
}

// submit queues r and waits for its outcome.
func (s *Store) submit(ctx context.Context, r *request) error {
	if err := s.beginCall(); err != nil {
		return err
	}
	defer s.endCall()
	if err := ctx.Err(); err != nil {
		return err
	}
	r.done = make(chan struct{})
	w := s.writer
	w.mu.Lock()
	w.queue = append(w.queue, r)
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
	}
	if r.phase.CompareAndSwap(queued, abandoned) {
		return ctx.Err()
	}
	select {
	case <-r.done:
		return r.err
	default:
		return fmt.Errorf("%w: %w while %s was being written", store.ErrUnknown, ctx.Err(), s.label())
	}
}

// change submits a change that needs a transaction.
func (s *Store) change(ctx context.Context, size int, do func(w *writer) (refused, failed error)) error {
	return s.submit(ctx, &request{do: do, size: size})
}

func (w *writer) run() {
	defer close(w.ended)
	for range w.wake {
		for waiting := w.take(); len(waiting) > 0; waiting = w.take() {
			w.serve(waiting)
		}
	}
}

// take returns the waiting requests. First it lets the callers of the last group
// run: if they make another change at once, it shares the next fsync.
func (w *writer) take() (waiting []*request) {
	for before := -1; ; {
		w.mu.Lock()
		n := len(w.queue)
		if n == before || n >= maxGroup {
			waiting, w.queue = w.queue, nil
		}
		w.mu.Unlock()
		if waiting != nil || n == before {
			return waiting
		}
		before = n
		runtime.Gosched()
	}
}

// close ends the writer; no call may be in flight.
func (w *writer) close() {
	close(w.wake)
	<-w.ended
}

// serve handles waiting requests: changes in groups, then those that run between
// groups.
func (w *writer) serve(waiting []*request) {
	if w.s.cfg.Memory { // a store in memory has only one connection
		w.conn = <-w.s.idle
		defer func() { w.s.idle <- w.conn }()
	}
	var alone []*request
	w.group = w.group[:0]
	size := 0
	for _, r := range waiting {
		if !r.phase.CompareAndSwap(queued, taken) {
			continue
		}
		if r.betweenGroups != nil {
			alone = append(alone, r)
			continue
		}
		if len(w.group) > 0 && (len(w.group) >= maxGroup || size+r.size > maxGroupBytes) {
			w.commit(w.group)
			w.group, size = w.group[:0], 0
		}
		w.group = append(w.group, r)
		size += r.size
	}
	if len(w.group) > 0 {
		w.commit(w.group)
	}
	for _, r := range alone {
		err := w.s.broken()
		if err == nil {
			err = r.betweenGroups(w)
		}
		r.finish(err)
	}
	if w.unsynced >= walBytes && w.s.broken() == nil {
		if err := w.tidy(w.s.cfg.Now().Add(-time.Minute)); err != nil {
			w.s.cfg.Log.Error("The journal's old values were not removed.", "file", w.s.path, "error", err)
		}
		w.checkpoint()
	}
	clear(w.group)
}

// commit makes the changes of a group in one transaction.
func (w *writer) commit(group []*request) {
	var refusals []error
	finish := func(err error) { // err is for the requests that were not refused
		for i, r := range group {
			if i < len(refusals) && refusals[i] != nil {
				r.finish(refusals[i])
			} else {
				r.finish(err)
			}
		}
	}
	if err := w.s.broken(); err != nil {
		finish(err)
		return
	}
	w.changes = w.changes[:0]
	refusals, failed, unknown := w.transact(group)
	switch {
	case failed == nil:
		w.s.contentMu.Lock()
		w.s.content.set(&w.now)
		w.s.contentMu.Unlock()
		w.s.recent.add(w.changes)
		if w.expired {
			w.s.recent.clear()
			w.expired = false
		}
		w.s.notify(w.changes)
		clear(w.changes)
		finish(nil)
		return
	case unknown:
		w.s.fail(fmt.Errorf("%w: %s was not written: %w; start again when the disk works",
			store.ErrBusy, w.s.label(), failed))
		finish(fmt.Errorf("%w: %s: %w", store.ErrUnknown, w.s.label(), failed))
		return
	}
	w.now.set(&w.s.content)
	if len(group) > 1 && sqlite.ErrCode(failed).ToPrimary() != sqlite.ResultFull {
		for i := range group { // one request is the cause
			w.commit(group[i : i+1])
		}
		return
	}
	finish(w.s.explain(failed))
}

// transact returns the refusal of each request of a group, and failed if the whole
// group failed. unknown: the changes may be on the disk nevertheless.
func (w *writer) transact(group []*request) (refusals []error, failed error, unknown bool) {
	if err := w.exec("BEGIN IMMEDIATE"); err != nil {
		return nil, err, false
	}
	undo := func(err error) ([]error, error, bool) {
		if !w.AutocommitEnabled() { // some errors end the transaction themselves
			err = errors.Join(err, w.exec("ROLLBACK"))
		}
		return refusals, err, false
	}
	size := int64(0)
	for _, r := range group {
		refused, err := r.do(w)
		refusals = append(refusals, refused)
		if err != nil {
			return undo(err)
		}
		size += int64(r.size) + 512
	}
	if err := w.writePartitions(); err != nil {
		return undo(err)
	}
	if err := w.exec("COMMIT"); err != nil {
		refusals, err, _ = undo(err)
		return refusals, err, sqlite.ErrCode(err).ToPrimary() == sqlite.ResultIOErr
	}
	w.unsynced += size + 8<<10
	return refusals, nil, false
}

// writePartitions stores the state of partitions that the next Open could not read
// from the records.
func (w *writer) writePartitions() error {
	for n := range w.now.parts {
		p := &w.now.parts[n]
		if !p.dirty {
			continue
		}
		p.dirty = false
		err := w.exec("UPDATE partitions SET first=?, last=?, missing=?, bytes=? WHERE partition = ?",
			p.first, p.last, p.missing, p.bytes, n)
		if err != nil {
			return err
		}
	}
	return nil
}

// tidy prepares a copy of the WAL. It removes values whose Until is before expired.
func (w *writer) tidy(expired time.Time) error {
	r := &request{done: make(chan struct{}), do: func(w *writer) (refused, failed error) {
		for n := range w.now.parts {
			w.now.parts[n].dirty = true
		}
		_, err := w.expire(expired)
		return nil, cmp.Or(err, w.compact())
	}}
	w.commit([]*request{r})
	return r.err
}

// checkpoint copies the WAL into the file, except what a reader still needs.
func (w *writer) checkpoint() {
	pages, _, err := w.copyWAL("PASSIVE")
	if err == nil && pages > walBound/pageSize {
		_, _, err = w.copyWAL("RESTART")
	}
	if err != nil {
		w.s.cfg.Log.Error("The journal's WAL was not copied into its file.", "file", w.s.path, "error", err)
		return
	}
	w.unsynced = 0
}

// copyWAL runs a checkpoint, and returns how many pages the WAL has. busy: a reader
// needs it.
func (w *writer) copyWAL(mode string) (pages int64, busy bool, err error) {
	w.SetBusyTimeout(readerTimeout)
	defer w.SetBusyTimeout(busyTimeout)
	err = w.query("PRAGMA wal_checkpoint("+mode+")", func(st *sqlite.Stmt) error {
		pages = st.ColumnInt64(1)
		busy = st.ColumnBool(0) || st.ColumnInt64(2) < pages
		return nil
	})
	if sqlite.ErrCode(err).ToPrimary() == sqlite.ResultIOErr {
		// After a failed fsync the kernel may have dropped the unwritten pages, and
		// would call the next attempt a success.
		err = fmt.Errorf("%w: %s was not synced: %w; start again when the disk works", store.ErrBusy, w.s.label(), err)
		w.s.fail(err)
	}
	return pages, busy, err
}

// truncate empties the WAL, so that the old content of changed pages is in no file.
func (s *Store) truncate(ctx context.Context) error {
	if s.cfg.Memory {
		return nil
	}
	for try := 0; ; try++ {
		busy := false
		err := s.submit(ctx, &request{betweenGroups: func(w *writer) (err error) {
			if _, busy, err = w.copyWAL("TRUNCATE"); err == nil && !busy {
				w.unsynced = 0
				err = s.wal.Sync() // SQLite does not sync this: the old content might be back after a power cut
			}
			return s.explain(err)
		}})
		if err != nil || !busy {
			return err
		}
		if try == 10 {
			return fmt.Errorf("%w: another program reads %s, which keeps old content in its WAL", store.ErrBusy, s.path)
		}
	}
}
