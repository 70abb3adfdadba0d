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
	if err := s.enter(); err != nil {
		return v, err
	}
	defer s.leave()
	found := false
	err = s.reading(ctx, func(c *conn) error {
		return c.query(stateGet, func(st *sqlite.Stmt) bool {
			v, found = value(st), true
			return true
		}, bucket, key)
	})
	if err == nil && !found {
		err = fmt.Errorf("%w: %q in %q", store.ErrNotFound, key, bucket)
	}
	return v, err
}

// value is the row at hand: key, data, revision, until.
func value(st *sqlite.Stmt) store.Value {
	return store.Value{
		Key: st.ColumnText(0), Data: bytesOf(st, 1), Revision: uint64(st.ColumnInt64(2)), Until: timeOf(st, 3),
	}
}

// Put is described in [store.Store].
func (s *Store) Put(ctx context.Context, bucket string, v store.Value, expect *uint64) (revision uint64, err error) {
	return s.swap(ctx, bucket, v.Key, len(v.Data), expect, func(w *writer) (uint64, error) { return w.set(bucket, v) })
}

// Delete is described in [store.Store].
func (s *Store) Delete(ctx context.Context, bucket, key string, expect *uint64) (revision uint64, err error) {
	return s.swap(ctx, bucket, key, 0, expect, func(w *writer) (uint64, error) { return w.unset(bucket, key) })
}

// swap changes a value if its revision is the expected one.
func (s *Store) swap(ctx context.Context, bucket, key string, size int, expect *uint64,
	do func(*writer) (uint64, error),
) (revision uint64, err error) {
	if err := s.enter(); err != nil {
		return 0, err
	}
	defer s.leave()
	var want uint64
	if expect != nil {
		want = *expect
	}
	var got uint64
	err = s.change(ctx, size+1024, func(w *writer) (refused, failed error) {
		if expect != nil {
			at, err := w.find(bucket, key)
			if err != nil {
				return nil, err
			}
			if at.revision != want {
				return fmt.Errorf("%w: %q in %q has revision %d, not %d",
					store.ErrConflict, key, bucket, at.revision, want), nil
			}
		}
		got, failed = do(w)
		return nil, failed
	})
	if err != nil {
		return 0, err
	}
	return got, nil
}

// cell is where a value lies.
type cell struct {
	id, size, until int64
	revision        uint64 // 0: there is none
}

func (w *writer) find(bucket, key string) (c cell, err error) {
	err = w.query(stateFind, func(st *sqlite.Stmt) bool {
		c = cell{
			id: st.ColumnInt64(0), revision: uint64(st.ColumnInt64(1)), until: st.ColumnInt64(2), size: st.ColumnInt64(3),
		}
		return true
	}, bucket, key)
	return c, err
}

// set sets a value: where it lies, if it gets no longer, else in a new row at
// the end. See "Erasure" in doc.go.
func (w *writer) set(bucket string, v store.Value) (revision uint64, err error) {
	at, err := w.find(bucket, v.Key)
	if err != nil {
		return 0, err
	}
	w.now.revision++
	w.now.dirty = true
	revision = w.now.revision
	until := millis(v.Until)
	w.changes = append(w.changes, change{bucket, store.Value{Key: v.Key, Data: v.Data, Revision: revision, Until: v.Until}})
	if at.revision != 0 {
		names := int64(len(bucket) + len(v.Key))
		if fits(names+int64(len(v.Data)), names+at.size) && width(int64(revision)) <= width(int64(at.revision)) &&
			(until == nil || width(until.(int64)) <= width(at.until)) {
			return revision, w.exec(stateUpdate, revision, until, v.Data, at.id)
		}
		if err := w.wipe(at.id); err != nil {
			return 0, err
		}
	}
	return revision, w.add(bucket, v.Key, revision, until, v.Data)
}

func (w *writer) add(bucket, key string, revision uint64, until any, data []byte) error {
	id := w.now.nextID
	w.now.nextID++
	w.now.values++
	return w.exec(stateInsert, id, bucket, key, revision, until, data)
}

// unset removes a value, if it is there.
func (w *writer) unset(bucket, key string) (revision uint64, err error) {
	at, err := w.find(bucket, key)
	if err != nil {
		return 0, err
	}
	w.now.revision++
	w.now.dirty = true
	if at.revision == 0 {
		return w.now.revision, nil
	}
	w.changes = append(w.changes, change{bucket, store.Value{Key: key, Revision: w.now.revision, Deleted: true}})
	return w.now.revision, w.wipe(at.id)
}

// wipe empties a row.
func (w *writer) wipe(id int64) error {
	w.now.values--
	w.now.dirty = true
	return w.exec(stateWipe, id)
}

// width is how many bytes SQLite needs for an integer (its "serial types").
func width(n int64) int {
	switch {
	case n == 0 || n == 1:
		return 0
	case n < 1<<7:
		return 1
	case n < 1<<15:
		return 2
	case n < 1<<23:
		return 3
	case n < 1<<31:
		return 4
	case n < 1<<47:
		return 6
	}
	return 8
}

// clean removes empty rows at the beginning of the state where there are too
// many: values among them move to the end. A group of n changes cleans 4 n rows.
func (w *writer) clean(n int) error {
	if w.now.nextID-w.now.firstID <= 3*w.now.values+4096 {
		return nil
	}
	type kept struct {
		id          int64
		bucket, key string
		revision    uint64
		until       any
		data        []byte
	}
	var keep []kept
	last, size := w.now.cleaned-1, 0
	err := w.query(stateOldest, func(st *sqlite.Stmt) bool {
		last = st.ColumnInt64(0)
		if st.ColumnIsNull(1) {
			return true
		}
		k := kept{
			id: last, bucket: st.ColumnText(1), key: st.ColumnText(2), revision: uint64(st.ColumnInt64(3)),
			data: bytesOf(st, 5),
		}
		if !st.ColumnIsNull(4) {
			k.until = st.ColumnInt64(4)
		}
		keep = append(keep, k)
		size += len(k.data)
		return size < pageBytes
	}, w.now.cleaned, 4*n+16)
	if err != nil {
		return err
	}
	for _, k := range keep {
		if err := w.wipe(k.id); err != nil {
			return err
		}
		if err := w.add(k.bucket, k.key, k.revision, k.until, k.data); err != nil {
			return err
		}
	}
	w.now.cleaned = last + 1
	at, err := w.cushion(stateCushion, uint64(w.now.cleaned))
	if err != nil || at == 0 {
		return err
	}
	w.now.firstID = int64(at)
	return w.exec(stateDelete, at)
}

// expire removes values whose Until has passed at a time, some at once, and
// tells how many.
func (w *writer) expire(at time.Time) (n int, err error) {
	var ids []int64
	err = w.query(stateExpired, func(st *sqlite.Stmt) bool {
		ids = append(ids, st.ColumnInt64(0))
		return true
	}, at.UnixMilli(), pageRecords)
	if err != nil || len(ids) == 0 {
		return 0, err
	}
	w.now.revision++
	for _, id := range ids {
		if err := w.wipe(id); err != nil {
			return 0, err
		}
	}
	return len(ids), nil
}

// Range is described in [store.Store].
func (s *Store) Range(ctx context.Context, bucket, prefix string, fn func(store.Value) bool) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	s.ranging.RLock() // rows stay where they are
	defer s.ranging.RUnlock()
	rows, err := s.rows(ctx, bucket, prefix)
	if err != nil || len(rows) == 0 {
		return err
	}
	newest, changed := rows[len(rows)-1].revision, false
	for limit := 16; len(rows) > 0; limit = min(4*limit, pageRecords) {
		var page []store.Value
		n := 0
		err := s.reading(ctx, func(c *conn) error {
			for size := 0; n < min(limit, len(rows)) && size < pageBytes; n++ {
				there := false
				err := c.query(stateRow, func(st *sqlite.Stmt) bool {
					page = append(page, value(st))
					there = true
					size += len(page[len(page)-1].Data)
					return true
				}, rows[n].id, rows[n].revision)
				if err != nil {
					return err
				}
				changed = changed || !there
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
		rows = rows[n:]
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

type stateRowID struct {
	revision uint64
	id       int64
}

// rows gives where the values of a range are, by revision.
func (s *Store) rows(ctx context.Context, bucket, prefix string) (rows []stateRowID, err error) {
	err = s.reading(ctx, func(c *conn) error {
		return c.query(stateRange, func(st *sqlite.Stmt) bool {
			rows = append(rows, stateRowID{uint64(st.ColumnInt64(0)), st.ColumnInt64(1)})
			return true
		}, bucket, prefix, behind(prefix))
	})
	slices.SortFunc(rows, func(a, b stateRowID) int { return cmp.Compare(a.revision, b.revision) })
	return rows, err
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

// Scrub is described in [store.Store].
func (s *Store) Scrub(ctx context.Context, now time.Time) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	for n := pageRecords; n == pageRecords; {
		err := s.change(ctx, n*1024, func(w *writer) (refused, failed error) {
			n, failed = w.expire(now)
			return nil, failed
		})
		if err != nil {
			return err
		}
	}
	return s.truncate(ctx)
}
