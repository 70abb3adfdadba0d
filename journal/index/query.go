package index

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"zombiezen.com/go/sqlite"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// MaxLimit is the most that one call gives.
const MaxLimit = 1000

// ErrFilter says that a filter makes no sense; its text is for the user.
var ErrFilter = errors.New("not a filter")

// ErrNotFound says that nothing is there under a name, ErrAmbiguous that there
// is more than one.
var (
	ErrNotFound  = errors.New("not found")
	ErrAmbiguous = errors.New("more than one begins so")
)

// Filter chooses messages; what is zero is not asked for.
type Filter struct {
	Agent        string // its sender, or one of its recipients
	From, To     string // To: the one named, or one it was delivered to
	Conversation parley.ID
	InReplyTo    parley.ID
	Trace        string // of W3C trace context, or the protocol's own id
	Kind         parley.Kind
	State        parley.DeliveryState // of one of its deliveries
	Protocol     string               // it came by
	Since, Until time.Time            // recorded at or after, before; to the microsecond
	Failed       bool                 // refused, a failure itself, or given up for a recipient
	Refused      bool                 // proved, but turned away
	Text         string               // words that must be in it; "in quotes" one after the other; with* a star behind, as beginnings

	Oldest bool   // the oldest first; else the newest
	Cursor string // where the page before ended: its Next
	Limit  int    // 0: 100; at most MaxLimit
}

// A Message is what the index knows of a message.
type Message struct {
	ID           parley.ID        `json:"id"`
	Position     journal.Position `json:"position"`
	Time         time.Time        `json:"time"` // it was recorded
	Kind         parley.Kind      `json:"kind"`
	State        parley.State     `json:"state,omitzero"`  // of an event
	Number       int              `json:"number,omitzero"` // of an event
	From         string           `json:"from"`
	To           string           `json:"to,omitzero"`
	Conversation parley.ID        `json:"conversation,omitzero"`
	InReplyTo    parley.ID        `json:"inReplyTo,omitzero"`
	Skill        string           `json:"skill,omitzero"`
	Act          string           `json:"act,omitzero"`
	Protocol     string           `json:"protocol,omitzero"` // it came by
	Assurance    parley.Assurance `json:"assurance"`
	Trace        string           `json:"trace,omitzero"` // hexadecimal
	Size         int              `json:"size"`
	Refused      bool             `json:"refused,omitzero"` // proved, but turned away
	Failed       bool             `json:"failed,omitzero"`  // refused, a failure itself, or given up for a recipient
	Error        *Reason          `json:"error,omitzero"`
	Preview      string           `json:"preview,omitzero"` // the beginning of its content
	Snippet      string           `json:"snippet,omitzero"` // with Filter.Text: around what was found, which stands between « and »
	Deliveries   []Delivery       `json:"deliveries"`

	key   int64
	text  string
	trace []byte
}

// Reason is why something failed.
type Reason struct {
	Code parley.Code `json:"code"`
	Text string      `json:"text,omitzero"`
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
	Losses    []string             `json:"losses,omitzero"`
	Steps     []Step               `json:"steps,omitzero"` // only where one message or conversation is asked for
}

// A Step is one change of a delivery.
type Step struct {
	Position journal.Position     `json:"position"` // of the record that holds it
	Time     time.Time            `json:"time"`
	State    parley.DeliveryState `json:"state"`
	Attempt  int                  `json:"attempt"`
	Code     parley.Code          `json:"code,omitzero"`
}

// Page is some of the messages that a filter chooses.
type Page struct {
	Messages []Message
	Next     string // cursor of what follows; "" at the end
}

// ConversationFilter chooses conversations; what is zero is not asked for.
type ConversationFilter struct {
	Agent        string
	Since, Until time.Time // something was recorded in it at or after; its last message was recorded before
	Open         bool      // a delivery in it is not settled
	Failed       bool      // a message in it failed
	Cursor       string
	Limit        int // 0: 100; at most MaxLimit
}

// A Conversation is what the index knows of one.
type Conversation struct {
	ID       parley.ID `json:"id"`
	First    time.Time `json:"first"`
	Last     time.Time `json:"last"`
	Messages int       `json:"messages"`
	Open     int       `json:"open"`             // deliveries that are not settled
	Failed   int       `json:"failed"`           // messages that failed
	Agents   []string  `json:"agents"`           // by name; at most 100
	Preview  string    `json:"preview,omitzero"` // of its last message

	last int64
}

// ConversationPage is some of the conversations that a filter chooses, the one
// with the newest message first.
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

// view runs queries on one state of the index.
func (x *Index) view(ctx context.Context, f func(*sqlite.Conn) error) error {
	x.dbMu.RLock()
	defer x.dbMu.RUnlock()
	if x.pool == nil {
		return errNoStore
	}
	c, err := x.pool.Take(ctx)
	if err == nil {
		err = inOne(c, f)
		x.pool.Put(c)
	}
	if err != nil && damaged(err) && !x.broken.Swap(true) {
		x.queue.nudge()
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// inOne runs f in a transaction.
func inOne(c *sqlite.Conn, f func(*sqlite.Conn) error) error {
	if err := often(c, "BEGIN", nil); err != nil {
		return err
	}
	err := f(c)
	c.SetInterrupt(nil) // the transaction ends also where the caller does not wait
	return errors.Join(err, often(c, "ROLLBACK", nil))
}

// agentKey gives 0 for a name that is not in the index: no message has it.
func agentKey(c *sqlite.Conn, name string) (int64, error) {
	return number(c, "SELECT n FROM agents WHERE name=?", name)
}

// clause is a query under construction.
type clause struct {
	from  string
	where []string
	args  []any
	key   string // the column that pages are cut by
}

// and adds a condition where it is asked for.
func (c *clause) and(asked bool, sql string, args ...any) {
	if asked {
		c.where = append(c.where, sql)
		c.args = append(c.args, args...)
	}
}

// page adds what a page is: its times, where it begins, its order and its length.
func (c *clause) page(since, until time.Time, cursor string, oldest bool, limit int) (string, error) {
	c.and(!since.IsZero(), c.key+">=?", since.UnixMicro()<<8)
	c.and(!until.IsZero(), c.key+"<?", until.UnixMicro()<<8)
	behind, order := "<?", " DESC"
	if oldest {
		behind, order = ">?", ""
	}
	if cursor != "" {
		n, err := parseCursor(cursor)
		if err != nil {
			return "", err
		}
		c.and(true, c.key+behind, n)
	}
	c.where = append(c.where, "1")
	return fmt.Sprintf("%s WHERE %s ORDER BY %s%s LIMIT %d", c.from, strings.Join(c.where, " AND "), c.key, order, limit+1), nil
}

// build chooses the index that leaves the least to be looked at. Empty says that
// no message can be chosen.
func (f *Filter) build(tx *sqlite.Conn) (c clause, empty bool, err error) {
	c = clause{from: "messages m", key: "m.n"}
	var agent, from, to int64
	for _, a := range []struct {
		n    *int64
		name string
	}{{&agent, f.Agent}, {&from, f.From}, {&to, f.To}} {
		if a.name == "" {
			continue
		}
		if *a.n, err = agentKey(tx, a.name); err != nil || *a.n == 0 {
			return c, err == nil, err
		}
	}
	words, trace := match(f.Text), traceKey(f.Trace)
	// Of those in force the first names the table and index that are read.
	open := f.State != 0 && f.State != parley.Delivered && f.State != parley.Answered
	party := cmp.Or(agent, to, from)
	switch {
	case f.Text != "" && words == "":
		return c, false, fmt.Errorf("%w: there is no word in %.100q", ErrFilter, f.Text)
	case f.Text != "":
		c.from, c.key = "texts t CROSS JOIN messages m ON m.n=t.rowid", "t.rowid"
		c.and(true, "texts MATCH ?", words)
	case !f.Conversation.IsZero():
		c.from = "messages m INDEXED BY messages_conversation"
	case f.Trace != "":
		c.from, c.key = "traces t CROSS JOIN messages m ON m.n=t.message", "t.message"
		c.and(true, "t.trace=?", trace)
	case open:
		c.from, c.key = "deliveries d INDEXED BY deliveries_open CROSS JOIN messages m ON m.n=d.message", "d.message"
		// One message has several deliveries; the first of them stands for it.
		c.and(true, `d.state=? AND d.state NOT IN (3, 4) AND NOT EXISTS (SELECT 1 FROM deliveries o
			WHERE o.message=d.message AND o.state=d.state AND o.recipient<d.recipient)`, int(f.State))
	case f.Failed || f.Refused:
		c.from = "messages m INDEXED BY messages_failed"
	case party != 0:
		c.from, c.key = "party p CROSS JOIN messages m ON m.n=p.message", "p.message"
		c.and(true, "p.agent=?", party)
	}
	const isTo = "(m.recipient=? OR EXISTS (SELECT 1 FROM deliveries o WHERE o.message=m.n AND o.recipient=?))"
	c.and(agent != 0, "(m.sender=? OR "+isTo+")", agent, agent, agent)
	c.and(from != 0, "m.sender=?", from)
	c.and(to != 0, isTo, to, to)
	c.and(!f.Conversation.IsZero(), "m.conversation=(SELECT n FROM conversations WHERE id=?)", f.Conversation[:])
	c.and(!f.InReplyTo.IsZero(), "m.reply_to=?", f.InReplyTo[:])
	c.and(f.Trace != "", "m.trace=?", trace)
	c.and(f.Kind != 0, "m.kind=?", int(f.Kind))
	c.and(f.State != 0, "EXISTS (SELECT 1 FROM deliveries o WHERE o.message=m.n AND o.state=?)", int(f.State))
	c.and(f.Protocol != "", "m.protocol=?", f.Protocol)
	c.and(f.Failed || f.Refused, "m.flags<>0")
	c.and(f.Refused, "m.flags&?<>0", flagRefused)
	return c, false, nil
}

func selectMessages(tx *sqlite.Conn, query string, args ...any) (out []Message, err error) {
	err = each(tx, `SELECT m.n, m.sequence, m.id, m.kind, m.state, m.number, (SELECT name FROM agents WHERE n=m.sender),
		(SELECT name FROM agents WHERE n=m.recipient), (SELECT id FROM conversations WHERE n=m.conversation), m.reply_to, m.skill, m.act, m.protocol, m.assurance,
		m.trace, m.time, m.size, m.flags, m.code, m.error, m.preview FROM `+query, func(q *sqlite.Stmt) error {
		m := Message{key: q.ColumnInt64(0),
			Kind: parley.Kind(q.ColumnInt(3)), State: parley.State(q.ColumnInt(4)), Number: q.ColumnInt(5),
			From: q.ColumnText(6), To: q.ColumnText(7), Skill: q.ColumnText(10), Act: q.ColumnText(11),
			Protocol: q.ColumnText(12), Assurance: parley.Assurance(q.ColumnInt(13)),
			Trace: hex.EncodeToString(bytesOf(q, 14)), Time: timeOf(q.ColumnInt64(15)), Size: q.ColumnInt(16),
			Error: readReason(q, 18), Preview: q.ColumnText(20), Deliveries: []Delivery{}}
		m.Position = journal.Position{Partition: int(m.key & 255), Sequence: uint64(q.ColumnInt64(1))}
		q.ColumnBytes(2, m.ID[:])
		q.ColumnBytes(8, m.Conversation[:])
		q.ColumnBytes(9, m.InReplyTo[:])
		flags := q.ColumnInt(17)
		m.Refused, m.Failed = flags&flagRefused != 0, flags != 0
		out = append(out, m)
		return nil
	}, args...)
	return out, err
}

// readReason reads a code and the text behind it.
func readReason(q *sqlite.Stmt, column int) *Reason {
	if q.ColumnLen(column) == 0 {
		return nil
	}
	return &Reason{parley.Code(q.ColumnText(column)), q.ColumnText(column + 1)}
}

// Messages gives those that a filter chooses, with their deliveries. Errors:
// ErrFilter, or the context's own.
func (x *Index) Messages(ctx context.Context, f Filter) (Page, error) {
	if f.Text != "" && x.c.NoText {
		return Page{}, fmt.Errorf("%w: this index keeps no text, because the journal is encrypted", ErrFilter)
	}
	page, err := x.messages(ctx, &f, false)
	if err == nil && f.Text != "" {
		x.snippets(ctx, page.Messages, f.Text)
	}
	return page, err
}

// History gives a conversation's messages, the oldest first, with all steps of
// their deliveries: a page of those behind cursor.
func (x *Index) History(ctx context.Context, conversation parley.ID, cursor string, n int) (Page, error) {
	return x.messages(ctx, &Filter{Conversation: conversation, Cursor: cursor, Oldest: true, Limit: n}, true)
}

func (x *Index) messages(ctx context.Context, f *Filter, steps bool) (page Page, err error) {
	n := limit(f.Limit)
	err = x.view(ctx, func(tx *sqlite.Conn) error {
		c, empty, err := f.build(tx)
		if err != nil || empty {
			return err
		}
		query, err := c.page(f.Since, f.Until, f.Cursor, f.Oldest, n)
		if err != nil {
			return err
		}
		if page.Messages, err = selectMessages(tx, query, c.args...); err != nil {
			return err
		}
		if len(page.Messages) > n {
			page.Messages = page.Messages[:n]
			page.Next = formatCursor(page.Messages[n-1].key)
		}
		return deliveries(tx, page.Messages, steps)
	})
	return page, err
}

// snippets takes the texts from the journal: the index holds their words only.
func (x *Index) snippets(ctx context.Context, list []Message, q string) {
	for i := range list {
		m := &list[i]
		if r, err := x.c.Journal.Read(ctx, m.Position); err == nil && r.Message != nil {
			m.Snippet = snippet(textOf(r.Message, maxText), q)
		}
	}
}

const deliveryColumns = `d.message, a.name, d.state, d.attempts, d.postponed, d.opened, d.changed, d.next,
	d.code, d.error, d.reply, d.losses, d.steps`

func readDelivery(q *sqlite.Stmt) (d Delivery, err error) {
	d = Delivery{To: q.ColumnText(1), State: parley.DeliveryState(q.ColumnInt(2)), Attempts: q.ColumnInt(3),
		Postponed: q.ColumnInt(4), Opened: timeOf(q.ColumnInt64(5)), Changed: timeOf(q.ColumnInt64(6)),
		Next: timeOf(q.ColumnInt64(7)), Error: readReason(q, 8)}
	q.ColumnBytes(10, d.Reply[:])
	if losses := bytesOf(q, 11); len(losses) > 0 {
		err = json.Unmarshal(losses, &d.Losses)
	}
	return d, err
}

// deliveries adds to each message its deliveries.
func deliveries(tx *sqlite.Conn, list []Message, steps bool) error {
	at := make(map[int64]int, len(list))
	keys := make([]int64, len(list))
	for i := range list {
		at[list[i].key], keys[i] = i, list[i].key
	}
	set, err := json.Marshal(keys)
	if err != nil {
		return err
	}
	return each(tx, "SELECT "+deliveryColumns+` FROM json_each(?) k CROSS JOIN deliveries d ON d.message=k.value
		JOIN agents a ON a.n=d.recipient ORDER BY d.message, a.name`, func(q *sqlite.Stmt) error {
		m := &list[at[q.ColumnInt64(0)]]
		d, err := readDelivery(q)
		if err == nil && steps {
			d.Steps, err = readSteps(string(bytesOf(q, 12)), m.Position.Partition)
		}
		m.Deliveries = append(m.Deliveries, d)
		return err
	}, string(set))
}

// prefix reads the beginning of an id, at least eight digits of it, dashes or
// not, and gives the first and the last id that begin so.
func prefix(s string) (low, high parley.ID, err error) {
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

// one gives the one thing that find found; those of the same id are one.
func one[T any](list []T, id func(*T) parley.ID) (out []T, err error) {
	switch {
	case len(list) == 0:
		return nil, ErrNotFound
	case len(list) > 1 && id(&list[0]) != id(&list[1]):
		return nil, ErrAmbiguous
	}
	return list[:1], nil
}

// Message finds one by its id, or the beginning of it, with the steps of its
// deliveries. Errors: ErrNotFound, ErrAmbiguous, ErrFilter.
func (x *Index) Message(ctx context.Context, id string) (out Message, err error) {
	low, high, err := prefix(id)
	if err != nil {
		return out, err
	}
	err = x.view(ctx, func(tx *sqlite.Conn) error {
		list, err := selectMessages(tx, "messages m WHERE m.id BETWEEN ? AND ? ORDER BY m.id, m.n LIMIT 2", low[:], high[:])
		if err == nil {
			list, err = one(list, func(m *Message) parley.ID { return m.ID })
		}
		if err == nil {
			err = deliveries(tx, list, true)
		}
		if err == nil {
			out = list[0]
		}
		return err
	})
	return out, err
}

// maxMembers is how many agents of a conversation are shown.
const maxMembers = 100

func selectConversations(tx *sqlite.Conn, query string, args ...any) (out []Conversation, err error) {
	if err := each(tx, `SELECT c.id, c.first, c.last, c.messages, c.open, c.failed, (SELECT preview FROM messages WHERE n=c.last)
		FROM `+query, func(q *sqlite.Stmt) error {
		c := Conversation{First: time.UnixMicro(q.ColumnInt64(1) >> 8).UTC(), Last: time.UnixMicro(q.ColumnInt64(2) >> 8).UTC(),
			Messages: q.ColumnInt(3), Open: q.ColumnInt(4), Failed: q.ColumnInt(5), Preview: q.ColumnText(6),
			Agents: []string{}, last: q.ColumnInt64(2)}
		q.ColumnBytes(0, c.ID[:])
		out = append(out, c)
		return nil
	}, args...); err != nil {
		return nil, err
	}
	for i := range out {
		if err := often(tx, `SELECT a.name FROM members m JOIN agents a ON a.n=m.agent
			WHERE m.conversation=(SELECT n FROM conversations WHERE id=?) ORDER BY a.name LIMIT ?`,
			func(q *sqlite.Stmt) error {
				out[i].Agents = append(out[i].Agents, q.ColumnText(0))
				return nil
			}, out[i].ID[:], maxMembers); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// fewMessages is up to how many messages of an agent its conversations are looked
// for in them, and sorted, rather than among the newest conversations of all.
const fewMessages = 20_000

// Conversations gives those that a filter chooses. Errors: ErrFilter, or the
// context's own.
func (x *Index) Conversations(ctx context.Context, f ConversationFilter) (page ConversationPage, err error) {
	n := limit(f.Limit)
	err = x.view(ctx, func(tx *sqlite.Conn) error {
		c := clause{from: "conversations c INDEXED BY conversations_last", key: "c.last"}
		if f.Agent != "" {
			agent, err := agentKey(tx, f.Agent)
			if err != nil || agent == 0 {
				return err
			}
			count, err := number(tx, "SELECT count(*) FROM (SELECT 1 FROM party WHERE agent=? LIMIT ?)", agent, x.few+1)
			if err != nil {
				return err
			}
			if count <= int64(x.few) {
				c.from = `(SELECT DISTINCT m.conversation AS n FROM party p CROSS JOIN messages m ON m.n=p.message
					WHERE p.agent=?) b CROSS JOIN conversations c ON c.n=b.n`
				c.args = append(c.args, agent)
			} else {
				c.and(true, "EXISTS (SELECT 1 FROM members WHERE conversation=c.n AND agent=?)", agent)
			}
		}
		c.and(f.Open, "c.open>0")
		c.and(f.Failed, "c.failed>0")
		query, err := c.page(f.Since, f.Until, f.Cursor, false, n)
		if err != nil {
			return err
		}
		if page.Conversations, err = selectConversations(tx, query, c.args...); err == nil && len(page.Conversations) > n {
			page.Conversations = page.Conversations[:n]
			page.Next = formatCursor(page.Conversations[n-1].last)
		}
		return err
	})
	return page, err
}

// Conversation finds one by its id, or the beginning of it. Its messages are
// those that [Index.Messages] gives for it. Errors: ErrNotFound, ErrAmbiguous,
// ErrFilter.
func (x *Index) Conversation(ctx context.Context, id string) (out Conversation, err error) {
	low, high, err := prefix(id)
	if err != nil {
		return out, err
	}
	err = x.view(ctx, func(tx *sqlite.Conn) error {
		list, err := selectConversations(tx, "conversations c WHERE c.id BETWEEN ? AND ? ORDER BY c.id LIMIT 2", low[:], high[:])
		if err == nil {
			list, err = one(list, func(c *Conversation) parley.ID { return c.ID })
		}
		if err == nil {
			out = list[0]
		}
		return err
	})
	return out, err
}
