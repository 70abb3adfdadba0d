package index

import (
	"cmp"
	"context"
	"errors"

	"zombiezen.com/go/sqlite"

	"github.com/parley-hub/parley"
)

// Erase takes the content of messages out: what can be searched, the beginning
// that lists show, and texts of errors. The messages stay, as their records do.
// It returns when everything recorded before the call is indexed, so that
// nothing of it comes in again, and nothing finds it any more. Thorough also
// writes the file anew, so that no byte of it has what was erased, also of earlier
// calls; that takes as long as the index is large. Without it, words of erased
// messages stay in the file until SQLite merges and overwrites them. Messages that
// it does not have are no error.
func (x *Index) Erase(ctx context.Context, thorough bool, ids ...parley.ID) error {
	for len(ids) > 0 {
		list := ids[:min(len(ids), pruneChunk)]
		ids = ids[len(list):]
		if err := x.do(ctx, func(s *store) error { return s.erase(list) }); err != nil {
			return err
		}
	}
	return x.do(ctx, func(s *store) error {
		if thorough {
			// FTS5 marks a text that is deleted, whose words go when they are merged, and
			// SQLite leaves bytes behind in pages that it splits. So all words are merged
			// and the file is written anew. That needs a temporary one, of what is left,
			// which does not belong in memory.
			statements := []string{"PRAGMA temp_store=FILE", "VACUUM", "PRAGMA temp_store=MEMORY"}
			if !s.noText {
				statements = append([]string{"INSERT INTO texts (texts) VALUES ('optimize')"}, statements...)
			}
			for _, sql := range statements {
				if err := execute(s.c, sql, nil); err != nil {
					return err
				}
			}
		}
		return s.checkpoint()
	})
}

// do has the writer run f between two batches, after everything that was
// recorded before the call.
func (x *Index) do(ctx context.Context, f func(*store) error) error {
	if err := x.Wait(ctx); err != nil {
		return err
	}
	done := make(chan error, 1)
	select {
	case x.jobs <- func(s *store) { done <- f(s) }:
	case <-ctx.Done():
		return ctx.Err()
	case <-x.done:
		return errClosed
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *store) erase(list []parley.ID) error {
	s.dropCache() // what is remembered of the rows has it too
	err := execute(s.c, "PRAGMA secure_delete=ON", nil)
	if err == nil {
		err = transaction(s.c, func() error {
			for _, id := range list {
				if err := s.eraseOne(id); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return errors.Join(err, execute(s.c, "PRAGMA secure_delete=OFF", nil))
}

func (s *store) eraseOne(id parley.ID) error {
	rows := map[int64]*tracked{}
	err := executePrepared(s.c, "SELECT n, deliveries FROM messages WHERE id=?", func(q *sqlite.Stmt) (err error) {
		t := &tracked{}
		rows[q.ColumnInt64(0)] = t
		t.list, err = readDeliveries(q, 1)
		return err
	}, id[:])
	for n, t := range rows {
		for i := range t.list {
			if e := t.list[i].Error; e != nil {
				e.Text = ""
			}
		}
		err = cmp.Or(err, executePrepared(s.c, "UPDATE messages SET preview=NULL, error=NULL, deliveries=nullif(?, '') WHERE n=?", nil,
			t.deliveries(), n))
		if err == nil && !s.noText {
			err = executePrepared(s.c, "DELETE FROM texts WHERE rowid=?", nil, n)
		}
	}
	return err
}
