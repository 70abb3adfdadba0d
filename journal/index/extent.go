package index

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"zombiezen.com/go/sqlite"

	"github.com/parley-hub/parley"
)

// MaxCount bounds what [Index.Count] counts.
const MaxCount = 10_000

// countRows bounds the messages at which Count looks with each index, so that a filter that selects few of many costs
// no more than one that selects all.
const countRows = 1_500

// Count counts the messages that a filter selects, up to most of them, at most MaxCount. more: there are others, or
// there may be: where no index has just these messages it looks at countRows of them, the newest first, and no further.
// Cursor, Limit and Oldest choose where counting begins. Errors: ErrFilter, or the context's own.
func (x *Index) Count(ctx context.Context, f Filter, most int) (n int, more bool, err error) {
	if most <= 0 || most > MaxCount {
		most = MaxCount
	}
	err = x.view(ctx, func(tx *sqlite.Conn) error {
		if owner := f.list(); owner != "" && f.Cursor == "" {
			key, err := agentKey(tx, owner)
			if err == nil {
				n, err = lengths(tx, key, most+1)
			}
			if err == nil && f.Slow > 0 {
				var waiting int64
				waiting, err = number(tx, "SELECT count(*) FROM (SELECT 1 FROM messages m INDEXED BY "+asked+" WHERE "+isAsked+
					" AND m.time<=? LIMIT ?)", f.now().Add(-f.Slow).UnixNano(), most+1)
				n += int(waiting)
			}
			n, more = min(n, most), n > most
			return err
		}
		w, err := newWindow(f.Since, f.Until, f.Cursor, f.Oldest)
		if err != nil {
			return err
		}
		list, err := f.build(tx, x.c.NoText)
		if err == nil {
			n, more, err = x.count(tx, list, w)
		}
		n, more = min(n, most), more || n > most
		return err
	})
	return n, more, err
}

// count counts the rows that any of the queries chooses, among the first rows of each.
func (x *Index) count(tx *sqlite.Conn, list []clause, w window) (n int, more bool, err error) {
	if len(list) == 1 {
		rows := x.looks
		if list[0].indexed() {
			rows = MaxCount + 1
		}
		query, args := list[0].looked(w, rows)
		err = execute(tx, "SELECT count(*), sum(ok) FROM ("+query+")", func(q *sqlite.Stmt) error {
			n, more = q.ColumnInt(1), q.ColumnInt(0) == rows
			return nil
		}, args...)
		return n, more, err
	}
	found := map[int64]bool{} // a message may be in several
	for i := range list {
		query, args := list[i].looked(w, x.looks)
		if err := execute(tx, "WITH looked AS MATERIALIZED ("+query+`)
			SELECT k FROM looked WHERE ok UNION ALL SELECT -count(*) FROM looked`, func(q *sqlite.Stmt) error {
			if k := q.ColumnInt64(0); k > 0 {
				found[k] = true
			} else {
				more = more || k == -int64(x.looks)
			}
			return nil
		}, args...); err != nil {
			return 0, false, err
		}
	}
	return len(found), more, nil
}

// indexed reports whether the index tells of its rows whether the filter chooses them.
func (c *clause) indexed() bool {
	return len(c.owners) == 0 && !slices.ContainsFunc(c.where[c.own:], func(s string) bool {
		return !strings.HasPrefix(s, "m.flags ")
	})
}

// looked is a query for the keys k of the first rows, and for each whether the filter chooses it.
func (c *clause) looked(w window, rows int) (query string, args []any) {
	from, order, own, ownArgs := c.rows(), c.key, c.where[:c.own], c.args[:c.ownArgs]
	rest, restArgs := c.where[c.own:], c.args[c.ownArgs:]
	if c.index == "" && len(c.owners) > 0 {
		from, order = "lists l CROSS JOIN json_each(l.list) j CROSS JOIN messages m ON m.n=l.last-j.value", "l.last"
		own, ownArgs = []string{"l.owner=? AND l.last>? AND l.last<=?"}, []any{c.owners[0], w.low, w.high | spanMask}
		rest, restArgs = c.where, c.args
	}
	if words, _, ok := strings.Cut(from, " CROSS JOIN messages m ON m.n=t.rowid"); ok && len(rest) == 0 {
		from = words // the index of words is enough
	}
	and := func(list []string) string { return strings.Join(append(slices.Clip(list), "1"), " AND ") }
	query = fmt.Sprintf(`SELECT %[1]s k, %[2]s ok FROM %[3]s WHERE %[4]s AND %[1]s>? AND %[1]s<?
		ORDER BY %[5]s %[6]s LIMIT ?`, c.key, and(rest), from, and(own), order, w.order())
	return query, slices.Concat(restArgs, ownArgs, []any{w.low, w.high, rows})
}

// list names the owner whose lists have exactly the messages that f selects; "": no owner's have. The lists of Slow
// lack the requests that still wait for an answer.
func (f *Filter) list() string {
	g := *f
	g.Now, g.NoWords, g.Oldest, g.Cursor, g.Limit = time.Time{}, false, false, "", 0
	switch g {
	case Filter{}:
		return ""
	case Filter{Agent: f.Agent}:
		return f.Agent
	case Filter{Kind: f.Kind}:
		return kindList(f.Kind)
	case Filter{Protocol: f.Protocol}:
		return protocolList(f.Protocol)
	case Filter{Slow: f.Slow}:
		if slices.Contains(slowSteps[:], f.Slow) {
			return slowList(f.Slow)
		}
	case Filter{Proof: f.Proof}:
		if f.Proof != ProvedRefused {
			return proofList(f.Proof.assurance())
		}
	}
	return ""
}

// lengths adds the lengths of an owner's lists, up to about most. Of the oldest list some messages may
// have been removed.
func lengths(tx *sqlite.Conn, owner int64, most int) (total int, err error) {
	for cursor, last := int64(math.MaxInt64), int64(0); total < most; cursor = last {
		last = 0
		if err := executePrepared(tx, `SELECT last, json_array_length(list) FROM lists WHERE owner=? AND last<?
			ORDER BY last DESC LIMIT 32`, func(q *sqlite.Stmt) error {
			last, total = q.ColumnInt64(0), total+q.ColumnInt(1)
			return nil
		}, owner, cursor); err != nil || last == 0 {
			return total, err
		}
	}
	return total, nil
}

// keys returns the keys of a page, and one more if others follow.
func (x *Index) keys(tx *sqlite.Conn, f *Filter, n int) ([]int64, error) {
	w, err := newWindow(f.Since, f.Until, f.Cursor, f.Oldest)
	if err != nil {
		return nil, err
	}
	w.probe = x.probe
	list, err := f.build(tx, x.c.NoText)
	if err != nil {
		return nil, err
	}
	return union(tx, list, w, n)
}

// Select returns those of the given messages, at most MaxLimit, that a filter selects, the newest
// first: for callers that follow the journal. Errors: ErrFilter, or the context's own.
func (x *Index) Select(ctx context.Context, f Filter, ids []parley.ID) (out []Message, err error) {
	if len(ids) == 0 {
		return nil, nil
	}
	err = x.view(ctx, func(tx *sqlite.Conn) error {
		w, err := newWindow(f.Since, f.Until, "", false)
		if err != nil {
			return err
		}
		keys, err := keysOf(tx, ids)
		if err != nil {
			return err
		}
		list, err := f.build(tx, x.c.NoText)
		if err != nil {
			return err
		}
		for i := range list {
			c := &list[i]
			c.index, c.owners = "", nil
			c.and(true, c.key+" IN ("+keys+")")
		}
		found, err := union(tx, list, w, MaxLimit)
		if err == nil && len(found) > 0 {
			out, err = selectMessages(tx, false, in("m.n", found))
		}
		return err
	})
	if err == nil && f.Text != "" && !f.NoWords && !x.c.NoText {
		x.snippets(ctx, out, f.Text)
	}
	return out, err
}

// keysOf returns the keys of messages, as a list for SQL.
func keysOf(tx *sqlite.Conn, ids []parley.ID) (string, error) {
	var list, args strings.Builder
	for i, id := range ids[:min(len(ids), MaxLimit)] {
		if i > 0 {
			args.WriteByte(',')
		}
		fmt.Fprintf(&args, "x'%x'", id[:])
	}
	err := execute(tx, "SELECT n FROM messages WHERE id IN ("+args.String()+")", func(q *sqlite.Stmt) error {
		if list.Len() > 0 {
			list.WriteByte(',')
		}
		fmt.Fprint(&list, q.ColumnInt64(0))
		return nil
	})
	return list.String(), err
}

// HistoryAround is [Index.History] for the page that has a message of the conversation: the pages
// begin with the conversation, and have n messages each. Errors: ErrNotFound if the conversation does
// not have the message; ErrFilter, or the context's own.
func (x *Index) HistoryAround(ctx context.Context, conversation, message parley.ID, n int) (page Page, err error) {
	cursor := ""
	err = x.view(ctx, func(tx *sqlite.Conn) error {
		var key int64
		if err := execute(tx, `SELECT n FROM messages WHERE id=? AND conversation=(SELECT n FROM conversations WHERE id=?)
			ORDER BY n LIMIT 1`, func(q *sqlite.Stmt) error { key = q.ColumnInt64(0); return nil },
			message[:], conversation[:]); err != nil {
			return err
		}
		if key == 0 {
			return ErrNotFound
		}
		before, err := before(tx, []any{conversation[:]}, oneConversation, key)
		if err != nil {
			return err
		}
		at, err := number(tx, "SELECT n FROM messages WHERE "+oneConversation+" AND n<? ORDER BY n DESC LIMIT 1 OFFSET ?",
			conversation[:], key, before%limit(n))
		if at > 0 {
			cursor = formatCursor(at)
		}
		return err
	})
	if err != nil {
		return Page{}, err
	}
	return x.History(ctx, conversation, cursor, n)
}

const oneConversation = "conversation=(SELECT n FROM conversations WHERE id=?)"

// before counts the messages of conversations before a key.
func before(tx *sqlite.Conn, args []any, condition string, key int64) (int, error) {
	n, err := number(tx, "SELECT count(*) FROM messages WHERE "+condition+" AND n<?", append(slices.Clip(args), key)...)
	return int(n), err
}

// history returns a page of the messages that meet a condition on their conversation, the oldest
// first, with the steps of their deliveries.
func history(tx *sqlite.Conn, condition string, args []any, cursor string, n int) (page Page, err error) {
	w := window{high: 1<<63 - 1, oldest: true}
	if cursor != "" {
		if w.low, err = parseCursor(cursor); err != nil {
			return page, err
		}
	}
	c := clause{from: "messages", index: "messages_conversation", key: "n"}
	c.and(true, condition, args...)
	keys, err := c.keys(tx, w, n+1)
	if err != nil || len(keys) == 0 {
		return page, err
	}
	page.Next = next(&keys, n)
	if page.Messages, err = selectMessages(tx, true, in("m.n", keys)); err != nil {
		return page, err
	}
	slices.Reverse(page.Messages)
	if page.Before, err = before(tx, args, condition, keys[0]); err != nil || page.Before <= n {
		return page, err
	}
	at, err := number(tx, "SELECT n FROM messages WHERE "+condition+" AND n<? ORDER BY n DESC LIMIT 1 OFFSET ?",
		append(slices.Clip(args), keys[0], n)...)
	page.Previous = formatCursor(at)
	return page, err
}

// The bounds of a trace that is shown as one.
const (
	maxTraces        = 64     // traces of the conversation that are followed
	maxTraced        = 20_000 // messages of them that are looked at
	maxConversations = 100    // that share one
)

// A Trace is the conversations that share a trace with one of them, and a page of their messages, the
// oldest first, with the steps of their deliveries.
type Trace struct {
	Conversations []Conversation // in the order of their first messages; at most 100
	More          bool           // there are other conversations, or may be
	Page
}

// Trace returns a page of the trace of a conversation. One activity of an agent that asks others is
// several conversations. Errors: ErrFilter, or the context's own.
func (x *Index) Trace(ctx context.Context, conversation parley.ID, cursor string, n int) (t Trace, err error) {
	err = x.view(ctx, func(tx *sqlite.Conn) error {
		numbers, more, err := traced(tx, conversation)
		if err != nil || len(numbers) == 0 {
			return err
		}
		t.More = more
		list := make([]string, len(numbers))
		for i, c := range numbers {
			list[i] = fmt.Sprint(c)
		}
		of := "(" + strings.Join(list, ",") + ")"
		if t.Conversations, err = selectConversations(tx, "c.n IN "+of+" ORDER BY c.first"); err != nil {
			return err
		}
		t.Page, err = history(tx, "conversation IN "+of, nil, cursor, limit(n))
		return err
	})
	return t, err
}

// traced returns the numbers of the conversations that share a trace with one, which is the first.
func traced(tx *sqlite.Conn, conversation parley.ID) (numbers []int64, more bool, err error) {
	first, err := number(tx, "SELECT n FROM conversations WHERE id=?", conversation[:])
	if err != nil || first == 0 {
		return nil, false, err
	}
	numbers = append(numbers, first)
	var traces [][]byte
	if err := execute(tx, `SELECT DISTINCT trace FROM (SELECT trace FROM messages WHERE conversation=?
		AND trace IS NOT NULL ORDER BY n DESC LIMIT ?) LIMIT ?`, func(q *sqlite.Stmt) error {
		traces = append(traces, bytesOf(q, 0))
		return nil
	}, first, maxTraced, maxTraces+1); err != nil {
		return nil, false, err
	}
	if more = len(traces) > maxTraces; more {
		traces = traces[:maxTraces]
	}
	for _, trace := range traces {
		rows := 0
		if err := execute(tx, `SELECT conversation, count(*) FROM (SELECT m.conversation FROM lists l
			CROSS JOIN json_each(l.list) j CROSS JOIN messages m ON m.n=l.last-j.value
			WHERE l.owner=? AND m.trace=? AND m.conversation IS NOT NULL LIMIT ?) GROUP BY 1`,
			func(q *sqlite.Stmt) error {
				rows += q.ColumnInt(1)
				c := q.ColumnInt64(0)
				switch {
				case slices.Contains(numbers, c):
				case len(numbers) < maxConversations:
					numbers = append(numbers, c)
				default:
					more = true
				}
				return nil
			}, traceOwner(trace), trace, maxTraced); err != nil {
			return nil, false, err
		}
		more = more || rows == maxTraced
	}
	return numbers, more, nil
}
