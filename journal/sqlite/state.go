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

// Get is described in [store.Store].
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

func (c *conn) value(bucket, key string) (v store.Value, found bool, err error) {
	err = c.query(stateGet, func(st *sqlite.Stmt) bool {
		v, found = value(st), true
		return true
	}, bucket, key)
	return v, found, err
}

// value is the row at hand: key, data, revision, until.
func value(st *sqlite.Stmt) store.Value {
	return store.Value{
		Key: st.ColumnText(0), Data: bytesOf(st, 1), Revision: uint64(st.ColumnInt64(2)), Until: timeOf(st, 3),
	}
}

// Put is described in [store.Store].
func (s *Store) Put(ctx context.Context, bucket string, v store.Value, expect *uint64) (revision uint64, err error) {
	return s.swap(ctx, bucket, v, expect)
}

// Delete is described in [store.Store].
func (s *Store) Delete(ctx context.Context, bucket, key string, expect *uint64) (revision uint64, err error) {
	return s.swap(ctx, bucket, store.Value{Key: key, Deleted: true}, expect)
}

// swap puts or removes a value if its revision is the expected one.
func (s *Store) swap(ctx context.Context, bucket string, v store.Value, expect *uint64) (revision uint64, err error) {
	var want uint64
	if expect != nil {
		want = *expect
	}
	var got uint64
	err = s.change(ctx, len(v.Data)+1024, func(w *writer) (refused, failed error) {
		if expect != nil {
			at, err := w.int("SELECT revision FROM state WHERE bucket = ? AND key = ?", bucket, v.Key)
			if err != nil {
				return nil, err
			}
			if uint64(at) != want {
				return fmt.Errorf("%w: %q in %q has revision %d, not %d", store.ErrConflict, v.Key, bucket, at, want), nil
			}
		}
		got, failed = w.set(bucket, v)
		return nil, failed
	})
	if err != nil {
		return 0, err
	}
	return got, nil
}

// set puts a value, or removes it.
func (w *writer) set(bucket string, v store.Value) (revision uint64, err error) {
	w.now.revision++
	w.now.dirty = true
	v.Revision = w.now.revision
	if err := w.exec(stateDeleteBefore[w.now.table], bucket, v.Key); err != nil {
		return 0, err
	}
	if v.Deleted {
		there := w.Changes() > 0
		err = w.exec(stateDelete[w.now.table], bucket, v.Key)
		if there = there || w.Changes() > 0; err != nil || !there {
			return v.Revision, err
		}
	} else if err := w.exec(statePut[w.now.table], bucket, v.Key, v.Revision, millis(v.Until), v.Data); err != nil {
		return 0, err
	}
	w.changes = append(w.changes, change{bucket, v})
	return v.Revision, nil
}

// Range is described in [store.Store].
func (s *Store) Range(ctx context.Context, bucket, prefix string, fn func(store.Value) bool) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	type place struct {
		revision uint64
		key      string
	}
	var all []place
	err := s.reading(ctx, func(c *conn) error {
		return c.query(stateRange, func(st *sqlite.Stmt) bool {
			all = append(all, place{uint64(st.ColumnInt64(0)), st.ColumnText(1)})
			return true
		}, bucket, prefix, behind(prefix))
	})
	if err != nil || len(all) == 0 {
		return err
	}
	slices.SortFunc(all, func(a, b place) int { return cmp.Compare(a.revision, b.revision) })
	newest, changed := all[len(all)-1].revision, false
	for limit := 16; len(all) > 0; limit = min(4*limit, pageRecords) {
		var page []store.Value
		n := 0
		err := s.reading(ctx, func(c *conn) error {
			for size := 0; n < min(limit, len(all)) && size < pageBytes; n++ {
				v, _, err := c.value(bucket, all[n].key)
				if err != nil {
					return err
				}
				if v.Revision != all[n].revision {
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
	if !changed {
		return nil
	}
	// What has changed meanwhile, as it is at one moment.
	var later []store.Value
	err = s.reading(ctx, func(c *conn) error {
		return c.query(stateChanged, func(st *sqlite.Stmt) bool {
			later = append(later, value(st))
			return true
		}, bucket, prefix, behind(prefix), newest)
	})
	slices.SortFunc(later, func(a, b store.Value) int { return cmp.Compare(a.Revision, b.Revision) })
	for _, v := range later {
		if !fn(v) {
			return nil
		}
	}
	return err
}

// behind is a value that is larger than every text with a prefix, and not
// larger than any other: the next text, or a BLOB, which SQLite has behind all.
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

// Buckets is described in [store.Store].
func (s *Store) Buckets(ctx context.Context) (out []string, err error) {
	err = s.reading(ctx, func(c *conn) error {
		return c.query("SELECT DISTINCT bucket FROM state ORDER BY bucket", func(st *sqlite.Stmt) bool {
			out = append(out, st.ColumnText(0))
			return true
		})
	})
	return out, err
}

// expire removes values whose Until has passed for a minute, some at once.
func (w *writer) expire() error {
	err := w.exec(stateExpire[w.now.table], w.s.cfg.Now().Add(-time.Minute).UnixMilli(), 16*pageRecords)
	w.lapsed = w.lapsed || w.Changes() > 0
	return err
}

// Scrub is described in [store.Store]. It moves all values into the other table,
// and clears the one they were in.
func (s *Store) Scrub(ctx context.Context, now time.Time) error {
	// What an interrupted Scrub left is moved first: the table it was moved into
	// has what was removed since.
	swapped := false
	for done := false; !done; {
		var swap bool
		err := s.change(ctx, pageBytes, func(w *writer) (refused, failed error) {
			rows, err := w.move(now)
			swap, done = rows == 0 && !swapped, rows == 0 && swapped
			if err == nil && swap {
				w.now.table = 1 - w.now.table
				err = w.exec(metaSet, w.now.table, "state")
			}
			return nil, err
		})
		if err != nil {
			return err
		}
		swapped = swapped || swap
	}
	return s.truncate(ctx)
}

// move moves some values from the table before, except those whose Until has
// passed. When none is left it clears the table.
func (w *writer) move(now time.Time) (rows int, err error) {
	var last int64
	size := 0
	err = w.query(stateOldest[w.now.table], func(st *sqlite.Stmt) bool {
		last = st.ColumnInt64(0)
		size += st.ColumnInt(1)
		rows++
		return size < pageBytes
	}, 4*pageRecords)
	switch {
	case err != nil:
		return 0, err
	case rows == 0:
		return 0, w.exec(stateClear[w.now.table])
	}
	w.lapsed = true
	if err := w.exec(stateMove[w.now.table], last, now.UnixMilli()); err != nil {
		return 0, err
	}
	return rows, w.exec(stateMoved[w.now.table], last)
}
