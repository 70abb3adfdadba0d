package sqlite

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"zombiezen.com/go/sqlite"

	"github.com/parley-hub/parley/journal/store"
)

// Get implements [store.Store].
func (s *Store) Get(ctx context.Context, bucket, key string) (v store.Value, err error) {
	v, found := s.recent.get(bucket, key)
	if found && !v.Deleted && ctx.Err() == nil {
		return v, nil
	}
	err = s.reading(ctx, func(c *conn) (err error) {
		v, found, err = c.value(bucket, key)
		return err
	})
	if err == nil && !found {
		err = fmt.Errorf("%w: %q in %q", store.ErrNotFound, key, bucket)
	}
	return v, err
}

// value reads a value, or the replaced data of a record.
func (c *conn) value(bucket, key any) (v store.Value, found bool, err error) {
	err = c.query(stateGet, func(st *sqlite.Stmt) error {
		v, found = value(st), true
		return nil
	}, bucket, key)
	return v, found, err
}

// value reads the current row: key, data, revision, until.
func value(st *sqlite.Stmt) store.Value {
	return store.Value{
		Key: st.ColumnText(0), Data: bytesOf(st, 1), Revision: uint64(st.ColumnInt64(2)), Until: timeOf(st, 3),
	}
}

// Delete implements [store.Store].
func (s *Store) Delete(ctx context.Context, bucket, key string, expect *uint64) (revision uint64, err error) {
	return s.Put(ctx, bucket, store.Value{Key: key, Deleted: true}, expect)
}

// Put implements [store.Store]. It removes a value that is Deleted.
func (s *Store) Put(ctx context.Context, bucket string, v store.Value, expect *uint64) (revision uint64, err error) {
	var want uint64
	if expect != nil {
		want = *expect
	}
	err = s.change(ctx, len(v.Data)+1024, func(w *writer) (refused, failed error) {
		row, at, err := w.find(bucket, v.Key)
		if err != nil {
			return nil, err
		}
		if expect != nil && at != want {
			return fmt.Errorf("%w: %q in %q has revision %d, not %d", store.ErrConflict, v.Key, bucket, at, want), nil
		}
		if err := w.set(row, bucket, v.Key, &v); err != nil {
			return nil, err
		}
		if row > 0 || !v.Deleted {
			w.changes = append(w.changes, stateChange{bucket, v})
		}
		return nil, nil
	})
	if err != nil {
		return 0, err
	}
	return v.Revision, nil
}

// find returns the row of a value, 0: none, and its revision.
func (w *writer) find(bucket, key any) (row int64, revision uint64, err error) {
	err = w.query(stateFind, func(st *sqlite.Stmt) error {
		row, revision = st.ColumnInt64(0), uint64(st.ColumnInt64(1))
		return nil
	}, bucket, key)
	return row, revision, err
}

// set replaces the value of a row, or removes it. A removal adds a row, too: the
// last row's id is the revision.
func (w *writer) set(row int64, bucket, key any, v *store.Value) error {
	if row > 0 {
		if err := w.exec(stateErase+"id = ?", row); err != nil {
			return err
		}
		w.erased++
	}
	w.now.revision++
	v.Revision = w.now.revision
	if v.Deleted {
		return w.exec(stateAdd, v.Revision, nil, nil, nil, nil, nil)
	}
	return w.exec(stateAdd, v.Revision, bucket, key, v.Revision, millis(v.Until), v.Data)
}

// Range implements [store.Store].
func (s *Store) Range(ctx context.Context, bucket, prefix string, fn func(store.Value) bool) error {
	if err := s.beginCall(); err != nil {
		return err
	}
	defer s.endCall()
	type place struct {
		revision uint64
		key      string
	}
	var newest uint64
	for changed := true; changed; { // values that change meanwhile are passed to fn again
		changed = false
		var all []place
		err := s.reading(ctx, func(c *conn) error {
			return c.query(stateRange, func(st *sqlite.Stmt) error {
				all = append(all, place{uint64(st.ColumnInt64(0)), st.ColumnText(1)})
				return nil
			}, bucket, prefix, behind(prefix), newest)
		})
		if err != nil {
			return err
		}
		slices.SortFunc(all, func(a, b place) int { return cmp.Compare(a.revision, b.revision) })
		for limit := 16; len(all) > 0; limit = min(4*limit, pageRecords) {
			var page []store.Value
			n := 0
			err := s.reading(ctx, func(c *conn) error {
				for size := 0; n < min(limit, len(all)) && size < pageBytes; n++ {
					v, _, err := c.value(bucket, all[n].key)
					if err != nil {
						return err
					}
					newest = all[n].revision
					if v.Revision != newest {
						changed = true
						continue
					}
					page = append(page, v)
					size += len(v.Data)
				}
				return nil
			})
			for _, v := range page {
				if !fn(v) {
					return nil
				}
			}
			if err != nil {
				return err
			}
			all = all[n:]
		}
	}
	return nil
}

// behind is the first value after all texts with a prefix: the next text, or a
// BLOB, which SQLite orders behind all texts.
func behind(prefix string) any {
	next := []byte(prefix)
	for len(next) > 0 && next[len(next)-1] == 0xff {
		next = next[:len(next)-1]
	}
	if len(next) == 0 {
		return []byte{}
	}
	next[len(next)-1]++
	return string(next)
}

// Buckets implements [store.Store].
func (s *Store) Buckets(ctx context.Context) (out []string, err error) {
	err = s.reading(ctx, func(c *conn) error {
		return c.query("SELECT DISTINCT bucket FROM state ORDER BY bucket", func(st *sqlite.Stmt) error {
			out = append(out, st.ColumnText(0))
			return nil
		})
	})
	return out, err
}

// expire removes expired values, a bounded number at a time.
func (w *writer) expire(now time.Time) (more bool, err error) {
	const some = 16 * pageRecords
	err = w.exec(stateErase+"id IN (SELECT id FROM state_log WHERE until < ? LIMIT ?)", now.UnixMilli(), some)
	w.erased += w.Changes()
	w.expired = w.expired || w.Changes() > 0
	return w.Changes() == some, err
}

// compact moves the oldest values to the end of their table, so that the rows
// before them can be deleted: one for two values that were erased since the last
// time.
func (w *writer) compact() error {
	if w.erased < 2 {
		return nil
	}
	last, n, size := w.now.revision, 0, 0
	err := w.query(stateOldest, func(st *sqlite.Stmt) error {
		n++
		if size += st.ColumnInt(1); n < w.erased/2 && size < pageBytes {
			return nil
		}
		last = uint64(st.ColumnInt64(0))
		return errEnough
	})
	if err != nil {
		return err
	}
	w.erased = 0
	if err := w.exec(stateMove, last); err != nil {
		return err
	}
	w.now.revision += uint64(w.Changes())
	if err := w.exec(stateErase+"id <= ? AND bucket IS NOT NULL", last); err != nil {
		return err
	}
	return w.trim("state_log", "id", last)
}

// Scrub implements [store.Store].
func (s *Store) Scrub(ctx context.Context, now time.Time) error {
	for more := true; more; {
		err := s.change(ctx, pageBytes, func(w *writer) (refused, failed error) {
			more, failed = w.expire(now)
			return nil, failed
		})
		if err != nil {
			return err
		}
	}
	return s.truncate(ctx)
}
