package index

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// store is what the writer writes to: one transaction for a batch of records.
type store struct {
	c       *conn
	noText  bool
	maxText int
	marks   []mark // by partition

	begun   bool
	hasty   bool // see hasten
	records int  // in the transaction
	bytes   int  // that it holds in memory

	// What the transaction will insert. Nothing of it is looked for before
	// commit but through the maps below.
	messages []row
	texts    []int      // those of messages that have text
	parties  [][2]int64 // agent, message
	members  [][2]int64 // agent, conversation
	traces   []traced
	steps    []stepRow

	agents              map[string]int64
	lastAgent, lastConv int64 // the last keys that were given
	convs               map[parley.ID]*conversation
	ids                 map[idKey]int64 // n of messages with deliveries
	rows                map[rowKey]*delivery

	agentGet, agentPut, convGet, convSet, flagsGet, flagsSet                          *stmt
	idGet, deliveryGet, failedGet, progressPut                                        *stmt
	messagePut, partyPut, memberPut, tracePut, textPut, stepPut, deliveryPut, convPut bulk
}

// mark is how far a partition is indexed.
type mark struct {
	sequence uint64
	clock    int64  // of the last n
	print    uint64 // of the last record: a journal that was put back to an earlier state is noticed by it
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

// stepRow is a row of steps.
type stepRow struct {
	message, recipient, sequence, state, attempt, time int64
	code                                               string
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
	members                []int64 // some of those that the table has
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
	dirty               bool
	before              parley.DeliveryState // as the file has it; 0: it has none
}

// At most so many rows are remembered between transactions.
const maxCached = 1 << 15

func openStore(name string, partitions int, identity string, noText bool, maxText int) (*store, error) {
	c, err := openConn(name)
	if err != nil {
		return nil, err
	}
	s := &store{c: c, noText: noText, maxText: maxText, marks: make([]mark, partitions)}
	s.forget()
	if err := s.open(identity); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return s, nil
}

var errOther = errors.New("the index is of another version or journal")

func (s *store) open(identity string) error {
	for _, p := range []string{"PRAGMA journal_mode=WAL", "PRAGMA synchronous=NORMAL", "PRAGMA cache_size=-49152", "PRAGMA wal_autocheckpoint=4000", "PRAGMA temp_store=MEMORY"} {
		if err := s.c.exec(p); err != nil {
			return err
		}
	}
	tables, err := s.c.prepare("SELECT count(*) FROM sqlite_schema")
	if err != nil {
		return err
	}
	if _, err := tables.row(); err != nil {
		return err
	}
	count := tables.colInt(0)
	if err := tables.done(); err != nil {
		return err
	}
	if count == 0 {
		if err := s.create(identity); err != nil {
			return err
		}
	}
	meta, err := s.c.prepare("SELECT key, value FROM meta")
	if err != nil {
		return err
	}
	found := map[string]string{}
	for {
		more, err := meta.row()
		if err != nil {
			return err
		}
		if !more {
			break
		}
		found[meta.colText(0)] = meta.colText(1)
	}
	if found["version"] != s.version() || found["journal"] != identity {
		return errOther
	}
	if boot, hasty := found[hastyKey]; hasty && (boot == "" || boot != bootID()) {
		return fmt.Errorf("%w: the machine stopped while it was being made", errOther)
	} else if hasty {
		s.hasty = true // only the process stopped: what it had written is there
	}
	for _, p := range []struct {
		to  **stmt
		sql string
	}{
		{&s.agentGet, "SELECT n FROM agents WHERE name=?"},
		{&s.agentPut, "INSERT INTO agents VALUES (?,?)"},
		{&s.convGet, "SELECT n, first, last, messages, open, failed FROM conversations WHERE id=?"},
		{&s.convSet, "UPDATE conversations SET first=?, last=?, messages=?, open=?, failed=? WHERE n=?"},
		{&s.flagsGet, "SELECT flags FROM messages WHERE n=?"},
		{&s.flagsSet, "UPDATE messages SET flags=? WHERE n=?"},
		{&s.idGet, "SELECT n FROM messages WHERE id=? AND n & 255 = ? ORDER BY n DESC LIMIT 1"},
		{&s.deliveryGet, "SELECT d.state, m.kind, c.id, d.attempts, d.postponed, d.opened, d.changed, d.next, d.code, d.error, d.reply, d.losses FROM deliveries d JOIN messages m ON m.n=d.message LEFT JOIN conversations c ON c.n=m.conversation WHERE d.message=? AND d.recipient=?"},
		{&s.failedGet, "SELECT count(*) FROM deliveries WHERE message=? AND state > 4"},
		{&s.progressPut, "INSERT OR REPLACE INTO progress VALUES (?,?,?,?)"},
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
		{&s.partyPut, "INSERT OR IGNORE INTO party", 2, bulkRows},
		{&s.memberPut, "INSERT OR IGNORE INTO members", 2, bulkRows},
		{&s.tracePut, "INSERT OR IGNORE INTO traces", 2, bulkRows},
		{&s.textPut, "INSERT INTO texts (rowid, body)", 2, 1},
		{&s.stepPut, "INSERT OR REPLACE INTO steps", 7, bulkRows},
		{&s.deliveryPut, "INSERT OR REPLACE INTO deliveries", 12, bulkRows},
		{&s.convPut, "INSERT OR FAIL INTO conversations", 7, bulkRows},
	} {
		if *p.to, err = s.c.prepareBulk(p.sql, p.columns, p.rows); err != nil {
			return err
		}
	}
	return s.load()
}

// version also says what is left out: the other way needs other contents.
func (s *store) version() string {
	if s.noText {
		return version + " without text"
	}
	return fmt.Sprintf("%s %d", version, s.maxText)
}

func (s *store) create(identity string) error {
	if err := s.c.exec("BEGIN IMMEDIATE;" + schema); err != nil {
		return err
	}
	put, err := s.c.prepare("INSERT INTO meta VALUES (?,?)")
	if err != nil {
		return err
	}
	for _, kv := range [][2]string{{"version", s.version()}, {"journal", identity}} {
		if err := put.text(kv[0]).text(kv[1]).run(); err != nil {
			return err
		}
	}
	return s.c.exec("COMMIT")
}

// hastyKey of meta stands in a file as long as the disk was not waited for.
const hastyKey = "hasty"

// bootID tells one run of the machine from others; "" where nothing does.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// hasten stops waiting for the disk while much is written: an index can be
// made again. The file says so before it is true, so that one of which the
// machine may have lost something is never taken for whole.
func (s *store) hasten() error {
	if s.hasty {
		return s.c.exec(hastyMode)
	}
	q, err := s.c.prepare("INSERT OR REPLACE INTO meta VALUES ('" + hastyKey + "',?)")
	if err != nil {
		return err
	}
	boot := bootID()
	if boot == "" {
		boot = "unknown"
	}
	if err := errors.Join(q.text(boot).run(), s.c.finalize(q)); err != nil {
		return err
	}
	s.hasty = true
	if ok, err := s.checkpoint(); err != nil || !ok {
		return err // a reader keeps the mark from the disk: no haste this time
	}
	return s.c.exec(hastyMode)
}

const (
	hastyMode  = "PRAGMA synchronous=OFF; PRAGMA wal_autocheckpoint=16000"
	steadyMode = "PRAGMA synchronous=NORMAL; PRAGMA wal_autocheckpoint=4000"
)

// settle ends the haste once all that was written is on the disk. Where a
// reader keeps it from getting there, the mark stays until the next time.
func (s *store) settle() error {
	if !s.hasty {
		return nil
	}
	if err := s.c.exec(steadyMode); err != nil {
		return err
	}
	// The write is there for the checkpoint: with nothing to bring home it
	// would sync nothing.
	if err := s.c.exec("UPDATE meta SET value=value WHERE key='" + hastyKey + "'"); err != nil {
		return err
	}
	if ok, err := s.checkpoint(); err != nil || !ok {
		return err
	}
	s.hasty = false
	return s.c.exec("DELETE FROM meta WHERE key='" + hastyKey + "'")
}

// checkpoint brings what was committed home into the file, and reports whether
// all of it got there and was synced.
func (s *store) checkpoint() (bool, error) {
	q, err := s.c.prepare("PRAGMA wal_checkpoint(TRUNCATE)")
	if err != nil {
		return false, err
	}
	found, err := q.row()
	ok := err == nil && found && q.colInt(0) == 0
	return ok, errors.Join(err, s.c.finalize(q))
}

// load reads how far the partitions are indexed.
func (s *store) load() error {
	clear(s.marks)
	for _, v := range []struct {
		to  *int64
		sql string
	}{{&s.lastAgent, "SELECT max(n) FROM agents"}, {&s.lastConv, "SELECT max(n) FROM conversations"}} {
		q, err := s.c.prepare(v.sql)
		if err != nil {
			return err
		}
		if _, err := q.row(); err != nil {
			return err
		}
		*v.to = q.colInt(0)
		if err := s.c.finalize(q); err != nil {
			return err
		}
	}
	q, err := s.c.prepare("SELECT partition, sequence, clock, print FROM progress")
	if err != nil {
		return err
	}
	for {
		more, err := q.row()
		if err != nil {
			return err
		}
		if !more {
			return s.c.finalize(q)
		}
		if p := q.colInt(0); p >= 0 && int(p) < len(s.marks) {
			s.marks[p] = mark{uint64(q.colInt(1)), q.colInt(2), uint64(q.colInt(3))}
		}
	}
}

func (s *store) forget() {
	s.agents, s.convs = map[string]int64{}, map[parley.ID]*conversation{}
	s.ids, s.rows = map[idKey]int64{}, map[rowKey]*delivery{}
}

func (s *store) close() error { return errors.Join(s.settle(), s.c.close()) }

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
	p := r.Position.Partition
	mk := &s.marks[p]
	if r.Position.Sequence <= mk.sequence {
		return nil
	}
	if !s.begun {
		if err := s.c.exec("BEGIN IMMEDIATE"); err != nil {
			return err
		}
		s.begun = true
	}
	mk.sequence = r.Position.Sequence
	mk.clock = max(mk.clock+1, r.Time.UnixMicro())
	mk.print = printOf(r)
	n := mk.clock<<8 | int64(p)
	if r.Message != nil {
		if err := s.message(e, n); err != nil {
			return fmt.Errorf("index record %s: %w", r.Position, err)
		}
	}
	for i := range r.Steps {
		if err := s.step(r, &r.Steps[i]); err != nil {
			return fmt.Errorf("index record %s: %w", r.Position, err)
		}
	}
	s.records++
	s.bytes += sizeOf(r) + len(e.body)
	return nil
}

func (s *store) agent(name string) (int64, error) {
	if n, ok := s.agents[name]; ok {
		return n, nil
	}
	if name == "" {
		return 0, nil
	}
	found, err := s.agentGet.text(name).row()
	if err != nil {
		return 0, err
	}
	n := s.lastAgent + 1
	if found {
		n = s.agentGet.colInt(0)
		err = s.agentGet.done()
	} else {
		s.lastAgent = n
		err = s.agentPut.int(n).text(name).run()
	}
	s.agents[name] = n
	return n, err
}

func (s *store) conversation(id parley.ID) (*conversation, error) {
	if id.IsZero() {
		return nil, nil
	}
	if c := s.convs[id]; c != nil {
		return c, nil
	}
	c := &conversation{}
	found, err := s.convGet.blob(id[:]).row()
	if err != nil {
		return nil, err
	}
	if found {
		q := s.convGet
		c.n, c.first, c.last, c.messages, c.open, c.failed = q.colInt(0), q.colInt(1), q.colInt(2), q.colInt(3), q.colInt(4), q.colInt(5)
		err = q.done()
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
	if e.body != "" {
		s.texts = append(s.texts, len(s.messages))
	}
	s.messages = append(s.messages, w)
	parties := append(make([]int64, 0, 8), w.sender, w.recipient)
	for i := range r.Open {
		o := &r.Open[i]
		to, err := s.agent(o.To)
		if err != nil {
			return err
		}
		parties = append(parties, to)
		d := &delivery{state: parley.Waiting, kind: m.Kind, conv: m.Conversation, opened: r.Time.UnixNano(), changed: r.Time.UnixNano(), dirty: true}
		if !o.NotBefore.IsZero() {
			d.next = o.NotBefore.UnixNano()
		}
		if o.Attempt == 1 {
			d.state, d.attempts, d.next = parley.Delivering, 1, 0
		}
		s.rows[rowKey{n, to}] = d
		s.count(d, 0)
		s.steps = append(s.steps, stepRow{n, to, int64(r.Position.Sequence), int64(d.state), d.attempts, d.changed, ""})
	}
	if len(r.Open) > 0 {
		s.ids[idKey{m.ID, r.Position.Partition}] = n
	}
	slices.Sort(parties)
	for _, a := range slices.Compact(parties) {
		if a == 0 {
			continue
		}
		s.parties = append(s.parties, [2]int64{a, n})
		if c == nil || slices.Contains(c.members, a) {
			continue
		}
		s.members = append(s.members, [2]int64{a, c.n})
		if len(c.members) < 8 {
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
	if err := s.messagePut.insert(len(s.messages), func(q *stmt, i int) { s.messages[i].bind(q) }); err != nil {
		return err
	}
	pair := func(list [][2]int64) func(*stmt, int) {
		slices.SortFunc(list, func(a, b [2]int64) int { return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1])) })
		return func(q *stmt, i int) { q.int(list[i][0]).int(list[i][1]) }
	}
	if err := s.partyPut.insert(len(s.parties), pair(s.parties)); err != nil {
		return err
	}
	if err := s.memberPut.insert(len(s.members), pair(s.members)); err != nil {
		return err
	}
	slices.SortFunc(s.traces, func(a, b traced) int {
		return cmp.Or(bytes.Compare(a.trace, b.trace), cmp.Compare(a.conversation, b.conversation))
	})
	if err := s.tracePut.insert(len(s.traces), func(q *stmt, i int) { q.blob(s.traces[i].trace).int(s.traces[i].conversation) }); err != nil {
		return err
	}
	slices.SortFunc(s.steps, func(a, b stepRow) int {
		return cmp.Or(cmp.Compare(a.message, b.message), cmp.Compare(a.recipient, b.recipient), cmp.Compare(a.sequence, b.sequence))
	})
	if err := s.stepPut.insert(len(s.steps), func(q *stmt, i int) {
		w := &s.steps[i]
		q.int(w.message).int(w.recipient).int(w.sequence).int(w.state).int(w.attempt).int(w.time).text(w.code)
	}); err != nil {
		return err
	}
	// The full text index wants growing keys: it flushes at any other.
	slices.SortFunc(s.texts, func(a, b int) int { return cmp.Compare(s.messages[a].n, s.messages[b].n) })
	return s.textPut.insert(len(s.texts), func(q *stmt, i int) {
		w := &s.messages[s.texts[i]]
		q.int(w.n).text(w.e.body)
	})
}

// empty forgets what was gathered.
func (s *store) empty() {
	clear(s.messages)
	s.messages, s.texts, s.parties, s.members, s.traces, s.steps = s.messages[:0], s.texts[:0], s.parties[:0], s.members[:0], s.traces[:0], s.steps[:0]
	s.begun, s.records, s.bytes = false, 0, 0
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

func (s *store) step(r *journal.Record, t *journal.Step) error {
	key := idKey{t.Message, r.Position.Partition}
	n, ok := s.ids[key]
	if !ok {
		found, err := s.idGet.blob(t.Message[:]).int(int64(r.Position.Partition)).row()
		if err != nil || !found {
			return err
		}
		n = s.idGet.colInt(0)
		if err := s.idGet.done(); err != nil {
			return err
		}
		s.ids[key] = n
	}
	to, err := s.agent(t.To)
	if err != nil {
		return err
	}
	d, err := s.delivery(n, to)
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
	if t.Losses != nil {
		var list []string
		for _, l := range t.Losses {
			list = append(list, l.String())
		}
		b, err := json.Marshal(list)
		if err != nil {
			return err
		}
		d.losses = string(b)
	}
	if _, err := s.conversation(d.conv); err != nil {
		return err
	}
	s.count(d, was)
	s.steps = append(s.steps, stepRow{n, to, int64(r.Position.Sequence), int64(d.state), d.attempts, d.changed, code})
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
		opened: q.colInt(5), changed: q.colInt(6), next: q.colInt(7), code: q.colText(8), error: q.colText(9), losses: q.colText(11)}
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
	keys := make([]rowKey, 0, len(s.rows))
	for k, d := range s.rows {
		if d.dirty {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(a, b rowKey) int {
		return cmp.Or(cmp.Compare(a.message, b.message), cmp.Compare(a.recipient, b.recipient))
	})
	if err := s.flush(); err != nil {
		return err
	}
	if err := s.deliveryPut.insert(len(keys), func(q *stmt, i int) { s.rows[keys[i]].bind(q, keys[i]) }); err != nil {
		return err
	}
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
	for p, m := range s.marks {
		if m.sequence == 0 {
			continue
		}
		if err := s.progressPut.int(int64(p)).int(int64(m.sequence)).int(m.clock).int(int64(m.print)).run(); err != nil {
			return err
		}
	}
	if err := s.c.exec("COMMIT"); err != nil {
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
	if len(s.agents) > maxCached {
		clear(s.agents)
	}
	return nil
}

// bind binds the columns of deliveries.
func (d *delivery) bind(q *stmt, k rowKey) {
	q.int(k.message).int(k.recipient).int(int64(d.state)).int(d.attempts).int(d.postponed).int(d.opened).int(d.changed).positive(d.next).
		text(d.code).text(d.error).id(d.reply).text(d.losses)
}

func (s *store) putConversations() error {
	type fresh struct {
		id parley.ID
		*conversation
	}
	var list []fresh
	for id, c := range s.convs {
		if !c.dirty {
			continue
		}
		if c.fresh {
			list = append(list, fresh{id, c})
		} else if err := s.convSet.int(c.first).int(c.last).int(c.messages).int(c.open).int(c.failed).int(c.n).run(); err != nil {
			return err
		}
		c.dirty, c.fresh = false, false
	}
	slices.SortFunc(list, func(a, b fresh) int { return cmp.Compare(a.n, b.n) })
	return s.convPut.insert(len(list), func(q *stmt, i int) {
		c := &list[i]
		q.int(c.n).blob(c.id[:]).int(c.first).int(c.last).int(c.messages).int(c.open).int(c.failed)
	})
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

// full reports whether the transaction holds enough. A great one costs less
// for each record; a small one lets others see sooner what is new.
func (s *store) full(batch int) bool {
	most := maxBytes
	if s.hasty {
		batch, most = 4*batch, 2*maxBytes
	}
	return s.records >= batch || s.bytes >= most
}

const maxBytes = 32 << 20

// rollback undoes the transaction; the marks are read again.
func (s *store) rollback() error {
	s.forget()
	s.empty()
	// There may be no transaction any more: SQLite ends it by itself at some
	// failures.
	_ = s.c.exec("ROLLBACK")
	return s.load()
}

// microseconds of a key.
func timeOf(n int64) time.Time { return time.UnixMicro(n >> 8).UTC() }
