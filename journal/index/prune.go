package index

import (
	"context"
	"errors"
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
	if err := s.c.exec(`CREATE TEMP TABLE IF NOT EXISTS gone (n INTEGER PRIMARY KEY); CREATE TEMP TABLE IF NOT EXISTS hit (n INTEGER PRIMARY KEY);
		CREATE TEMP TABLE IF NOT EXISTS pairs (trace BLOB, conversation INT); BEGIN IMMEDIATE; DELETE FROM gone; DELETE FROM hit; DELETE FROM pairs`); err != nil {
		return 0, err
	}
	if err := choose(s); err != nil {
		return 0, err
	}
	count, err := s.c.prepare("SELECT count(*) FROM gone")
	if err != nil {
		return 0, err
	}
	if _, err = count.row(); err == nil {
		n = int(count.colInt(0))
	}
	if err := errors.Join(err, s.c.finalize(count)); err != nil {
		return 0, err
	}
	if n > 0 {
		// The second file first: a message that is not found is better than what
		// nothing removes any more.
		keys, parties, err := s.parties()
		if err == nil {
			err = s.search.remove(keys, parties)
		}
		if err != nil {
			return 0, err
		}
		if err := s.c.exec(removal); err != nil {
			return 0, err
		}
		// One that lists as many as it can may have other members; they are looked
		// for among all.
		many, err := s.keys(fmt.Sprintf("SELECT n FROM conversations WHERE n IN (SELECT n FROM hit) AND messages<=0 AND json_array_length(agents)>=%d", maxListed))
		if err != nil {
			return 0, err
		}
		for _, v := range many {
			if err := s.c.exec(fmt.Sprintf("DELETE FROM members WHERE conversation=%d", v)); err != nil {
				return 0, err
			}
		}
		pairs, err := s.leaving()
		if err != nil {
			return 0, err
		}
		if err := s.joinedPut.remove(pairs); err != nil {
			return 0, err
		}
		if err := s.c.exec(removeConversations); err != nil {
			return 0, err
		}
	}
	// What is remembered of the rows is of before.
	s.forget()
	return n, s.c.exec("COMMIT")
}

// parties gives the messages of the table gone, and who has to do with them.
func (s *store) parties() (keys []int64, out []party, err error) {
	if keys, err = s.keys("SELECT n FROM gone ORDER BY n"); err != nil {
		return nil, nil, err
	}
	q, err := s.c.prepare(`SELECT x.n, a.name FROM (SELECT m.n, m.sender AS agent FROM gone g JOIN messages m ON m.n=g.n
		UNION SELECT m.n, m.recipient FROM gone g JOIN messages m ON m.n=g.n UNION SELECT d.message, d.recipient FROM gone g JOIN deliveries d ON d.message=g.n) x JOIN agents a ON a.n=x.agent`)
	if err != nil {
		return nil, nil, err
	}
	for {
		more, err := q.row()
		if err != nil || !more {
			return keys, out, errors.Join(err, s.c.finalize(q))
		}
		out = append(out, party{q.colInt(0), q.colText(1)})
	}
}

// leaving gives the agents that conversations list which go with their last message.
func (s *store) leaving() (pairs [][2]int64, err error) {
	q, err := s.c.prepare("SELECT j.value, c.n FROM hit h CROSS JOIN conversations c ON c.n=h.n CROSS JOIN json_each(c.agents) j WHERE c.messages<=0")
	if err != nil {
		return nil, err
	}
	for {
		more, err := q.row()
		if err != nil || !more {
			return pairs, errors.Join(err, s.c.finalize(q))
		}
		pairs = append(pairs, [2]int64{q.colInt(0), q.colInt(1)})
	}
}

// keys runs a query that gives some.
func (s *store) keys(sql string) (out []int64, err error) {
	q, err := s.c.prepare(sql)
	if err != nil {
		return nil, err
	}
	for {
		more, err := q.row()
		if err != nil || !more {
			return out, errors.Join(err, s.c.finalize(q))
		}
		out = append(out, q.colInt(0))
	}
}

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
DELETE FROM deliveries WHERE message IN (SELECT n FROM gone);
DELETE FROM messages WHERE n IN (SELECT n FROM gone);
DELETE FROM traces WHERE (trace, conversation) IN (SELECT trace, conversation FROM pairs EXCEPT SELECT m.trace, m.conversation FROM hit h JOIN messages m ON m.conversation=h.n);
DELETE FROM members WHERE (agent, conversation) IN (SELECT j.value, c.n FROM hit h CROSS JOIN conversations c ON c.n=h.n CROSS JOIN json_each(c.agents) j WHERE c.messages<=0);
`, parley.Waiting, parley.Delivering, parley.Delivered, parley.Request)

const removeConversations = `
DELETE FROM conversations WHERE n IN (SELECT n FROM hit) AND messages<=0;
UPDATE conversations SET first = (SELECT min(n) FROM messages WHERE conversation=conversations.n), last = (SELECT max(n) FROM messages WHERE conversation=conversations.n)
	WHERE n IN (SELECT n FROM hit);
`
