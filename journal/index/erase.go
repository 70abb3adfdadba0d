package index

import (
	"context"
	"errors"

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
		if thorough && !s.search.noText {
			// SQLite merges what can be searched as it grows, and leaves what was
			// merged in pages that nothing uses: the files are written anew. That needs
			// a temporary one, of what is left, which does not belong in memory.
			const anew = "PRAGMA temp_store=FILE; VACUUM; PRAGMA temp_store=MEMORY"
			if err := errors.Join(s.search.c.exec("INSERT INTO texts (texts) VALUES ('optimize');"+anew), s.c.exec(anew)); err != nil {
				return err
			}
		}
		for _, f := range s.files() {
			if _, err := f.checkpoint(); err != nil {
				return err
			}
		}
		return nil
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
	err := j.f(s)
	if err != nil {
		err = errors.Join(err, s.rollback())
	}
	j.done <- err
}

func (s *store) erase(list []parley.ID) error {
	if err := s.c.exec("PRAGMA secure_delete=ON; BEGIN IMMEDIATE"); err != nil {
		return err
	}
	find, err := s.c.prepare("SELECT n FROM messages WHERE id=?")
	if err != nil {
		return err
	}
	update, err := s.c.prepare("UPDATE messages SET preview=NULL, error=NULL WHERE id=?")
	if err != nil {
		return errors.Join(err, s.c.finalize(find))
	}
	failed, err := s.c.prepare("UPDATE deliveries SET error=NULL WHERE message=?")
	if err != nil {
		return errors.Join(err, s.c.finalize(find), s.c.finalize(update))
	}
	var keys []int64
	gone := map[int64]bool{}
	for _, id := range list {
		more, findErr := find.blob(id[:]).row()
		for ; more && findErr == nil; more, findErr = find.row() {
			keys = append(keys, find.colInt(0))
			gone[keys[len(keys)-1]] = true
			if err = failed.int(keys[len(keys)-1]).run(); err != nil {
				break
			}
		}
		if err = errors.Join(err, findErr, update.blob(id[:]).run()); err != nil {
			break
		}
	}
	if err := errors.Join(err, s.c.finalize(find), s.c.finalize(update), s.c.finalize(failed)); err != nil {
		return err
	}
	for key, d := range s.rows {
		if gone[key.message] {
			d.error = ""
		}
	}
	if err := s.search.erase(keys); err != nil {
		return err
	}
	return s.c.exec("COMMIT; PRAGMA secure_delete=OFF")
}
