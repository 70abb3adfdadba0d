package index

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"zombiezen.com/go/sqlite"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// MaxLimit bounds the results of one call.
const MaxLimit = 1000

// ErrFilter: the filter is invalid; the text is for the user.
var ErrFilter = errors.New("not a filter")

// ErrNotFound: nothing has this id.
var ErrNotFound = errors.New("not found")

// AmbiguousError says that several ids begin so. IDs are the first of them, in order: at least two, at most 20.
type AmbiguousError struct{ IDs []parley.ID }

func (e *AmbiguousError) Error() string { return "more than one begins so" }

// Filter selects messages; zero fields select all.
type Filter struct {
	Agent        string // the sender, or one of the recipients
	From, To     string // To: as addressed, or a recipient of a delivery
	Conversation parley.ID
	InReplyTo    parley.ID
	Trace        string // id of the W3C trace context, or the protocol's own
	Kind         parley.Kind
	State        parley.DeliveryState // of one of its deliveries
	Protocol     string               // of the message's origin
	Since, Until time.Time            // recorded from Since to before Until; in microseconds
	Failed       bool                 // refused, a failure itself, or given up for a recipient
	Refused      bool                 // proved, but not admitted
	Waiting      bool                 // a delivery waits for its next attempt
	Proof        Proof                // of the sender
	Via          string               // protocol by which one of its deliveries went out
	Slow         time.Duration        // requests whose terminal answer took so long, or that wait so long for it
	Now          time.Time            // the present, for Slow; zero: by the clock

	// Text is words of the content; "in quotes" as a phrase; with a star* as beginnings. It also finds the
	// beginning of an id, of the message or its conversation, and the name of the sender or a recipient.
	Text    string
	NoWords bool // Text finds ids and names only

	Oldest bool   // the oldest first; else the newest
	Cursor string // Next of the previous page
	Limit  int    // 0: 100; at most MaxLimit
}

// A Message is a message as the index has it.
type Message struct {
	ID           parley.ID        `json:"id"`
	Position     journal.Position `json:"position"`
	Time         time.Time        `json:"time"` // of the record
	Kind         parley.Kind      `json:"kind"`
	State        parley.State     `json:"state,omitzero"`  // of an event
	Number       int              `json:"number,omitzero"` // of an event
	From         string           `json:"from"`
	To           string           `json:"to,omitzero"`
	Conversation parley.ID        `json:"conversation,omitzero"`
	InReplyTo    parley.ID        `json:"inReplyTo,omitzero"`
	Skill        string           `json:"skill,omitzero"`
	Act          string           `json:"act,omitzero"`
	Protocol     string           `json:"protocol,omitzero"` // of the message's origin
	Assurance    parley.Assurance `json:"assurance"`
	Trace        string           `json:"trace,omitzero"` // hexadecimal
	Size         int              `json:"size"`
	Refused      bool             `json:"refused,omitzero"` // proved, but not admitted
	Failed       bool             `json:"failed,omitzero"`  // refused, a failure itself, or given up for a recipient
	Error        *Reason          `json:"error,omitzero"`
	Answer       Duration         `json:"answer,omitzero"`  // from the record of a request to that of its terminal reply
	Preview      string           `json:"preview,omitzero"` // the beginning of the content
	Snippet      string           `json:"snippet,omitzero"` // with Filter.Text: found words between « and »
	Deliveries   []Delivery       `json:"deliveries"`

	key   int64
	text  string
	trace []byte
}

// Reason is the cause of a failure.
type Reason struct {
	Code   parley.Code   `json:"code"`
	Text   string        `json:"text,omitzero"`
	Source parley.Source `json:"source,omitzero"` // who refused or failed
	Reason parley.Reason `json:"reason,omitzero"`
	Detail string        `json:"detail,omitzero"` // for operators
}

// ReasonOf gives the reason in an error; nil for nil.
func ReasonOf(e *parley.Error) *Reason {
	if e == nil {
		return nil
	}
	return &Reason{Code: e.Code, Text: e.Text, Source: e.Source, Reason: e.Reason, Detail: e.Detail}
}

// WithoutContent removes what may quote content: the texts. Nil stays nil.
func (r *Reason) WithoutContent() {
	if r != nil {
		r.Text, r.Detail = "", ""
	}
}

// A Delivery is one message to one recipient.
type Delivery struct {
	To        string               `json:"to"`
	State     parley.DeliveryState `json:"state"`
	Attempts  int                  `json:"attempts"`
	Postponed int                  `json:"postponed,omitzero"` // attempts that do not count as tries
	Opened    time.Time            `json:"opened"`
	Changed   time.Time            `json:"changed"`
	Next      time.Time            `json:"next,omitzero"` // waiting: not before
	Error     *Reason              `json:"error,omitzero"`
	Reply     parley.ID            `json:"reply,omitzero"`
	Protocol  string               `json:"protocol,omitzero"` // of the last recorded attempt
	Losses    []string             `json:"losses,omitzero"`
	Steps     []Step               `json:"steps,omitzero"` // only from Message and History
}

// A Step is a change of a delivery.
type Step struct {
	Position journal.Position     `json:"position"` // of the step's record
	Time     time.Time            `json:"time"`
	State    parley.DeliveryState `json:"state"`
	Attempt  int                  `json:"attempt"`
	Code     parley.Code          `json:"code,omitzero"`
}

// Page is a part of the messages that a filter selects.
type Page struct {
	Messages []Message
	Next     string // cursor of the next page; "": this page is the last

	// Only of a History or a Trace.
	Before   int    // messages before this page
	Previous string // cursor of the page before, if there is one; "" is that of the first page
}

// ConversationFilter selects conversations; zero fields select all.
type ConversationFilter struct {
	Agent        string
	Since, Until time.Time // the last record is not before Since; the last message is before Until
	Open         bool      // a delivery is not settled
	Failed       bool      // a message failed
	Cursor       string
	Limit        int // 0: 100; at most MaxLimit
}

// A Conversation is a conversation as the index has it.
type Conversation struct {
	ID       parley.ID `json:"id"`
	First    time.Time `json:"first"`
	Last     time.Time `json:"last"`
	Messages int       `json:"messages"`
	Open     int       `json:"open"`             // deliveries that are not settled
	Failed   int       `json:"failed"`           // messages that failed
	Agents   []string  `json:"agents"`           // by name; at most 100
	Preview  string    `json:"preview,omitzero"` // of the last message
}

// ConversationPage is a part of the conversations that a filter selects, in the
// order of their newest messages, newest first.
type ConversationPage struct {
	Conversations []Conversation
	Next          string
}

func limit(n int) int {
	if n <= 0 {
		return 100
	}
	return min(n, MaxLimit)
}

func parseCursor(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 36, 64)
	if err != nil || n <= 0 || s != formatCursor(n) {
		return 0, fmt.Errorf("%w: %.40q is not a cursor that this index gave", ErrFilter, s)
	}
	return n, nil
}

func formatCursor(n int64) string { return strconv.FormatInt(n, 36) }

// view calls f with a consistent state of the index.
func (x *Index) view(ctx context.Context, f func(*sqlite.Conn) error) error {
	x.dbMu.RLock()
	defer x.dbMu.RUnlock()
	if x.pool == nil {
		return errNoStore
	}
	c, err := x.pool.Take(ctx)
	if err == nil {
		err = readTransaction(c, f)
		x.pool.Put(c)
	}
	if err != nil && damaged(err) && !x.broken.Swap(true) {
		x.queue.wakeWriter()
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// readTransaction calls f in a transaction.
func readTransaction(c *sqlite.Conn, f func(*sqlite.Conn) error) error {
	if err := executePrepared(c, "BEGIN", nil); err != nil {
		return err
	}
	err := f(c)
	c.SetInterrupt(nil) // the transaction must end even if the caller has gone
	return errors.Join(err, executePrepared(c, "ROLLBACK", nil))
}

// agentKey is the number of an agent; 0: no message has it.
func agentKey(c *sqlite.Conn, name string) (int64, error) {
	return number(c, "SELECT n FROM agents WHERE name=?", name)
}

// clause is a query for the keys of rows that meet all conditions, in the order of
// the key, which pages and cursors use.
type clause struct {
	from, index, key string
	owners           []int64 // the lists of each of them have all rows
	where            []string
	args             []any

	own, ownArgs int // the first conditions, which choose the rows of the index, and their args
}

// and adds a condition if it is set.
func (c *clause) and(asked bool, sql string, args ...any) {
	if asked {
		c.where = append(c.where, sql)
		c.args = append(c.args, args...)
	}
}

// rows names the table, and the index by which it is read.
func (c *clause) rows() string {
	if c.index == "" {
		return c.from
	}
	return c.from + " INDEXED BY " + c.index
}

// probeRows is the number of rows that a search looks at before it reads an owner's lists. If many of
// the rows match, the page is full by then; the lists are made for the owners of few rows.
const probeRows = 1000

// page returns the keys of a page, and one more if others follow.
func (c *clause) page(tx *sqlite.Conn, w window, limit int) (keys []int64, err error) {
	if len(c.owners) == 0 {
		return c.keys(tx, w, limit+1)
	}
	edge, err := c.whole().after(tx, w, w.probe)
	if err != nil {
		return nil, err
	}
	if edge == 0 {
		return c.keys(tx, w, limit+1)
	}
	if keys, err = c.keys(tx, w.upTo(edge), limit+1); err != nil || len(keys) > limit {
		return keys, err
	}
	more, err := c.listed(tx, w.behind(edge), limit+1-len(keys))
	return append(keys, more...), err
}

// whole is the query for all rows of the index or, if there is none, of the table.
func (c *clause) whole() *clause {
	if c.index == "" {
		return &clause{from: c.from, key: c.key}
	}
	return &clause{from: c.from, index: c.index, key: c.key, where: c.where[:c.own], args: c.args[:c.ownArgs]}
}

// listable reports whether lists of owners can be read in place of the rows: in the order of the key an index has no
// words, ids or conversations.
func (c *clause) listable() bool {
	switch c.index {
	case "", "messages_refused", "messages_open", "messages_failed", asked:
		return c.key == "m.n"
	}
	return false
}

// keys returns the first n keys.
func (c *clause) keys(tx *sqlite.Conn, w window, n int) (keys []int64, err error) {
	query, args := c.query(w)
	err = execute(tx, query+" LIMIT ?", func(q *sqlite.Stmt) error { keys = append(keys, q.ColumnInt64(0)); return nil },
		append(args, n)...)
	return keys, err
}

// after returns the key that follows the first n, 0 if there is none.
func (c *clause) after(tx *sqlite.Conn, w window, n int) (key int64, err error) {
	query, args := c.query(w)
	return number(tx, query+" LIMIT 1 OFFSET ?", append(args, n)...)
}

// query is the query for the keys in a window, in its order.
func (c *clause) query(w window) (query string, args []any) {
	return fmt.Sprintf("SELECT %[1]s FROM %[2]s WHERE %[3]s AND %[1]s > ? AND %[1]s < ? ORDER BY 1 %[4]s", c.key, c.rows(),
		c.conditions(), w.order()), slices.Concat(c.args, []any{w.low, w.high})
}

// conditions are all conditions; 1 if there are none.
func (c *clause) conditions() string { return strings.Join(append(slices.Clip(c.where), "1"), " AND ") }

func selectMessages(tx *sqlite.Conn, steps bool, query string, args ...any) (out []Message, err error) {
	err = execute(tx, `SELECT m.n, m.sequence, m.id, m.kind, m.state, m.number,
		(SELECT name FROM agents WHERE n=m.sender), (SELECT name FROM agents WHERE n=m.recipient),
		(SELECT id FROM conversations WHERE n=m.conversation), m.reply_to, m.skill, m.act, m.protocol, m.assurance,
		m.trace, m.time, m.size, m.flags, m.error, m.preview, m.deliveries, m.answer
		FROM messages m WHERE `+query, func(q *sqlite.Stmt) error {
		m := Message{key: q.ColumnInt64(0),
			Kind: parley.Kind(q.ColumnInt(3)), State: parley.State(q.ColumnInt(4)), Number: q.ColumnInt(5),
			From: q.ColumnText(6), To: q.ColumnText(7), Skill: q.ColumnText(10), Act: q.ColumnText(11),
			Protocol: q.ColumnText(12), Assurance: parley.Assurance(q.ColumnInt(13)),
			Trace: hex.EncodeToString(bytesOf(q, 14)), Time: timeOf(q.ColumnInt64(15)), Size: q.ColumnInt(16),
			Preview: q.ColumnText(19), Deliveries: []Delivery{}, Answer: Duration(q.ColumnInt64(21))}
		m.Position = journal.Position{Partition: int(m.key & 255), Sequence: uint64(q.ColumnInt64(1))}
		q.ColumnBytes(2, m.ID[:])
		q.ColumnBytes(8, m.Conversation[:])
		q.ColumnBytes(9, m.InReplyTo[:])
		flags := q.ColumnInt(17)
		m.Refused, m.Failed = flags&flagRefused != 0, flags&flagFailed != 0
		m.Error = readReason(q, 18)
		list, err := readDeliveries(q, 20)
		slices.SortFunc(list, func(a, b delivery) int { return strings.Compare(a.To, b.To) })
		for i := range list {
			m.Deliveries = append(m.Deliveries, list[i].export(m.Position.Partition, steps))
		}
		out = append(out, m)
		return err
	}, args...)
	return out, err
}

func readReason(q *sqlite.Stmt, column int) *Reason {
	if q.ColumnLen(column) == 0 {
		return nil
	}
	r := new(Reason)
	_ = json.Unmarshal(bytesOf(q, column), r) // encode wrote it
	return r
}

// encode gives the column of a reason; "" for nil.
func (r *Reason) encode() string {
	if r == nil {
		return ""
	}
	b, _ := json.Marshal(r) // strings always encode
	return string(b)
}

// Messages returns the messages that a filter selects, with their deliveries.
// Errors: ErrFilter, or the context's own.
func (x *Index) Messages(ctx context.Context, f Filter) (Page, error) {
	page, err := x.messages(ctx, &f)
	if err == nil && f.Text != "" && !f.NoWords && !x.c.NoText {
		x.snippets(ctx, page.Messages, f.Text)
	}
	return page, err
}

// History returns a page of a conversation's messages, oldest first, with all steps
// of their deliveries.
func (x *Index) History(ctx context.Context, conversation parley.ID, cursor string, n int) (page Page, err error) {
	err = x.view(ctx, func(tx *sqlite.Conn) error {
		page, err = history(tx, oneConversation, []any{conversation[:]}, cursor, limit(n))
		return err
	})
	return page, err
}

func (x *Index) messages(ctx context.Context, f *Filter) (page Page, err error) {
	n := limit(f.Limit)
	err = x.view(ctx, func(tx *sqlite.Conn) error {
		keys, err := x.keys(tx, f, n)
		if err != nil || len(keys) == 0 {
			return err
		}
		page.Next = next(&keys, n)
		page.Messages, err = selectMessages(tx, false, in("m.n", keys))
		if f.Oldest {
			slices.Reverse(page.Messages)
		}
		return err
	})
	return page, err
}

// next cuts the keys to a page, and returns the cursor of the next one.
func next(keys *[]int64, n int) string {
	if len(*keys) <= n {
		return ""
	}
	*keys = (*keys)[:n]
	return formatCursor((*keys)[n-1])
}

// in is the condition that a column is one of keys, newest first.
func in(column string, keys []int64) string {
	list := make([]string, len(keys))
	for i, n := range keys {
		list[i] = strconv.FormatInt(n, 10)
	}
	return fmt.Sprintf("%[1]s IN (%s) ORDER BY %[1]s DESC", column, strings.Join(list, ","))
}

// snippets makes the snippets. It reads the texts from the journal: the index has
// only their words.
func (x *Index) snippets(ctx context.Context, list []Message, q string) {
	for i := range list {
		m := &list[i]
		if r, err := x.c.Journal.Read(ctx, m.Position); err == nil && r.Message != nil {
			m.Snippet = snippet(textOf(r.Message, maxText), q)
		}
	}
}

// maxCandidates bounds the ids of an [AmbiguousError].
const maxCandidates = 20

// Range parses the beginning of an id, at least eight digits with or without
// dashes, and returns the first and the last id with this beginning. Errors: ErrFilter.
func Range(s string) (low, high parley.ID, err error) {
	digits := strings.ReplaceAll(s, "-", "")
	if len(digits) < 8 || len(digits) > 32 {
		return low, high, fmt.Errorf("%w: %.40q: want an id, or at least its first 8 digits", ErrFilter, s)
	}
	rest := 32 - len(digits)
	_, err = hex.Decode(low[:], []byte(digits+strings.Repeat("0", rest)))
	if err == nil {
		_, err = hex.Decode(high[:], []byte(digits+strings.Repeat("f", rest)))
	}
	if err != nil {
		return low, high, fmt.Errorf("%w: %.40q is not the beginning of an id", ErrFilter, s)
	}
	return low, high, nil
}

// one finds the row with an id, or with the beginning of one, by a search from the
// first to the last id with this beginning. Rows with the same id count as one.
func one[T any](ctx context.Context, x *Index, id string, idOf func(*T) parley.ID,
	search func(tx *sqlite.Conn, low, high []byte) ([]T, error)) (out T, err error) {
	low, high, err := Range(id)
	if err != nil {
		return out, err
	}
	err = x.view(ctx, func(tx *sqlite.Conn) error {
		list, err := search(tx, low[:], high[:])
		if err != nil {
			return err
		}
		var ids []parley.ID
		for i := range list {
			ids = append(ids, idOf(&list[i]))
		}
		switch ids = slices.Compact(ids); len(ids) {
		case 0:
			return ErrNotFound
		case 1:
			out = list[0]
			return nil
		}
		return &AmbiguousError{ids}
	})
	return out, err
}

// Message finds a message by its id, or the beginning of it, with the steps of its
// deliveries. Errors: ErrNotFound, [*AmbiguousError], ErrFilter.
func (x *Index) Message(ctx context.Context, id string) (Message, error) {
	return one(ctx, x, id, func(m *Message) parley.ID { return m.ID },
		func(tx *sqlite.Conn, low, high []byte) ([]Message, error) {
			return selectMessages(tx, true, "m.id BETWEEN ? AND ? ORDER BY m.id, m.n LIMIT ?", low, high, maxCandidates)
		})
}

// maxMembers bounds the agents shown of a conversation.
const maxMembers = 100

func selectConversations(tx *sqlite.Conn, query string, args ...any) (out []Conversation, err error) {
	err = execute(tx, fmt.Sprintf(`SELECT c.last, c.id, c.first, c.messages, c.open, c.failed,
		(SELECT preview FROM messages WHERE n=c.last),
		(SELECT json_group_array(name) FROM (SELECT a.name FROM json_each(c.agents) j JOIN agents a ON a.n=j.value
			ORDER BY a.name LIMIT %d)) FROM conversations c WHERE %s`, maxMembers, query), func(q *sqlite.Stmt) error {
		c := Conversation{First: time.UnixMicro(q.ColumnInt64(2) >> 8).UTC(),
			Last:     time.UnixMicro(q.ColumnInt64(0) >> 8).UTC(),
			Messages: q.ColumnInt(3), Open: q.ColumnInt(4), Failed: q.ColumnInt(5), Preview: q.ColumnText(6)}
		q.ColumnBytes(1, c.ID[:])
		err := json.Unmarshal(bytesOf(q, 7), &c.Agents)
		out = append(out, c)
		return err
	}, args...)
	return out, err
}

// fewMessages decides how an agent's conversations are searched. If the agent has
// fewer messages, its messages are searched, else the newest conversations of all
// agents.
const fewMessages = 10_000

// Conversations returns the conversations that a filter selects. Errors: ErrFilter,
// or the context's own.
func (x *Index) Conversations(ctx context.Context, f ConversationFilter) (page ConversationPage, err error) {
	n := limit(f.Limit)
	err = x.view(ctx, func(tx *sqlite.Conn) error {
		c := clause{from: "conversations c", index: "conversations_last", key: "c.last"}
		switch {
		case f.Failed:
			c.index = "conversations_failed"
		case f.Open:
			c.index = "conversations_open"
		}
		if f.Agent != "" {
			agent, err := agentKey(tx, f.Agent)
			if err != nil || agent == 0 {
				return err
			}
			const its = "FROM lists l CROSS JOIN json_each(l.list) j " +
				"CROSS JOIN messages m ON m.n=l.last-j.value WHERE l.owner=?"
			count, err := lengths(tx, agent, x.few+1)
			if err != nil {
				return err
			}
			if count <= x.few {
				c.index = ""
				c.and(true, "c.n IN (SELECT m.conversation "+its+")", agent)
			} else {
				c.and(true, "EXISTS (SELECT 1 FROM json_each(c.agents) WHERE value=?)", agent)
			}
		}
		c.and(f.Open, "c.open>0")
		c.and(f.Failed, "c.failed>0")
		w, err := newWindow(f.Since, f.Until, f.Cursor, false)
		if err != nil {
			return err
		}
		keys, err := c.page(tx, w, n)
		if err != nil {
			return err
		}
		page.Next = next(&keys, n)
		page.Conversations, err = selectConversations(tx, in("c.last", keys))
		return err
	})
	return page, err
}

// Conversation finds a conversation by its id, or the beginning of it.
// [Index.Messages] returns its messages. Errors: ErrNotFound, [*AmbiguousError],
// ErrFilter.
func (x *Index) Conversation(ctx context.Context, id string) (Conversation, error) {
	return one(ctx, x, id, func(c *Conversation) parley.ID { return c.ID },
		func(tx *sqlite.Conn, low, high []byte) ([]Conversation, error) {
			return selectConversations(tx, "c.id BETWEEN ? AND ? ORDER BY c.id LIMIT ?", low, high, maxCandidates)
		})
}
