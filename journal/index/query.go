package index

import (
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
	Position     journal.Position
	ID           parley.ID
	Kind         parley.Kind
	State        parley.State
	Number       int
	From, To     string
	Conversation parley.ID
	InReplyTo    parley.ID
	Skill, Act   string
	Protocol     string
	Assurance    parley.Assurance
	Trace        string // hexadecimal
	Time         time.Time
	Size         int
	Refused      bool
	Failed       bool // refused, a failure itself, or given up for a recipient
	Code         parley.Code
	Error        string
	Preview      string // the beginning of its content
	Snippet      string // with Filter.Text: around what was found, which stands between « and »
	Deliveries   []Delivery

	key  int64
	text string
}

// A Delivery is one message to one recipient.
type Delivery struct {
	To        string
	State     parley.DeliveryState
	Attempts  int
	Postponed int // attempts that do not count as tries
	Opened    time.Time
	Changed   time.Time
	Next      time.Time // waiting: not before
	Code      parley.Code
	Error     string
	Reply     parley.ID
	Losses    []string
	Steps     []Step // only where one message or conversation is asked for
}

// A Step is one change of a delivery.
type Step struct {
	Position journal.Position // of the record that holds it
	State    parley.DeliveryState
	Attempt  int
	Time     time.Time
	Code     parley.Code
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
	ID       parley.ID
	First    time.Time
	Last     time.Time
	Messages int
	Open     int      // deliveries that are not settled
	Failed   int      // messages that failed
	Agents   []string // by name; at most 100 of the first 256 to take part in it
	Preview  string   // of its last message
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
	if err := each(c, "BEGIN", nil); err != nil {
		return err
	}
	err := f(c)
	c.SetInterrupt(nil) // the transaction ends also where the caller does not wait
	return errors.Join(err, each(c, "ROLLBACK", nil))
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

func (c *clause) and(sql string, args ...any) {
	c.where = append(c.where, sql)
	c.args = append(c.args, args...)
}

// build chooses the index that leaves the least to be looked at.
func (f *Filter) build(tx *sqlite.Conn) (c clause, empty bool, err error) {
	c = clause{from: "messages m", key: "m.n"}
	names := map[string]int64{}
	for _, name := range []string{f.Agent, f.From, f.To} {
		if name == "" || names[name] != 0 {
			continue
		}
		if names[name], err = agentKey(tx, name); err != nil || names[name] == 0 {
			return c, err == nil, err
		}
	}
	party := f.Agent
	if party == "" {
		party = f.To
	}
	if party == "" {
		party = f.From
	}
	drives := true
	drive := func() bool { d := drives; drives = false; return d }
	if f.Text != "" {
		q := match(f.Text)
		if q == "" {
			return c, false, fmt.Errorf("%w: there is no word in %.100q", ErrFilter, f.Text)
		}
		drive()
		c.from, c.key = "texts t CROSS JOIN messages m ON m.n=t.rowid", "t.rowid"
		c.and("texts MATCH ?", q)
	}
	if !f.Conversation.IsZero() {
		drive()
		c.and("m.conversation=(SELECT n FROM conversations WHERE id=?)", f.Conversation[:])
	}
	if f.Trace != "" {
		t := traceKey(f.Trace)
		c.and("m.trace=?", t)
		if drive() {
			c.and("m.conversation IN (SELECT conversation FROM traces WHERE trace=?)", t)
		}
	}
	if f.State != 0 {
		if f.State != parley.Delivered && f.State != parley.Answered && drive() {
			c.from, c.key = "deliveries d INDEXED BY deliveries_open CROSS JOIN messages m ON m.n=d.message", "d.message"
			// One message has several deliveries; the first of them stands for it.
			c.and("d.state=? AND d.state NOT IN (3, 4) AND NOT EXISTS (SELECT 1 FROM deliveries o WHERE o.message=d.message AND o.state=d.state AND o.recipient<d.recipient)", int(f.State))
		} else {
			c.and("EXISTS (SELECT 1 FROM deliveries o WHERE o.message=m.n AND o.state=?)", int(f.State))
		}
	}
	if f.Failed || f.Refused {
		c.and("m.flags<>0")
		if f.Refused {
			c.and(fmt.Sprintf("m.flags&%d<>0", flagRefused))
		}
		if drive() {
			c.from = "messages m INDEXED BY messages_failed"
		}
	}
	const to = "m.recipient=? OR EXISTS (SELECT 1 FROM deliveries o WHERE o.message=m.n AND o.recipient=?)"
	switch n := names[f.Agent]; {
	case party != "" && drive():
		c.from, c.key = "party p CROSS JOIN messages m ON m.n=p.message", "p.message"
		c.and("p.agent=?", names[party])
	case f.Agent != "":
		c.and("(m.sender=? OR "+to+")", n, n, n)
	}
	if f.From != "" {
		c.and("m.sender=?", names[f.From])
	}
	if f.To != "" {
		c.and("("+to+")", names[f.To], names[f.To])
	}
	if !f.InReplyTo.IsZero() {
		c.and("m.reply_to=?", f.InReplyTo[:])
	}
	if f.Kind != 0 {
		c.and("m.kind=?", int(f.Kind))
	}
	if f.Protocol != "" {
		c.and("m.protocol=?", f.Protocol)
	}
	if !f.Since.IsZero() {
		c.and(c.key+">=?", f.Since.UnixMicro()<<8)
	}
	if !f.Until.IsZero() {
		c.and(c.key+"<?", f.Until.UnixMicro()<<8)
	}
	if f.Cursor != "" {
		n, err := parseCursor(f.Cursor)
		if err != nil {
			return c, false, err
		}
		if f.Oldest {
			c.and(c.key+">?", n)
		} else {
			c.and(c.key+"<?", n)
		}
	}
	return c, false, nil
}

const messageColumns = `m.n, m.sequence, m.id, m.kind, m.state, m.number, (SELECT name FROM agents WHERE n=m.sender), (SELECT name FROM agents WHERE n=m.recipient),
	(SELECT id FROM conversations WHERE n=m.conversation), m.reply_to, m.skill, m.act, m.protocol, m.assurance, m.trace, m.time, m.size, m.flags, m.code, m.error, m.preview`

func selectMessages(tx *sqlite.Conn, query string, args ...any) (out []Message, err error) {
	err = each(tx, "SELECT "+messageColumns+" FROM "+query, func(q *sqlite.Stmt) error {
		m := Message{key: q.ColumnInt64(0),
			Kind: parley.Kind(q.ColumnInt(3)), State: parley.State(q.ColumnInt(4)), Number: q.ColumnInt(5),
			From: q.ColumnText(6), To: q.ColumnText(7), Skill: q.ColumnText(10), Act: q.ColumnText(11),
			Protocol: q.ColumnText(12), Assurance: parley.Assurance(q.ColumnInt(13)),
			Trace: hex.EncodeToString(bytesOf(q, 14)), Time: time.Unix(0, q.ColumnInt64(15)).UTC(), Size: q.ColumnInt(16),
			Code: parley.Code(q.ColumnText(18)), Error: q.ColumnText(19), Preview: q.ColumnText(20)}
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

// Messages gives those that a filter chooses, with their deliveries. Errors:
// ErrFilter, or the context's own.
func (x *Index) Messages(ctx context.Context, f Filter) (Page, error) {
	if f.Text != "" && x.c.NoText {
		return Page{}, fmt.Errorf("%w: this index keeps no text, because the journal is encrypted", ErrFilter)
	}
	var page Page
	n := limit(f.Limit)
	err := x.view(ctx, func(tx *sqlite.Conn) error {
		c, empty, err := f.build(tx)
		if err != nil || empty {
			return err
		}
		order := " DESC"
		if f.Oldest {
			order = ""
		}
		where := "1"
		if len(c.where) > 0 {
			where = strings.Join(c.where, " AND ")
		}
		page.Messages, err = selectMessages(tx,
			fmt.Sprintf("%s WHERE %s ORDER BY %s%s LIMIT %d", c.from, where, c.key, order, n+1), c.args...)
		if err != nil {
			return err
		}
		if len(page.Messages) > n {
			page.Messages = page.Messages[:n]
			page.Next = formatCursor(page.Messages[n-1].key)
		}
		return deliveries(tx, page.Messages, false)
	})
	if err == nil && f.Text != "" {
		x.snippets(ctx, page.Messages, f.Text)
	}
	return page, err
}

// snippets takes the texts from the journal: the index holds their words only.
func (x *Index) snippets(ctx context.Context, list []Message, q string) {
	for i := range list {
		m := &list[i]
		if r, err := x.c.Journal.Read(ctx, m.Position); err == nil && r.Message != nil {
			m.Snippet = snippet(textOf(r.Message, x.c.MaxText), q)
		}
	}
}

// deliveries adds to each message its deliveries.
func deliveries(tx *sqlite.Conn, list []Message, steps bool) error {
	if len(list) == 0 {
		return nil
	}
	at := make(map[int64]int, len(list))
	keys := make([]int64, len(list))
	for i := range list {
		at[list[i].key], keys[i] = i, list[i].key
	}
	set, err := json.Marshal(keys)
	if err != nil {
		return err
	}
	return each(tx, `SELECT d.message, a.name, d.state, d.attempts, d.postponed, d.opened, d.changed, d.next,
			d.code, d.error, d.reply, d.losses, d.steps
		FROM json_each(?) k CROSS JOIN deliveries d ON d.message=k.value JOIN agents a ON a.n=d.recipient
		ORDER BY d.message, a.name`, func(q *sqlite.Stmt) error {
		key := q.ColumnInt64(0)
		d := Delivery{To: q.ColumnText(1), State: parley.DeliveryState(q.ColumnInt(2)),
			Attempts: q.ColumnInt(3), Postponed: q.ColumnInt(4), Opened: time.Unix(0, q.ColumnInt64(5)).UTC(),
			Changed: time.Unix(0, q.ColumnInt64(6)).UTC(), Code: parley.Code(q.ColumnText(8)), Error: q.ColumnText(9)}
		if !q.ColumnIsNull(7) {
			d.Next = time.Unix(0, q.ColumnInt64(7)).UTC()
		}
		q.ColumnBytes(10, d.Reply[:])
		if losses := bytesOf(q, 11); len(losses) > 0 {
			if err := json.Unmarshal(losses, &d.Losses); err != nil {
				return err
			}
		}
		if steps {
			if d.Steps, err = unpackSteps(bytesOf(q, 12)); err != nil {
				return err
			}
			for i := range d.Steps {
				d.Steps[i].Position.Partition = int(key & 255)
			}
		}
		m := &list[at[key]]
		m.Deliveries = append(m.Deliveries, d)
		return nil
	}, string(set))
}

// prefix reads the beginning of an id, at least eight digits of it, dashes or
// not, and gives the first and the last id that begin so.
func prefix(s string) (low, high parley.ID, err error) {
	digits := strings.ReplaceAll(strings.ToLower(s), "-", "")
	if len(digits) < 8 || len(digits) > 32 {
		return low, high, fmt.Errorf("%w: %.40q: want an id, or at least its first 8 digits", ErrFilter, s)
	}
	for i := range high {
		low[i], high[i] = 0, 0xff
	}
	for i := range len(digits) {
		v, perr := strconv.ParseUint(digits[i:i+1], 16, 8)
		if perr != nil {
			return low, high, fmt.Errorf("%w: %.40q is not the beginning of an id", ErrFilter, s)
		}
		shift := 4 * (1 - i%2)
		low[i/2] |= byte(v) << shift
		high[i/2] &^= byte(0xf^v) << shift
	}
	return low, high, nil
}

// Message finds one by its id, or the beginning of it, with the steps of its
// deliveries. Errors: ErrNotFound, ErrAmbiguous, ErrFilter.
func (x *Index) Message(ctx context.Context, id string) (Message, error) {
	var out Message
	low, high, err := prefix(id)
	if err != nil {
		return out, err
	}
	err = x.view(ctx, func(tx *sqlite.Conn) error {
		list, err := selectMessages(tx,
			"messages m WHERE m.id BETWEEN ? AND ? ORDER BY m.id, m.n LIMIT 2", low[:], high[:])
		switch {
		case err != nil:
			return err
		case len(list) == 0:
			return ErrNotFound
		case len(list) > 1 && list[0].ID != list[1].ID:
			return ErrAmbiguous
		}
		list = list[:1]
		if err := deliveries(tx, list, true); err != nil {
			return err
		}
		out = list[0]
		return nil
	})
	return out, err
}

const conversationColumns = `c.n, c.id, c.first, c.last, c.messages, c.open, c.failed, (SELECT preview FROM messages WHERE n=c.last)`

func selectConversations(tx *sqlite.Conn, query string, args ...any) (out []Conversation, lasts []int64, err error) {
	var keys []int64
	err = each(tx, "SELECT "+conversationColumns+" FROM "+query, func(q *sqlite.Stmt) error {
		c := Conversation{First: timeOf(q.ColumnInt64(2)), Last: timeOf(q.ColumnInt64(3)),
			Messages: q.ColumnInt(4), Open: q.ColumnInt(5), Failed: q.ColumnInt(6), Preview: q.ColumnText(7)}
		q.ColumnBytes(1, c.ID[:])
		out, keys, lasts = append(out, c), append(keys, q.ColumnInt64(0)), append(lasts, q.ColumnInt64(3))
		return nil
	}, args...)
	for i := 0; i < len(keys) && err == nil; i++ {
		out[i].Agents, err = members(tx, keys[i])
	}
	return out, lasts, err
}

// maxMembers is how many agents of a conversation are shown.
const maxMembers = 100

func members(tx *sqlite.Conn, conversation int64) (out []string, err error) {
	err = each(tx, `SELECT a.name FROM conversations c CROSS JOIN json_each(c.agents) j CROSS JOIN agents a ON a.n=j.value
		WHERE c.n=? ORDER BY a.name LIMIT ?`,
		func(q *sqlite.Stmt) error { out = append(out, q.ColumnText(0)); return nil }, conversation, maxMembers)
	return out, err
}

// fewMessages is up to how many messages of an agent its conversations are looked
// for in them, and sorted, rather than among the newest conversations of all.
const fewMessages = 20_000

// Conversations gives those that a filter chooses. Errors: ErrFilter, or the
// context's own.
func (x *Index) Conversations(ctx context.Context, f ConversationFilter) (ConversationPage, error) {
	var page ConversationPage
	n := limit(f.Limit)
	err := x.view(ctx, func(tx *sqlite.Conn) error {
		c := clause{from: "conversations c INDEXED BY conversations_last"}
		c.and("1")
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
				// One that lists as many as it can may have other members.
				c.and(`(instr(replace(replace(c.agents, '[', ','), ']', ','), ?) OR json_array_length(c.agents)>=? AND
					EXISTS (SELECT 1 FROM messages m JOIN party p ON p.agent=? AND p.message=m.n WHERE m.conversation=c.n))`,
					fmt.Sprintf(",%d,", agent), maxListed, agent)
			}
		}
		if !f.Since.IsZero() {
			c.and("c.last>=?", f.Since.UnixMicro()<<8)
		}
		if !f.Until.IsZero() {
			c.and("c.last<?", f.Until.UnixMicro()<<8)
		}
		if f.Open {
			c.and("c.open>0")
		}
		if f.Failed {
			c.and("c.failed>0")
		}
		if f.Cursor != "" {
			at, err := parseCursor(f.Cursor)
			if err != nil {
				return err
			}
			c.and("c.last<?", at)
		}
		list, lasts, err := selectConversations(tx,
			fmt.Sprintf("%s WHERE %s ORDER BY c.last DESC LIMIT %d", c.from, strings.Join(c.where, " AND "), n+1), c.args...)
		if err != nil {
			return err
		}
		if len(list) > n {
			list = list[:n]
			page.Next = formatCursor(lasts[n-1])
		}
		page.Conversations = list
		return nil
	})
	return page, err
}

// Conversation finds one by its id, or the beginning of it. Its messages are
// those that [Index.Messages] gives for it. Errors: ErrNotFound, ErrAmbiguous,
// ErrFilter.
func (x *Index) Conversation(ctx context.Context, id string) (Conversation, error) {
	var out Conversation
	low, high, err := prefix(id)
	if err != nil {
		return out, err
	}
	err = x.view(ctx, func(tx *sqlite.Conn) error {
		list, _, err := selectConversations(tx,
			"conversations c WHERE c.id BETWEEN ? AND ? ORDER BY c.id LIMIT 2", low[:], high[:])
		switch {
		case err != nil:
			return err
		case len(list) == 0:
			return ErrNotFound
		case len(list) > 1:
			return ErrAmbiguous
		}
		out = list[0]
		return nil
	})
	return out, err
}

// History gives a conversation's messages, the oldest first, with all steps of
// their deliveries: a page of those behind cursor.
func (x *Index) History(ctx context.Context, conversation parley.ID, cursor string, n int) (Page, error) {
	var page Page
	n = limit(n)
	f := Filter{Conversation: conversation, Cursor: cursor, Oldest: true}
	err := x.view(ctx, func(tx *sqlite.Conn) error {
		c, _, err := f.build(tx)
		if err != nil {
			return err
		}
		page.Messages, err = selectMessages(tx,
			fmt.Sprintf("%s WHERE %s ORDER BY m.n LIMIT %d", c.from, strings.Join(c.where, " AND "), n+1), c.args...)
		if err != nil {
			return err
		}
		if len(page.Messages) > n {
			page.Messages = page.Messages[:n]
			page.Next = formatCursor(page.Messages[n-1].key)
		}
		return deliveries(tx, page.Messages, true)
	})
	return page, err
}
