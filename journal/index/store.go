package index

import (
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

// store gathers a batch of records for the writer, and writes it in one
// transaction.
type store struct {
	c      *sqlite.Conn
	holder *sqlite.Stmt // see holdMemory
	noText bool
	marks  []progress // by partition

	// These are written by the next transaction.
	messages []*row
	changed  []*tracked      // rows of the file to be updated
	counted  []*conversation // with changed counters
	lists    map[listKey][]int64
	records  int
	bytes    int // of memory that they need

	// Caches of rows of the file and of the batch.
	agents        map[string]int64
	conversations map[parley.ID]*conversation
	lastNumber    int64 // of a conversation
	tracked       map[trackedKey]*tracked
}

// progress is the position in a partition.
type progress struct {
	sequence uint64
	clock    int64           // of the last n
	digest   uint64          // of the last record; it differs if the journal was restored from a backup
	last     *journal.Record // its digest is not computed yet
}

// row is a new row of messages.
type row struct {
	Message
	*tracked
	sender, recipient int64
	conversation      *conversation
}

// tracked is the part of a message that steps change.
type tracked struct {
	key          int64
	kind         parley.Kind
	conversation parley.ID
	flags        int64 // of its own
	list         []delivery
	last         lastRecord // of a request
	time, answer int64      // of the record; until the terminal reply to a request: nanoseconds
	inFile       bool       // the message has a row in the file
	changed      bool       // the row must be updated
}

// delivery is a delivery as in the file.
type delivery struct {
	To        string    `json:"to"`
	Steps     []step    `json:"s"`
	Postponed int       `json:"p,omitzero"`
	Next      int64     `json:"n,omitzero"` // nanoseconds
	Error     *Reason   `json:"e,omitzero"`
	Reply     parley.ID `json:"y,omitzero"`
	Protocol  string    `json:"o,omitzero"`
	Earlier   []string  `json:"w,omitzero"` // protocols of attempts before a change of Protocol
	Losses    []string  `json:"l,omitzero"`
}

// step is a state of a delivery; the last is the present one.
type step struct {
	State    uint8       `json:"s"`
	Attempt  int         `json:"a,omitzero"`
	Sequence uint64      `json:"q"`
	Time     int64       `json:"t"` // nanoseconds
	Code     parley.Code `json:"c,omitzero"`
}

// listKey selects a list of messages: by owner, partition and span of time.
type listKey struct {
	owner     int64
	partition int
	span      int64
}

// spanBits are the low bits of a message's key that differ within a span of time: a
// second.
const spanBits = 28

// traceOwner is the number that owns the list of a trace's messages. It is negative;
// agents have positive numbers. If traces share a number, their messages distinguish
// them.
func traceOwner(trace []byte) int64 {
	if len(trace) < 8 {
		return 0
	}
	return -1 - int64(binary.BigEndian.Uint64(trace)>>1)
}

type trackedKey struct {
	message   parley.ID
	partition int
}

// conversation is a row of conversations, or with n 0 the change of a row by a batch.
type conversation struct {
	id                                     parley.ID
	n, first, last, messages, open, failed int64
	agents                                 []int64 // in order
	changed                                bool
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
	s := &store{c: c, noText: noText, marks: make([]progress, partitions)}
	if err := errors.Join(s.open(identity), s.holdMemory()); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return s, nil
}

func (s *store) open(identity string) error {
	for _, p := range settings {
		if err := execute(s.c, "PRAGMA "+p, nil); err != nil {
			return err
		}
	}
	count, err := number(s.c, "SELECT count(*) FROM sqlite_schema")
	if err != nil {
		return err
	}
	// An index without text has another version: its contents differ.
	v, tables := version, schema+textSchema
	if s.noText {
		v, tables = version+" without text", schema
	}
	if count == 0 {
		if err := transaction(s.c, func() error {
			return errors.Join(sqlitex.ExecuteScript(s.c, tables, nil), execute(s.c, `INSERT INTO meta VALUES
				('version', ?), ('journal', ?), ('tables', (SELECT count(*) FROM sqlite_schema))`, nil, v, identity))
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

// load rolls back an open transaction, and reads the positions.
func (s *store) load() (err error) {
	s.dropBatch()
	s.dropCache()
	if !s.c.AutocommitEnabled() {
		if err := execute(s.c, "ROLLBACK", nil); err != nil {
			return err
		}
	}
	if s.lastNumber, err = number(s.c, "SELECT max(n) FROM conversations"); err != nil {
		return err
	}
	clear(s.marks)
	return execute(s.c, "SELECT partition, sequence, clock, print FROM progress", func(q *sqlite.Stmt) error {
		if p := q.ColumnInt(0); p >= 0 && p < len(s.marks) {
			m := &s.marks[p]
			m.sequence, m.clock, m.digest = uint64(q.ColumnInt64(1)), q.ColumnInt64(2), uint64(q.ColumnInt64(3))
		}
		return nil
	})
}

// dropCache empties the caches of rows.
func (s *store) dropCache() {
	s.agents, s.conversations = map[string]int64{}, map[parley.ID]*conversation{}
	s.tracked = map[trackedKey]*tracked{}
}

// dropBatch empties the batch.
func (s *store) dropBatch() {
	clear(s.messages)
	clear(s.changed)
	clear(s.counted)
	s.lists = map[listKey][]int64{}
	s.messages, s.changed, s.counted = s.messages[:0], s.changed[:0], s.counted[:0]
	s.records, s.bytes = 0, 0
}

// holdMemory holds a piece of memory of each size. Statements take and free pieces
// all the time, and the allocator returns a page of equal pieces to the system when
// the last is freed; a piece that stays keeps the page. The pieces are taken again
// between transactions, because SQLite's cache grows into other pages.
func (s *store) holdMemory() (err error) {
	const sizes = 12 // from 16 bytes
	if s.holder == nil {
		s.holder, err = s.c.Prepare("SELECT ?" + strings.Repeat(",?", sizes-1))
	}
	var room [16 << (sizes - 1)]byte
	for i := 0; i < sizes && err == nil; i++ {
		s.holder.BindBytes(i+1, room[:16<<i-8])
	}
	return err
}

// checkpoint copies the WAL into the file and truncates it.
func (s *store) checkpoint() error {
	busy, err := number(s.c, "PRAGMA wal_checkpoint(TRUNCATE)")
	if err == nil && busy != 0 {
		err = errors.New("the log of the index cannot be truncated: a query uses it")
	}
	return err
}

// digestOf is a short digest that identifies a record.
func digestOf(r *journal.Record) uint64 {
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

// add adds a record to the batch, unless the file has it.
func (s *store) add(r *journal.Record) (err error) {
	m := &s.marks[r.Position.Partition]
	if r.Position.Sequence <= m.sequence {
		return nil
	}
	if s.records == 0 {
		// The writer's queries run in this transaction: one of their own would cost more.
		if err := executePrepared(s.c, "BEGIN IMMEDIATE", nil); err != nil {
			return err
		}
	}
	m.sequence, m.clock, m.last = r.Position.Sequence, max(m.clock+1, r.Time.UnixMicro()), r
	s.records++
	s.bytes += 512
	if r.Message != nil {
		err = s.message(prepare(r, s.noText), m.clock<<8|int64(r.Position.Partition))
	}
	if err == nil && r.Message != nil && len(r.Losses) > 0 {
		err = s.eventLosses(r)
	}
	for i := 0; i < len(r.Steps) && err == nil; i++ {
		err = s.step(r, &r.Steps[i])
	}
	if err != nil {
		return fmt.Errorf("index record %s: %w", r.Position, err)
	}
	return nil
}

// agent returns the number of a name; 0: the name is empty.
func (s *store) agent(name string) (n int64, err error) {
	if n, ok := s.agents[name]; ok || name == "" {
		return n, nil
	}
	if n, err = agentKey(s.c, name); err != nil {
		return 0, err
	}
	if n == 0 {
		if err := executePrepared(s.c, "INSERT INTO agents (name) VALUES (?)", nil, name); err != nil {
			return 0, err
		}
		n = s.c.LastInsertRowID()
	}
	s.agents[name] = n
	return n, nil
}

// count returns the conversation, to change its counters. The zero id is for messages
// without a conversation; its counters are not written.
func (s *store) count(id parley.ID) *conversation {
	c := s.conversations[id]
	if c == nil {
		c = &conversation{id: id}
		if id.IsZero() {
			return c
		}
		s.conversations[id] = c
	}
	if !c.changed {
		c.changed = true
		s.counted = append(s.counted, c)
	}
	return c
}

func (s *store) message(w *row, key int64) (err error) {
	w.Message.key, w.tracked.key, w.tracked.time = key, key, w.Time.UnixNano()
	s.bytes += len(w.text)
	if w.sender, err = s.agent(w.From); err != nil {
		return err
	}
	if w.recipient, err = s.agent(w.To); err != nil {
		return err
	}
	c := s.count(w.Conversation)
	w.conversation = c
	c.add(&conversation{first: key, last: key, messages: 1})
	s.enlist(key, traceOwner(w.trace))
	if err := s.enlistValues(w); err != nil {
		return err
	}
	s.enlist(key, w.sender)
	c.join(w.sender)
	if w.recipient != w.sender {
		s.enlist(key, w.recipient)
		c.join(w.recipient)
	}
	for i := range w.list {
		if to := w.list[i].To; to != w.To && to != w.From {
			n, err := s.agent(to)
			if err != nil {
				return err
			}
			s.enlist(key, n)
			c.join(n)
		}
	}
	c.sum(0, 0, w.tracked)
	s.messages = append(s.messages, w)
	if w.Kind == parley.Request && !w.Refused {
		w.last = lastRecord{key, w.Kind, w.State}
	}
	if len(w.list) > 0 || w.last.key != 0 {
		s.tracked[trackedKey{w.ID, w.Position.Partition}] = w.tracked
	}
	if w.InReplyTo.IsZero() || w.Refused {
		return nil
	}
	return s.changeRequest(w)
}

// enlist adds the key of a message to its owner's list, only once; owner 0: there is none.
func (s *store) enlist(key, owner int64) {
	if owner != 0 {
		k := listKey{owner, int(key & 255), key >> spanBits}
		s.lists[k] = append(s.lists[k], key)
	}
}

// enlistAs adds the key of a message to the list of a value, only once.
func (s *store) enlistAs(key int64, value string) error {
	n, err := s.agent(value)
	if err == nil {
		s.enlist(key, n)
	}
	return err
}

// enlistValues adds a new message to the lists of its values.
func (s *store) enlistValues(w *row) error {
	err := cmp.Or(s.enlistAs(w.tracked.key, kindList(w.Kind)), s.enlistAs(w.tracked.key, proofList(w.Assurance)))
	if err == nil && w.Protocol != "" {
		err = s.enlistAs(w.tracked.key, protocolList(w.Protocol))
	}
	return err
}

// carried notes the protocol of an attempt.
func (s *store) carried(t *tracked, d *delivery, protocol string) error {
	known := slices.ContainsFunc(t.list, func(d delivery) bool {
		return d.Protocol == protocol || slices.Contains(d.Earlier, protocol)
	})
	if d.Protocol != "" && d.Protocol != protocol && !slices.Contains(d.Earlier, d.Protocol) {
		d.Earlier = append(d.Earlier, d.Protocol)
	}
	d.Protocol = protocol
	if known {
		return nil
	}
	return s.enlistAs(t.key, viaList(protocol))
}

// add adds the counters of d.
func (c *conversation) add(d *conversation) {
	if d.first > 0 && (c.first == 0 || d.first < c.first) {
		c.first = d.first
	}
	c.last = max(c.last, d.last)
	c.messages, c.open, c.failed = c.messages+d.messages, c.open+d.open, c.failed+d.failed
	for _, a := range d.agents {
		c.join(a)
	}
}

// join adds an agent.
func (c *conversation) join(agent int64) {
	if i, is := slices.BinarySearch(c.agents, agent); !is && agent > 0 {
		c.agents = slices.Insert(c.agents, i, agent)
	}
}

// sum replaces a message's contribution, which was flags and open.
func (c *conversation) sum(flags, open int64, t *tracked) {
	f, o := t.sum()
	c.open += o - open
	if was, is := flags&flagFailed != 0, f&flagFailed != 0; is && !was {
		c.failed++
	} else if was && !is {
		c.failed--
	}
}

// sum returns the flags of a message and the number of its open deliveries.
func (t *tracked) sum() (flags, open int64) {
	flags = t.flags
	for i := range t.list {
		d := &t.list[i]
		flags |= 1 << d.last().State
		if d.open(t.kind) {
			open++
		}
	}
	return flags, open
}

// bind binds the columns of messages.
func (w *row) bind(v *values) {
	flags, open := w.sum()
	v.int(w.tracked.key).int(int64(w.Position.Sequence)).blob(w.ID[:]).int(int64(w.Kind)).int(int64(w.State)).
		int(int64(w.Number)).int(w.sender).int(w.recipient).positive(w.conversation.n).blob(bytesOfID(&w.InReplyTo)).
		text(w.Skill).text(w.Act).text(w.Protocol).int(int64(w.Assurance)).blob(w.trace).int(traceOwner(w.trace)).
		int(w.Time.UnixNano()).int(int64(w.Size)).text(w.Error.encode()).text(w.Preview).
		int(flags).int(open).text(w.deliveries()).positive(w.last.key).positive(w.answer)
}

// deliveries is the column of the same name.
func (t *tracked) deliveries() string {
	if len(t.list) == 0 {
		return ""
	}
	b, _ := json.Marshal(t.list) // numbers and strings always encode
	return string(b)
}

// bytesOfID is nil for the zero id.
func bytesOfID(id *parley.ID) []byte {
	if id.IsZero() {
		return nil
	}
	return id[:]
}

// nanos is a time as in the file; 0: none.
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

// last is the present state of d.
func (d *delivery) last() *step { return &d.Steps[len(d.Steps)-1] }

func (d *delivery) state() parley.DeliveryState { return parley.DeliveryState(d.last().State) }

// open reports whether d is neither settled nor dead.
func (d *delivery) open(kind parley.Kind) bool {
	return d.state() != parley.Dead && !d.state().Settled(kind)
}

// export makes the result of a query.
func (d *delivery) export(partition int, steps bool) Delivery {
	now := d.last()
	out := Delivery{
		To: d.To, State: d.state(), Attempts: now.Attempt, Postponed: d.Postponed, Opened: timeOf(d.Steps[0].Time),
		Changed: timeOf(now.Time), Next: timeOf(d.Next), Error: d.Error, Reply: d.Reply, Protocol: d.Protocol,
		Losses: d.Losses,
	}
	for i := 0; i < len(d.Steps) && steps; i++ {
		x := &d.Steps[i]
		out.Steps = append(out.Steps, Step{Position: journal.Position{Partition: partition, Sequence: x.Sequence},
			Time: timeOf(x.Time), State: parley.DeliveryState(x.State), Attempt: x.Attempt, Code: x.Code})
	}
	return out
}

// allows repeats the journal's check: hubs that share a journal may both record a
// step, and all of them ignore the later one.
func (d *delivery) allows(t *journal.Step, kind parley.Kind) bool {
	return (d.open(kind) || d.state() == parley.Dead) && t.Conflict(d.state(), d.last().Attempt) == ""
}

// find finds a delivery of a message in a partition; nil: the index does not have
// it.
func (s *store) find(message parley.ID, partition int, to string) (*tracked, *delivery, error) {
	t, err := s.track(message, partition)
	if err != nil || t == nil {
		return nil, nil, err
	}
	for i := range t.list {
		if d := &t.list[i]; d.To == to {
			return t, d, nil
		}
	}
	return nil, nil, nil
}

// track finds a message in a partition; nil: the index does not have it.
func (s *store) track(message parley.ID, partition int) (*tracked, error) {
	key := trackedKey{message, partition}
	t := s.tracked[key]
	if t == nil {
		err := executePrepared(s.c, `SELECT m.n, m.kind, m.flags, m.deliveries, c.id, m.last, a.kind, a.state,
				m.time, m.answer FROM messages m LEFT JOIN conversations c ON c.n=m.conversation LEFT JOIN messages a ON a.n=m.last
			WHERE m.id=? AND m.n & 255 = ? ORDER BY m.n DESC LIMIT 1`, func(q *sqlite.Stmt) (err error) {
			t = &tracked{key: q.ColumnInt64(0), kind: parley.Kind(q.ColumnInt(1)),
				flags: q.ColumnInt64(2) & (flagRefused | flagFailure), inFile: true}
			t.list, err = readDeliveries(q, 3)
			q.ColumnBytes(4, t.conversation[:])
			t.last = lastRecord{q.ColumnInt64(5), parley.Kind(q.ColumnInt(6)), parley.State(q.ColumnInt(7))}
			t.time, t.answer = q.ColumnInt64(8), q.ColumnInt64(9)
			return err
		}, message[:], partition)
		if err != nil || t == nil {
			return nil, err
		}
		s.tracked[key] = t
	}
	return t, nil
}

func readDeliveries(q *sqlite.Stmt, column int) (list []delivery, err error) {
	b := bytesOf(q, column)
	if len(b) == 0 {
		return nil, nil
	}
	err = json.Unmarshal(b, &list)
	if err != nil || slices.ContainsFunc(list, func(d delivery) bool { return len(d.Steps) == 0 }) {
		err = fmt.Errorf("the deliveries of a message: %w: %w", err, sqlite.ResultCorrupt.ToError())
	}
	return list, err
}

// change adds t to the rows to be updated.
func (s *store) change(t *tracked) {
	if t.inFile && !t.changed {
		t.changed = true
		s.changed = append(s.changed, t)
	}
}

// addLosses adds the new losses, or none of them if there would be more than most.
func (d *delivery) addLosses(losses []parley.Loss, most int) {
	list := slices.Clip(d.Losses)
	for _, l := range losses {
		if text := l.String(); !slices.Contains(list, text) {
			list = append(list, text)
		}
	}
	if len(list) <= most {
		d.Losses = list
	}
}

// eventLosses adds an event's losses to the delivery of its request.
func (s *store) eventLosses(r *journal.Record) error {
	t, d, err := s.find(r.Message.InReplyTo, r.Position.Partition, r.Message.From)
	if err == nil && d != nil && d.open(t.kind) {
		d.addLosses(r.Losses, journal.MaxLosses)
		s.change(t)
	}
	return err
}

func (s *store) step(r *journal.Record, j *journal.Step) error {
	t, d, err := s.find(j.Message, r.Position.Partition, j.To)
	if err != nil || d == nil || !d.allows(j, t.kind) {
		return err
	}
	if err := s.mend(r, j, t, d); err != nil {
		return err
	}
	flags, open := t.sum()
	if j.Postponed && d.state() == parley.Delivering {
		d.Postponed++
	}
	next := step{State: uint8(j.State), Attempt: d.last().Attempt, Sequence: r.Position.Sequence,
		Time: r.Time.UnixNano()}
	d.Next = 0
	switch j.State {
	case parley.Delivering:
		next.Attempt = j.Attempt
	case parley.Waiting:
		d.Next = nanos(j.Next)
	case parley.Answered:
		d.Reply = j.Reply
	}
	if j.Exchange != nil && j.Exchange.Protocol != "" {
		if err := s.carried(t, d, j.Exchange.Protocol); err != nil {
			return err
		}
	}
	if j.Error != nil {
		next.Code = j.Error.Code
		d.Error = ReasonOf(j.Error)
	}
	d.addLosses(j.Losses, math.MaxInt)
	d.Steps = append(d.Steps, next)
	s.count(t.conversation).sum(flags, open, t)
	s.change(t)
	return nil
}

// commit writes the batch.
func (s *store) commit() error {
	if s.records == 0 {
		return nil
	}
	if err := errors.Join(s.write(), s.holdMemory()); err != nil {
		return err
	}
	if err := executePrepared(s.c, "COMMIT", nil); err != nil {
		return err
	}
	s.dropBatch()
	if max(len(s.agents), len(s.conversations), len(s.tracked)) > maxCached {
		s.dropCache()
	}
	return nil
}

// write writes the batch, in the order of the tables' keys.
func (s *store) write() error {
	if err := s.writeConversations(); err != nil {
		return err
	}
	slices.SortFunc(s.messages, func(a, b *row) int { return cmp.Compare(a.tracked.key, b.tracked.key) })
	if _, err := insert(s.c, "INSERT OR FAIL INTO messages VALUES", 25, s.messages, (*row).bind); err != nil {
		return err
	}
	if err := s.writeLists(); err != nil {
		return err
	}
	for _, t := range s.changed {
		flags, open := t.sum()
		if err := executePrepared(s.c,
			"UPDATE messages SET flags=?, open=?, deliveries=nullif(?, ''), last=nullif(?, 0), answer=nullif(?, 0) WHERE n=?",
			nil, flags, open, t.deliveries(), t.last.key, t.answer, t.key); err != nil {
			return err
		}
		t.changed = false
	}
	for p := range s.marks {
		m := &s.marks[p]
		if m.last == nil {
			continue
		}
		m.digest, m.last = digestOf(m.last), nil
		if err := executePrepared(s.c, "INSERT OR REPLACE INTO progress VALUES (?,?,?,?)", nil,
			p, int64(m.sequence), m.clock, int64(m.digest)); err != nil {
			return err
		}
	}
	// The texts come last, one row per statement: the full-text index writes its
	// buffer before a statement that may be rolled back in part, and at a key that is
	// not greater than the last.
	for _, w := range s.messages {
		w.inFile = true
		if w.text == "" {
			continue
		}
		if err := executePrepared(s.c, "INSERT INTO texts (rowid, body) VALUES (?,?)", nil, w.tracked.key,
			w.text); err != nil {
			return err
		}
	}
	return nil
}

// writeLists writes the lists of agents and traces.
func (s *store) writeLists() error {
	type list struct {
		owner, last int64
		list        []byte
	}
	var all []*list
	for k, keys := range s.lists {
		slices.Sort(keys) // those of deliveries and answers come in another order
		l := &list{k.owner, keys[len(keys)-1], []byte{'['}}
		for i, n := range keys {
			if i > 0 {
				l.list = append(l.list, ',')
			}
			l.list = strconv.AppendInt(l.list, l.last-n, 10)
		}
		l.list = append(l.list, ']')
		all = append(all, l)
	}
	slices.SortFunc(all, func(a, b *list) int {
		return cmp.Or(cmp.Compare(a.owner, b.owner), cmp.Compare(a.last, b.last))
	})
	_, err := insert(s.c, "INSERT OR FAIL INTO lists VALUES", 3, all, func(l *list, v *values) {
		v.int(l.owner).int(l.last).text(string(l.list))
	})
	return err
}

// writeConversations writes counters, and numbers new conversations.
func (s *store) writeConversations() error {
	var fresh, known []*conversation
	for _, c := range s.counted {
		c.changed = false
		if c.n == 0 {
			fresh = append(fresh, c)
		} else {
			known = append(known, c)
		}
	}
	for list := range slices.Chunk(fresh, bulkValues/8) {
		for _, c := range list {
			s.lastNumber++
			c.n = s.lastNumber
		}
		n, err := insert(s.c, "INSERT OR FAIL INTO conversations VALUES ON CONFLICT (id) DO NOTHING", 8, list,
			(*conversation).bind)
		if err != nil {
			return err
		}
		// Most conversations are new; if n equals their number, no look-up is needed.
		for i := 0; i < len(list) && n < len(list); i++ {
			c := list[i]
			err := executePrepared(s.c,
				"SELECT n, first, last, messages, open, failed, agents FROM conversations WHERE id=? AND n<>?",
				func(q *sqlite.Stmt) error {
					was := conversation{first: q.ColumnInt64(1), last: q.ColumnInt64(2), messages: q.ColumnInt64(3),
						open: q.ColumnInt64(4), failed: q.ColumnInt64(5)}
					c.n = q.ColumnInt64(0)
					err := json.Unmarshal(bytesOf(q, 6), &was.agents)
					c.add(&was)
					known = append(known, c)
					return err
				}, c.id[:], c.n)
			if err != nil {
				return err
			}
		}
	}
	slices.SortFunc(known, func(a, b *conversation) int { return cmp.Compare(a.n, b.n) })
	for _, c := range known {
		if err := executePrepared(s.c,
			"UPDATE conversations SET first=?, last=?, messages=?, open=?, failed=?, agents=? WHERE n=?", nil,
			c.first, c.last, c.messages, c.open, c.failed, c.list(), c.n); err != nil {
			return err
		}
	}
	return nil
}

// bind binds the columns of conversations.
func (c *conversation) bind(v *values) {
	v.int(c.n).blob(c.id[:]).int(c.first).int(c.last).int(c.messages).int(c.open).int(c.failed).text(c.list())
}

// list is the column agents.
func (c *conversation) list() string {
	b, _ := json.Marshal(c.agents) // numbers always encode
	return string(b)
}
