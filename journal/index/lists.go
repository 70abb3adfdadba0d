package index

import (
	"encoding/json"
	"fmt"
	"slices"

	"zombiezen.com/go/sqlite"
)

const (
	spanMask = 1<<spanBits - 1 // the bits of keys in one span of time

	// maxLists bounds the lists of the first owner that one round of a search reads.
	maxLists = 4096
)

// listed returns the first n keys from the lists of the owners. It reads the lists of some spans of
// time, and of more spans in each round.
func (c *clause) listed(tx *sqlite.Conn, w window, n int) (keys []int64, err error) {
	first := clause{from: "lists", key: "last"}
	first.and(true, "owner=?", c.owners[0])
	for lists := 4; ; lists = min(2*lists, maxLists) {
		part := w
		last, err := first.after(tx, window{low: w.low, high: w.high | spanMask, oldest: w.oldest}, lists)
		if err != nil {
			return nil, err
		}
		switch {
		case last == 0:
		case w.oldest:
			part.high = min(w.high, last|spanMask+1)
		default:
			part.low = max(w.low, last&^spanMask-1)
		}
		common, err := c.common(tx, part)
		if err != nil {
			return nil, err
		}
		for some := range slices.Chunk(common, MaxLimit) {
			its, err := c.among(tx, some, n-len(keys))
			if keys = append(keys, its...); err != nil || len(keys) >= n {
				return keys, err
			}
		}
		if last == 0 {
			return keys, nil
		}
		if w.oldest {
			w.low = part.high - 1
		} else {
			w.high = part.low + 1
		}
	}
}

// among returns the first n of some keys whose rows meet all conditions.
func (c *clause) among(tx *sqlite.Conn, some []int64, n int) (keys []int64, err error) {
	list, err := json.Marshal(some)
	if err != nil {
		return nil, err
	}
	err = execute(tx, "SELECT m.n FROM json_each(?) j CROSS JOIN messages m ON m.n=j.value WHERE "+
		c.conditions()+" LIMIT ?", func(q *sqlite.Stmt) error { keys = append(keys, q.ColumnInt64(0)); return nil },
		slices.Concat([]any{string(list)}, c.args, []any{n})...)
	return keys, err
}

// common returns the keys that the lists of all owners and the index have. A few rows are looked up
// sooner than a further list is read.
func (c *clause) common(tx *sqlite.Conn, w window) (keys []int64, err error) {
	oldest := w.oldest
	w.oldest = true
	if keys, err = members(tx, c.owners[0], w); err != nil {
		return nil, err
	}
	for _, owner := range c.owners[1:] {
		if len(keys) <= w.probe {
			break
		}
		its, err := members(tx, owner, w)
		if err != nil {
			return nil, err
		}
		keys = intersect(keys, its)
	}
	if c.index != "" && len(keys) > w.probe {
		its, err := c.whole().keys(tx, w, -1)
		if err != nil {
			return nil, err
		}
		keys = intersect(keys, its)
	}
	if !oldest {
		slices.Reverse(keys)
	}
	return keys, nil
}

// members returns the keys in the lists of an owner, in order.
func members(tx *sqlite.Conn, owner int64, w window) (keys []int64, err error) {
	var list []byte
	err = executePrepared(tx, "SELECT last, list FROM lists WHERE owner=? AND last>? AND last<=? ORDER BY last",
		func(q *sqlite.Stmt) error {
			list = slices.Grow(list[:0], q.ColumnLen(1))[:q.ColumnLen(1)]
			q.ColumnBytes(1, list)
			last, n := q.ColumnInt64(0), int64(0)
			for _, b := range list { // as writeLists writes it
				switch {
				case b == '[':
				case b == ',', b == ']':
					if k := last - n; k > w.low && k < w.high {
						keys = append(keys, k)
					}
					n = 0
				case b >= '0' && b <= '9':
					n = n*10 + int64(b-'0')
				default:
					return fmt.Errorf("a list of messages has %q", b)
				}
			}
			return nil
		}, owner, w.low, w.high|spanMask)
	slices.Sort(keys) // those of two partitions, or of two batches, may alternate
	return slices.Compact(keys), err
}

// intersect returns the keys that are in both.
func intersect(a, b []int64) []int64 {
	out := a[:0]
	for i := 0; len(a) > 0 && i < len(b); {
		switch k := a[0]; {
		case k < b[i]:
			a = a[1:]
		case k > b[i]:
			i++
		default:
			out, a, i = append(out, k), a[1:], i+1
		}
	}
	return out
}
