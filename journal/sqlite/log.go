package sqlite

import (
	"cmp"
	"context"
	"fmt"

	"zombiezen.com/go/sqlite"

	"github.com/parley-hub/parley/journal/store"
)

// maxRecord is the size of the largest record, in bytes. SQLite takes up to 1 GB.
const maxRecord = 64 << 20

// Append implements [store.Store]. If it returns [store.ErrUnknown] because ctx
// ended, the store may read records until it is closed: do not change them.
func (s *Store) Append(ctx context.Context, partition int, after uint64, records []store.Record) error {
	size := 0
	for i := range records {
		if len(records[i].Data) > maxRecord {
			return fmt.Errorf("%w: a record of %d bytes, the limit is %d", store.ErrTooLarge, len(records[i].Data),
				maxRecord)
		}
		size += len(records[i].Data) + 128
	}
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
	st, err := w.Prepare(ofLog(partition, logInsert))
	if err != nil {
		return nil, err
	}
	for i := range records {
		r := &records[i]
		if r.Sequence > p.last+1 {
			p.skip(r.Sequence - 1)
		}
		if err := st.Reset(); err != nil {
			return nil, err
		}
		st.BindInt64(1, int64(p.last+1))
		st.BindInt64(2, int64(partition))
		bindText(st, 3, r.Tag)
		if r.About.Time.IsZero() {
			st.BindNull(4)
		} else {
			st.BindInt64(4, r.About.Time.UnixMilli())
		}
		bindText(st, 5, r.About.Kind)
		bindText(st, 6, r.About.Message)
		bindText(st, 7, r.About.From)
		bindText(st, 8, r.About.To)
		st.BindBytes(9, r.Data)
		if _, err := st.Step(); err != nil {
			return nil, err
		}
		p.last++
		p.bytes += int64(len(r.Data))
	}
	return nil, nil
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

// Skip implements [store.Store].
func (s *Store) Skip(ctx context.Context, partition int, last uint64) error {
	return s.change(ctx, 0, func(w *writer) (refused, failed error) {
		p := w.now.part(partition)
		if p == nil {
			return noPartition(partition), nil
		}
		if last > p.last {
			p.skip(last)
		}
		return nil, nil
	})
}

// Bounds of a page of a read. Between pages no reader is open: an open reader keeps
// the WAL from restarting.
const (
	pageRecords = 256
	pageBytes   = 4 << 20
)

// Read implements [store.Store].
func (s *Store) Read(ctx context.Context, partition int, first, last uint64, fn func(store.Record) bool) error {
	if err := s.beginCall(); err != nil {
		return err
	}
	defer s.endCall()
	var page []store.Record
	for limit := 16; ; limit = min(4*limit, pageRecords) {
		span, ok := s.committed(partition)
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

// readPage reads some records. After an error the page has the records before it.
func (s *Store) readPage(c *conn, page []store.Record, partition int, first, last uint64, limit int,
) ([]store.Record, error) {
	size := 0
	err := c.query(ofLog(partition, logRead), func(st *sqlite.Stmt) error {
		r, err := s.record(c, st, partition)
		if err != nil {
			return err
		}
		page = append(page, r)
		if size += len(r.Data); size >= pageBytes {
			return errEnough
		}
		return nil
	}, first, last, limit)
	return page, err
}

// record reads the current row: sequence, tag and data.
func (s *Store) record(c *conn, st *sqlite.Stmt, partition int) (r store.Record, err error) {
	r.Sequence, r.Tag = uint64(st.ColumnInt64(0)), st.ColumnText(1)
	if !st.ColumnIsNull(2) {
		r.Data = bytesOf(st, 2)
		return r, nil
	}
	v, found, err := c.value(partition, r.Sequence)
	if err == nil && !found {
		err = s.corrupt(fmt.Errorf("record %d of partition %d has no data", r.Sequence, partition))
	}
	r.Data = v.Data
	return r, err
}

// Tagged implements [store.Store].
func (s *Store) Tagged(ctx context.Context, partition int, tag string) (r store.Record, err error) {
	span, ok := s.committed(partition)
	if !ok {
		return r, noPartition(partition)
	}
	found := false
	err = s.reading(ctx, func(c *conn) error {
		return c.query(ofLog(partition, logTagged), func(st *sqlite.Stmt) (err error) {
			found = true
			r, err = s.record(c, st, partition)
			return err
		}, tag, span.first)
	})
	if err == nil && !found {
		err = fmt.Errorf("%w: a record of partition %d with the tag %q", store.ErrNotFound, partition, tag)
	}
	return r, err
}

// Span implements [store.Store].
func (s *Store) Span(ctx context.Context, partition int) (store.Span, error) {
	if err := s.beginCall(); err != nil {
		return store.Span{}, err
	}
	defer s.endCall()
	p, ok := s.committed(partition)
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

// Replace implements [store.Store]. A replaced record has no About.
func (s *Store) Replace(ctx context.Context, partition int, records []store.Record) error {
	size := 0
	for i := range records {
		size += len(records[i].Data) + pageSize
	}
	err := s.change(ctx, size, func(w *writer) (refused, failed error) { return w.replace(partition, records) })
	if err != nil {
		return err
	}
	return s.truncate(ctx)
}

// replace empties the records where they are, and adds their new data to another
// table: a row that grows would be moved.
func (w *writer) replace(partition int, records []store.Record) (refused, failed error) {
	p := w.now.part(partition)
	if p == nil {
		return noPartition(partition), nil
	}
	sizes := make([]int64, len(records))
	for i := range records {
		seq, found := records[i].Sequence, false
		err := w.query(ofLog(partition, logSizes), func(st *sqlite.Stmt) error {
			sizes[i], found = st.ColumnInt64(1), seq >= p.first
			return nil
		}, seq, seq, 1)
		if err != nil {
			return nil, err
		}
		if !found {
			return fmt.Errorf("%w: record %d of partition %d", store.ErrNotFound, seq, partition), nil
		}
	}
	for i := range records {
		r := &records[i]
		p.bytes -= sizes[i]
		if err := w.exec(ofLog(partition, logBlank), r.Sequence); err != nil {
			return nil, err
		}
		row, _, err := w.find(partition, r.Sequence)
		if err != nil {
			return nil, err
		}
		if err := w.set(row, partition, r.Sequence, &store.Value{Data: r.Data}); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// Remove implements [store.Store].
func (s *Store) Remove(ctx context.Context, partition int, before uint64) error {
	for more := true; more; {
		err := s.change(ctx, 1<<20, func(w *writer) (refused, failed error) {
			more, refused, failed = w.remove(partition, before)
			return refused, failed
		})
		if err != nil {
			return err
		}
	}
	return s.truncate(ctx)
}

// remove erases some records before a sequence. more: others remain.
func (w *writer) remove(partition int, before uint64) (more bool, refused, failed error) {
	p := w.now.part(partition)
	if p == nil {
		return false, noPartition(partition), nil
	}
	if before = min(before, p.last+1); before <= p.first {
		return false, nil, nil
	}
	last, n, size := before-1, uint64(0), int64(0)
	err := w.query(ofLog(partition, logSizes), func(st *sqlite.Stmt) error {
		n++
		if size += st.ColumnInt64(1); n < pageRecords && size < pageBytes {
			return nil
		}
		last = uint64(st.ColumnInt64(0))
		return errEnough
	}, p.first, last, -1)
	if err != nil {
		return false, nil, err
	}
	first, err := w.int(ofLog(partition, "SELECT ifnull(min(sequence), ?) FROM log_N WHERE sequence > ?"), p.last+1,
		last)
	if err != nil {
		return false, nil, err
	}
	if err := w.exec(ofLog(partition, logErase), p.first, last); err != nil {
		return false, nil, err
	}
	if err := w.exec(stateErase+"bucket = ? AND key BETWEEN ? AND ?", partition, p.first, last); err != nil {
		return false, nil, err
	}
	p.missing -= min(p.missing, uint64(first)-p.first-n)
	p.bytes -= size
	p.first, p.dirty = uint64(first), true
	return p.first < before, nil, w.trim(ofLog(partition, "log_N"), "sequence", p.first)
}

// margin is how many erased rows stay before the first row that is not erased:
// SQLite may move the rows of two pages beside a deleted one, and at most 372
// erased rows fit on a page.
const margin = 1200

// trim deletes the erased rows of a table before a key, except the last margin of
// them, and frees their space. See "Erasure" in doc.go.
func (w *writer) trim(table, key string, before uint64) error {
	err := w.exec(fmt.Sprintf("DELETE FROM %[1]s WHERE %[2]s < "+
		"(SELECT %[2]s FROM %[1]s WHERE %[2]s < ? ORDER BY %[2]s DESC LIMIT 1 OFFSET ?)", table, key), before, margin)
	return cmp.Or(err, w.exec(fmt.Sprintf("PRAGMA incremental_vacuum(%d)", pageBytes/pageSize)))
}
