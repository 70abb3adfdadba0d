package index

import (
	"context"
	"fmt"
	"strings"
	"time"

	"zombiezen.com/go/sqlite"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// mendedSchema has the deliveries that failed and then reached their recipient, or were dropped, by
// the time when that happened. It has no text of a message.
const mendedSchema = `
CREATE TABLE mended (
	at INT NOT NULL, n INT NOT NULL, recipient TEXT NOT NULL, dropped INT NOT NULL, first INT NOT NULL,
	attempts INT NOT NULL, code TEXT NOT NULL, reason TEXT NOT NULL, PRIMARY KEY (at, n, recipient)) WITHOUT ROWID;
`

// keepMended is how long a row is kept, counted back from the newest one.
const keepMended = 2 * 24 * time.Hour

// A Mended is a delivery that failed, and then reached its recipient or was dropped.
type Mended struct {
	Message  parley.ID
	From, To string
	At       time.Time // when it reached the recipient, or was dropped
	First    time.Time // its first failed attempt
	Attempts int       // the last of them reached the recipient
	Code     parley.Code
	Reason   parley.Reason // of the last failure
	Failure  parley.Code   // of the answer to a request, which has one delivery; "": not answered, or not with a failure
}

// MaxMended bounds the deliveries of one call of [Index.Mended].
const MaxMended = 10_000

// Mended calls each for the deliveries that reached their recipient after failures, or with dropped for
// those that an operator dropped: since a time, at most two days back, and the newest first. More
// reports whether there are more than MaxMended.
func (x *Index) Mended(ctx context.Context, dropped bool, since time.Time, each func(*Mended)) (more bool, err error) {
	err = x.view(ctx, func(tx *sqlite.Conn) error {
		n := 0
		return execute(tx, `SELECT m.id, (SELECT name FROM agents WHERE n=m.sender), d.recipient, d.at, d.first,
			d.attempts, d.code, d.reason,
			iif(m.flags & ?4 <> 0 AND m.deliveries->>'$[0].to'=d.recipient, m.deliveries->>'$[0].s[#-1].c', NULL)
			FROM mended d JOIN messages m ON m.n=d.n
			WHERE d.at>=?1 AND d.dropped=?2 ORDER BY d.at DESC, d.n DESC, d.recipient LIMIT ?3`,
			func(q *sqlite.Stmt) error {
				if n++; n > MaxMended {
					more = true
					return nil
				}
				v := Mended{From: q.ColumnText(1), To: q.ColumnText(2), At: timeOf(q.ColumnInt64(3)),
					First: timeOf(q.ColumnInt64(4)), Attempts: q.ColumnInt(5), Code: parley.Code(q.ColumnText(6)),
					Reason: parley.Reason(q.ColumnText(7)), Failure: parley.Code(q.ColumnText(8))}
				q.ColumnBytes(0, v.Message[:])
				each(&v)
				return nil
			}, since.UnixNano(), dropped, MaxMended+1, 1<<parley.Answered)
	})
	return more, err
}

// Named finds at most MaxLimit messages by their ids; those that the index does not have are left out.
func (x *Index) Named(ctx context.Context, ids []parley.ID) (map[parley.ID]Message, error) {
	out := map[parley.ID]Message{}
	if len(ids) == 0 {
		return out, nil
	}
	var list []string
	for _, id := range ids[:min(len(ids), MaxLimit)] {
		list = append(list, fmt.Sprintf("x'%x'", id[:]))
	}
	err := x.view(ctx, func(tx *sqlite.Conn) error {
		found, err := selectMessages(tx, false, "m.id IN ("+strings.Join(list, ",")+")")
		for i := range found {
			out[found[i].ID] = found[i]
		}
		return err
	})
	return out, err
}

// mend notes a step that ends the trouble of a delivery; the step is not applied yet.
func (s *store) mend(r *journal.Record, j *journal.Step, t *tracked, d *delivery) error {
	dropped := j.State == parley.Dropped
	if !dropped && !d.reaches(j) {
		return nil
	}
	first := d.firstFailure()
	if first == 0 {
		if !dropped {
			return nil
		}
		first = d.last().Time
	}
	var why Reason
	if d.Error != nil {
		why = *d.Error
	}
	if err := executePrepared(s.c, "DELETE FROM mended WHERE at<?", nil, r.Time.Add(-keepMended).UnixNano()); err != nil {
		return err
	}
	return executePrepared(s.c, "INSERT OR REPLACE INTO mended VALUES (?,?,?,?,?,?,?,?)", nil, r.Time.UnixNano(), t.key,
		d.To, dropped, first, d.last().Attempt, string(why.Code), string(why.Reason))
}

// reaches reports whether the next step is the first that says that the recipient has the message. A
// failure that the hub made itself says nothing of the recipient.
func (d *delivery) reaches(j *journal.Step) bool {
	switch j.State {
	case parley.Delivered:
		return true
	case parley.Answered:
		return d.state() == parley.Delivering &&
			(j.Error == nil || j.Error.Code != parley.TimedOut && j.Error.Stated().Source == parley.ByPeer)
	}
	return false
}

// firstFailure is the time of the first attempt that failed, or at which it was given up; 0: there is none.
func (d *delivery) firstFailure() int64 {
	if d.last().Attempt-d.Postponed < 2 && !d.wasDead() {
		return 0
	}
	for i := range d.Steps {
		switch x := &d.Steps[i]; parley.DeliveryState(x.State) {
		case parley.Waiting, parley.Dead:
			if x.Code != "" {
				return x.Time
			}
		}
	}
	return 0
}

func (d *delivery) wasDead() bool {
	for i := range d.Steps {
		if parley.DeliveryState(d.Steps[i].State) == parley.Dead {
			return true
		}
	}
	return false
}
