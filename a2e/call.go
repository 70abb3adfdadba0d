package a2e

import (
	"bytes"
	"context"
	"errors"
	"strconv"
	"sync"
	"time"
)

// call is one request in flight.
type call struct {
	id      string
	over    link          // unless nil, the only link that can bring the answer
	line    []byte        // with its LF
	timeout int           // offset in line of the value of the member timeout, which is the last; 0: none
	until   time.Time     // with timeout: when the caller gives the call up
	wake    chan struct{} // holds one token when the state below has changed

	mu     sync.Mutex
	left   leaving
	doubt  error // with leaves: a connection broke meanwhile that may have taken the line
	events []*Envelope
	final  *Envelope
	err    error
	seen   map[string]struct{} // ids of events
}

// take files a message about this call; the first that is no event ends the call. A
// host that resumes sessions sends its last frames again, even before the client knows
// the new handshake: of its events each id counts once. Other hosts repeat nothing, and
// need not give each event its own id.
func (p *call) take(m *Envelope, e *Error, limit int, resumes bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.endedLocked() {
		return
	}
	switch {
	case m.Class == ClassEvent:
		if resumes && m.member("id") != nil {
			if _, dup := p.seen[m.ID]; dup {
				return
			}
			if p.seen == nil {
				p.seen = map[string]struct{}{}
			}
			if len(p.seen) < 4*limit {
				p.seen[m.ID] = struct{}{}
			}
		}
		if len(p.events) >= limit {
			p.failLocked(ErrFull)
			return
		}
		p.events = append(p.events, m)
	case m.Type == "error":
		p.err = peerError(m)
	case e != nil:
		p.err = e
	default:
		if e := m.check(); e != nil {
			e.Step = "peer"
			p.failLocked(e)
			return
		}
		p.final = m
	}
	poke(p.wake)
}

func (p *call) endedLocked() bool { return p.final != nil || p.err != nil }

// poke leaves a token in c, unless there is one.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (p *call) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failLocked(err)
}

func (p *call) failLocked(err error) {
	if !p.endedLocked() {
		p.err = err
		poke(p.wake)
	}
}

// lose fails a call that the host may have and will not answer.
func (p *call) lose(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch p.left {
	case hasLeft:
		p.failLocked(err)
	case leaves:
		p.doubt = err // the link will report whether the line left
	}
}

// begin notes that a link is about to take the line, in case the link breaks meanwhile.
func (p *call) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left, p.doubt = leaves, nil
}

// sent notes whether the line left.
func (p *call) sent(left bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !left {
		p.left, p.doubt = notYet, nil
		return
	}
	p.left = hasLeft
	if p.doubt != nil {
		p.failLocked(p.doubt)
	}
}

// now gives the line with the seconds that the caller still waits: a host that gets the
// line late must not work on it, or answer, when the caller has gone.
func (p *call) now() []byte {
	if p.timeout == 0 {
		return p.line
	}
	left := strconv.AppendInt(make([]byte, 0, 20), seconds(p.until), 10)
	if said := p.line[p.timeout : len(p.line)-2]; bytes.Equal(said, left) {
		return p.line
	}
	return append(append(bytes.Clone(p.line[:p.timeout]), left...), "}\n"...)
}

// seconds gives the whole seconds until t, at least one.
func seconds(t time.Time) int64 { return max(1, int64(time.Until(t)/time.Second)) }

func (p *call) mayBeThere() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.left != notYet && !p.endedLocked()
}

func (p *call) open() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.endedLocked() && p.doubt == nil
}

func (p *call) failure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// file records a request as in flight; it takes over the line.
func (c *Client) file(ctx context.Context, p *call) error {
	if len(p.line) > c.limits.Frame {
		return ErrTooLarge
	}
	p.line, p.wake = append(p.line, '\n'), make(chan struct{}, 1)
	p.until, _ = ctx.Deadline()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return ErrClosed
	case len(c.pending) >= c.limits.Requests:
		return ErrBusy
	case c.pending[p.id] != nil:
		return ErrReplay
	}
	c.pending[p.id] = p
	return nil
}

func (c *Client) drop(p *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pending, p.id)
}

// wait gives the final frame; each gets the events in order, until it returns false.
func (c *Client) wait(ctx context.Context, p *call, each func(*Envelope) bool) (*Envelope, error) {
	for {
		p.mu.Lock()
		events := p.events
		p.events = nil
		final, err := p.final, p.err
		p.mu.Unlock()
		for _, m := range events {
			if each != nil && !each(m) {
				return nil, errStopped
			}
		}
		switch {
		case final != nil:
			return final, nil
		case err != nil:
			return nil, err
		}
		select {
		case <-p.wake:
		case <-ctx.Done():
			return nil, waitError(ctx)
		}
	}
}

var errStopped = errors.New("a2e: stopped by the caller")

// exchange is ask for an encoded request; timeout is the offset of the timeout in line,
// 0 if the context gave none.
func (c *Client) exchange(ctx context.Context, id string, line []byte, timeout int,
	each func(*Envelope) bool) (*Envelope, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, c.limits.Request, ErrTimeout)
		defer cancel()
		timeout = 0
	}
	p := &call{id: id, line: line, timeout: timeout}
	if err := c.file(ctx, p); err != nil {
		return nil, err
	}
	defer c.drop(p)
	for {
		l, err := c.await(ctx, p)
		if err != nil {
			return nil, err
		}
		p.begin()
		err = l.send(ctx, p.now())
		left := err == nil || errors.Is(err, ErrOutcomeUnknown)
		p.sent(left)
		switch {
		case left: // in doubt, the answer or the broken link decides
			return c.wait(ctx, p, each)
		case ctx.Err() != nil:
			return nil, c.unreached(ctx)
		case errors.Is(err, ErrTooLarge), errors.Is(err, ErrFull):
			return nil, err
		}
		c.broken(l, err) // it never left: the next link takes it
	}
}

// askOver sends a request over one link, and waits for its answer. It fails when the
// link breaks.
func (c *Client) askOver(ctx context.Context, l link, m Message) (*Envelope, error) {
	m.ID = NewID()
	line, err := m.Encode(c.Now())
	if err != nil {
		return nil, err
	}
	p := &call{id: m.ID, line: line, over: l}
	if err := c.file(ctx, p); err != nil {
		return nil, err
	}
	defer c.drop(p)
	if err := l.send(ctx, p.line); err != nil {
		return nil, err
	}
	return c.wait(ctx, p, nil)
}
