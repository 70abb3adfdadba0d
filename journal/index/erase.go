package index

import (
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
			if !s.noText {
				if err := s.c.exec("INSERT INTO texts (texts) VALUES ('optimize')"); err != nil {
					return err
				}
			}
			if err := s.c.exec("PRAGMA temp_store=FILE; VACUUM; PRAGMA temp_store=MEMORY"); err != nil {
				return err
			}
		}
		return s.checkpoint()
	})
}

// do has the writer run f between two batches, after everything that was
// recorded before the call. What f does in a transaction that is open when it
// fails is undone.
func (x *Index) do(ctx context.Context, f func(*store) error) error {
	if err := x.Wait(ctx); err != nil {
		return err
	}
	j := job{f, make(chan error, 1)}
	select {
	case x.jobs <- j:
	case <-ctx.Done():
		return ctx.Err()
	case <-x.done:
		return errClosed
	}
	select {
	case err := <-j.done:
		return err
	case <-x.done:
		return errClosed
	}
}

// job is something that the writer is asked to do.
type job struct {
	f    func(*store) error
	done chan error
}

func (j job) run(s *store) {
	if s == nil {
		j.done <- errNoStore
		return
	}
	j.done <- j.f(s)
}

func (s *store) erase(list []parley.ID) error {
	if err := s.c.exec("PRAGMA secure_delete=ON"); err != nil {
		return err
	}
	statements := []string{
		"UPDATE messages SET preview=NULL, error=NULL WHERE n=?",
		"UPDATE deliveries SET error=NULL WHERE message=?",
	}
	if !s.noText {
		statements = append(statements, "DELETE FROM texts WHERE rowid=?")
	}
	gone := map[int64]bool{}
	err := s.c.transaction(func() error {
		for _, id := range list {
			var keys []int64
			if err := each(s.c.Conn, "SELECT n FROM messages WHERE id=?", func(q *sqlite.Stmt) error {
				keys = append(keys, q.ColumnInt64(0))
				return nil
			}, id[:]); err != nil {
				return err
			}
			for _, n := range keys {
				gone[n] = true
				for _, sql := range statements {
					if err := s.c.prepare(sql).int(n).run(); err != nil {
						return err
					}
				}
			}
		}
		return nil
	})
	for key, d := range s.rows {
		if gone[key.message] {
			d.error = ""
		}
	}
	return errors.Join(err, s.c.exec("PRAGMA secure_delete=OFF"))
}
