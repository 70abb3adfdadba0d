package index

import (
	"cmp"
	"context"
	"errors"

	"zombiezen.com/go/sqlite"

	"github.com/parley-hub/parley"
)

// Erase removes the content of messages: searchable text, previews and texts of
// errors. The messages stay, as their records do. Erase first waits until every
// record made before the call is indexed, so that no content comes back. With
// thorough it also rewrites the file, which then has no byte of erased content, also
// from earlier calls; that takes time in proportion to the index. Without thorough,
// words of erased messages stay in the file until SQLite merges and overwrites them.
// Unknown messages are no error.
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
			// FTS5 only marks a deleted text; a merge removes its words. SQLite leaves
			// bytes in pages that it splits. So all words are merged and the file is
			// rewritten. The temporary file has the same size, too large for memory.
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

// do has the writer call f between two batches, after it has indexed every record
// made before the call.
func (x *Index) do(ctx context.Context, f func(*store) error) error {
	x.waiters.Add(1) // the writer does not gather a batch meanwhile
	defer x.waiters.Add(-1)
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
	s.dropCache() // it has the content, too
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
	reasons := map[int64]*Reason{}
	err := executePrepared(s.c, "SELECT n, deliveries, error FROM messages WHERE id=?", func(q *sqlite.Stmt) (err error) {
		t, n := &tracked{}, q.ColumnInt64(0)
		rows[n], reasons[n] = t, readReason(q, 2)
		t.list, err = readDeliveries(q, 1)
		return err
	}, id[:])
	for n, t := range rows {
		for i := range t.list {
			t.list[i].Error.WithoutContent()
		}
		reasons[n].WithoutContent()
		err = cmp.Or(err, executePrepared(s.c,
			"UPDATE messages SET preview=NULL, error=nullif(?, ''), deliveries=nullif(?, '') WHERE n=?", nil,
			reasons[n].encode(), t.deliveries(), n))
		if err == nil && !s.noText {
			err = executePrepared(s.c, "DELETE FROM texts WHERE rowid=?", nil, n)
		}
	}
	return err
}
