package index

import (
	"context"
	"fmt"
	"math"

	"github.com/parley-hub/parley"
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

// before removes what lies before a sequence of a partition.
func (x *Index) before(ctx context.Context, partition int, first uint64) (int, error) {
	if first <= 1 {
		return 0, nil
	}
	return x.removeAll(ctx, func(s *store) error {
		// Within a partition the sequence grows with n: what is behind the first
		// that is left need not be looked at.
		return s.c.exec(fmt.Sprintf(`INSERT INTO gone SELECT n FROM messages WHERE n & 255 = %[1]d AND n < ifnull(
			(SELECT n FROM messages WHERE n & 255 = %[1]d AND sequence >= %[2]d ORDER BY n LIMIT 1), %[3]d) ORDER BY n LIMIT %[4]d`,
			partition, int64(first), int64(math.MaxInt64), pruneChunk))
	})
}

// removeAll removes what choose puts into the table gone, again and again until
// that is nothing.
func (x *Index) removeAll(ctx context.Context, choose func(*store) error) (int, error) {
	total := 0
	for {
		n := 0
		err := x.do(ctx, func(s *store) (err error) {
			n, err = s.remove(choose)
			return err
		})
		if total += n; err != nil || n == 0 {
			return total, err
		}
	}
}

// remove removes the messages of the table gone, which choose fills, with all
// that hangs on them, and tells how many they were.
func (s *store) remove(choose func(*store) error) (n int, err error) {
	if err := s.c.exec(removalTables); err != nil {
		return 0, err
	}
	err = s.c.transaction(func() error {
		if err := s.c.exec("DELETE FROM gone; DELETE FROM hit; DELETE FROM pairs"); err != nil {
			return err
		}
		if err := choose(s); err != nil {
			return err
		}
		count, err := number(s.c.Conn, "SELECT count(*) FROM gone")
		if n = int(count); err != nil || n == 0 {
			return err
		}
		if !s.noText {
			if err := s.c.exec("DELETE FROM texts WHERE rowid IN (SELECT n FROM gone)"); err != nil {
				return err
			}
		}
		return s.c.exec(removal)
	})
	// What is remembered of the rows is of before.
	s.forget()
	return n, err
}

const removalTables = `
CREATE TEMP TABLE IF NOT EXISTS gone (n INTEGER PRIMARY KEY);
CREATE TEMP TABLE IF NOT EXISTS hit (n INTEGER PRIMARY KEY);
CREATE TEMP TABLE IF NOT EXISTS pairs (trace BLOB, conversation INT);
`

// removal takes from the counts of a conversation what goes, which costs as much
// as what goes, however long the conversation is.
var removal = fmt.Sprintf(`
INSERT OR IGNORE INTO hit SELECT conversation FROM messages WHERE n IN (SELECT n FROM gone) AND conversation IS NOT NULL;
INSERT INTO pairs SELECT DISTINCT trace, conversation FROM messages WHERE n IN (SELECT n FROM gone) AND trace IS NOT NULL AND conversation IS NOT NULL;
UPDATE conversations SET messages = messages - d.c, failed = failed - d.f FROM
	(SELECT m.conversation AS v, count(*) AS c, sum(m.flags<>0) AS f FROM gone g JOIN messages m ON m.n=g.n WHERE m.conversation IS NOT NULL GROUP BY 1) d WHERE conversations.n=d.v;
UPDATE conversations SET open = open - d.o FROM
	(SELECT m.conversation AS v, count(*) AS o FROM gone g JOIN messages m ON m.n=g.n JOIN deliveries x ON x.message=g.n
		WHERE m.conversation IS NOT NULL AND (x.state IN (%d, %d) OR x.state=%d AND m.kind=%d) GROUP BY 1) d WHERE conversations.n=d.v;
DELETE FROM party WHERE (agent, message) IN (SELECT m.sender, m.n FROM gone g JOIN messages m ON m.n=g.n
	UNION SELECT m.recipient, m.n FROM gone g JOIN messages m ON m.n=g.n
	UNION SELECT d.recipient, d.message FROM gone g JOIN deliveries d ON d.message=g.n);
DELETE FROM deliveries WHERE message IN (SELECT n FROM gone);
DELETE FROM messages WHERE n IN (SELECT n FROM gone);
DELETE FROM traces WHERE (trace, conversation) IN (SELECT trace, conversation FROM pairs EXCEPT SELECT m.trace, m.conversation FROM hit h JOIN messages m ON m.conversation=h.n);
DELETE FROM conversations WHERE n IN (SELECT n FROM hit) AND messages<=0;
UPDATE conversations SET first = (SELECT min(n) FROM messages WHERE conversation=conversations.n), last = (SELECT max(n) FROM messages WHERE conversation=conversations.n)
	WHERE n IN (SELECT n FROM hit);
`, parley.Waiting, parley.Delivering, parley.Delivered, parley.Request)
