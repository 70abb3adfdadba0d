package index

import (
	"context"
	"math"
)

// pruneChunk is how many messages one transaction removes at most, so that the
// index follows meanwhile.
const pruneChunk = 4096

// Prune removes the messages whose records the journal no longer holds because
// they lie before its first, and tells how many it removed. The journal does not
// tell of them: whoever removes them calls this afterwards.
func (x *Index) Prune(ctx context.Context) (int, error) {
	total := 0
	for _, p := range x.c.Journal.Stats().Partitions {
		n, err := x.before(ctx, p.Partition, p.First)
		if total += n; err != nil {
			return total, err
		}
	}
	return total, nil
}

// before removes what lies before a sequence of a partition, with all that hangs
// on it: see the schema's triggers.
func (x *Index) before(ctx context.Context, partition int, first uint64) (total int, err error) {
	for n := pruneChunk; n == pruneChunk && first > 1; total += n {
		if err := x.do(ctx, func(s *store) error {
			// What is remembered of the rows is of before.
			defer s.dropCache()
			// Within a partition the sequence grows with n: what is behind the first
			// that is left need not be looked at.
			err := execute(s.c, `DELETE FROM messages WHERE n IN (SELECT n FROM messages WHERE n & 255 = ?1 AND n < ifnull(
				(SELECT n FROM messages WHERE n & 255 = ?1 AND sequence >= ?2 ORDER BY n LIMIT 1), ?3) ORDER BY n LIMIT ?4)`,
				nil, partition, int64(min(first, math.MaxInt64)), int64(math.MaxInt64), pruneChunk)
			n = s.c.Changes()
			return err
		}); err != nil {
			return total, err
		}
	}
	return total, nil
}
