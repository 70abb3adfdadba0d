package sqlite

import (
	"context"
	"fmt"

	"zombiezen.com/go/sqlite"

	"github.com/parley-hub/parley/journal/store"
)

// maxRecord is the size of the largest record. SQLite takes up to 1 GB.
const maxRecord = 64 << 20

// Append is described in [store.Store]. If it gives [store.ErrUnknown] because
// ctx ended, the store may read records until it is closed: leave them alone.
func (s *Store) Append(ctx context.Context, partition int, after uint64, records []store.Record) error {
	size := 0
	for i := range records {
		if len(records[i].Data) > maxRecord {
			return fmt.Errorf("%w: a record of %d bytes, the limit is %d", store.ErrTooLarge, len(records[i].Data), maxRecord)
		}
		size += len(records[i].Data) + 128
	}
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	return s.change(ctx, size, func(w *writer) (refused, failed error) { return w.append(partition, after, records) })
}

func (w *writer) append(partition int, after uint64, records []store.Record) (refused, failed error) {
	p := w.now.part(partition)
	if p == nil {
		return noPartition(partition), nil
	}
	if p.last != after {
		return fmt.Errorf("%w: the last sequence of partition %d is %d, not %d",
			store.ErrConflict, partition, p.last, after), nil
	}
	st, err := w.inserter(partition)
	if err != nil {
		return nil, err
	}
	for i := range records {
		r := &records[i]
		seq := p.last + 1
		if r.Sequence > seq {
			if p.records() == 0 {
				p.first, p.missing = r.Sequence, 0
			} else {
				p.missing += r.Sequence - seq
			}
			seq, p.dirty = r.Sequence, true
		}
		if err := st.Reset(); err != nil {
			return nil, err
		}
		st.BindInt64(1, int64(seq))
		bindText(st, 2, r.Tag)
		if r.About.Time.IsZero() {
			st.BindNull(3)
		} else {
			st.BindInt64(3, r.About.Time.UnixMilli())
		}
		bindText(st, 4, r.About.Kind)
		bindText(st, 5, r.About.Message)
		bindText(st, 6, r.About.From)
		bindText(st, 7, r.About.To)
		st.BindBytes(8, r.Data)
		if _, err := st.Step(); err != nil {
			return nil, err
		}
		p.last = seq
		p.bytes += int64(len(r.Data))
	}
	return nil, nil
}

// inserter gives the statement that adds a record.
func (w *writer) inserter(partition int) (*sqlite.Stmt, error) {
	for len(w.insert) <= partition {
		st, err := w.Prepare(w.s.queries(len(w.insert)).insert)
		if err != nil {
			return nil, err
		}
		w.insert = append(w.insert, st)
	}
	return w.insert[partition], nil
}

// bindText binds a text, NULL for an empty one.
func bindText(st *sqlite.Stmt, param int, text string) {
	if text == "" {
		st.BindNull(param)
	} else {
		st.BindText(param, text)
	}
}

func noPartition(n int) error {
	return fmt.Errorf("%w: partition %d", store.ErrNotFound, n)
}

// Skip is described in [store.Store].
func (s *Store) Skip(ctx context.Context, partition int, last uint64) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	return s.change(ctx, 0, func(w *writer) (refused, failed error) {
		p := w.now.part(partition)
		switch {
		case p == nil:
			return noPartition(partition), nil
		case last <= p.last:
			return nil, nil
		case p.records() == 0:
			p.first = last + 1
		default:
			p.missing += last - p.last
		}
		p.last, p.dirty = last, true
		return nil, nil
	})
}

// A page of a read ends with these, so that no reader keeps the WAL from
// beginning anew.
const (
	pageRecords = 256
	pageBytes   = 4 << 20
)

// Read is described in [store.Store].
func (s *Store) Read(ctx context.Context, partition int, first, last uint64, fn func(store.Record) bool) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	var page []store.Record
	for limit := 16; ; limit = min(4*limit, pageRecords) {
		span, ok := s.knows(partition)
		if !ok {
			return noPartition(partition)
		}
		first, last = max(first, span.first), min(last, span.last)
		if err := ctx.Err(); err != nil || first > last {
			return err
		}
		page = page[:0]
		err := s.reading(ctx, func(c *conn) (err error) {
			page, err = s.readPage(c, page, partition, first, last, limit)
			return err
		})
		for _, r := range page {
			if !fn(r) {
				return nil
			}
			first = r.Sequence + 1
		}
		if err != nil || len(page) == 0 {
			return err
		}
	}
}

// readPage reads some records. Those before an error are in the page.
func (s *Store) readPage(c *conn, page []store.Record, partition int, first, last uint64, limit int,
) ([]store.Record, error) {
	size := 0
	var bad error
	err := c.query(s.queries(partition).read, func(st *sqlite.Stmt) bool {
		r, err := s.record(c, st, partition)
		if err != nil {
			bad = err
			return false
		}
		page = append(page, r)
		size += len(r.Data)
		return size < pageBytes
	}, first, last, limit)
	if err == nil {
		err = bad
	}
	return page, err
}

// record is the row at hand: sequence, tag and data.
func (s *Store) record(c *conn, st *sqlite.Stmt, partition int) (r store.Record, err error) {
	r.Sequence, r.Tag = uint64(st.ColumnInt64(0)), st.ColumnText(1)
	if !st.ColumnIsNull(2) {
		r.Data = bytesOf(st, 2)
		return r, nil
	}
	found := false
	err = c.query(stateGet, func(st *sqlite.Stmt) bool {
		r.Data, found = bytesOf(st, 1), true
		return true
	}, replaced, replacedKey(partition, r.Sequence))
	if err == nil && !found {
		err = s.corrupt(fmt.Errorf("record %d of partition %d has no data", r.Sequence, partition))
	}
	return r, err
}

func replacedKey(partition int, sequence uint64) string {
	return fmt.Sprintf("%d/%d", partition, sequence)
}

// Tagged is described in [store.Store].
func (s *Store) Tagged(ctx context.Context, partition int, tag string) (r store.Record, err error) {
	if err := s.enter(); err != nil {
		return r, err
	}
	defer s.leave()
	span, ok := s.knows(partition)
	if !ok {
		return r, noPartition(partition)
	}
	found := false
	var bad error
	err = s.reading(ctx, func(c *conn) error {
		return c.query(s.queries(partition).tagged, func(st *sqlite.Stmt) bool {
			found = true
			r, bad = s.record(c, st, partition)
			return false
		}, tag, span.first)
	})
	switch {
	case err != nil:
		return r, err
	case bad != nil:
		return r, s.explain(bad)
	case !found:
		return r, fmt.Errorf("%w: a record of partition %d with the tag %q", store.ErrNotFound, partition, tag)
	}
	return r, nil
}

// Span is described in [store.Store].
func (s *Store) Span(ctx context.Context, partition int) (store.Span, error) {
	if err := s.enter(); err != nil {
		return store.Span{}, err
	}
	defer s.leave()
	p, ok := s.knows(partition)
	if !ok {
		return store.Span{}, noPartition(partition)
	}
	span := store.Span{First: p.first, Last: p.last, Records: p.records()}
	if span.Records == 0 {
		span.First = p.last + 1
		return span, nil
	}
	span.Bytes = uint64(max(p.bytes, 0)) + 32*span.Records
	return span, nil
}

// Follow returns at once: no other process appends.
func (s *Store) Follow(context.Context, int, uint64, func(store.Record)) error { return nil }

// Replace is described in [store.Store]. Of a record's About it keeps what is
// given and not longer than before.
func (s *Store) Replace(ctx context.Context, partition int, records []store.Record) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	size := 0
	for i := range records {
		size += len(records[i].Data) + 4096
	}
	err := s.change(ctx, size, func(w *writer) (refused, failed error) { return w.replace(partition, records) })
	if err != nil {
		return err
	}
	return s.truncate(ctx)
}

func (w *writer) replace(partition int, records []store.Record) (refused, failed error) {
	p := w.now.part(partition)
	if p == nil {
		return noPartition(partition), nil
	}
	q := w.s.queries(partition)
	was := make([]*row, len(records))
	for i := range records {
		if was[i], failed = w.row(q, records[i].Sequence); failed != nil {
			return nil, failed
		}
		if was[i] == nil || records[i].Sequence < p.first {
			return fmt.Errorf("%w: record %d of partition %d", store.ErrNotFound, records[i].Sequence, partition), nil
		}
	}
	for i := range records {
		r := &records[i]
		// No row may get larger where it lies: see "Erasure" in doc.go.
		args := []any{nil, nil, nil, nil, nil, nil, r.Sequence}
		if was[i].timed {
			args[0] = millis(r.About.Time)
		}
		size := int64(0)
		for n, text := range []string{r.About.Kind, r.About.Message, r.About.From, r.About.To} {
			if text != "" && len(text) <= was[i].texts[n] && size+int64(len(text))+overhead <= smallest {
				args[1+n] = text
				size += int64(len(text))
			}
		}
		if n := int64(len(r.Data)); !was[i].null && n <= was[i].data && fits(size+n, was[i].size()) {
			args[5] = r.Data
		} else { // NULL: elsewhere
			v := store.Value{Key: replacedKey(partition, r.Sequence), Data: r.Data}
			if _, err := w.set(replaced, v); err != nil {
				return nil, err
			}
		}
		if err := w.exec(q.replace, args...); err != nil {
			return nil, err
		}
		p.bytes += int64(len(r.Data)) - was[i].data
	}
	return nil, nil
}

// row is how large a record is where it lies.
type row struct {
	data  int64
	null  bool // its data is in the state
	timed bool
	texts [4]int
}

func (r *row) size() int64 {
	n := r.data
	for _, text := range r.texts {
		n += int64(text)
	}
	return n
}

func (w *writer) row(q *queries, sequence uint64) (r *row, err error) {
	err = w.query(q.row, func(st *sqlite.Stmt) bool {
		r = &row{data: st.ColumnInt64(0), null: st.ColumnIsNull(0), timed: !st.ColumnIsNull(1)}
		for i := range r.texts {
			r.texts[i] = st.ColumnLen(2 + i)
		}
		return true
	}, sequence)
	return r, err
}

// Remove is described in [store.Store].
func (s *Store) Remove(ctx context.Context, partition int, before uint64) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	more := true
	for more {
		err := s.change(ctx, 1<<20, func(w *writer) (refused, failed error) {
			more, refused, failed = w.remove(partition, before)
			return refused, failed
		})
		if err != nil {
			return err
		}
	}
	if err := s.shrink(ctx); err != nil {
		return err
	}
	return s.truncate(ctx)
}

// remove erases some records before a sequence, and reports whether there are
// more. The first time it moves the beginning of the partition.
func (w *writer) remove(partition int, before uint64) (more bool, refused, failed error) {
	p := w.now.part(partition)
	if p == nil {
		return false, noPartition(partition), nil
	}
	q := w.s.queries(partition)
	if before = min(before, p.last+1); before > p.first {
		if p.missing > 0 {
			table := fmt.Sprintf("FROM log_%d WHERE sequence >= ? AND sequence < ?", partition)
			n, err := w.int("SELECT count(*) "+table, p.first, before)
			if err != nil {
				return false, nil, err
			}
			p.missing -= before - p.first - uint64(n)
			if next, err := w.int("SELECT min(sequence) "+table, before, p.last+1); err != nil {
				return false, nil, err
			} else if next > int64(before) {
				p.missing -= uint64(next) - before
				before = uint64(next)
			} else if next == 0 {
				p.missing, before = 0, p.last+1
			}
		}
		p.first, p.dirty = before, true
	}
	if p.erased >= p.first {
		return false, nil, nil
	}
	// Erase the next rows, ...
	var last uint64
	var elsewhere []uint64
	size, rows := int64(0), 0
	err := w.query(q.sizes, func(st *sqlite.Stmt) bool {
		last = uint64(st.ColumnInt64(0))
		if st.ColumnIsNull(1) {
			elsewhere = append(elsewhere, last)
		}
		size += st.ColumnInt64(1)
		rows++
		return size < pageBytes
	}, p.erased, p.first-1, pageRecords)
	if err != nil {
		return false, nil, err
	}
	if rows == 0 {
		last = p.first - 1
	} else if err := w.exec(q.wipe, p.erased, last); err != nil {
		return false, nil, err
	}
	for _, seq := range elsewhere {
		if _, err := w.unset(replaced, replacedKey(partition, seq)); err != nil {
			return false, nil, err
		}
	}
	p.bytes -= size
	p.erased, p.dirty = last+1, true
	// ... and delete those that are far enough from the ones that stay.
	limit := p.erased
	if p.erased <= p.last {
		at, err := w.cushion(q.cushion, limit)
		if err != nil {
			return false, nil, err
		}
		limit = at
	}
	if limit > 0 {
		if err := w.exec(q.delete, limit-1); err != nil {
			return false, nil, err
		}
	}
	return p.erased < p.first, nil, nil
}

// cushion gives the first of the erased rows that must stay in front of a row,
// because they fill the pages beside it; 0: all. See "Erasure" in doc.go.
func (w *writer) cushion(query string, before uint64) (at uint64, err error) {
	const enough = 6 * pageSize
	size := int64(0)
	err = w.query(query, func(st *sqlite.Stmt) bool {
		size += st.ColumnInt64(1)
		if size >= enough {
			at = uint64(st.ColumnInt64(0))
		}
		return size < enough
	}, before)
	return at, err
}

// shrink gives the file's free pages back to the file system, some at a time.
func (s *Store) shrink(ctx context.Context) error {
	const step, keep = 128, 64
	for more := true; more; {
		err := s.change(ctx, step*pageSize, func(w *writer) (refused, failed error) {
			free, err := w.int("PRAGMA freelist_count")
			if err != nil {
				return nil, err
			}
			if more = free > keep; more {
				err = w.exec(fmt.Sprintf("PRAGMA incremental_vacuum(%d)", step))
			}
			return nil, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
