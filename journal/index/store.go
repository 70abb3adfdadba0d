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

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// store is what the writer writes to: one transaction for a batch of records. It
// is the first file of an index.
type store struct {
	*file
	agents
	search *search // the second

	// What the transaction will insert. Nothing of it is looked for before
	// commit but through the maps below.
	messages []row
	joined   [][2]int64 // agent, conversation
	members  [][2]int64 // of those whose conversation was there before
	traces   []traced

	lastConv int64 // the last key that was given
	seen     *seen // in a file that was begun here: the conversations in it
	convs    map[parley.ID]*conversation
	ids      map[idKey]int64 // n of messages with deliveries
	rows     map[rowKey]*delivery

	convGet, convSet, flagsGet, flagsSet, idGet, deliveryGet, failedGet *stmt
	joinedPut                                                           lists
	messagePut, memberPut, tracePut, deliveryPut, deliverySet, convPut  bulk
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

// seen is a Bloom filter: most conversations of a rebuild are new, and to look
// each up in the file costs as much as to insert it. When very many are in it, it
// spares nothing any more, and nothing is wrong.
type seen [1 << 18]uint64

func (b *seen) places(id parley.ID) [2]uint64 {
	const bits = 64 * uint64(len(b))
	h := binary.LittleEndian.Uint64(id[:]) * 0x9e3779b97f4a7c15
	k := binary.LittleEndian.Uint64(id[8:])*0xbf58476d1ce4e5b9 ^ h>>32
	return [2]uint64{(h ^ k>>29) % bits, (k ^ k>>31) % bits}
}

func (b *seen) add(id parley.ID) {
	for _, at := range b.places(id) {
		b[at/64] |= 1 << (at % 64)
	}
}

func (b *seen) maybe(id parley.ID) bool {
	for _, at := range b.places(id) {
		if b[at/64]&(1<<(at%64)) == 0 {
			return false
		}
	}
	return true
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
	maxCached  = 1 << 15 // rows that are remembered between transactions
	lookasides = 64      // of each file
	maxListed  = 256     // agents that a conversation lists
)

// openStore opens both files, or makes them.
func openStore(name, searchName string, partitions int, identity string, noText bool, maxText int) (*store, error) {
	// The version also says what is left out: the other way needs other contents.
	v := fmt.Sprintf("%s %d", version, maxText)
	if noText {
		v = version + " without text"
	}
	f, err := openFile(name, schema, v, identity, partitions, 48<<10)
	if err != nil {
		return nil, err
	}
	s := &store{file: f}
	err = s.prepare()
	if err == nil {
		s.search, err = openSearch(searchName, v, identity, partitions, noText)
	}
	if err != nil {
		return nil, errors.Join(err, f.c.close())
	}
	return s, nil
}

func (s *store) prepare() (err error) {
	for _, p := range []struct {
		to  **stmt
		sql string
	}{
		{&s.convGet, "SELECT n, first, last, messages, open, failed, agents FROM conversations WHERE id=?"},
		{&s.convSet, "UPDATE conversations SET first=?, last=?, messages=?, open=?, failed=?, agents=? WHERE n=?"},
		{&s.flagsGet, "SELECT flags FROM messages WHERE n=?"},
		{&s.flagsSet, "UPDATE messages SET flags=? WHERE n=?"},
		{&s.idGet, "SELECT n FROM messages WHERE id=? AND n & 255 = ? ORDER BY n DESC LIMIT 1"},
		{&s.deliveryGet, "SELECT d.state, m.kind, c.id, d.attempts, d.postponed, d.opened, d.changed, d.next, d.code, d.error, d.reply, d.losses, d.steps FROM deliveries d JOIN messages m ON m.n=d.message LEFT JOIN conversations c ON c.n=m.conversation WHERE d.message=? AND d.recipient=?"},
		{&s.failedGet, "SELECT count(*) FROM deliveries WHERE message=? AND state > 4"},
	} {
		if *p.to, err = s.c.prepare(p.sql); err != nil {
			return err
		}
	}
	for _, p := range []struct {
		to            *bulk
		sql           string
		columns, rows int
	}{
		{&s.messagePut, "INSERT OR FAIL INTO messages", 21, bulkRows},
		{&s.memberPut, "INSERT OR IGNORE INTO members", 2, bulkRows},
		{&s.tracePut, "INSERT OR IGNORE INTO traces", 2, bulkRows},
		{&s.deliveryPut, "INSERT OR FAIL INTO deliveries", 13, bulkRows},
		{&s.deliverySet, "INSERT OR REPLACE INTO deliveries", 13, 1},
		{&s.convPut, "INSERT OR FAIL INTO conversations", 8, bulkRows},
	} {
		if *p.to, err = s.c.prepareBulk(p.sql, p.columns, p.rows); err != nil {
			return err
		}
	}
	if s.joinedPut, err = openLists(s.file, "joined", 0); err != nil {
		return err
	}
	if err := s.agents.open(s.file); err != nil {
		return err
	}
	s.forget()
	if err := s.load(); err != nil {
		return err
	}
	if s.lastConv == 0 {
		s.seen = new(seen)
	}
	return nil
}

// load reads what the next rows follow.
func (s *store) load() (err error) {
	if err := s.agents.load(s.file); err != nil {
		return err
	}
	if s.lastConv, err = s.number("SELECT max(n) FROM conversations"); err != nil {
		return err
	}
	return s.file.load()
}

func (s *store) files() [2]*file { return [2]*file{s.file, s.search.file} }

// start is the last record of a partition that both files have.
func (s *store) start(p int) uint64 {
	at := s.marks[p].sequence
	for _, f := range s.files() {
		at = min(at, f.marks[p].sequence)
	}
	return at
}

// settle ends the haste of both files.
func (s *store) settle() (err error) {
	for _, f := range s.files() {
		err = errors.Join(err, f.settle())
	}
	if t := s.search; t.bulk != nil && !t.hasty && !t.begun {
		t.bulk.list = newWordList() // its room is not needed again soon
	}
	return err
}

func (s *store) close() (err error) {
	for _, f := range s.files() {
		err = errors.Join(err, f.close())
	}
	return err
}

func (s *store) forget() {
	s.agents.known, s.convs = map[string]int64{}, map[parley.ID]*conversation{}
	s.ids, s.rows = map[idKey]int64{}, map[rowKey]*delivery{}
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

// add puts a record into the transaction.
func (s *store) add(e *entry) error {
	r := e.r
	n, err := s.next(r)
	if err != nil || n == 0 {
		return err
	}
	if r.Message != nil {
		if err := s.message(e, n); err != nil {
			return fmt.Errorf("index record %s: %w", r.Position, err)
		}
	}
	if len(r.Losses) > 0 && r.Message != nil {
		if err := s.said(r); err != nil {
			return fmt.Errorf("index record %s: %w", r.Position, err)
		}
	}
	for i := range r.Steps {
		if err := s.step(r, &r.Steps[i]); err != nil {
			return fmt.Errorf("index record %s: %w", r.Position, err)
		}
	}
	s.bytes += sizeOf(r)
	return nil
}

func (s *store) conversation(id parley.ID) (*conversation, error) {
	if id.IsZero() {
		return nil, nil
	}
	if c := s.convs[id]; c != nil {
		return c, nil
	}
	c := &conversation{}
	found := s.seen == nil || s.seen.maybe(id)
	if found {
		var err error
		if found, err = s.convGet.blob(id[:]).row(); err != nil {
			return nil, err
		}
	}
	var err error
	if found {
		q := s.convGet
		c.n, c.first, c.last, c.messages, c.open, c.failed = q.colInt(0), q.colInt(1), q.colInt(2), q.colInt(3), q.colInt(4), q.colInt(5)
		err = errors.Join(json.Unmarshal(q.colBytes(6), &c.members), q.done())
	} else {
		s.lastConv++
		c.n, c.fresh, c.dirty = s.lastConv, true, true
		if s.seen != nil {
			s.seen.add(id)
		}
	}
	s.convs[id] = c
	return c, err
}

func (s *store) message(e *entry, n int64) error {
	r, m := e.r, e.r.Message
	w := row{n: n, e: *e}
	w.e.body = ""
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
	}
	if len(r.Open) > 0 {
		s.ids[idKey{m.ID, r.Position.Partition}] = n
	}
	if c != nil {
		var room [8]int64
		parties := append(room[:0], w.sender, w.recipient)
		for i := range r.Open {
			to, err := s.agent(r.Open[i].To)
			if err != nil {
				return err
			}
			parties = append(parties, to)
		}
		for _, a := range parties {
			if a == 0 || slices.Contains(c.members, a) {
				continue
			}
			listed := len(c.members) < maxListed
			if listed {
				c.members = append(c.members, a)
			}
			if pair := [2]int64{a, c.n}; listed && c.fresh {
				s.joined = append(s.joined, pair)
			} else {
				s.members = append(s.members, pair)
			}
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
	if err := s.messagePut.insert(len(s.messages), func(q *stmt, i int) { s.messages[i].bind(q) }); err != nil {
		return err
	}
	if err := s.joinedPut.insert(s.joined); err != nil {
		return err
	}
	if err := s.memberPut.insert(len(s.members), sorted(s.members)); err != nil {
		return err
	}
	slices.SortFunc(s.traces, func(a, b traced) int {
		return cmp.Or(bytes.Compare(a.trace, b.trace), cmp.Compare(a.conversation, b.conversation))
	})
	return s.tracePut.insert(len(s.traces), func(q *stmt, i int) { q.blob(s.traces[i].trace).int(s.traces[i].conversation) })
}

// empty forgets what was gathered.
func (s *store) empty() {
	clear(s.messages)
	s.messages, s.joined, s.members, s.traces = s.messages[:0], s.joined[:0], s.members[:0], s.traces[:0]
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
		found, err := s.idGet.blob(id[:]).int(int64(partition)).row()
		if err != nil || !found {
			return nil, err
		}
		n = s.idGet.colInt(0)
		if err := s.idGet.done(); err != nil {
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
	q := s.deliveryGet
	found, err := q.int(n).int(to).row()
	if err != nil || !found {
		return nil, err
	}
	d := &delivery{state: parley.DeliveryState(q.colInt(0)), kind: parley.Kind(q.colInt(1)), attempts: q.colInt(3), postponed: q.colInt(4),
		opened: q.colInt(5), changed: q.colInt(6), next: q.colInt(7), code: q.colText(8), error: q.colText(9), losses: q.colText(11), steps: bytes.Clone(q.colBytes(12))}
	copy(d.conv[:], q.colBytes(2))
	copy(d.reply[:], q.colBytes(10))
	d.before = d.state
	s.rows[key] = d
	return d, q.done()
}

// commit writes what was held back and ends the transaction.
func (s *store) commit() error {
	if !s.begun {
		return nil
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
	if err := s.flush(); err != nil {
		return err
	}
	for _, p := range []struct {
		to   *bulk
		keys []rowKey
	}{{&s.deliveryPut, keys}, {&s.deliverySet, changed}} {
		slices.SortFunc(p.keys, func(a, b rowKey) int {
			return cmp.Or(cmp.Compare(a.message, b.message), cmp.Compare(a.recipient, b.recipient))
		})
		if err := p.to.insert(len(p.keys), func(q *stmt, i int) { s.rows[p.keys[i]].bind(q, p.keys[i]) }); err != nil {
			return err
		}
	}
	keys = append(keys, changed...)
	for _, k := range keys {
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
	if err := s.end(); err != nil {
		return err
	}
	s.empty()
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
			if err := s.convSet.int(c.first).int(c.last).int(c.messages).int(c.open).int(c.failed).text(string(agents)).int(c.n).run(); err != nil {
				return err
			}
		}
		c.dirty, c.fresh = false, false
	}
	slices.SortFunc(list, func(a, b fresh) int { return cmp.Compare(a.n, b.n) })
	return s.convPut.insert(len(list), func(q *stmt, i int) {
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
	if _, err := s.failedGet.int(n).row(); err != nil {
		return err
	}
	count := s.failedGet.colInt(0)
	if err := s.failedGet.done(); err != nil {
		return err
	}
	found, err := s.flagsGet.int(n).row()
	if err != nil || !found {
		return err
	}
	flags := s.flagsGet.colInt(0)
	if err := s.flagsGet.done(); err != nil {
		return err
	}
	now := flags &^ flagUndelivered
	if count > 0 {
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
	return s.flagsSet.int(now).int(n).run()
}

// rollback undoes the transactions; the marks are read again.
func (s *store) rollback() error {
	s.forget()
	s.empty()
	return errors.Join(s.search.rollback(), s.undo(), s.load())
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

var errSteps = &sqliteError{sqlite3.SQLITE_CORRUPT, "the steps of a delivery cannot be read"}

// microseconds of a key.
func timeOf(n int64) time.Time { return time.UnixMicro(n >> 8).UTC() }
