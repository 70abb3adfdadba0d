package asp

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/journal"
)

const (
	pageSize      = 256
	entrySize     = 8 + 16 // sequence in the journal, messageId
	recentRecords = 64     // newest records of a session kept decoded
)

// scope of a session's messages.
func scope(session string) string { return Protocol + " " + session }

// sessionOf is the inverse of scope; "" for a scope of another protocol.
func sessionOf(scope string) string {
	s, ok := strings.CutPrefix(scope, Protocol+" ")
	if !ok || !protocol.ValidUUID(s) {
		return ""
	}
	return s
}

// chain is a session in memory.
type chain struct {
	id           string
	conversation parley.ID // of the hub; zero until needed; under mu

	mu      sync.Mutex
	ledger  *protocol.Ledger // nil: nothing is recorded
	seq     uint64           // of the last record in ledger
	entries []logEntry       // by position
	ids     map[parley.ID]int32
	recent  []*protocol.Record // the newest, by position modulo kept
	saved   int                // records of the checkpoint
	calls   []call             // of the hub, the oldest first
	answers []answer           // to calls, not yet submitted to the hub, the oldest first
	looked  int64              // answers are those in the records before this position

	appending atomic.Bool // this node appends a record, and then queues the session

	used time.Time // under store.mu
}

// logEntry is the position of a record in the journal, and the id of its message.
type logEntry struct {
	seq uint64
	id  parley.ID
}

// checkpoint is the state of a session at some record.
type checkpoint struct {
	Ledger       *protocol.Ledger `json:"ledger,omitempty"`
	Sequence     uint64           `json:"sequence"`
	Participants []string         `json:"participants"`
	Calls        []call           `json:"calls,omitempty"`
}

// chain gives a session and keeps it in memory, in place of the least recently used.
func (s *store) chain(id string) *chain {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.chains[id]
	if c == nil {
		if len(s.chains) >= cmp.Or(s.b.c.MaxLive, 10_000) {
			s.evict()
		}
		c = &chain{id: id, ids: map[parley.ID]int32{}}
		s.chains[id] = c
	}
	c.used = s.b.c.Now()
	return c
}

// evict drops the least recently used quarter of a sample. A session in use is then
// loaded again.
func (s *store) evict() {
	var look []*chain
	for _, c := range s.chains {
		look = append(look, c)
		if len(look) == 256 {
			break
		}
	}
	slices.SortFunc(look, func(a, b *chain) int { return a.used.Compare(b.used) })
	for _, c := range look[:(len(look)+3)/4] {
		delete(s.chains, c.id)
	}
}

// load brings c to the head of its chain; c.mu is held.
func (s *store) load(ctx context.Context, c *chain) error {
	head, err := s.j.Head(ctx, scope(c.id), scope(c.id))
	if err != nil {
		return err
	}
	if head <= c.seq {
		return nil
	}
	fresh := c.seq == 0
	if fresh {
		s.restore(ctx, c, head)
	}
	records, err := s.behind(ctx, c.id, head, c.seq)
	if errors.Is(err, errNotBehind) { // the checkpoint is of another chain
		c.reset()
		records, err = s.behind(ctx, c.id, head, 0)
	}
	if err != nil {
		return err
	}
	for _, r := range slices.Backward(records) {
		if err := s.replay(c, r); err != nil {
			c.reset()
			return fmt.Errorf("session %s, record at %s: %w", c.id, r.Position, err)
		}
	}
	if fresh || len(c.calls) >= pageSize { // other nodes may have settled some
		return s.dropSettledCalls(ctx, c)
	}
	return nil
}

var errNotBehind = errors.New("the chain does not lead there")

// behind reads the records of a chain from head back to the one after seq, the
// newest first.
func (s *store) behind(ctx context.Context, id string, head, seq uint64) ([]*journal.Record, error) {
	var out []*journal.Record
	partition := s.j.Partition(scope(id))
	for at := head; at != seq; {
		if at < seq {
			return nil, errNotBehind
		}
		r, err := s.j.Read(ctx, journal.Position{Partition: partition, Sequence: at})
		if err != nil {
			return nil, err
		}
		if r.Chain == nil || r.Message == nil || r.Chain.After >= at {
			return nil, fmt.Errorf("record %s is none of session %s", r.Position, id)
		}
		out = append(out, r)
		at = r.Chain.After
	}
	return out, nil
}

func (c *chain) reset() {
	c.ledger, c.seq, c.entries, c.ids, c.recent, c.saved = nil, 0, nil, map[parley.ID]int32{}, nil, 0
	c.calls, c.answers, c.looked = nil, nil, 0
}

// restore takes the last checkpoint, if it is whole.
func (s *store) restore(ctx context.Context, c *chain, head uint64) {
	row, err := s.sessions.Get(ctx, c.id)
	cp := row.Value
	if err != nil || row.Revision == 0 || cp.Ledger == nil || cp.Sequence > head {
		return // the log suffices
	}
	count := int(cp.Ledger.Head.Count)
	for n := 0; n*pageSize < count; n++ {
		p, err := s.pages.Get(ctx, pageKey(c.id, n))
		want := min(pageSize, count-n*pageSize)
		if err != nil || len(p.Data) < want*entrySize {
			c.reset()
			return
		}
		for i := range want {
			b := p.Data[i*entrySize:]
			c.index(binary.BigEndian.Uint64(b), parley.ID(b[8:24]))
		}
	}
	if count > 0 && c.entries[count-1].seq != cp.Sequence {
		c.reset()
		return
	}
	c.ledger, c.seq, c.saved, c.calls, c.looked = cp.Ledger, cp.Sequence, count, cp.Calls, int64(count)
	for _, x := range c.calls {
		c.looked = min(c.looked, x.Position)
	}
}

func pageKey(session string, n int) string { return session + "/" + strconv.Itoa(n) }

// index appends a log entry.
func (c *chain) index(seq uint64, message parley.ID) {
	if !message.IsZero() {
		c.ids[message] = int32(len(c.entries))
	}
	c.entries = append(c.entries, logEntry{seq, message})
}

// errErasedLog: the state of the session is neither in the log nor in a checkpoint.
var errErasedLog = parley.Refuse(parley.Internal,
	"the content of the message was erased, and there is no checkpoint behind it")

func (s *store) replay(c *chain, r *journal.Record) error {
	if r.Erased != nil {
		return errErasedLog
	}
	x, err := recordOf(r.Message)
	if err != nil {
		return err
	}
	rec := &x.Record
	if rec.Position != int64(len(c.entries)) {
		return fmt.Errorf("position %d where %d is expected", rec.Position, len(c.entries))
	}
	after, err := c.ledger.Replay(rec, x.Joined, s.b.c.Timeouts)
	if err != nil {
		return err
	}
	s.advance(c, rec, x.Asks, s.answerIn(c, rec), after, r.Position.Sequence)
	return nil
}

// advance adds a record to c; a is the answer in it, or nil.
func (s *store) advance(c *chain, r *protocol.Record, asks callee, a *answered, after *protocol.Ledger, seq uint64) {
	var id parley.ID
	if r.MessageID != "" {
		id, _ = parley.ParseID(r.MessageID) // of version 7: the server checked
	}
	c.index(seq, id)
	s.trackCalls(c, r, id, asks, a)
	c.ledger, c.seq = after, seq
	for len(c.recent) <= int(r.Position%recentRecords) {
		c.recent = append(c.recent, nil)
	}
	c.recent[r.Position%recentRecords] = r
	names := make([]string, len(after.Participants))
	for i, p := range after.Participants {
		names[i] = p.AgentID
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.noteSession(c.id, names, after.State.Terminal())
	m.deadline, m.known = after.Deadline, true
}

// Append implements [protocol.Store].
func (s *store) Append(ctx context.Context, session string, expect protocol.Head, r *protocol.Record) error {
	c := s.chain(session)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seq == 0 && expect.Count > 0 {
		if err := s.load(ctx, c); err != nil {
			return err
		}
	}
	var have protocol.Head
	var before int
	if c.ledger != nil {
		have, before = c.ledger.Head, len(c.ledger.Participants)
	}
	if have != expect {
		return protocol.ErrConflict
	}
	joined := r.Ledger.Participants[before:]
	c.appending.Store(true)
	a := s.answerIn(c, r)
	at, err := s.commit(ctx, c, r, joined, a)
	c.appending.Store(false)
	defer s.b.reconciler.appended(session, at.Sequence)
	if err != nil {
		if have.Count == 0 {
			s.abandon(ctx, c, err)
		}
		return err
	}
	note, _ := ownMessageOf(r.Request)
	s.advance(c, r, note.callee, a, r.Ledger, at.Sequence)
	if len(c.entries)-c.saved >= pageSize || r.Ledger.State.Terminal() {
		if err := s.save(ctx, c, r.Ledger.Participants, ""); err != nil {
			s.b.c.Logger.Warn("cannot write a checkpoint of a session", "error", err) // the log is enough
		}
	}
	return nil
}

// commit appends r. Before that, it saves the participants that r adds.
func (s *store) commit(ctx context.Context, c *chain, r *protocol.Record, joined []protocol.Participant,
	a *answered) (at journal.Position, err error) {
	if len(joined) > 0 {
		if err := s.noteJoining(c.id, joined); err != nil {
			return at, err
		}
		// After a crash, the checkpoint leads to the session of each participant.
		if err := s.save(ctx, c, r.Ledger.Participants, r.Sender); err != nil {
			return at, err
		}
	}
	return s.b.submit(ctx, c, r, joined, a)
}

// save writes a checkpoint, charged to agent if it is a guest. The caller holds c.mu.
func (s *store) save(ctx context.Context, c *chain, participants []protocol.Participant, agent string) error {
	ctx = context.WithoutCancel(ctx)
	for n := c.saved / pageSize; n*pageSize < len(c.entries); n++ {
		from, to := n*pageSize, min((n+1)*pageSize, len(c.entries))
		page := make([]byte, (to-from)*entrySize)
		for i, p := range c.entries[from:to] {
			binary.BigEndian.PutUint64(page[i*entrySize:], p.seq)
			copy(page[i*entrySize+8:], p.id[:])
		}
		if _, err := s.pages.Put(ctx, pageKey(c.id, n), page, time.Time{}); err != nil {
			return err
		}
	}
	if err := s.dropSettledCalls(ctx, c); err != nil {
		return err
	}
	undelivered := c.looked
	if len(c.answers) > 0 {
		undelivered = c.answers[0].position
	}
	for i := range c.calls {
		c.calls[i].Position = max(c.calls[i].Position, undelivered)
	}
	cp := &checkpoint{Ledger: c.ledger, Sequence: c.seq, Calls: c.calls}
	for _, p := range participants {
		cp.Participants = append(cp.Participants, p.AgentID)
	}
	if agent != "" && s.b.guest(agent) { // for now, and for the end of the session
		b, err := jsonx.Encode(cp)
		if err == nil {
			err = s.b.charge(ctx, 2*(stateBytes+len(b)))
		}
		if err != nil {
			return err
		}
	}
	_, err := s.sessions.Put(ctx, c.id, cp, time.Time{})
	if err == nil {
		c.saved = len(c.entries)
	}
	return err
}

// Ledger implements [protocol.Store].
func (s *store) Ledger(ctx context.Context, session string) (*protocol.Ledger, error) {
	c := s.chain(session)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := s.load(ctx, c); err != nil {
		return nil, err
	}
	if c.ledger == nil {
		s.forget(c.id)
		return nil, protocol.ErrNotFound
	}
	return c.ledger, nil
}

// forget drops a session from memory: because it must be read again, or because it does
// not exist (guests can name any number of sessions).
func (s *store) forget(session string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.chains, session)
}

// ready gives a loaded session, locked. It may lack the newest records, so it serves to
// read older ones.
func (s *store) ready(ctx context.Context, session string) (*chain, error) {
	c := s.chain(session)
	c.mu.Lock()
	if c.ledger == nil {
		if err := s.load(ctx, c); err != nil {
			c.mu.Unlock()
			return nil, err
		}
		if c.ledger == nil {
			c.mu.Unlock()
			s.forget(c.id)
			return nil, protocol.ErrNotFound
		}
	}
	return c, nil
}

// Message implements [protocol.Store].
func (s *store) Message(ctx context.Context, session, messageID string) (*protocol.Record, error) {
	id, err := parley.ParseID(messageID)
	if err != nil {
		return nil, protocol.ErrNotFound
	}
	c, err := s.ready(ctx, session)
	if err != nil {
		return nil, err
	}
	defer c.mu.Unlock()
	at, ok := c.ids[id]
	if !ok {
		return nil, protocol.ErrNotFound
	}
	return s.record(ctx, c, int64(at))
}

// record gives one record; c.mu is held.
func (s *store) record(ctx context.Context, c *chain, position int64) (*protocol.Record, error) {
	if i := int(position % recentRecords); i < len(c.recent) && c.recent[i] != nil && c.recent[i].Position == position {
		return c.recent[i], nil
	}
	r, err := s.j.Read(ctx, journal.Position{Partition: s.j.Partition(scope(c.id)), Sequence: c.entries[position].seq})
	if err != nil {
		return nil, err
	}
	if r.Erased != nil && len(r.Message.Extensions[Protocol]) == 0 {
		return s.withoutContent(ctx, c.id, position, r)
	}
	x, err := recordOf(r.Message)
	return &x.Record, err
}

// Records implements [protocol.Store].
func (s *store) Records(ctx context.Context, session string, from int64, limit int) ([]*protocol.Record, error) {
	c, err := s.ready(ctx, session)
	if err != nil {
		return nil, err
	}
	defer c.mu.Unlock()
	from = max(from, 0)
	n := min(int64(len(c.entries))-from, int64(limit))
	if n <= 0 {
		return nil, nil
	}
	out := make([]*protocol.Record, n)
	for i := range out {
		if out[i], err = s.record(ctx, c, from+int64(i)); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// inMemory gives a session if it is in memory, or nil.
func (s *store) inMemory(session string) *chain {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.chains[session]
}
