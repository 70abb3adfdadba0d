package index

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

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
func (x *Index) view(ctx context.Context, f func(*sql.Tx) error) error {
	x.dbMu.RLock()
	defer x.dbMu.RUnlock()
	if x.db == nil {
		return errNoStore
	}
	tx, err := x.db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err == nil {
		err = errors.Join(f(tx), tx.Rollback())
	}
	if err != nil && damaged(err) && !x.broken.Swap(true) {
		x.queue.nudge()
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// agentKey gives 0 for a name that is not in the index: no message has it.
// Of is main for the first file, search for the second.
func agentKey(ctx context.Context, tx *sql.Tx, of, name string) (int64, error) {
	var n int64
	err := tx.QueryRowContext(ctx, "SELECT n FROM "+of+".agents WHERE name=?", name).Scan(&n)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	return n, err
}

// clause is a query under construction.
type clause struct {
	from  string
	where []string
	args  []any
	key   string // the column that pages are cut by

	// agent is whose messages are walked through, by its number in the second file;
	// 0: those of from are. Those between after and before are asked for.
	agent         int64
	after, before int64
}

func (c *clause) and(sql string, args ...any) {
	c.where = append(c.where, sql)
	c.args = append(c.args, args...)
}

// build chooses the index that leaves the least to be looked at.
func (f *Filter) build(ctx context.Context, tx *sql.Tx) (c clause, empty bool, err error) {
	c = clause{from: "messages m", key: "m.n", before: math.MaxInt64}
	names := map[string]int64{}
	for _, name := range []string{f.Agent, f.From, f.To} {
		if name == "" || names[name] != 0 {
			continue
		}
		if names[name], err = agentKey(ctx, tx, "main", name); err != nil || names[name] == 0 {
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
		if c.agent, err = agentKey(ctx, tx, "search", party); err != nil || c.agent == 0 {
			return c, err == nil, err
		}
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
		c.after = f.Since.UnixMicro()<<8 - 1
		c.and(c.key+">?", c.after)
	}
	if !f.Until.IsZero() {
		c.before = f.Until.UnixMicro() << 8
		c.and(c.key+"<?", c.before)
	}
	if f.Cursor != "" {
		n, err := parseCursor(f.Cursor)
		if err != nil {
			return c, false, err
		}
		if f.Oldest {
			c.after = max(c.after, n)
			c.and(c.key+">?", n)
		} else {
			c.before = min(c.before, n)
			c.and(c.key+"<?", n)
		}
	}
	return c, false, nil
}

// walk gives up to n messages of c.agent.
func (x *Index) walk(ctx context.Context, tx *sql.Tx, c clause, where, order string, n int) (out []Message, err error) {
	r, err := newListReader(ctx, tx, "search.party", c.agent, partitionBits, len(x.indexed), order == "", c.after, c.before)
	if err != nil {
		return nil, err
	}
	for some := n; len(out) < n; some = min(2*some, 4096) {
		keys, err := r.next(ctx, some)
		if err != nil || len(keys) == 0 {
			return out, err
		}
		set, err := json.Marshal(keys)
		if err != nil {
			return nil, err
		}
		list, err := selectMessages(ctx, tx, fmt.Sprintf("json_each(?) k CROSS JOIN messages m ON m.n=k.value WHERE %s ORDER BY m.n%s LIMIT %d", where, order, n-len(out)),
			append([]any{string(set)}, c.args...)...)
		if err != nil {
			return nil, err
		}
		out = append(out, list...)
	}
	return out, nil
}

const messageColumns = `m.n, m.sequence, m.id, m.kind, m.state, m.number, (SELECT name FROM agents WHERE n=m.sender), (SELECT name FROM agents WHERE n=m.recipient),
	(SELECT id FROM conversations WHERE n=m.conversation), m.reply_to, m.skill, m.act, m.protocol, m.assurance, m.trace, m.time, m.size, m.flags, m.code, m.error, m.preview`

func scanMessage(rows *sql.Rows) (Message, error) {
	var m Message
	var id, conversation, reply, trace []byte
	var state, number sql.NullInt64
	var from, to, skill, act, protocol, code, failure, preview sql.NullString
	var kind, assurance, nanos, flags int64
	if err := rows.Scan(&m.key, &m.Position.Sequence, &id, &kind, &state, &number, &from, &to, &conversation, &reply, &skill, &act, &protocol, &assurance, &trace,
		&nanos, &m.Size, &flags, &code, &failure, &preview); err != nil {
		return m, err
	}
	m.Position.Partition = int(m.key & 255)
	copy(m.ID[:], id)
	copy(m.Conversation[:], conversation)
	copy(m.InReplyTo[:], reply)
	m.Kind, m.State, m.Number, m.Assurance = parley.Kind(kind), parley.State(state.Int64), int(number.Int64), parley.Assurance(assurance)
	m.From, m.To, m.Skill, m.Act, m.Protocol = from.String, to.String, skill.String, act.String, protocol.String
	m.Trace, m.Time = hex.EncodeToString(trace), time.Unix(0, nanos).UTC()
	m.Refused, m.Failed = flags&flagRefused != 0, flags != 0
	m.Code, m.Error, m.Preview = parley.Code(code.String), failure.String, preview.String
	return m, nil
}

func selectMessages(ctx context.Context, tx *sql.Tx, query string, args ...any) ([]Message, error) {
	rows, err := tx.QueryContext(ctx, "SELECT "+messageColumns+" FROM "+query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []Message
	for rows.Next() {
		m, err := scanMessage(rows)
		if err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	return out, rows.Err()
}

// Messages gives those that a filter chooses, with their deliveries. Errors:
// ErrFilter, or the context's own.
func (x *Index) Messages(ctx context.Context, f Filter) (Page, error) {
	if f.Text != "" && x.c.NoText {
		return Page{}, fmt.Errorf("%w: this index keeps no text, because the journal is encrypted", ErrFilter)
	}
	var page Page
	n := limit(f.Limit)
	err := x.view(ctx, func(tx *sql.Tx) error {
		c, empty, err := f.build(ctx, tx)
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
		if c.agent != 0 {
			page.Messages, err = x.walk(ctx, tx, c, where, order, n+1)
		} else {
			page.Messages, err = selectMessages(ctx, tx, fmt.Sprintf("%s WHERE %s ORDER BY %s%s LIMIT %d", c.from, where, c.key, order, n+1), c.args...)
		}
		if err != nil {
			return err
		}
		if len(page.Messages) > n {
			page.Messages = page.Messages[:n]
			page.Next = formatCursor(page.Messages[n-1].key)
		}
		return deliveries(ctx, tx, page.Messages, false)
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
func deliveries(ctx context.Context, tx *sql.Tx, list []Message, steps bool) error {
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
	rows, err := tx.QueryContext(ctx, `SELECT d.message, a.name, d.state, d.attempts, d.postponed, d.opened, d.changed, d.next, d.code, d.error, d.reply, d.losses, d.steps
		FROM json_each(?) k CROSS JOIN deliveries d ON d.message=k.value JOIN agents a ON a.n=d.recipient ORDER BY d.message, a.name`, string(set))
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var d Delivery
		var key, state, opened, changed int64
		var next sql.NullInt64
		var code, failure, losses sql.NullString
		var reply []byte
		var packed sql.RawBytes
		if err := rows.Scan(&key, &d.To, &state, &d.Attempts, &d.Postponed, &opened, &changed, &next, &code, &failure, &reply, &losses, &packed); err != nil {
			return err
		}
		d.State, d.Opened, d.Changed = parley.DeliveryState(state), time.Unix(0, opened).UTC(), time.Unix(0, changed).UTC()
		if next.Valid {
			d.Next = time.Unix(0, next.Int64).UTC()
		}
		d.Code, d.Error = parley.Code(code.String), failure.String
		copy(d.Reply[:], reply)
		if losses.String != "" {
			if err := json.Unmarshal([]byte(losses.String), &d.Losses); err != nil {
				return err
			}
		}
		if steps {
			if d.Steps, err = unpackSteps(packed); err != nil {
				return err
			}
			for i := range d.Steps {
				d.Steps[i].Position.Partition = int(key & 255)
			}
		}
		m := &list[at[key]]
		m.Deliveries = append(m.Deliveries, d)
	}
	return rows.Err()
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
	err = x.view(ctx, func(tx *sql.Tx) error {
		list, err := selectMessages(ctx, tx, "messages m WHERE m.id BETWEEN ? AND ? ORDER BY m.id, m.n LIMIT 2", low[:], high[:])
		switch {
		case err != nil:
			return err
		case len(list) == 0:
			return ErrNotFound
		case len(list) > 1 && list[0].ID != list[1].ID:
			return ErrAmbiguous
		}
		list = list[:1]
		if err := deliveries(ctx, tx, list, true); err != nil {
			return err
		}
		out = list[0]
		return nil
	})
	return out, err
}

const conversationColumns = `c.n, c.id, c.first, c.last, c.messages, c.open, c.failed, (SELECT preview FROM messages WHERE n=c.last)`

func selectConversations(ctx context.Context, tx *sql.Tx, query string, args ...any) ([]Conversation, []int64, error) {
	rows, err := tx.QueryContext(ctx, "SELECT "+conversationColumns+" FROM "+query, args...)
	if err != nil {
		return nil, nil, err
	}
	defer rows.Close()
	var out []Conversation
	var keys, lasts []int64
	for rows.Next() {
		var c Conversation
		var id []byte
		var key, first, last int64
		var preview sql.NullString
		if err := rows.Scan(&key, &id, &first, &last, &c.Messages, &c.Open, &c.Failed, &preview); err != nil {
			return nil, nil, err
		}
		copy(c.ID[:], id)
		c.First, c.Last, c.Preview = timeOf(first), timeOf(last), preview.String
		out, keys, lasts = append(out, c), append(keys, key), append(lasts, last)
	}
	if err := rows.Err(); err != nil {
		return nil, nil, err
	}
	for i, key := range keys {
		if out[i].Agents, err = members(ctx, tx, key); err != nil {
			return nil, nil, err
		}
	}
	return out, lasts, nil
}

// maxMembers is how many agents of a conversation are shown.
const maxMembers = 100

func members(ctx context.Context, tx *sql.Tx, conversation int64) ([]string, error) {
	rows, err := tx.QueryContext(ctx, "SELECT a.name FROM conversations c CROSS JOIN json_each(c.agents) j CROSS JOIN agents a ON a.n=j.value WHERE c.n=? ORDER BY a.name LIMIT ?", conversation, maxMembers)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		out = append(out, name)
	}
	return out, rows.Err()
}

// fewConversations is up to how many conversations of an agent are sorted
// rather than looked for among the newest of all.
const fewConversations = 5000

// conversationsOf gives the keys of an agent's conversations, as many as n.
func conversationsOf(ctx context.Context, tx *sql.Tx, agent int64, n int) ([]int64, error) {
	r, err := newListReader(ctx, tx, "joined", agent, 0, 1, true, 0, math.MaxInt64)
	if err != nil {
		return nil, err
	}
	keys, err := r.next(ctx, n)
	if err != nil {
		return nil, err
	}
	rows, err := tx.QueryContext(ctx, "SELECT conversation FROM members WHERE agent=? LIMIT ?", agent, n-len(keys))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var key int64
		if err := rows.Scan(&key); err != nil {
			return nil, err
		}
		keys = append(keys, key)
	}
	return keys, rows.Err()
}

// Conversations gives those that a filter chooses. Errors: ErrFilter, or the
// context's own.
func (x *Index) Conversations(ctx context.Context, f ConversationFilter) (ConversationPage, error) {
	var page ConversationPage
	n := limit(f.Limit)
	err := x.view(ctx, func(tx *sql.Tx) error {
		c := clause{from: "conversations c INDEXED BY conversations_last"}
		c.and("1")
		if f.Agent != "" {
			agent, err := agentKey(ctx, tx, "main", f.Agent)
			if err != nil || agent == 0 {
				return err
			}
			keys, err := conversationsOf(ctx, tx, agent, x.few+1)
			if err != nil {
				return err
			}
			if len(keys) <= x.few {
				set, err := json.Marshal(keys)
				if err != nil {
					return err
				}
				c.from = "json_each(?) b CROSS JOIN conversations c ON c.n=b.value"
				c.args = append(c.args, string(set))
			} else {
				// Those of joined are all listed.
				c.and("(instr(replace(replace(c.agents, '[', ','), ']', ','), ?) OR EXISTS (SELECT 1 FROM members b WHERE b.agent=? AND b.conversation=c.n))", fmt.Sprintf(",%d,", agent), agent)
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
		list, lasts, err := selectConversations(ctx, tx, fmt.Sprintf("%s WHERE %s ORDER BY c.last DESC LIMIT %d", c.from, strings.Join(c.where, " AND "), n+1), c.args...)
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
	err = x.view(ctx, func(tx *sql.Tx) error {
		list, _, err := selectConversations(ctx, tx, "conversations c WHERE c.id BETWEEN ? AND ? ORDER BY c.id LIMIT 2", low[:], high[:])
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
	err := x.view(ctx, func(tx *sql.Tx) error {
		c, _, err := f.build(ctx, tx)
		if err != nil {
			return err
		}
		page.Messages, err = selectMessages(ctx, tx, fmt.Sprintf("%s WHERE %s ORDER BY m.n LIMIT %d", c.from, strings.Join(c.where, " AND "), n+1), c.args...)
		if err != nil {
			return err
		}
		if len(page.Messages) > n {
			page.Messages = page.Messages[:n]
			page.Next = formatCursor(page.Messages[n-1].key)
		}
		return deliveries(ctx, tx, page.Messages, true)
	})
	return page, err
}
