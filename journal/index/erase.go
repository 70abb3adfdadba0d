package index

import (
	"context"
	"errors"

	"github.com/parley-hub/parley"
)

// Erase takes the content of messages out: what can be searched, the beginning
// that lists show, and texts of errors. The messages stay, as their records do.
// It returns when everything recorded before the call is indexed, so that
// nothing of it comes in again, and the file has nothing of it any more. Thorough
// also merges what can be searched, which takes as long as the index is large;
// without it, words of erased messages stay in the file, though nothing finds
// them, until SQLite merges them. Messages that it does not have are no error.
func (x *Index) Erase(ctx context.Context, thorough bool, ids ...parley.ID) error {
	for len(ids) > 0 {
		list := ids[:min(len(ids), pruneChunk)]
		ids = ids[len(list):]
		if err := x.do(ctx, func(s *store) error { return s.erase(list) }); err != nil {
			return err
		}
	}
	return x.do(ctx, func(s *store) error {
		if thorough && !s.noText {
			if err := s.c.exec("PRAGMA secure_delete=ON; INSERT INTO texts (texts) VALUES ('optimize'); PRAGMA secure_delete=OFF"); err != nil {
				return err
			}
		}
		_, err := s.checkpoint()
		return err
	})
}

func (s *store) erase(list []parley.ID) error {
	if err := s.c.exec("PRAGMA secure_delete=ON; BEGIN IMMEDIATE"); err != nil {
		return err
	}
	statements := []string{"UPDATE messages SET preview=NULL, error=NULL WHERE id=?"}
	if !s.noText {
		statements = append(statements, "DELETE FROM texts WHERE rowid IN (SELECT n FROM messages WHERE id=?)")
	}
	for _, sql := range statements {
		q, err := s.c.prepare(sql)
		if err != nil {
			return err
		}
		for _, id := range list {
			if err = q.blob(id[:]).run(); err != nil {
				break
			}
		}
		if err := errors.Join(err, s.c.finalize(q)); err != nil {
			return err
		}
	}
	return s.c.exec("COMMIT; PRAGMA secure_delete=OFF")
}
