package sqlite

import (
	"context"
	"fmt"
	"slices"

	"zombiezen.com/go/sqlite"

	"github.com/parley-hub/parley/journal/store"
)

// Damage is one fault found in a journal.
type Damage struct {
	Partition int    // -1: none
	Sequence  uint64 // 0: not one record
	What      string
}

// Check looks for damage. SQLite checks its tables; then Check reads every record and
// passes it to verify, which knows the records' own checksums. progress is called
// with the number of steps done, the last time with done equal to total. The store
// may be in use; its WAL grows while a table is checked.
func (s *Store) Check(ctx context.Context, progress func(done, total uint64),
	verify func(partition int, r store.Record) error,
) (found []Damage, err error) {
	if err := s.beginCall(); err != nil {
		return nil, err
	}
	defer s.endCall()
	s.contentMu.RLock()
	spans := slices.Clone(s.content.parts)
	s.contentMu.RUnlock()
	tables := []string{"meta", "meta_copy", "partitions", "state_log"}
	for n := range spans {
		tables = append(tables, ofLog(n, "log_N"))
	}
	done, total := uint64(0), uint64(len(tables))
	for _, span := range spans {
		total += span.records()
	}
	step := func(n int) {
		done = min(done+uint64(n), total)
		if n > 0 && progress != nil {
			progress(done, total)
		}
	}
	wrong := func(partition int, sequence uint64, what string) {
		found = append(found, Damage{Partition: partition, Sequence: sequence, What: what})
	}
	partitions := len(tables) - len(spans) // index of the first partition's table
	for n, table := range tables {
		partition := max(n-partitions, -1)
		err := s.reading(ctx, func(c *conn) error {
			c.SetInterrupt(ctx.Done())
			defer c.SetInterrupt(nil)
			return c.query(fmt.Sprintf("PRAGMA integrity_check('%s')", table), func(st *sqlite.Stmt) error {
				if text := st.ColumnText(0); text != "ok" {
					wrong(partition, 0, table+": "+text)
				}
				return nil
			})
		})
		if ctx.Err() != nil {
			return found, ctx.Err()
		}
		if err != nil {
			wrong(partition, 0, table+": "+err.Error())
		}
		step(1)
	}
	for n, span := range spans {
		left := span.missing // gaps that a restore left
		gap := func(first, last uint64) {
			if size := last - first + 1; size <= left {
				left -= size
			} else {
				wrong(n, first, fmt.Sprintf("it and all up to %d are not there", last))
			}
		}
		for next := span.first; next <= span.last; {
			var page []store.Record
			start := next
			err := s.reading(ctx, func(c *conn) (err error) {
				page, err = s.readPage(c, nil, n, next, span.last, pageRecords)
				return err
			})
			for _, r := range page {
				if r.Sequence < next || r.Sequence > span.last {
					continue // out of order: a damaged key
				}
				if next < r.Sequence {
					gap(next, r.Sequence-1)
				}
				next = r.Sequence + 1
				if verify == nil {
					continue
				}
				if err := verify(n, r); err != nil {
					wrong(n, r.Sequence, err.Error())
				}
			}
			step(len(page))
			switch {
			case ctx.Err() != nil:
				return found, ctx.Err()
			case next > start:
			case err != nil:
				wrong(n, next, err.Error())
				next++
			case len(page) == 0:
				gap(next, span.last)
				next = span.last + 1
			default:
				gap(next, next)
				next++
			}
		}
	}
	err = s.reading(ctx, func(c *conn) error {
		return c.query("SELECT bucket, key, revision FROM state WHERE revision > (SELECT max(id) FROM state_log)",
			func(st *sqlite.Stmt) error {
				wrong(-1, 0, fmt.Sprintf("state: %q in %q has revision %d, which is not reached yet",
					st.ColumnText(1), st.ColumnText(0), st.ColumnInt64(2)))
				return nil
			})
	})
	if err != nil {
		wrong(-1, 0, "state_log: "+err.Error())
	}
	step(int(total - done))
	return found, ctx.Err()
}
