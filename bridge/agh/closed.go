package agh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/journal"
)

// closed keeps the work that has ended, and knows which open work the log alone
// has. The log says what became of work: in the messages of peers to each other,
// or in the request that it is and the reply, so that nothing has to be written
// for it at once. What the log said since the last time is written now and then,
// many at a time, and after a crash it is read from the log again. It is for the
// one hub of a journal; hubs that share one write each state.
//
// A write covers the log up to where it was at the write before. So work that
// began and ended between two writes never has a state of its own; what was
// begun earlier and is open is written to the state of work first ([Binding.writeClosed]).
// A crash in between costs reading more of the log, and nothing else.
type closed struct {
	j     *journal.Journal
	state journal.State
	now   func() time.Time
	full  chan struct{} // has a token when there is enough to write

	// keep writes the state of open work.
	keep func(ctx context.Context, works [][2]string) error

	heads []atomic.Uint64 // by partition: the last record that was looked at

	flushing sync.Mutex

	mu       sync.Mutex
	open     map[parley.ID]protocol.Work // that agents work on, by request
	given    map[parley.ID]protocol.Work // that peers were given by the hub, by request
	young    map[[2]string]birth         // open work that only the log has, by workspace and work
	writes   uint64                      // begun so far
	busy     map[uint64]int              // messages being recorded that may change work, by the writes begun before them
	ended    []ending                    // and not written yet
	segment  segment                     // the one that grows
	key      string
	segments []segmentAt // the others, oldest first
	total    int         // works in them
	at       uint64      // sum of the heads when the last one was written
	before   []uint64    // the heads then
}

// birth of work: how many writes were begun before, and the request that it is,
// if it is one.
type birth struct {
	writes  uint64 // at least 1 once the hub has started
	request parley.ID
}

// segment is a value of the state: some work that ended, and up to which
// record of each partition all that ended is in this segment or in others.
type segment struct {
	Works []ending
	Since []uint64
}

// ending is work that ended, as it is then, and the request that it was.
type ending struct {
	protocol.Work
	Request parley.ID
}

type segmentAt struct {
	key   string
	works int
}

const (
	segmentWorks = 1024
	keepClosed   = 1 << 16 // as many as the table remembers
	flushEvery   = time.Minute
	readAtMost   = 20_000 // records that a start after a crash may have to read while nothing of AGH happens
)

func newClosed(j *journal.Journal, now func() time.Time) *closed {
	return &closed{j: j, state: j.State("agh.closed"), now: now, full: make(chan struct{}, 1), heads: make([]atomic.Uint64, j.Partitions()), before: make([]uint64, j.Partitions()),
		open: map[parley.ID]protocol.Work{}, given: map[parley.ID]protocol.Work{}, young: map[[2]string]birth{}, busy: map[uint64]int{}}
}

// found is who is told of what the journal says of work.
type found struct {
	decode func([]byte) (*protocol.Envelope, error)
	ended  func(ending)
	said   func(*protocol.Envelope, time.Time)                    // by a peer to a peer, in the order of the log
	peer   func(agent string) (workspaceID, peer string, ok bool) // whom the hub gives work
}

// load gives all that ended before: what was written, and what the log says
// since.
func (c *closed) load(ctx context.Context, f found) error {
	since := make([]uint64, len(c.heads))
	first := true
	for v, err := range c.state.Range(ctx, "") {
		if err != nil {
			return fmt.Errorf("read the closed work of AGH: %w", err)
		}
		var s segment
		if err := json.Unmarshal(v.Data, &s); err != nil || len(s.Since) != len(since) {
			return errors.Join(fmt.Errorf("the closed work %s of AGH cannot be read", v.Key), err)
		}
		first = false
		for i, seq := range s.Since {
			since[i] = max(since[i], seq)
		}
		for _, w := range s.Works {
			f.ended(w)
		}
		// The one that was changed last comes last, and grows on.
		if c.key != "" {
			c.segments, c.total = append(c.segments, segmentAt{c.key, len(c.segment.Works)}), c.total+len(c.segment.Works)
		}
		c.key, c.segment = v.Key, s
	}
	st := c.j.Stats()
	for _, p := range st.Partitions {
		if p.Partition < len(c.heads) {
			c.heads[p.Partition].Store(p.Applied)
		}
	}
	if first {
		for i := range since {
			since[i] = c.heads[i].Load()
		}
	}
	for i := range c.heads {
		if err := c.replay(ctx, i, since[i], f); err != nil {
			return err
		}
	}
	c.before = since
	return c.flush(ctx)
}

// replay takes what a partition of the log says since.
func (c *closed) replay(ctx context.Context, partition int, since uint64, f found) error {
	if c.heads[partition].Load() <= since {
		return nil
	}
	requests := map[parley.ID]protocol.Work{}
	for r, err := range c.j.Records(ctx, partition, journal.From{Sequence: since + 1}) {
		if err != nil {
			return fmt.Errorf("read what became of the work of AGH: %w", err)
		}
		if w, ok := workOf(r, f.decode); ok {
			requests[r.Message.ID] = w
		}
		if w, ok := givenBy(r, f.peer); ok {
			c.gives(r.Message.ID, w)
		}
		said := saidOf(r, f.decode)
		if said != nil && r.Message.Kind == parley.Notice {
			f.said(said, r.Time)
		}
		if r.Message != nil {
			c.placed(r.Message.InReplyTo, said)
		}
		for _, s := range r.Steps {
			state, ok := endOf(r, s)
			if !ok {
				continue
			}
			w, found := requests[s.Message]
			if !found && r.Message != nil { // given before; the reply says where it is recorded
				if p, err := journal.ParsePosition(r.Message.Trace.Foreign[foreignRequest]); err == nil {
					if asked, err := c.j.Read(ctx, p); err == nil {
						w, found = workOf(asked, f.decode)
					}
				}
			}
			delete(requests, s.Message)
			if found {
				c.replayed(f, w, state, r.Time, s.Message)
			}
			w, found = c.givenBack(s.Message)
			if !found && said != nil && said.WorkID == workID(s.Message) {
				w = protocol.Work{WorkspaceID: said.WorkspaceID, WorkID: said.WorkID, Container: said.Container(), Initiator: said.To, Target: said.From}
				found = true
			}
			if found {
				c.replayed(f, w, state, r.Time, s.Message)
			}
		}
	}
	return nil
}

// givenBack forgets what a peer was given, and tells it.
func (c *closed) givenBack(request parley.ID) (protocol.Work, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w, ok := c.given[request]
	delete(c.given, request)
	return w, ok
}

func (c *closed) replayed(f found, w protocol.Work, state protocol.WorkState, t time.Time, request parley.ID) {
	w.State, w.Updated = state, t
	end := ending{w, request}
	f.ended(end)
	c.mu.Lock()
	c.ended = append(c.ended, end)
	c.mu.Unlock()
}

// placed notes where a peer works on what it was given: where it speaks of it.
func (c *closed) placed(request parley.ID, said *protocol.Envelope) {
	if said == nil || said.To == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if w, ok := c.given[request]; ok && w.WorkID == said.WorkID && w.Target == said.From {
		w.Container, w.Initiator = said.Container(), said.To
		c.given[request] = w
	}
}

// saidOf gives what a peer said about some work in a record, nil if that is
// not what it holds.
func saidOf(r *journal.Record, decode func([]byte) (*protocol.Envelope, error)) *protocol.Envelope {
	m := r.Message
	if m == nil || r.Refused != nil || m.Origin.Protocol != Protocol || m.Trace.Foreign[foreignWork] == "" {
		return nil
	}
	e, err := decode(m.Origin.Raw)
	if err != nil || e.WorkID == "" {
		return nil // written by other settings, or erased
	}
	return e
}

// givenBy gives the work that a recorded request is for the peer that gets it;
// where it is said is not in the log.
func givenBy(r *journal.Record, peer func(string) (string, string, bool)) (protocol.Work, bool) {
	if m := r.Message; m != nil && m.Kind == parley.Request && r.Refused == nil {
		for _, o := range r.Open {
			if workspaceID, id, ok := peer(o.To); ok {
				return givenTo(m.ID, workspaceID, id, r.Time), true
			}
		}
	}
	return protocol.Work{}, false
}

// givenTo is the work that a request of the hub is for a peer, in a place that
// is not known.
func givenTo(request parley.ID, workspaceID, peer string, t time.Time) protocol.Work {
	return protocol.Work{WorkspaceID: workspaceID, WorkID: workID(request), Target: peer, State: protocol.StateSubmitted, Updated: t}
}

// foreignRequest is where a reply of the hub says at which position of the
// journal its request is recorded.
const foreignRequest = "parley.request"

// workOf gives the work that a recorded request of a peer is.
func workOf(r *journal.Record, decode func([]byte) (*protocol.Envelope, error)) (protocol.Work, bool) {
	m := r.Message
	if m == nil || m.Kind != parley.Request || m.Origin.Protocol != Protocol || r.Refused != nil {
		return protocol.Work{}, false
	}
	e, err := decode(m.Origin.Raw)
	if err != nil || e.WorkID == "" {
		return protocol.Work{}, false // written by other settings
	}
	return submitted(e, r.Time), true
}

// submitted is the work that e begins.
func submitted(e *protocol.Envelope, now time.Time) protocol.Work {
	return protocol.Work{WorkspaceID: e.WorkspaceID, WorkID: e.WorkID, Container: e.Container(), Initiator: e.From, Target: e.To,
		State: protocol.StateSubmitted, Updated: now}
}

// endOf gives the state of the work of a request that a step settles.
func endOf(r *journal.Record, s journal.Step) (protocol.WorkState, bool) {
	switch {
	case !s.State.Settled(parley.Request):
		return "", false
	case s.State == parley.Answered && s.Error == nil && (r.Message == nil || r.Message.Kind == parley.Response):
		return protocol.StateCompleted, true
	case s.Error != nil && s.Error.Code == parley.Cancelled:
		return protocol.StateCanceled, true
	}
	return protocol.StateFailed, true
}

// begun notes that a request of a peer is about to be recorded; dropped, that
// it was not.
func (c *closed) begun(request parley.ID, w protocol.Work) {
	c.mu.Lock()
	c.open[request] = w
	c.mu.Unlock()
}

func (c *closed) dropped(request parley.ID) {
	c.mu.Lock()
	delete(c.open, request)
	c.mu.Unlock()
}

// gives notes that a request of the hub is about to be said to a peer.
func (c *closed) gives(request parley.ID, w protocol.Work) {
	c.mu.Lock()
	for old := range c.given {
		if len(c.given) < keepClosed {
			break
		}
		delete(c.given, old) // more than can be open: it was over before it was said
	}
	c.given[request] = w
	c.mu.Unlock()
}

// enter and leave enclose the recording of a message that may end work between
// peers: of the one that ends it the log says so before it is known here.
func (c *closed) enter() (writes uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy[c.writes]++
	return c.writes
}

func (c *closed) leave(writes uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy[writes]--; c.busy[writes] == 0 {
		delete(c.busy, writes)
	}
}

// opened notes work that was begun and that the log alone has.
func (c *closed) opened(id [2]string, request parley.ID) {
	c.mu.Lock()
	c.young[id] = birth{c.writes, request}
	c.mu.Unlock()
}

// openedBefore notes it of work that was begun before the hub started: the next
// flush but one covers the log beyond its beginning.
func (c *closed) openedBefore(id [2]string, request parley.ID) {
	c.mu.Lock()
	c.young[id] = birth{0, request}
	c.mu.Unlock()
}

// takeGiven gives what the log read at the start says of what peers were given
// and have not ended.
func (c *closed) takeGiven() map[parley.ID]protocol.Work {
	c.mu.Lock()
	defer c.mu.Unlock()
	given := c.given
	c.given = map[parley.ID]protocol.Work{}
	return given
}

// has reports whether the log alone has some open work.
func (c *closed) has(id [2]string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.young[id]
	return ok
}

// written is told that some work is being written to the state.
func (c *closed) written(id [2]string) {
	c.mu.Lock()
	delete(c.young, id)
	c.mu.Unlock()
}

// over notes that work ended which the log alone has. Where it is a request, it
// is the record of the reply that ends it.
func (c *closed) over(w protocol.Work, request parley.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.young, [2]string{w.WorkspaceID, w.WorkID})
	if request.IsZero() {
		c.ended = append(c.ended, ending{w, request})
		c.enough()
	}
}

// enough has what ended written if that is much. c.mu is held.
func (c *closed) enough() {
	if len(c.ended) >= segmentWorks {
		select {
		case c.full <- struct{}{}:
		default:
		}
	}
}

// recorded is told of every record, in order.
func (c *closed) recorded(r *journal.Record) {
	if len(r.Steps) > 0 {
		c.mu.Lock()
		for _, s := range r.Steps {
			for _, open := range []map[parley.ID]protocol.Work{c.open, c.given} {
				w, ok := open[s.Message]
				if !ok {
					continue
				}
				if state, over := endOf(r, s); over {
					delete(open, s.Message)
					w.State, w.Updated = state, r.Time
					c.ended = append(c.ended, ending{w, s.Message})
				}
			}
		}
		c.enough()
		c.mu.Unlock()
	}
	c.heads[r.Position.Partition].Store(r.Position.Sequence)
}

// flush writes what has ended, if anything has or much was recorded since, and
// up to where the log was at the flush before all that it says is written.
func (c *closed) flush(ctx context.Context) error {
	_, err := c.flushed(ctx, false)
	return err
}

// settle writes all that the log says up to now, so that it need not be read.
func (c *closed) settle(ctx context.Context) error {
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for writes := 0; writes < 2; { // the second covers the log up to the first
		done, err := c.flushed(ctx, true)
		if err != nil {
			return err
		}
		if done {
			writes++
			continue
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// flushed is flush; with always also where nothing has ended. It reports
// whether it wrote.
func (c *closed) flushed(ctx context.Context, always bool) (bool, error) {
	c.flushing.Lock()
	defer c.flushing.Unlock()
	heads, sum := make([]uint64, len(c.heads)), uint64(0)
	c.mu.Lock()
	defer c.mu.Unlock()
	for writes := range c.busy {
		if writes < c.writes {
			return false, nil // what it changes lies before the flush before, and is not known yet
		}
	}
	for i := range c.heads { // before what ended is taken: that holds all up to here
		heads[i] = c.heads[i].Load()
		sum += heads[i]
	}
	ended := c.ended
	if len(ended) == 0 && len(c.young) == 0 && c.at > 0 && sum-c.at < readAtMost && !always {
		return false, nil
	}
	c.ended = nil
	c.writes++
	aged := map[[2]string]birth{}
	for id, b := range c.young {
		if b.writes+1 >= c.writes {
			continue // what began it is read again
		}
		delete(c.young, id)
		if _, open := c.given[b.request]; open || b.request.IsZero() {
			aged[id] = b
		}
	}
	since := c.before
	c.mu.Unlock()
	var err error
	if len(aged) > 0 {
		err = c.keep(ctx, slices.Collect(maps.Keys(aged)))
	}
	if err == nil {
		err = c.write(ctx, ended, since)
	}
	c.mu.Lock()
	if err != nil {
		maps.Copy(c.young, aged)
		c.ended = append(ended, c.ended...)
		if most := 64 * segmentWorks; len(c.ended) > most {
			c.ended = c.ended[len(c.ended)-most:] // the log has them
		}
		return false, err
	}
	c.at, c.before = max(sum, 1), heads
	return true, nil
}

// write is called with c.flushing held.
func (c *closed) write(ctx context.Context, ended []ending, since []uint64) error {
	if c.key == "" || len(c.segment.Works) >= segmentWorks {
		if c.key != "" {
			c.segments, c.total = append(c.segments, segmentAt{c.key, len(c.segment.Works)}), c.total+len(c.segment.Works)
		}
		c.key, c.segment = fmt.Sprintf("%020d", c.now().UnixNano()), segment{}
	}
	next := segment{Works: append(c.segment.Works[:len(c.segment.Works):len(c.segment.Works)], ended...), Since: since}
	b, err := json.Marshal(next)
	if err == nil {
		_, err = c.state.Put(ctx, c.key, b, time.Time{})
	}
	if err != nil {
		return fmt.Errorf("write the closed work of AGH: %w", err)
	}
	c.segment = next
	for len(c.segments) > 0 && c.total-c.segments[0].works >= keepClosed {
		if err := c.state.Delete(ctx, c.segments[0].key, 0); err != nil {
			return fmt.Errorf("forget closed work of AGH: %w", err)
		}
		c.total -= c.segments[0].works
		c.segments = c.segments[1:]
	}
	return nil
}
