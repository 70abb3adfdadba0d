package index

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// store is what the writer writes to: it gathers a batch of records, and writes
// them in one transaction.
type store struct {
	c      *sqlite.Conn
	kept   *sqlite.Stmt // see keep
	noText bool
	marks  []mark // by partition

	// What the next transaction inserts.
	messages []row
	parties  [][2]int64 // agent, message
	members  [][2]int64 // conversation, agent
	traces   []traced
	records  int
	bytes    int // that they hold in memory

	// What is remembered of the file, and of what is gathered.
	agents        map[string]int64
	conversations map[parley.ID]*tally
	lastNumber    int64 // of a conversation
	deliveries    map[deliveryKey]*delivery
}

// mark is how far a partition is indexed.
type mark struct {
	sequence uint64
	clock    int64           // of the last n
	print    uint64          // of the last record: a journal that was put back to an earlier state is noticed by it
	last     *journal.Record // of which print is still to be made
}

// row is a row of messages.
type row struct {
	Message
	sender, recipient, conversation, flags int64
}

type traced struct {
	trace   []byte
	message int64
}

// tally is what a batch adds to a conversation.
type tally struct {
	id                     parley.ID
	fresh, dirty           bool // fresh: the file does not have it
	n, first, last         int64
	messages, open, failed int64
}

type deliveryKey struct {
	message   parley.ID
	partition int
	to        string
}

// delivery is a row of deliveries.
type delivery struct {
	Delivery
	message, recipient int64
	kind               parley.Kind
	conversation       parley.ID
	steps              []byte
	dirty              bool
	before             parley.DeliveryState // as the file has it; 0: it has none
}

const (
	maxCached = 1 << 15 // rows that are remembered between transactions
	maxBytes  = 32 << 20
)

var errOther = errors.New("the index is of another version or journal")

// openStore opens the file, or makes it.
func openStore(name string, partitions int, identity string, noText bool) (*store, error) {
	c, err := openConn(name)
	if err != nil {
		return nil, err
	}
	s := &store{c: c, noText: noText, marks: make([]mark, partitions)}
	if err := errors.Join(s.open(identity), s.keep()); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return s, nil
}

func (s *store) open(identity string) error {
	for _, p := range settings {
		if err := each(s.c, "PRAGMA "+p, nil); err != nil {
			return err
		}
	}
	count, err := number(s.c, "SELECT count(*) FROM sqlite_schema")
	if err != nil {
		return err
	}
	// The version also says what is left out: the other way needs other contents.
	v, tables := version, schema+textSchema
	if s.noText {
		v, tables = version+" without text", schema
	}
	if count == 0 {
		if err := transaction(s.c, func() error {
			return errors.Join(sqlitex.ExecuteScript(s.c, tables, nil), each(s.c, `INSERT INTO meta VALUES ('version', ?),
				('journal', ?), ('tables', (SELECT count(*) FROM sqlite_schema))`, nil, v, identity))
		}); err != nil {
			return err
		}
	}
	same, err := number(s.c, `SELECT count(*) FROM meta WHERE (key, value) IN (VALUES ('version', ?), ('journal', ?),
		('tables', (SELECT CAST(count(*) AS TEXT) FROM sqlite_schema)))`, v, identity)
	if err != nil {
		return err
	}
	if same != 3 {
		return errOther
	}
	return s.load()
}

// load undoes what was not committed, and reads what the next rows follow.
func (s *store) load() (err error) {
	s.empty()
	s.forget()
	if !s.c.AutocommitEnabled() {
		if err := each(s.c, "ROLLBACK", nil); err != nil {
			return err
		}
	}
	if s.lastNumber, err = number(s.c, "SELECT max(n) FROM conversations"); err != nil {
		return err
	}
	clear(s.marks)
	return each(s.c, "SELECT partition, sequence, clock, print FROM progress", func(q *sqlite.Stmt) error {
		if p := q.ColumnInt(0); p >= 0 && p < len(s.marks) {
			m := &s.marks[p]
			m.sequence, m.clock, m.print = uint64(q.ColumnInt64(1)), q.ColumnInt64(2), uint64(q.ColumnInt64(3))
		}
		return nil
	})
}

// forget forgets the rows that are remembered.
func (s *store) forget() {
	s.agents, s.conversations, s.deliveries = map[string]int64{}, map[parley.ID]*tally{}, map[deliveryKey]*delivery{}
}

// empty forgets what was gathered.
func (s *store) empty() {
	clear(s.messages)
	clear(s.traces)
	s.messages, s.parties, s.members, s.traces = s.messages[:0], s.parties[:0], s.members[:0], s.traces[:0]
	s.records, s.bytes = 0, 0
}

// keep holds a piece of memory of each size. The allocator gives a page of equal
// pieces back to the system when its last one is freed, and statements take and
// free them all the time: one that stays keeps the page. It is another page as the
// cache of SQLite grows, so the pieces are taken anew between transactions.
func (s *store) keep() (err error) {
	const sizes = 12 // from 16 bytes
	if s.kept == nil {
		s.kept, err = s.c.Prepare("SELECT ?" + strings.Repeat(",?", sizes-1))
	}
	var room [16 << (sizes - 1)]byte
	for i := 0; i < sizes && err == nil; i++ {
		s.kept.BindBytes(i+1, room[:16<<i-8])
	}
	return err
}

// checkpoint brings what was committed home into the file, and truncates the log
// beside it.
func (s *store) checkpoint() error {
	busy, err := number(s.c, "PRAGMA wal_checkpoint(TRUNCATE)")
	if err == nil && busy != 0 {
		err = errors.New("the log of the index cannot be truncated: a query uses it")
	}
	return err
}

// printOf is a short digest by which a record is known again.
func printOf(r *journal.Record) uint64 {
	h := fnv.New64a()
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(r.Time.UnixNano()))
	h.Write(b[:])
	h.Write([]byte(r.Node + "\x00" + r.Scope + "\x00"))
	if r.Message != nil {
		h.Write(r.Message.ID[:])
	}
	for _, x := range r.Steps {
		h.Write(x.Message[:])
		h.Write([]byte{byte(x.State), byte(x.Attempt)})
		h.Write([]byte(x.To))
	}
	return h.Sum64()
}

// entry is a record made ready for the store, which costs time that need not
// be the writer's.
type entry struct {
	r *journal.Record
	Message
}

// add gathers a record, unless the file has it.
func (s *store) add(e *entry) error {
	r := e.r
	m := &s.marks[r.Position.Partition]
	if r.Position.Sequence <= m.sequence {
		return nil
	}
	if s.records == 0 {
		// What is read is in the transaction too: one of its own costs more than a query.
		if err := often(s.c, "BEGIN IMMEDIATE", nil); err != nil {
			return err
		}
	}
	m.sequence, m.clock, m.last = r.Position.Sequence, max(m.clock+1, r.Time.UnixMicro()), r
	s.records++
	s.bytes += sizeOf(r) + len(e.text)
	var err error
	if r.Message != nil {
		e.key = m.clock<<8 | int64(r.Position.Partition)
		err = s.message(e)
	}
	if err == nil && r.Message != nil && len(r.Losses) > 0 {
		err = s.said(r)
	}
	for i := 0; i < len(r.Steps) && err == nil; i++ {
		err = s.step(r, &r.Steps[i])
	}
	if err != nil {
		return fmt.Errorf("index record %s: %w", r.Position, err)
	}
	return nil
}

// agent gives the number of a name, 0 of none.
func (s *store) agent(name string) (n int64, err error) {
	if n, ok := s.agents[name]; ok || name == "" {
		return n, nil
	}
	if err := often(s.c, "SELECT n FROM agents WHERE name=?", func(q *sqlite.Stmt) error {
		n = q.ColumnInt64(0)
		return nil
	}, name); err != nil {
		return 0, err
	}
	if n == 0 {
		if err := often(s.c, "INSERT INTO agents (name) VALUES (?)", nil, name); err != nil {
			return 0, err
		}
		n = s.c.LastInsertRowID()
	}
	s.agents[name] = n
	return n, nil
}

// tally gives what is to be added to a conversation. What is added to that of
// messages without one is not written.
func (s *store) tally(id parley.ID) (*tally, error) {
	c := s.conversations[id]
	if c == nil {
		c = &tally{id: id, first: math.MaxInt64}
	}
	if c.dirty = true; c.n > 0 || id.IsZero() {
		return c, nil
	}
	err := often(s.c, "SELECT n FROM conversations WHERE id=?", func(q *sqlite.Stmt) error {
		c.n = q.ColumnInt64(0)
		return nil
	}, id[:])
	if c.n == 0 {
		s.lastNumber++
		c.n, c.fresh = s.lastNumber, true
	}
	s.conversations[id] = c
	return c, err
}

func (s *store) message(e *entry) error {
	w := row{Message: e.Message}
	var err error
	if w.sender, err = s.agent(w.From); err != nil {
		return err
	}
	if w.recipient, err = s.agent(w.To); err != nil {
		return err
	}
	if w.Refused {
		w.flags = flagRefused
	}
	if w.Kind == parley.Failure {
		w.flags |= flagFailure
	}
	c, err := s.tally(w.Conversation)
	if err != nil {
		return err
	}
	w.conversation = c.n
	c.first, c.last = min(c.first, w.key), max(c.last, w.key)
	c.messages++
	if w.flags != 0 {
		c.failed++
	}
	if w.trace != nil {
		s.traces = append(s.traces, traced{w.trace, w.key})
	}
	s.messages = append(s.messages, w)
	var room [8]int64
	parties := append(room[:0], w.sender, w.recipient)
	for _, v := range w.Deliveries {
		d := &delivery{Delivery: v, message: w.key, kind: w.Kind, conversation: w.Conversation}
		if d.recipient, err = s.agent(v.To); err != nil {
			return err
		}
		d.stepped(e.r, "")
		c.open += d.open()
		s.deliveries[deliveryKey{w.ID, w.Position.Partition, v.To}] = d
		parties = append(parties, d.recipient)
	}
	slices.Sort(parties)
	for _, a := range slices.Compact(parties) {
		if a == 0 {
			continue
		}
		s.parties = append(s.parties, [2]int64{a, w.key})
		if c.n > 0 {
			s.members = append(s.members, [2]int64{c.n, a})
		}
	}
	return nil
}

// bind binds the columns of messages.
func (w *row) bind(v *values) {
	var code, text string
	if w.Error != nil {
		code, text = string(w.Error.Code), w.Error.Text
	}
	v.int(w.key).int(int64(w.Position.Sequence)).blob(w.ID[:]).int(int64(w.Kind)).int(int64(w.State)).int(int64(w.Number)).
		int(w.sender).int(w.recipient).positive(w.conversation).blob(bytesOfID(&w.InReplyTo)).text(w.Skill).text(w.Act).
		text(w.Protocol).int(int64(w.Assurance)).blob(w.trace).int(w.Time.UnixNano()).int(int64(w.Size)).
		text(code).text(text).int(w.flags).text(w.Preview)
}

// bytesOfID gives nothing of the zero id.
func bytesOfID(id *parley.ID) []byte {
	if id.IsZero() {
		return nil
	}
	return id[:]
}

// bind binds the columns of deliveries.
func (d *delivery) bind(v *values) {
	var code, text, losses string
	if d.Error != nil {
		code, text = string(d.Error.Code), d.Error.Text
	}
	if len(d.Losses) > 0 {
		b, _ := json.Marshal(d.Losses) // strings always encode
		losses = string(b)
	}
	v.int(d.message).int(d.recipient).int(int64(d.State)).int(d.open()).int(int64(d.Attempts)).int(int64(d.Postponed)).
		int(nanos(d.Opened)).int(nanos(d.Changed)).int(nanos(d.Next)).text(code).text(text).blob(bytesOfID(&d.Reply)).
		text(losses).blob(d.steps)
}

// nanos is a time as the file has it, 0 for none.
func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func timeOf(nanos int64) time.Time {
	if nanos == 0 {
		return time.Time{}
	}
	return time.Unix(0, nanos).UTC()
}

// open is 1 where something is still expected to happen to d.
func (d *delivery) open() int64 {
	if d.State == parley.Dead || d.State.Settled(d.kind) {
		return 0
	}
	return 1
}

// follow says what may follow what: the table of package journal.
var follow = [...]uint16{
	parley.Waiting:    set(parley.Delivering, parley.Waiting, parley.Delivered, parley.Answered, parley.Dead, parley.Expired, parley.Abandoned),
	parley.Delivering: set(parley.Delivering, parley.Waiting, parley.Delivered, parley.Answered, parley.Dead, parley.Expired, parley.Abandoned),
	parley.Delivered:  set(parley.Waiting, parley.Answered, parley.Dead, parley.Expired, parley.Abandoned),
	parley.Dead:       set(parley.Waiting, parley.Answered, parley.Dropped),
}

func set(states ...parley.DeliveryState) (b uint16) {
	for _, s := range states {
		b |= 1 << s
	}
	return b
}

// fits repeats the journal's check: nodes that share a journal may record a
// step that another was sooner than, and all leave it out of account.
func (d *delivery) fits(t *journal.Step) bool {
	if d.open() == 0 && d.State != parley.Dead || int(d.State) >= len(follow) || follow[d.State]&(1<<t.State) == 0 {
		return false
	}
	if t.State == parley.Delivering {
		return t.Attempt == d.Attempts+1
	}
	return t.Attempt == 0 || t.Attempt == d.Attempts
}

// find finds the delivery of a message that is recorded in a partition; nil where
// the index has none.
func (s *store) find(key deliveryKey) (*delivery, error) {
	if d := s.deliveries[key]; d != nil {
		return d, nil
	}
	var d *delivery
	err := often(s.c, "SELECT "+deliveryColumns+`, d.recipient, m.kind, c.id
		FROM agents a CROSS JOIN messages m CROSS JOIN deliveries d ON d.message=m.n AND d.recipient=a.n
			LEFT JOIN conversations c ON c.n=m.conversation
		WHERE a.name=? AND m.id=? AND m.n & 255 = ? ORDER BY m.n DESC LIMIT 1`, func(q *sqlite.Stmt) (err error) {
		d = &delivery{message: q.ColumnInt64(0), steps: bytesOf(q, 12), recipient: q.ColumnInt64(13),
			kind: parley.Kind(q.ColumnInt(14))}
		q.ColumnBytes(15, d.conversation[:])
		d.Delivery, err = readDelivery(q)
		d.before = d.State
		return err
	}, key.to, key.message[:], key.partition)
	if err == nil && d != nil {
		s.deliveries[key] = d
	}
	return d, err
}

// lose notes losses besides those that are noted, unless they become too many.
func (d *delivery) lose(losses []parley.Loss, most int) {
	list := slices.Clip(d.Losses)
	for _, l := range losses {
		if text := l.String(); !slices.Contains(list, text) {
			list = append(list, text)
		}
	}
	if len(list) <= most {
		d.Losses, d.dirty = list, d.dirty || len(list) > len(d.Losses)
	}
}

// said notes what an event lost with the delivery of its request.
func (s *store) said(r *journal.Record) error {
	d, err := s.find(deliveryKey{r.Message.InReplyTo, r.Position.Partition, r.Message.From})
	if err == nil && d != nil && d.open() != 0 {
		d.lose(r.Losses, journal.MaxLosses)
	}
	return err
}

func (s *store) step(r *journal.Record, t *journal.Step) error {
	d, err := s.find(deliveryKey{t.Message, r.Position.Partition, t.To})
	if err != nil || d == nil || !d.fits(t) {
		return err
	}
	was := d.open()
	if t.Postponed && d.State == parley.Delivering {
		d.Postponed++
	}
	d.State, d.Next, d.Changed = t.State, time.Time{}, r.Time
	switch t.State {
	case parley.Delivering:
		d.Attempts = t.Attempt
	case parley.Waiting:
		d.Next = t.Next
	case parley.Answered:
		d.Reply = t.Reply
	}
	var code parley.Code
	if t.Error != nil {
		code = t.Error.Code
		d.Error = &Reason{code, t.Error.Text}
	}
	d.lose(t.Losses, math.MaxInt)
	if now := d.open(); now != was {
		c, err := s.tally(d.conversation)
		if err != nil {
			return err
		}
		c.open += now - was
	}
	d.stepped(r, code)
	return nil
}

// stepped notes the step that led d to where it stands.
func (d *delivery) stepped(r *journal.Record, code parley.Code) {
	d.dirty = true
	b := strconv.AppendUint(d.steps, r.Position.Sequence, 10)
	b = strconv.AppendInt(append(b, ' '), int64(d.State), 10)
	b = strconv.AppendInt(append(b, ' '), int64(d.Attempts), 10)
	b = strconv.AppendInt(append(b, ' '), r.Time.UnixNano(), 10)
	d.steps = append(strconv.AppendQuote(append(b, ' '), string(code)), '\n')
}

// readSteps reads what stepped wrote.
func readSteps(s string, partition int) (out []Step, err error) {
	for line := range strings.Lines(s) {
		x := Step{Position: journal.Position{Partition: partition}}
		var at int64
		if _, err := fmt.Sscanf(line, "%d %d %d %d %q\n", &x.Position.Sequence, &x.State, &x.Attempt, &at, &x.Code); err != nil {
			return nil, fmt.Errorf("a step of a delivery: %w: %w", err, sqlite.ResultCorrupt.ToError())
		}
		x.Time = timeOf(at)
		out = append(out, x)
	}
	return out, nil
}

// commit writes what was gathered.
func (s *store) commit() error {
	if s.records == 0 {
		return nil
	}
	if err := errors.Join(s.write(), s.keep()); err != nil {
		return err
	}
	if err := often(s.c, "COMMIT", nil); err != nil {
		return err
	}
	s.empty()
	if max(len(s.agents), len(s.conversations), len(s.deliveries)) > maxCached {
		s.forget()
	}
	return nil
}

// write inserts what was gathered, in the order of the tables' keys.
func (s *store) write() error {
	var fresh, known []*tally
	for _, c := range s.conversations {
		switch {
		case c.fresh:
			fresh = append(fresh, c)
		case c.dirty:
			known = append(known, c)
		}
	}
	slices.SortFunc(fresh, func(a, b *tally) int { return cmp.Compare(a.n, b.n) })
	slices.SortFunc(s.messages, func(a, b row) int { return cmp.Compare(a.key, b.key) })
	pairs := func(a, b [2]int64) int { return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1])) }
	slices.SortFunc(s.parties, pairs)
	slices.SortFunc(s.members, pairs)
	slices.SortFunc(s.traces, func(a, b traced) int {
		return cmp.Or(bytes.Compare(a.trace, b.trace), cmp.Compare(a.message, b.message))
	})
	s.members = slices.Compact(s.members)
	var added, changed []*delivery
	for _, d := range s.deliveries {
		switch {
		case d.dirty && d.before == 0:
			added = append(added, d)
		case d.dirty:
			changed = append(changed, d)
		}
	}
	byKey := func(a, b *delivery) int {
		return cmp.Or(cmp.Compare(a.message, b.message), cmp.Compare(a.recipient, b.recipient))
	}
	slices.SortFunc(added, byKey)
	slices.SortFunc(changed, byKey)
	bindPair := func(v *values, p *[2]int64) { v.int(p[0]).int(p[1]) }
	bindDelivery := func(v *values, d **delivery) { (*d).bind(v) }
	err := insert(s.c, "INSERT OR FAIL INTO conversations VALUES", 7, fresh, func(v *values, t **tally) {
		c := *t
		v.int(c.n).blob(c.id[:]).int(c.first).int(c.last).int(c.messages).int(c.open).int(c.failed)
	})
	for i := 0; i < len(known) && err == nil; i++ {
		c := known[i]
		err = often(s.c, `UPDATE conversations SET first = min(first, ?), last = max(last, ?), messages = messages + ?,
			open = open + ?, failed = failed + ? WHERE n=?`, nil, c.first, c.last, c.messages, c.open, c.failed, c.n)
	}
	if err == nil {
		err = insert(s.c, "INSERT OR FAIL INTO messages VALUES", 21, s.messages, func(v *values, w *row) { w.bind(v) })
	}
	if err == nil {
		err = insert(s.c, "INSERT OR FAIL INTO party VALUES", 2, s.parties, bindPair)
	}
	if err == nil {
		err = insert(s.c, "INSERT OR IGNORE INTO members VALUES", 2, s.members, bindPair)
	}
	if err == nil {
		err = insert(s.c, "INSERT OR FAIL INTO traces VALUES", 2, s.traces, func(v *values, t *traced) {
			v.blob(t.trace).int(t.message)
		})
	}
	if err == nil {
		err = insert(s.c, "INSERT OR FAIL INTO deliveries VALUES", 14, added, bindDelivery)
	}
	if err == nil {
		// For a row that is replaced SQLite must be able to undo a part of the statement.
		err = insert(s.c, "INSERT OR REPLACE INTO deliveries VALUES", 14, changed, bindDelivery)
	}
	if err != nil {
		return err
	}
	for _, d := range append(added, changed...) {
		if gone(d.State) != gone(d.before) {
			if err := often(s.c, `UPDATE messages SET flags = flags & ~?1 |
				?1 * EXISTS (SELECT 1 FROM deliveries WHERE message=?2 AND state>?3) WHERE n=?2`,
				nil, flagUndelivered, d.message, int(parley.Answered)); err != nil {
				return err
			}
		}
		d.dirty, d.before = false, d.State
	}
	for _, c := range append(fresh, known...) {
		*c = tally{id: c.id, n: c.n, first: math.MaxInt64}
	}
	for p := range s.marks {
		m := &s.marks[p]
		if m.last == nil {
			continue
		}
		m.print, m.last = printOf(m.last), nil
		if err := often(s.c, "INSERT OR REPLACE INTO progress VALUES (?,?,?,?)", nil,
			p, int64(m.sequence), m.clock, int64(m.print)); err != nil {
			return err
		}
	}
	// The texts are last, one row each: before a statement that may have to be undone in
	// part, the full text index writes what it has gathered. It also does so at a key
	// that is not greater.
	for i := range s.messages {
		if w := &s.messages[i]; w.text != "" {
			if err := often(s.c, "INSERT INTO texts (rowid, body) VALUES (?,?)", nil, w.key, w.text); err != nil {
				return err
			}
		}
	}
	return nil
}

// gone reports whether a delivery was given up.
func gone(s parley.DeliveryState) bool { return s > parley.Answered }
