package journal

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"
)

// A Table is a bucket of the state whose values are all of one type, written as
// JSON. It decodes, caches, follows other hubs, compares and sets, and forgets, so
// that its user handles neither bytes nor revisions. For example:
//
//	tasks := journal.NewTable[task](j, "tasks", 1000)
//	_, err := tasks.Change(ctx, id, func(r *journal.Row[task]) (write bool, err error) {
//		if r.Revision == 0 {
//			return false, errNoSuchTask
//		}
//		r.Value.Status, r.Until = "done", now.Add(time.Hour)
//		return true, nil
//	})
//
// A table caches a bounded number of rows. After [Table.Follow] it has all rows in
// memory instead, and applies every change by any hub; [Table.Watch] only reports
// changes.
//
// A Table is safe for concurrent use. Values are shared: to change a value, replace
// its maps, slices and pointers, and do not write into them.
type Table[T any] struct {
	state State
	now   func() time.Time
	warn  func(key string, err error)
	max   int          // rows cached
	omit  func(T) bool // rows that a followed table does not hold; nil: none

	turn    sync.Mutex // of a followed table: one change at a time; held while changed is called
	changed func(before, after Row[T])

	mu      sync.RWMutex
	all     bool // every row is in rows
	rows    map[string]Row[T]
	deleted map[string]uint64 // last revision of rows deleted here, until the state reports the deletion
	sweepAt int               // number of rows at which expired rows are dropped
}

// A Row is a value of a [Table].
type Row[T any] struct {
	Key      string
	Value    T
	Revision uint64    // 0: there is no such row
	Until    time.Time // expiry; zero: never
}

// NewTable makes a table on a bucket of the journal's state. cached bounds the rows
// in memory, unless the table is followed.
func NewTable[T any](j *Journal, bucket string, cached int) *Table[T] {
	return &Table[T]{state: j.State(bucket), now: j.cfg.Now, max: cached, rows: map[string]Row[T]{},
		warn: func(key string, err error) {
			j.cfg.Log.Error("a value of the state cannot be read; it is passed over", "bucket", bucket, "key", key,
				"err", err)
		}}
}

// Follow reads all rows into memory, and applies every change by any hub. For each
// row and change it calls changed with the row before and after, of which one may
// have Revision 0: one call at a time, before a method that wrote the row here
// returns. changed may be nil; it may read the table but not write it. Expiry is not
// reported: an expired row is missing. ctx is for the first rows only.
func (t *Table[T]) Follow(ctx context.Context, changed func(before, after Row[T])) (stop func(), err error) {
	t.mu.Lock()
	t.all, t.changed, t.rows, t.deleted, t.sweepAt = true, changed, map[string]Row[T]{}, map[string]uint64{}, 64
	t.mu.Unlock()
	return t.watch(ctx, "", t.take)
}

// Omit makes a later Follow hold no row for which omit returns true: changed is
// called for the row, and [Table.Get] reads it. This is for values that are needed
// seldom and may be many.
func (t *Table[T]) Omit(omit func(value T) bool) { t.omit = omit }

// Watch calls fn for every present row whose key begins with prefix, returns, and
// calls fn for every later change by any hub, one call at a time; a deleted row has
// Revision 0. The table does not keep the rows, so they may be large. See
// [State.Watch] for the order of calls, and for ctx.
func (t *Table[T]) Watch(ctx context.Context, prefix string, fn func(row Row[T])) (stop func(), err error) {
	return t.watch(ctx, prefix, func(row Row[T], _ uint64) { fn(row) })
}

// watch passes each row to fn with the revision of the change; a deletion has one,
// too.
func (t *Table[T]) watch(ctx context.Context, prefix string, fn func(row Row[T], revision uint64)) (stop func(),
	err error) {
	return t.state.Watch(ctx, prefix, func(v Value) {
		if v.Deleted {
			fn(Row[T]{Key: v.Key}, v.Revision)
			return
		}
		row, err := t.decode(v)
		if err != nil {
			t.warn(v.Key, err)
			return
		}
		fn(row, v.Revision)
	})
}

func (t *Table[T]) decode(v Value) (Row[T], error) {
	row := Row[T]{Key: v.Key, Revision: v.Revision, Until: v.Until}
	if err := json.Unmarshal(v.Data, &row.Value); err != nil {
		return Row[T]{Key: v.Key, Revision: v.Revision, Until: v.Until},
			failBy(ErrCorrupt, err, "the value of %q", v.Key)
	}
	return row, nil
}

// take applies a change from the state: the row, and the revision of the change.
func (t *Table[T]) take(row Row[T], revision uint64) {
	t.turn.Lock()
	defer t.turn.Unlock()
	t.mu.Lock()
	before := t.rows[row.Key]
	switch {
	case revision < before.Revision, revision == before.Revision && row.Revision != 0,
		row.Revision != 0 && revision <= t.deleted[row.Key]: // known, or older than the known row
		t.mu.Unlock()
		return
	case row.Revision == 0, t.omit != nil && t.omit(row.Value):
		delete(t.rows, row.Key)
		delete(t.deleted, row.Key)
	default:
		t.makeRoom()
		t.rows[row.Key] = row
		delete(t.deleted, row.Key)
	}
	tell := t.changed
	t.mu.Unlock()
	if tell != nil && (before.Revision != 0 || row.Revision != 0) {
		tell(before, row)
	}
}

// makeRoom drops expired rows, and from a full cache any row. The caller holds t.mu.
func (t *Table[T]) makeRoom() {
	if t.all {
		if len(t.rows) < t.sweepAt {
			return
		}
		now := t.now()
		maps.DeleteFunc(t.rows, func(_ string, r Row[T]) bool { return r.gone(now) })
		t.sweepAt = max(64, 2*len(t.rows))
		return
	}
	for key := range t.rows {
		if len(t.rows) < t.max {
			return
		}
		delete(t.rows, key)
	}
}

func (r *Row[T]) gone(now time.Time) bool { return !r.Until.IsZero() && !r.Until.After(now) }

// note caches a row that was read or written here.
func (t *Table[T]) note(row Row[T]) {
	t.mu.RLock()
	all := t.all
	t.mu.RUnlock()
	if all {
		t.take(row, row.Revision)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.max > 0 && row.Revision > t.rows[row.Key].Revision {
		t.makeRoom()
		t.rows[row.Key] = row
	}
}

// Get reads a row from the state; Revision 0: there is none.
func (t *Table[T]) Get(ctx context.Context, key string) (Row[T], error) {
	v, err := t.state.Get(ctx, key)
	if errors.Is(err, ErrNotFound) {
		t.drop(key)
		return Row[T]{Key: key}, nil
	}
	if err != nil {
		return Row[T]{Key: key}, err
	}
	row, err := t.decode(v)
	if err == nil {
		t.note(row)
	}
	return row, err
}

// drop removes a row from the cache. A followed table learns of the removal from the
// state.
func (t *Table[T]) drop(key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.all {
		delete(t.rows, key)
	}
}

// Known returns a row from memory: of a followed table the row after the last
// reported change, else the cached row. Revision 0: the row is not in memory.
func (t *Table[T]) Known(key string) Row[T] {
	t.mu.RLock()
	row := t.rows[key]
	t.mu.RUnlock()
	if row.gone(t.now()) {
		return Row[T]{Key: key}
	}
	row.Key = key
	return row
}

// Last is Known, or else Get. Another hub may have changed the row since.
func (t *Table[T]) Last(ctx context.Context, key string) (Row[T], error) {
	if row := t.Known(key); row.Revision != 0 {
		return row, nil
	}
	return t.Get(ctx, key)
}

// All returns the rows in memory, in no order. A followed table has all rows there.
func (t *Table[T]) All() []Row[T] {
	now := t.now()
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.DeleteFunc(slices.Collect(maps.Values(t.rows)), func(r Row[T]) bool { return r.gone(now) })
}

// Len counts the rows in memory; some may have expired.
func (t *Table[T]) Len() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.rows)
}

// Range reads all rows whose key begins with prefix from the state, in the order of
// their last change. A value that cannot be decoded comes with its key and an error;
// the next row follows.
func (t *Table[T]) Range(ctx context.Context, prefix string) iter.Seq2[Row[T], error] {
	return func(yield func(Row[T], error) bool) {
		for v, err := range t.state.Range(ctx, prefix) {
			row := Row[T]{}
			if err == nil {
				row, err = t.decode(v)
			}
			if !yield(row, err) {
				return
			}
		}
	}
}

// List reads the rows of [Table.Range] at once, so that the caller can change them.
// Rows that cannot be decoded are logged and skipped.
func (t *Table[T]) List(ctx context.Context, prefix string) (rows []Row[T], err error) {
	return t.collect(ctx, prefix, func(*Row[T]) bool { return true })
}

// collect is [Table.List] for the rows for which accept returns true. accept may
// change its row.
func (t *Table[T]) collect(ctx context.Context, prefix string, accept func(*Row[T]) bool) (rows []Row[T], err error) {
	for row, err := range t.Range(ctx, prefix) {
		switch {
		case err == nil:
			if accept(&row) {
				rows = append(rows, row)
			}
		case row.Revision != 0:
			t.warn(row.Key, err)
		default:
			return nil, err
		}
	}
	return rows, nil
}

// Put sets a row and replaces any former one.
func (t *Table[T]) Put(ctx context.Context, key string, value T, until time.Time) (Row[T], error) {
	return t.write(Row[T]{Key: key, Value: value, Until: until}, func(data []byte) (uint64, error) {
		return t.state.Put(ctx, key, data, until)
	})
}

// Replace writes a row if the row in the state still has that revision, or if there
// is none and the revision is 0. Else it fails with [ErrConflict]. It returns the
// row with its new revision.
func (t *Table[T]) Replace(ctx context.Context, row Row[T]) (Row[T], error) {
	return t.write(row, func(data []byte) (uint64, error) {
		if row.Revision != 0 {
			return t.state.Update(ctx, row.Key, data, row.Until, row.Revision)
		}
		revision, err := t.state.Create(ctx, row.Key, data, row.Until)
		if errors.Is(err, ErrExists) {
			err = failBy(ErrConflict, err, "key %q has a value already", row.Key)
		}
		return revision, err
	})
}

func (t *Table[T]) write(row Row[T], store func(data []byte) (uint64, error)) (Row[T], error) {
	data, err := encodeRow(row.Value)
	if err != nil {
		return row, fmt.Errorf("encode the value of %q: %w", row.Key, err)
	}
	revision, err := store(data)
	if err != nil {
		if errors.Is(err, ErrConflict) {
			t.drop(row.Key)
		}
		return row, err
	}
	row.Revision = revision
	t.note(row)
	return row, nil
}

// encodeRow keeps the text of JSON within a value as it is: it may be signed.
func encodeRow(value any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(value)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// Change calls step with a row (Revision 0: there is none) and writes the row that
// step leaves, if step returns true. If another change comes first, it calls step
// again. It returns the row as step left it.
func (t *Table[T]) Change(ctx context.Context, key string,
	step func(row *Row[T]) (write bool, err error)) (Row[T], error) {
	row, err := t.Last(ctx, key)
	for err == nil {
		next := row
		write, err := step(&next)
		if err != nil || !write {
			return next, err
		}
		next.Key, next.Revision = key, row.Revision
		if next, err = t.Replace(ctx, next); !errors.Is(err, ErrConflict) {
			return next, err
		}
		if row, err = t.Get(ctx, key); err != nil {
			return row, err
		}
	}
	return row, err
}

// Delete removes a row if its revision is the given one or 0 is given; else it fails
// with [ErrConflict]. An absent row is no error.
func (t *Table[T]) Delete(ctx context.Context, key string, revision uint64) error {
	if err := t.state.Delete(ctx, key, revision); err != nil {
		if errors.Is(err, ErrConflict) {
			t.drop(key)
		}
		return err
	}
	t.turn.Lock()
	defer t.turn.Unlock()
	t.mu.Lock()
	before := t.rows[key]
	delete(t.rows, key)
	if t.all && before.Revision != 0 {
		t.deleted[key] = before.Revision
	}
	tell := t.changed
	t.mu.Unlock()
	if tell != nil && before.Revision != 0 {
		tell(before, Row[T]{Key: key})
	}
	return nil
}

// A Fate is the decision of [Table.Sweep] about a row.
type Fate int

// The fates of a row.
const (
	Keep   Fate = iota // leave the row
	Write              // write it as judge has changed it
	Remove             // delete it
)

// sweeps bounds the tries of a Sweep while other callers change rows.
const sweeps = 8

// Sweep has judge decide about each row whose key begins with prefix, for example to
// erase the content of an agent's messages. It counts the rows that it wrote or
// removed. A row that another caller changed meanwhile is judged again; if that does
// not end, Sweep fails with [ErrConflict].
func (t *Table[T]) Sweep(ctx context.Context, prefix string, judge func(row *Row[T]) Fate) (n int, err error) {
	for range sweeps {
		var fates []Fate // of rows to be written or removed
		rows, err := t.collect(ctx, prefix, func(row *Row[T]) bool {
			key, revision := row.Key, row.Revision
			fate := judge(row)
			if row.Key, row.Revision = key, revision; fate != Keep {
				fates = append(fates, fate)
			}
			return fate != Keep
		})
		if err != nil {
			return n, err
		}
		conflict := false
		for i, row := range rows { // rows must not be written while they are read
			if fates[i] == Remove {
				err = t.Delete(ctx, row.Key, row.Revision)
			} else {
				_, err = t.Replace(ctx, row)
			}
			switch {
			case err == nil:
				n++
			case errors.Is(err, ErrConflict):
				conflict = true
			default:
				return n, err
			}
		}
		if !conflict {
			return n, nil
		}
	}
	return n, fail(ErrConflict, "rows below %q change all the time", prefix)
}

// Uncache drops cached rows, after some were erased. A followed table keeps its
// rows: the state updates them.
func (t *Table[T]) Uncache() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.all {
		clear(t.rows)
	}
}
