package index

import (
	"context"
	"math"
)

// pruneChunk bounds the messages removed in one transaction, so that the index goes
// on following.
const pruneChunk = 4096

// Prune removes the messages whose records were removed from the journal, and
// returns their number. The journal does not report removals: call Prune after
// [journal.Journal.Trim].
func (x *Index) Prune(ctx context.Context) (int, error) {
	total := 0
	for _, p := range x.c.Journal.Stats().Partitions {
		n, err := x.before(ctx, p.Partition, p.First)
		total += n
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

// before removes the messages before a sequence of a partition; the schema's
// triggers remove the rest.
func (x *Index) before(ctx context.Context, partition int, first uint64) (total int, err error) {
	for n := pruneChunk; n == pruneChunk && first > 1; total += n {
		if err := x.do(ctx, func(s *store) error {
			// The cache has removed rows.
			defer s.dropCache()
			// Within a partition the sequence grows with n, so the first message that
			// stays ends the search.
			err := execute(s.c, `DELETE FROM messages WHERE n IN (
				SELECT n FROM messages WHERE n & 255 = ?1 AND n < ifnull(
					(SELECT n FROM messages WHERE n & 255 = ?1 AND sequence >= ?2 ORDER BY n LIMIT 1),
					?3) ORDER BY n LIMIT ?4)`,
				nil, partition, int64(min(first, math.MaxInt64)), int64(math.MaxInt64), pruneChunk)
			n = s.c.Changes()
			return err
		}); err != nil {
			return total, err
		}
	}
	return total, nil
}
