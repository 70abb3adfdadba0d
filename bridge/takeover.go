package bridge

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/sleep"
	"github.com/parley-hub/parley/journal"
)

// TakeOver finds tasks at agents elsewhere that this hub must follow from now on, because the process
// that began them is gone or no longer owns their partition. t has a row for each task; its key is the
// ID of the request.
//
// run calls adopt with every row each time this hub becomes the owner of a partition, and each time
// the former owner, still alive, ends an attempt there. It returns when ctx ends. stop ends the
// watches of the journal.
func TakeOver[T any](ctx context.Context, j *journal.Journal, t *journal.Table[T], log *slog.Logger,
	adopt func(request parley.ID, row *T)) (run, stop func()) {
	more := make(chan struct{}, 1)
	wake := func() {
		select {
		case more <- struct{}{}:
		default:
		}
	}
	delivered := func(s journal.Step) bool { return s.State == parley.Delivered }
	stopOwned := j.WatchOwned(func(_ int, owned bool) {
		if owned {
			wake()
		}
	})
	stopRecords := j.Watch(func(r *journal.Record) {
		if slices.ContainsFunc(r.Steps, delivered) && j.Owned(r.Position.Partition) && j.LivesElsewhere(r.Node, r.Time) {
			wake()
		}
	})
	run = func() {
		for {
			select {
			case <-more:
			case <-ctx.Done():
				return
			}
			for err := adoptAll(ctx, t, log, adopt); err != nil && ctx.Err() == nil; err = adoptAll(ctx, t, log, adopt) {
				log.Error("cannot read the tasks elsewhere; trying again", "error", err)
				_ = sleep.For(ctx, takeOverPause)
			}
		}
	}
	return run, func() { stopOwned(); stopRecords() }
}

// takeOverPause is the pause after a failed read of the rows.
const takeOverPause = time.Second

func adoptAll[T any](ctx context.Context, t *journal.Table[T], log *slog.Logger,
	adopt func(parley.ID, *T)) error {
	for row, err := range t.Range(ctx, "") {
		if err != nil && row.Revision == 0 {
			return err
		}
		var id parley.ID
		if err == nil {
			id, err = parley.ParseID(row.Key)
		}
		if err != nil {
			log.Error("the record of a task elsewhere is damaged", "key", row.Key, "error", err)
			continue
		}
		adopt(id, &row.Value)
	}
	return nil
}
