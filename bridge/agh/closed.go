package agh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/journal"
)

// closed keeps the work that agents of the directory have ended. The log says
// that it ended, in the record of the reply, so that nothing has to be written
// for it at once: what the log said since the last time is written now and
// then, many at a time, and after a crash it is read from the log again. It
// is for the one hub of a journal; hubs that share one write each state.
type closed struct {
	j     *journal.Journal
	state journal.State
	now   func() time.Time
	full  chan struct{} // has a token when there is enough to write

	heads []atomic.Uint64 // by partition: the last record that was looked at

	mu       sync.Mutex
	open     map[parley.ID]protocol.Work // that agents work on, by request
	ended    []ending                    // and not written yet
	segment  segment                     // the one that grows
	key      string
	segments []written // the others, oldest first
	total    int       // works in them
	at       uint64    // sum of the heads when the last one was written
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

type written struct {
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
	return &closed{j: j, state: j.State("agh.closed"), now: now, full: make(chan struct{}, 1), heads: make([]atomic.Uint64, j.Partitions()),
		open: map[parley.ID]protocol.Work{}}
}

// load gives all that ended before: what was written, and what the log says
// since. decode reads the envelope of a recorded request.
func (c *closed) load(ctx context.Context, decode func([]byte) (*protocol.Envelope, error), take func(ending)) error {
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
			take(w)
		}
		// The one that was changed last comes last, and grows on.
		if c.key != "" {
			c.segments, c.total = append(c.segments, written{c.key, len(c.segment.Works)}), c.total+len(c.segment.Works)
		}
		c.key, c.segment = v.Key, s
	}
	st := c.j.Stats()
	for _, p := range st.Partitions {
		if p.Partition < len(c.heads) {
			c.heads[p.Partition].Store(p.Applied)
		}
	}
	if !first {
		for i := range c.heads {
			if err := c.replay(ctx, i, since[i], decode, take); err != nil {
				return err
			}
		}
	}
	return c.flush(ctx)
}

// replay takes what a partition of the log says since.
func (c *closed) replay(ctx context.Context, partition int, since uint64, decode func([]byte) (*protocol.Envelope, error), take func(ending)) error {
	requests := map[parley.ID]protocol.Work{}
	for r, err := range c.j.Records(ctx, partition, journal.From{Sequence: since + 1}) {
		if err != nil {
			return fmt.Errorf("read what became of the work of AGH: %w", err)
		}
		if w, ok := workOf(r, decode); ok {
			requests[r.Message.ID] = w
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
						w, found = workOf(asked, decode)
					}
				}
			}
			if found {
				delete(requests, s.Message)
				w.State, w.Updated = state, r.Time
				end := ending{w, s.Message}
				take(end)
				c.ended = append(c.ended, end)
			}
		}
	}
	return nil
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

// recorded is told of every record, in order.
func (c *closed) recorded(r *journal.Record) {
	if len(r.Steps) > 0 {
		c.mu.Lock()
		for _, s := range r.Steps {
			w, ok := c.open[s.Message]
			if !ok {
				continue
			}
			if state, over := endOf(r, s); over {
				delete(c.open, s.Message)
				w.State, w.Updated = state, r.Time
				c.ended = append(c.ended, ending{w, s.Message})
			}
		}
		enough := len(c.ended) >= segmentWorks
		c.mu.Unlock()
		if enough {
			select {
			case c.full <- struct{}{}:
			default:
			}
		}
	}
	c.heads[r.Position.Partition].Store(r.Position.Sequence)
}

// flush writes what has ended, if anything has or much was recorded since.
func (c *closed) flush(ctx context.Context) error {
	since, sum := make([]uint64, len(c.heads)), uint64(0)
	for i := range c.heads { // before what ended is taken: that holds all up to here
		since[i] = c.heads[i].Load()
		sum += since[i]
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	ended := c.ended
	if len(ended) == 0 && c.at > 0 && sum-c.at < readAtMost {
		return nil
	}
	c.ended = nil
	c.mu.Unlock()
	err := c.write(ctx, ended, since)
	c.mu.Lock()
	if err != nil {
		c.ended = append(ended, c.ended...)
		if most := 64 * segmentWorks; len(c.ended) > most {
			c.ended = c.ended[len(c.ended)-most:] // the log has them
		}
		return err
	}
	c.at = max(sum, 1)
	return nil
}

// write is called by one goroutine at a time.
func (c *closed) write(ctx context.Context, ended []ending, since []uint64) error {
	if c.key == "" || len(c.segment.Works) >= segmentWorks {
		if c.key != "" {
			c.segments, c.total = append(c.segments, written{c.key, len(c.segment.Works)}), c.total+len(c.segment.Works)
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
