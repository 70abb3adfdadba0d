package sqlite

import (
	"cmp"
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
		p.last = seq
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

// Skip is described in [store.Store].
func (s *Store) Skip(ctx context.Context, partition int, last uint64) error {
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
	err := c.query(ofLog(partition, logRead), func(st *sqlite.Stmt) bool {
		r, err := s.record(c, st, partition)
		if err != nil {
			bad = err
			return false
		}
		page = append(page, r)
		size += len(r.Data)
		return size < pageBytes
	}, first, last, limit)
	return page, cmp.Or(err, bad)
}

// record is the row at hand: sequence, tag and data.
func (s *Store) record(c *conn, st *sqlite.Stmt, partition int) (r store.Record, err error) {
	r.Sequence, r.Tag = uint64(st.ColumnInt64(0)), st.ColumnText(1)
	if !st.ColumnIsNull(2) {
		r.Data = bytesOf(st, 2)
		return r, nil
	}
	found := false
	err = c.query(replacedGet, func(st *sqlite.Stmt) bool {
		r.Data, found = bytesOf(st, 0), true
		return true
	}, partition, r.Sequence)
	if err == nil && !found {
		err = s.corrupt(fmt.Errorf("record %d of partition %d has no data", r.Sequence, partition))
	}
	return r, err
}

// Tagged is described in [store.Store].
func (s *Store) Tagged(ctx context.Context, partition int, tag string) (r store.Record, err error) {
	span, ok := s.knows(partition)
	if !ok {
		return r, noPartition(partition)
	}
	found := false
	err = s.reading(ctx, func(c *conn) error {
		var bad error
		err := c.query(ofLog(partition, logTagged), func(st *sqlite.Stmt) bool {
			found = true
			r, bad = s.record(c, st, partition)
			return false
		}, tag, span.first)
		return cmp.Or(err, bad)
	})
	if err == nil && !found {
		err = fmt.Errorf("%w: a record of partition %d with the tag %q", store.ErrNotFound, partition, tag)
	}
	return r, err
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

// Replace is described in [store.Store]. A replaced record has no About.
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

// replace empties the records where they are, and adds what they are to be to
// another table: a row that gets longer would be moved.
func (w *writer) replace(partition int, records []store.Record) (refused, failed error) {
	p := w.now.part(partition)
	if p == nil {
		return noPartition(partition), nil
	}
	sizes := make([]int64, len(records))
	for i := range records {
		seq, found := records[i].Sequence, false
		err := w.query(ofLog(partition, logSizes), func(st *sqlite.Stmt) bool {
			sizes[i], found = st.ColumnInt64(1), seq >= p.first
			return true
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
		if err := w.exec(replacedErase, eraseTo, partition, r.Sequence, r.Sequence); err != nil {
			return nil, err
		}
		if err := w.exec(replacedInsert, partition, r.Sequence, r.Data); err != nil {
			return nil, err
		}
	}
	return nil, w.trimReplaced()
}

// Remove is described in [store.Store].
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

// remove erases some records before a sequence, and reports whether there are
// more. The first time it moves the beginning of the partition.
func (w *writer) remove(partition int, before uint64) (more bool, refused, failed error) {
	p := w.now.part(partition)
	if p == nil {
		return false, noPartition(partition), nil
	}
	if before = min(before, p.last+1); before > p.first {
		first, err := w.int(ofLog(partition, "SELECT ifnull(min(sequence), ?) FROM log_N WHERE sequence >= ?"),
			p.last+1, before)
		if err != nil {
			return false, nil, err
		}
		if p.missing > 0 {
			n, err := w.int(ofLog(partition, "SELECT count(*) FROM log_N WHERE sequence >= ? AND sequence < ?"), p.first, first)
			if err != nil {
				return false, nil, err
			}
			p.missing -= uint64(first) - p.first - uint64(n)
		}
		p.first, p.dirty = uint64(first), true
	}
	if p.erased >= p.first {
		return false, nil, nil
	}
	last, size := p.first-1, int64(0)
	err := w.query(ofLog(partition, logSizes), func(st *sqlite.Stmt) bool {
		last = uint64(st.ColumnInt64(0))
		size += st.ColumnInt64(1)
		return size < pageBytes
	}, p.erased, p.first-1, pageRecords)
	if err != nil {
		return false, nil, err
	}
	if err := w.exec(ofLog(partition, logErase), eraseTo, p.erased, last); err != nil {
		return false, nil, err
	}
	if err := w.exec(replacedErase, eraseTo, partition, p.erased, last); err != nil {
		return false, nil, err
	}
	p.bytes -= size
	p.erased, p.dirty = last+1, true
	if err := w.trim(ofLog(partition, "log_N"), "sequence", p.erased, p.erased > p.last); err != nil {
		return false, nil, err
	}
	if err := w.trimReplaced(); err != nil {
		return false, nil, err
	}
	return p.erased < p.first, nil, w.exec(fmt.Sprintf("PRAGMA incremental_vacuum(%d)", pageBytes/pageSize))
}

// trim deletes the erased rows of a table that are before one that stays and far
// enough from it: some are left to fill the pages beside it. See "Erasure" in
// doc.go.
func (w *writer) trim(table, key string, stays uint64, all bool) error {
	const enough = 6 * pageSize
	limit, size := int64(stays), int64(0)
	if !all {
		limit = 0
		query := fmt.Sprintf("SELECT %[2]s, length(data) FROM %[1]s WHERE %[2]s < ? ORDER BY %[2]s DESC", table, key)
		err := w.query(query, func(st *sqlite.Stmt) bool {
			if size += min(st.ColumnInt64(1), eraseTo) + 14; size >= enough {
				limit = st.ColumnInt64(0)
			}
			return size < enough
		}, stays)
		if err != nil {
			return err
		}
	}
	return w.exec(fmt.Sprintf("DELETE FROM %s WHERE %s < ?", table, key), limit)
}

func (w *writer) trimReplaced() error {
	stays, err := w.int("SELECT id FROM replaced NOT INDEXED WHERE partition IS NOT NULL ORDER BY id LIMIT 1")
	if err != nil {
		return err
	}
	if stays == 0 {
		return w.exec("DELETE FROM replaced")
	}
	return w.trim("replaced", "id", uint64(stays), false)
}
