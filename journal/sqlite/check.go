package sqlite

import (
	"context"
	"fmt"
	"slices"

	"zombiezen.com/go/sqlite"

	"github.com/parley-hub/parley/journal/store"
)

// Damage is one thing that is wrong with a journal.
type Damage struct {
	Partition int    // -1: none
	Sequence  uint64 // 0: not one record
	What      string
}

// Check looks for damage: SQLite checks its tables, then every record is read
// and given to verify, which knows the records' own checksums, and every value.
// Progress is told how many of total steps are done; the last time all are. The
// store may be in use; its WAL grows while a table is checked.
func (s *Store) Check(ctx context.Context, progress func(done, total uint64),
	verify func(partition int, r store.Record) error,
) (found []Damage, err error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	s.known.RLock()
	spans := slices.Clone(s.content.parts)
	s.known.RUnlock()
	tables := []string{"meta", "meta_copy", "partitions", "replaced", stateTable(0), stateTable(1)}
	done, total := uint64(0), uint64(len(tables))
	for _, span := range spans {
		total += 2 * span.records()
	}
	step := func(n uint64) {
		if done = min(done+n, total); n > 0 && progress != nil {
			progress(done, total)
		}
	}
	wrong := func(partition int, sequence uint64, what string) {
		found = append(found, Damage{Partition: partition, Sequence: sequence, What: what})
	}
	integrity := func(partition int, table string, size uint64) error {
		err := s.reading(ctx, func(c *conn) error {
			c.SetInterrupt(ctx.Done())
			defer c.SetInterrupt(nil)
			return c.query(fmt.Sprintf("PRAGMA integrity_check('%s')", table), func(st *sqlite.Stmt) bool {
				if text := st.ColumnText(0); text != "ok" {
					wrong(partition, 0, table+": "+text)
				}
				return true
			})
		})
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			wrong(partition, 0, table+": "+err.Error())
		}
		step(size)
		return nil
	}
	for _, table := range tables {
		if err := integrity(-1, table, 1); err != nil {
			return found, err
		}
	}
	for n, span := range spans {
		if err := integrity(n, ofLog(n, "log_N"), span.records()); err != nil {
			return found, err
		}
	}
	for n, span := range spans {
		read, missing := uint64(0), uint64(0)
		err := s.scan(ctx, ofLog(n, logRead), span.first, span.last, func(c *conn, st *sqlite.Stmt) {
			r, err := s.record(c, st, n)
			if err == nil && verify != nil {
				err = verify(n, r)
			}
			if err != nil {
				wrong(n, r.Sequence, err.Error())
			}
			if read++; read%pageRecords == 0 {
				step(pageRecords)
			}
		}, func(first, last uint64, why error) {
			if missing += last - first + 1; why == nil && missing <= span.missing {
				return // a restore left them out
			}
			if why == nil {
				why = fmt.Errorf("it is not there")
			}
			if last-first >= 1000 {
				wrong(n, first, fmt.Sprintf("it and all up to %d: %v", last, why))
				return
			}
			for seq := first; seq <= last; seq++ {
				wrong(n, seq, why.Error())
			}
		})
		if err != nil {
			return found, err
		}
		step(read % pageRecords)
	}
	for table := range 2 {
		if err := s.checkState(ctx, stateTable(table), wrong); err != nil {
			return found, err
		}
	}
	step(total - done)
	return found, nil
}

// checkState reads all values of a table.
func (s *Store) checkState(ctx context.Context, table string, wrong func(int, uint64, string)) error {
	var last int64
	err := s.reading(ctx, func(c *conn) (err error) {
		last, err = c.int("SELECT max(id) FROM " + table)
		return err
	})
	if err != nil {
		wrong(-1, 0, table+": "+err.Error())
		return ctx.Err()
	}
	query := "SELECT id, bucket, key, revision, data FROM " + table + " WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?"
	return s.scan(ctx, query, 1, uint64(last), func(_ *conn, st *sqlite.Stmt) {
		s.known.RLock()
		revision := s.content.revision
		s.known.RUnlock()
		if n := uint64(st.ColumnInt64(3)); n > revision {
			wrong(-1, 0, fmt.Sprintf("state: %q in %q has revision %d, which is not reached yet",
				st.ColumnText(2), st.ColumnText(1), n))
		}
	}, func(first, last uint64, why error) {
		if why != nil {
			wrong(-1, 0, fmt.Sprintf("%s, rows %d to %d: %v", table, first, last, why))
		}
	})
}

// scan reads the rows from first to last, and goes on behind what cannot be
// read. A hole has a reason, or the rows are just not there. The query takes the
// first and last key and a limit; its first column is the key.
func (s *Store) scan(ctx context.Context, query string, first, last uint64, row func(*conn, *sqlite.Stmt),
	hole func(first, last uint64, why error),
) error {
	for next := first; next <= last; {
		to := min(last, next+pageRecords-1)
		err := s.reading(ctx, func(c *conn) error {
			for next <= to && ctx.Err() == nil {
				err := c.query(query, func(st *sqlite.Stmt) bool {
					key := uint64(st.ColumnInt64(0))
					if key < next || key > to {
						return true // out of order: a damaged key
					}
					if key > next {
						hole(next, key-1, nil)
					}
					row(c, st)
					next = key + 1
					return true
				}, next, to, -1)
				switch {
				case next > to:
				case err != nil:
					hole(next, next, err)
					next++
				default:
					hole(next, to, nil)
					next = to + 1
				}
			}
			return ctx.Err()
		})
		if err != nil {
			return err
		}
	}
	return nil
}
