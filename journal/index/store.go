package index

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"time"

	"zombiezen.com/go/sqlite"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// store is what the writer writes to: it gathers a batch of records, and writes
// them in one transaction.
type store struct {
	c      *conn
	noText bool
	marks  []mark // by partition

	// What the next transaction inserts. Nothing of it is looked for before, but
	// through the maps below.
	names    []string // of new agents, the last with the number lastName
	messages []row
	parties  [][2]int64 // agent, message
	traces   []traced
	records  int
	bytes    int // that they hold in memory

	lastName, lastConv int64 // the last keys that were given
	agents             map[string]int64
	convs              map[parley.ID]*conversation
	ids                map[idKey]int64 // n of messages with deliveries
	rows               map[rowKey]*delivery
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
	n, sender, recipient, conversation, flags int64
	e                                         entry
}

type traced struct {
	trace        []byte
	conversation int64
}

type idKey struct {
	id        parley.ID
	partition int
}

type rowKey struct{ message, recipient int64 }

type conversation struct {
	n, first, last         int64
	messages, open, failed int64
	fresh, dirty           bool    // fresh: the file does not have it
	members                []int64 // those listed in it
	trace                  []byte  // the last one that the table has
}

// delivery is a row of deliveries.
type delivery struct {
	state               parley.DeliveryState
	kind                parley.Kind
	conv                parley.ID
	attempts, postponed int64
	opened, changed     int64
	next                int64
	code, error         string
	reply               parley.ID
	losses              string
	steps               []byte // see packSteps
	dirty               bool
	before              parley.DeliveryState // as the file has it; 0: it has none
}

const (
	maxCached = 1 << 15 // rows that are remembered between transactions
	maxListed = 256     // agents that a conversation lists
	maxBytes  = 32 << 20
)

var errOther = errors.New("the index is of another version or journal")

// openStore opens the file, or makes it.
func openStore(name string, partitions int, identity string, noText bool, maxText int) (*store, error) {
	// The version also says what is left out: the other way needs other contents.
	v := fmt.Sprintf("%s %d", version, maxText)
	if noText {
		v = version + " without text"
	}
	c, err := openConn(name)
	if err != nil {
		return nil, err
	}
	s := &store{c: c, noText: noText, marks: make([]mark, partitions)}
	if err := errors.Join(s.open(v, identity), c.keep()); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return s, nil
}

func (s *store) open(version, identity string) error {
	if err := s.c.exec(settings); err != nil {
		return err
	}
	count, err := number(s.c.Conn, "SELECT count(*) FROM sqlite_schema")
	if err != nil {
		return err
	}
	if count == 0 {
		if err := s.create(version, identity); err != nil {
			return err
		}
	}
	same, err := number(s.c.Conn, `SELECT count(*) FROM meta WHERE (key, value) IN (VALUES ('version', ?), ('journal', ?),
		('tables', (SELECT CAST(count(*) AS TEXT) FROM sqlite_schema)))`, version, identity)
	if err != nil {
		return err
	}
	if same != 3 {
		return errOther
	}
	return s.load()
}

func (s *store) create(version, identity string) error {
	return s.c.transaction(func() error {
		tables := schema
		if !s.noText {
			tables += textSchema
		}
		if err := s.c.exec(tables); err != nil {
			return err
		}
		return s.c.prepare(`INSERT INTO meta VALUES ('version', ?), ('journal', ?),
			('tables', (SELECT count(*) FROM sqlite_schema))`).text(version).text(identity).run()
	})
}

// load undoes what was not committed, and reads what the next rows follow.
func (s *store) load() (err error) {
	s.empty()
	s.forget()
	if err := s.c.rollback(); err != nil {
		return err
	}
	if s.lastName, err = number(s.c.Conn, "SELECT max(n) FROM agents"); err != nil {
		return err
	}
	if s.lastConv, err = number(s.c.Conn, "SELECT max(n) FROM conversations"); err != nil {
		return err
	}
	clear(s.marks)
	return each(s.c.Conn, "SELECT partition, sequence, clock, print FROM progress", func(q *sqlite.Stmt) error {
		if p := q.ColumnInt(0); p >= 0 && p < len(s.marks) {
			m := &s.marks[p]
			m.sequence, m.clock, m.print = uint64(q.ColumnInt64(1)), q.ColumnInt64(2), uint64(q.ColumnInt64(3))
		}
		return nil
	})
}

func (s *store) close() error { return s.c.Close() }

// forget forgets the rows that are remembered.
func (s *store) forget() {
	s.agents, s.convs = map[string]int64{}, map[parley.ID]*conversation{}
	s.ids, s.rows = map[idKey]int64{}, map[rowKey]*delivery{}
}

// checkpoint brings what was committed home into the file, and truncates the log
// beside it.
func (s *store) checkpoint() error {
	busy, err := number(s.c.Conn, "PRAGMA wal_checkpoint(TRUNCATE)")
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
	r       *journal.Record
	body    string
	preview string
	trace   []byte
	size    int
}

func (x *Index) prepare(r *journal.Record) entry {
	e := entry{r: r}
	m := r.Message
	if m == nil {
		return e
	}
	if e.size = len(m.Origin.Raw); e.size == 0 {
		for _, p := range m.Parts {
			e.size += len(p.Data)
		}
	}
	e.trace = traceID(m.Trace.Parent)
	if !x.c.NoText {
		e.body = textOf(m, x.c.MaxText)
		e.preview = previewOf(m, e.body)
	}
	return e
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
		if err := s.c.exec("BEGIN IMMEDIATE"); err != nil {
			return err
		}
	}
	m.sequence, m.clock, m.last = r.Position.Sequence, max(m.clock+1, r.Time.UnixMicro()), r
	s.records++
	s.bytes += sizeOf(r) + len(e.body)
	if err := s.take(e, m.clock<<8|int64(r.Position.Partition)); err != nil {
		return fmt.Errorf("index record %s: %w", r.Position, err)
	}
	return nil
}

func (s *store) take(e *entry, n int64) error {
	r := e.r
	if r.Message != nil {
		if err := s.message(e, n); err != nil {
			return err
		}
	}
	if len(r.Losses) > 0 && r.Message != nil {
		if err := s.said(r); err != nil {
			return err
		}
	}
	for i := range r.Steps {
		if err := s.step(r, &r.Steps[i]); err != nil {
			return err
		}
	}
	return nil
}

// agent gives the number of a name, 0 of none.
func (s *store) agent(name string) (int64, error) {
	if n, ok := s.agents[name]; ok || name == "" {
		return n, nil
	}
	q := s.c.prepare("SELECT n FROM agents WHERE name=?").text(name)
	found, err := q.row()
	if err != nil {
		return 0, err
	}
	if !found {
		s.lastName++
		s.names = append(s.names, name)
		s.agents[name] = s.lastName
		return s.lastName, nil
	}
	s.agents[name] = q.ColumnInt64(0)
	return s.agents[name], q.Reset()
}

func (s *store) conversation(id parley.ID) (*conversation, error) {
	if id.IsZero() {
		return nil, nil
	}
	if c := s.convs[id]; c != nil {
		return c, nil
	}
	c := &conversation{}
	q := s.c.prepare("SELECT n, first, last, messages, open, failed, agents FROM conversations WHERE id=?").blob(id[:])
	found, err := q.row()
	if err != nil {
		return nil, err
	}
	if found {
		c.n, c.first, c.last = q.ColumnInt64(0), q.ColumnInt64(1), q.ColumnInt64(2)
		c.messages, c.open, c.failed = q.ColumnInt64(3), q.ColumnInt64(4), q.ColumnInt64(5)
		err = errors.Join(json.Unmarshal(bytesOf(q.Stmt, 6), &c.members), q.Reset())
	} else {
		s.lastConv++
		c.n, c.fresh, c.dirty = s.lastConv, true, true
	}
	s.convs[id] = c
	return c, err
}

func (s *store) message(e *entry, n int64) error {
	r, m := e.r, e.r.Message
	w := row{n: n, e: *e}
	var err error
	if w.sender, err = s.agent(m.From); err != nil {
		return err
	}
	if w.recipient, err = s.agent(m.To); err != nil {
		return err
	}
	if r.Refused != nil {
		w.flags = flagRefused
	}
	if m.Kind == parley.Failure {
		w.flags |= flagFailure
	}
	c, err := s.conversation(m.Conversation)
	if err != nil {
		return err
	}
	if c != nil {
		w.conversation = c.n
		if c.messages == 0 || n < c.first {
			c.first = n
		}
		c.last = max(c.last, n)
		c.messages++
		if w.flags != 0 {
			c.failed++
		}
		c.dirty = true
	}
	s.messages = append(s.messages, w)
	var room [8]int64
	parties := append(room[:0], w.sender, w.recipient)
	for i := range r.Open {
		o := &r.Open[i]
		to, err := s.agent(o.To)
		if err != nil {
			return err
		}
		d := &delivery{state: parley.Waiting, kind: m.Kind, conv: m.Conversation, opened: r.Time.UnixNano(), changed: r.Time.UnixNano(), dirty: true}
		if !o.NotBefore.IsZero() {
			d.next = o.NotBefore.UnixNano()
		}
		if o.Attempt == 1 {
			d.state, d.attempts, d.next = parley.Delivering, 1, 0
		}
		d.steps = packStep(make([]byte, 0, 48), r, d, "")
		s.rows[rowKey{n, to}] = d
		s.count(d, 0)
		parties = append(parties, to)
	}
	if len(r.Open) > 0 {
		s.ids[idKey{m.ID, r.Position.Partition}] = n
	}
	for i, a := range parties {
		if a == 0 || slices.Contains(parties[:i], a) {
			continue
		}
		s.parties = append(s.parties, [2]int64{a, n})
		if c != nil && len(c.members) < maxListed && !slices.Contains(c.members, a) {
			c.members = append(c.members, a)
		}
	}
	if c != nil && e.trace != nil && !bytes.Equal(c.trace, e.trace) {
		s.traces = append(s.traces, traced{e.trace, c.n})
		c.trace = e.trace
	}
	return nil
}

// bind binds the columns of messages.
func (w *row) bind(q *stmt) {
	r, m := w.e.r, w.e.r.Message
	q.int(w.n).int(int64(r.Position.Sequence)).blob(m.ID[:]).int(int64(m.Kind)).positive(int64(m.State)).positive(int64(m.Number)).
		int(w.sender).positive(w.recipient).positive(w.conversation).id(m.InReplyTo).text(m.Skill).text(m.Act).text(m.Origin.Protocol).
		int(int64(m.Origin.Verdict.Assurance)).blob(w.e.trace).int(r.Time.UnixNano()).int(int64(w.e.size))
	failure := m.Error
	if r.Refused != nil {
		failure = r.Refused
	}
	if failure != nil {
		q.text(string(failure.Code)).text(failure.Text)
	} else {
		q.null().null()
	}
	q.int(w.flags).text(w.e.preview)
}

// flush inserts what was gathered, in the order of the tables' keys.
func (s *store) flush() error {
	first := s.lastName - int64(len(s.names)) + 1
	if err := s.c.insert("INSERT OR FAIL INTO agents", 2, len(s.names), func(q *stmt, i int) {
		q.int(first + int64(i)).text(s.names[i])
	}); err != nil {
		return err
	}
	slices.SortFunc(s.messages, func(a, b row) int { return cmp.Compare(a.n, b.n) })
	if err := s.c.insert("INSERT OR FAIL INTO messages", 21, len(s.messages), func(q *stmt, i int) {
		s.messages[i].bind(q)
	}); err != nil {
		return err
	}
	for i := range s.messages {
		// The full text index wants growing keys: it flushes at any other.
		if w := &s.messages[i]; w.e.body != "" {
			q := s.c.prepare("INSERT INTO texts (rowid, body) VALUES (?,?)")
			if err := q.int(w.n).text(w.e.body).run(); err != nil {
				return err
			}
		}
	}
	slices.SortFunc(s.parties, func(a, b [2]int64) int {
		return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1]))
	})
	if err := s.c.insert("INSERT OR FAIL INTO party", 2, len(s.parties), func(q *stmt, i int) {
		q.int(s.parties[i][0]).int(s.parties[i][1])
	}); err != nil {
		return err
	}
	slices.SortFunc(s.traces, func(a, b traced) int {
		return cmp.Or(bytes.Compare(a.trace, b.trace), cmp.Compare(a.conversation, b.conversation))
	})
	return s.c.insert("INSERT OR IGNORE INTO traces", 2, len(s.traces), func(q *stmt, i int) {
		q.blob(s.traces[i].trace).int(s.traces[i].conversation)
	})
}

// empty forgets what was gathered.
func (s *store) empty() {
	clear(s.messages)
	s.names, s.messages, s.parties, s.traces = s.names[:0], s.messages[:0], s.parties[:0], s.traces[:0]
	s.records, s.bytes = 0, 0
}

// open reports whether something is still expected to happen to d.
func (d *delivery) open() bool { return d.state != parley.Dead && !d.state.Settled(d.kind) }

// count keeps the number of open deliveries of d's conversation, from what it
// was (0: not there).
func (s *store) count(d *delivery, was parley.DeliveryState) {
	c := s.convs[d.conv]
	if c == nil {
		return
	}
	before := was != 0 && was != parley.Dead && !was.Settled(d.kind)
	if now := d.open(); now != before {
		if now {
			c.open++
		} else {
			c.open--
		}
		c.dirty = true
	}
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
	if !d.open() && d.state != parley.Dead || int(d.state) >= len(follow) || follow[d.state]&(1<<t.State) == 0 {
		return false
	}
	if t.State == parley.Delivering {
		return t.Attempt == int(d.attempts)+1
	}
	return t.Attempt == 0 || t.Attempt == int(d.attempts)
}

// of finds the delivery of a message that is recorded in a partition; nil where
// the index has none.
func (s *store) of(id parley.ID, partition int, to string) (*delivery, error) {
	key := idKey{id, partition}
	n, ok := s.ids[key]
	if !ok {
		q := s.c.prepare("SELECT n FROM messages WHERE id=? AND n & 255 = ? ORDER BY n DESC LIMIT 1")
		found, err := q.blob(id[:]).int(int64(partition)).row()
		if err != nil || !found {
			return nil, err
		}
		n = q.ColumnInt64(0)
		if err := q.Reset(); err != nil {
			return nil, err
		}
		s.ids[key] = n
	}
	agent, err := s.agent(to)
	if err != nil {
		return nil, err
	}
	return s.delivery(n, agent)
}

// lose notes losses besides those that are noted.
func (d *delivery) lose(losses []parley.Loss, most int) error {
	if len(losses) == 0 {
		return nil
	}
	var list []string
	if d.losses != "" {
		if err := json.Unmarshal([]byte(d.losses), &list); err != nil {
			return err
		}
	}
	before := len(list)
	for _, l := range losses {
		if text := l.String(); !slices.Contains(list, text) {
			list = append(list, text)
		}
	}
	if len(list) == before || most > 0 && len(list) > most {
		return nil
	}
	b, err := json.Marshal(list)
	if err != nil {
		return err
	}
	d.losses, d.dirty = string(b), true
	return nil
}

// said notes what an event lost with the delivery of its request.
func (s *store) said(r *journal.Record) error {
	d, err := s.of(r.Message.InReplyTo, r.Position.Partition, r.Message.From)
	if err != nil || d == nil || !d.open() {
		return err
	}
	return d.lose(r.Losses, journal.MaxLosses)
}

func (s *store) step(r *journal.Record, t *journal.Step) error {
	d, err := s.of(t.Message, r.Position.Partition, t.To)
	if err != nil || d == nil || !d.fits(t) {
		return err
	}
	was := d.state
	d.dirty, d.changed = true, r.Time.UnixNano()
	if t.Postponed && d.state == parley.Delivering {
		d.postponed++
	}
	d.state, d.next = t.State, 0
	switch t.State {
	case parley.Delivering:
		d.attempts = int64(t.Attempt)
	case parley.Waiting:
		if !t.Next.IsZero() {
			d.next = t.Next.UnixNano()
		}
	case parley.Answered:
		d.reply = t.Reply
	}
	code := ""
	if t.Error != nil {
		d.code, d.error = string(t.Error.Code), t.Error.Text
		code = d.code
	}
	if err := d.lose(t.Losses, 0); err != nil {
		return err
	}
	if _, err := s.conversation(d.conv); err != nil {
		return err
	}
	s.count(d, was)
	d.steps = packStep(d.steps, r, d, code)
	return nil
}

func (s *store) delivery(n, to int64) (*delivery, error) {
	key := rowKey{n, to}
	if d := s.rows[key]; d != nil {
		return d, nil
	}
	q := s.c.prepare(`SELECT d.state, m.kind, c.id, d.attempts, d.postponed, d.opened, d.changed, d.next,
			d.code, d.error, d.reply, d.losses, d.steps
		FROM deliveries d JOIN messages m ON m.n=d.message LEFT JOIN conversations c ON c.n=m.conversation
		WHERE d.message=? AND d.recipient=?`)
	found, err := q.int(n).int(to).row()
	if err != nil || !found {
		return nil, err
	}
	d := &delivery{state: parley.DeliveryState(q.ColumnInt64(0)), kind: parley.Kind(q.ColumnInt64(1)),
		attempts: q.ColumnInt64(3), postponed: q.ColumnInt64(4),
		opened: q.ColumnInt64(5), changed: q.ColumnInt64(6), next: q.ColumnInt64(7),
		code: q.ColumnText(8), error: q.ColumnText(9), losses: q.ColumnText(11), steps: bytesOf(q.Stmt, 12)}
	q.ColumnBytes(2, d.conv[:])
	q.ColumnBytes(10, d.reply[:])
	d.before = d.state
	s.rows[key] = d
	return d, q.Reset()
}

// commit writes what was gathered.
func (s *store) commit() error {
	if s.records == 0 {
		return nil
	}
	if err := errors.Join(s.write(), s.c.keep()); err != nil {
		return err
	}
	if err := s.c.exec("COMMIT"); err != nil {
		return err
	}
	s.empty()
	if len(s.agents) > maxCached {
		clear(s.agents)
	}
	if len(s.rows) > maxCached {
		clear(s.rows)
	}
	if len(s.ids) > maxCached {
		clear(s.ids)
	}
	if len(s.convs) > maxCached {
		clear(s.convs)
	}
	return nil
}

func (s *store) write() error {
	if err := s.flush(); err != nil {
		return err
	}
	// Rows that the file has not, and those that it has: with the latter SQLite must
	// be able to undo a part of the statement.
	var keys, changed []rowKey
	for k, d := range s.rows {
		switch {
		case d.dirty && d.before == 0:
			keys = append(keys, k)
		case d.dirty:
			changed = append(changed, k)
		}
	}
	for _, p := range []struct {
		into string
		keys []rowKey
	}{{"INSERT OR FAIL INTO deliveries", keys}, {"INSERT OR REPLACE INTO deliveries", changed}} {
		slices.SortFunc(p.keys, func(a, b rowKey) int {
			return cmp.Or(cmp.Compare(a.message, b.message), cmp.Compare(a.recipient, b.recipient))
		})
		if err := s.c.insert(p.into, 13, len(p.keys), func(q *stmt, i int) {
			s.rows[p.keys[i]].bind(q, p.keys[i])
		}); err != nil {
			return err
		}
	}
	for _, k := range append(keys, changed...) {
		d := s.rows[k]
		if gone(d.state) != gone(d.before) {
			if err := s.failed(k.message, d); err != nil {
				return err
			}
		}
		d.dirty, d.before = false, d.state
	}
	if err := s.putConversations(); err != nil {
		return err
	}
	for p := range s.marks {
		m := &s.marks[p]
		if m.last == nil {
			continue
		}
		m.print, m.last = printOf(m.last), nil
		q := s.c.prepare("INSERT OR REPLACE INTO progress VALUES (?,?,?,?)")
		if err := q.int(int64(p)).int(int64(m.sequence)).int(m.clock).int(int64(m.print)).run(); err != nil {
			return err
		}
	}
	return nil
}

// bind binds the columns of deliveries.
func (d *delivery) bind(q *stmt, k rowKey) {
	q.int(k.message).int(k.recipient).int(int64(d.state)).int(d.attempts).int(d.postponed).int(d.opened).int(d.changed).positive(d.next).
		text(d.code).text(d.error).id(d.reply).text(d.losses).blob(d.steps)
}

func (s *store) putConversations() error {
	type fresh struct {
		id parley.ID
		*conversation
	}
	var list []fresh
	var agents []byte
	for id, c := range s.convs {
		if !c.dirty {
			continue
		}
		if c.fresh {
			list = append(list, fresh{id, c})
		} else {
			agents = c.agents(agents[:0])
			q := s.c.prepare("UPDATE conversations SET first=?, last=?, messages=?, open=?, failed=?, agents=? WHERE n=?")
			q.int(c.first).int(c.last).int(c.messages).int(c.open).int(c.failed)
			if err := q.text(string(agents)).int(c.n).run(); err != nil {
				return err
			}
		}
		c.dirty, c.fresh = false, false
	}
	slices.SortFunc(list, func(a, b fresh) int { return cmp.Compare(a.n, b.n) })
	return s.c.insert("INSERT OR FAIL INTO conversations", 8, len(list), func(q *stmt, i int) {
		c := &list[i]
		agents = c.agents(agents[:0])
		q.int(c.n).blob(c.id[:]).int(c.first).int(c.last).int(c.messages).int(c.open).int(c.failed).text(string(agents))
	})
}

// agents appends the array of those that c lists.
func (c *conversation) agents(b []byte) []byte {
	b = append(b, '[')
	for i, a := range c.members {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, a, 10)
	}
	return append(b, ']')
}

// gone reports whether a delivery was given up.
func gone(s parley.DeliveryState) bool { return s > parley.Answered }

// failed keeps the flag that a message was not delivered to everybody.
func (s *store) failed(n int64, d *delivery) error {
	q := s.c.prepare(`SELECT flags, EXISTS (SELECT 1 FROM deliveries WHERE message=m.n AND state>4)
		FROM messages m WHERE n=?`)
	found, err := q.int(n).row()
	if err != nil || !found {
		return err
	}
	flags, undelivered := q.ColumnInt64(0), q.ColumnBool(1)
	if err := q.Reset(); err != nil {
		return err
	}
	now := flags &^ flagUndelivered
	if undelivered {
		now |= flagUndelivered
	}
	if now == flags {
		return nil
	}
	c, err := s.conversation(d.conv)
	if err != nil {
		return err
	}
	if c != nil && (now != 0) != (flags != 0) {
		if c.dirty = true; now != 0 {
			c.failed++
		} else {
			c.failed--
		}
	}
	return s.c.prepare("UPDATE messages SET flags=? WHERE n=?").int(now).int(n).run()
}

// packStep appends a change of a delivery: the sequence of its record, state,
// attempt, time and code, behind the number of bytes that they take.
func packStep(b []byte, r *journal.Record, d *delivery, code string) []byte {
	var x [64]byte
	s := binary.AppendUvarint(x[:0], r.Position.Sequence)
	s = append(s, byte(d.state))
	s = binary.AppendUvarint(s, uint64(d.attempts))
	s = binary.AppendVarint(s, d.changed)
	s = append(s, code...)
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// unpackSteps reads what packStep appended.
func unpackSteps(b []byte) (out []Step, err error) {
	for len(b) > 0 {
		size, n := binary.Uvarint(b)
		if n <= 0 || size > uint64(len(b)-n) {
			return nil, errSteps
		}
		s := b[n : n+int(size)]
		b = b[n+int(size):]
		var x Step
		if x.Position.Sequence, n = binary.Uvarint(s); n <= 0 || n >= len(s) {
			return nil, errSteps
		}
		x.State = parley.DeliveryState(s[n])
		s = s[n+1:]
		attempt, n := binary.Uvarint(s)
		if n <= 0 {
			return nil, errSteps
		}
		nanos, k := binary.Varint(s[n:])
		if k <= 0 {
			return nil, errSteps
		}
		x.Attempt, x.Time, x.Code = int(attempt), time.Unix(0, nanos).UTC(), parley.Code(s[n+k:])
		out = append(out, x)
	}
	return out, nil
}

var errSteps = corrupt("the steps of a delivery cannot be read")

// microseconds of a key.
func timeOf(n int64) time.Time { return time.UnixMicro(n >> 8).UTC() }
