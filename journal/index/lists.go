package index

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	sqlite3 "modernc.org/sqlite/lib"
)

// lists keeps for each agent the keys of what it has to do with, in a table whose
// rows hold many of them: a row for each would cost a rebuild as much as the
// messages do. Keys of one agent and part are put in as they grow, so that a row
// has all from the one before it up to its last.
type lists struct {
	low int // bits of a key that are its part

	put        bulk
	find, drop *stmt

	keys []int64
	rows []listRow
	buf  []byte
}

type listRow struct {
	agent, part, last int64
	list              []byte
}

// listSchema is that of a table of lists. A list is the differences of keys without
// their parts, the first one's from 0.
const listSchema = `
CREATE TABLE %s (agent INT NOT NULL, part INT NOT NULL, last INT NOT NULL, list BLOB NOT NULL, PRIMARY KEY (agent, part, last)) WITHOUT ROWID;
`

// maxList is the size of a list about, in bytes: of such rows SQLite keeps nothing
// outside of the table's pages.
const maxList = 800

func openLists(f *file, table string, low int) (l lists, err error) {
	l.low = low
	if l.put, err = f.c.prepareBulk("INSERT OR FAIL INTO "+table, 4, bulkRows); err != nil {
		return l, err
	}
	if l.find, err = f.c.prepare("SELECT last, list FROM " + table + " WHERE agent=? AND part=? AND last>=? ORDER BY last LIMIT 1"); err != nil {
		return l, err
	}
	l.drop, err = f.c.prepare("DELETE FROM " + table + " WHERE agent=? AND part=? AND last=?")
	return l, err
}

func (l *lists) part(key int64) int64 { return key & (1<<l.low - 1) }

// sort puts pairs of an agent and a key in the order of the table.
func (l *lists) sort(pairs [][2]int64) {
	slices.SortFunc(pairs, func(a, b [2]int64) int {
		return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(l.part(a[1]), l.part(b[1])), cmp.Compare(a[1], b[1]))
	})
}

// alike reports whether two pairs are of the same list.
func (l *lists) alike(a, b [2]int64) bool { return a[0] == b[0] && l.part(a[1]) == l.part(b[1]) }

// insert puts in pairs of an agent and a key, each once.
func (l *lists) insert(pairs [][2]int64) error {
	l.sort(pairs)
	l.rows, l.buf = l.rows[:0], l.buf[:0]
	for len(pairs) > 0 {
		l.keys = l.keys[:0]
		first := pairs[0]
		for len(pairs) > 0 && l.alike(first, pairs[0]) {
			l.keys, pairs = append(l.keys, pairs[0][1]), pairs[1:]
		}
		l.pack(first[0], l.keys)
	}
	return l.write()
}

// pack makes rows of an agent's keys, which grow.
func (l *lists) pack(agent int64, keys []int64) {
	start, before := len(l.buf), int64(0)
	for i, key := range keys {
		l.buf = binary.AppendUvarint(l.buf, uint64((key-before)>>l.low))
		before = key
		if len(l.buf)-start >= maxList || i == len(keys)-1 {
			l.rows = append(l.rows, listRow{agent, l.part(key), key, l.buf[start:len(l.buf):len(l.buf)]})
			start, before = len(l.buf), 0
		}
	}
}

func (l *lists) write() error {
	return l.put.insert(len(l.rows), func(q *stmt, i int) {
		r := &l.rows[i]
		q.int(r.agent).int(r.part).int(r.last).blob(r.list)
	})
}

var errList = &sqliteError{sqlite3.SQLITE_CORRUPT, "a list of keys cannot be read"}

// unpack appends the keys of a list.
func unpack(to []int64, b []byte, part int64, low int) ([]int64, error) {
	v := uint64(0)
	for len(b) > 0 {
		d, n := binary.Uvarint(b)
		if n <= 0 {
			return nil, errList
		}
		v += d
		to = append(to, int64(v<<low)|part)
		b = b[n:]
	}
	return to, nil
}

// remove takes pairs out; those that are not there are no error.
func (l *lists) remove(pairs [][2]int64) error {
	l.sort(pairs)
	for len(pairs) > 0 {
		agent, part := pairs[0][0], l.part(pairs[0][1])
		found, err := l.find.int(agent).int(part).int(pairs[0][1]).row()
		if err != nil {
			return err
		}
		if !found {
			pairs = pairs[1:]
			continue
		}
		last := l.find.colInt(0)
		l.keys, err = unpack(l.keys[:0], l.find.colBytes(1), part, l.low)
		if err != nil {
			return err
		}
		if err := l.find.done(); err != nil {
			return err
		}
		n := 1
		for n < len(pairs) && l.alike(pairs[0], pairs[n]) && pairs[n][1] <= last {
			n++
		}
		gone := pairs[:n]
		pairs = pairs[n:]
		had := len(l.keys)
		l.keys = slices.DeleteFunc(l.keys, func(key int64) bool {
			_, is := slices.BinarySearchFunc(gone, key, func(p [2]int64, key int64) int { return cmp.Compare(p[1], key) })
			return is
		})
		if len(l.keys) == had {
			continue
		}
		if err := l.drop.int(agent).int(part).int(last).run(); err != nil {
			return err
		}
		l.rows, l.buf = l.rows[:0], l.buf[:0]
		l.pack(agent, l.keys)
		if err := l.write(); err != nil {
			return err
		}
	}
	return nil
}

// listReader reads an agent's keys in order, over all parts.
type listReader struct {
	tx     *sql.Tx
	table  string
	agent  int64
	low    int
	oldest bool  // first
	after  int64 // which keys: neither this one nor the next
	before int64
	parts  []listPart
}

type listPart struct {
	keys []int64 // that were read, the next one last
	at   int64   // rows up to here were read, or from here on
	end  bool
}

// newListReader begins to read the keys between after and before, of parts from 0.
func newListReader(ctx context.Context, tx *sql.Tx, table string, agent int64, low, parts int, oldest bool, after, before int64) (*listReader, error) {
	r := &listReader{tx: tx, table: table, agent: agent, low: low, oldest: oldest, after: after, before: before, parts: make([]listPart, parts)}
	for i := range r.parts {
		p := &r.parts[i]
		if p.at = after; oldest {
			continue
		}
		if p.at = before; before == math.MaxInt64 {
			continue
		}
		// Keys before it may be in a row that goes on behind it.
		var last sql.NullInt64
		if err := tx.QueryRowContext(ctx, "SELECT min(last) FROM "+table+" WHERE agent=? AND part=? AND last>=?", agent, i, before).Scan(&last); err != nil {
			return nil, err
		}
		if last.Valid {
			p.at = last.Int64 + 1
		}
	}
	return r, nil
}

// listRows is how many rows are read at once.
const listRows = 8

// fill reads on in a part, and reports whether it has a next key.
func (r *listReader) fill(ctx context.Context, i int) (bool, error) {
	p := &r.parts[i]
	for len(p.keys) == 0 && !p.end {
		condition := "last<? ORDER BY last DESC"
		if r.oldest {
			condition = "last>? ORDER BY last"
		}
		rows, err := r.tx.QueryContext(ctx, fmt.Sprintf("SELECT last, list FROM %s WHERE agent=? AND part=? AND %s LIMIT %d", r.table, condition, listRows), r.agent, i, p.at)
		if err != nil {
			return false, err
		}
		n := 0
		for rows.Next() {
			var packed sql.RawBytes
			if err = rows.Scan(&p.at, &packed); err != nil {
				break
			}
			n++
			start := len(p.keys)
			if p.keys, err = unpack(p.keys, packed, int64(i), r.low); err != nil {
				break
			}
			if !r.oldest {
				slices.Reverse(p.keys[start:])
			}
		}
		if err := cmp.Or(err, rows.Err(), rows.Close()); err != nil {
			return false, err
		}
		p.end = n < listRows
		if len(p.keys) > 0 {
			// Rows beyond the last key that is asked for are not read.
			furthest := p.keys[len(p.keys)-1]
			p.end = p.end || r.oldest && furthest >= r.before || !r.oldest && furthest <= r.after
		}
		p.keys = slices.DeleteFunc(p.keys, func(key int64) bool { return key <= r.after || key >= r.before })
		slices.Reverse(p.keys)
	}
	return len(p.keys) > 0, nil
}

// next gives at most n keys; none at the end.
func (r *listReader) next(ctx context.Context, n int) (out []int64, err error) {
	for len(out) < n {
		best := -1
		var key int64
		for i := range r.parts {
			has, err := r.fill(ctx, i)
			if err != nil {
				return nil, err
			}
			if !has {
				continue
			}
			k := r.parts[i].keys[len(r.parts[i].keys)-1]
			if best < 0 || (k < key) == r.oldest {
				best, key = i, k
			}
		}
		if best < 0 {
			break
		}
		p := &r.parts[best]
		out, p.keys = append(out, key), p.keys[:len(p.keys)-1]
	}
	return out, nil
}
