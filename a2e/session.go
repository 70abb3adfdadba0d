package a2e

import (
	"container/list"
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"
)

// transportKind says which transports may attach to a session.
type transportKind uint8

const (
	transportHTTP  transportKind = iota // the stream may change, requests arrive by POST
	transportConn                       // one connection at a time, resumed by handshake
	transportStdio                      // one pair of pipes, never resumed
)

// State is the phase of a session (A2E §8.2).
type State uint8

const (
	StateConnected State = iota // no handshake yet
	StateActive
	StateDraining // after a shutdown: answers are sent, new requests refused
	StateClosed
)

var stateNames = [...]string{"connected", "active", "draining", "closed"}

func (s State) String() string { return stateNames[s] }

// Session is one agent's session with a host.
type Session struct {
	h       *Host
	id      string
	remote  string
	kind    transportKind
	counted string // the address that counts the session while it is pending
	started time.Time

	pending *list.Element // in h.pending, until the handshake; guarded by h.mu
	held    int           // bytes that Host.held counts for the session

	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{} // closed when the session is closed

	mu       sync.Mutex
	state    State
	identity Identity
	agentID  string
	accepted []string
	failures int
	running  int
	waiting  []*Request // requests that wait for a slot
	inflight map[string]*Request
	seen     seenIDs
	out      outbox
	last     time.Time   // of the last sign of life
	timer    *time.Timer // calls tick at nextTick
	nextTick time.Time
	drainer  *time.Timer
	keep     bool          // the store keeps the session when it closes
	draining chan struct{} // see Draining; nil until first used
	away     chan struct{} // see Away; nil until first used
	ended    bool          // the agent has ended its side of the transport

	storeMu sync.Mutex // orders calls of the store
	seq     uint64     // of the last frame appended; guarded by storeMu
	moved   bool       // another host has the session, and messages are passed on; changed with mu and storeMu held
}

func newSession(h *Host, id, remote string, kind transportKind) *Session {
	s := &Session{h: h, id: id, remote: remote, kind: kind, done: make(chan struct{}), started: time.Now()}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.last = s.started
	s.mu.Lock() // tick may run at once
	defer s.mu.Unlock()
	s.nextTick = s.started.Add(h.limits.Handshake)
	s.timer = time.AfterFunc(h.limits.Handshake, s.tick)
	return s
}

// restore fills a new session from the store.
func (s *Session) restore(rec SessionRecord) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = StateActive
	s.identity, s.agentID, s.accepted = rec.Identity, rec.AgentID, rec.Accepted
	s.seq = rec.LastSeq
	for _, f := range rec.Undelivered {
		s.out.push(outFrame{seq: f.Seq, line: f.Line})
	}
}

// ID is the session_id. In HTTP mode the id is a bearer secret.
func (s *Session) ID() string { return s.id }

// Identity is the authenticated identity of the session.
func (s *Session) Identity() Identity {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.identity
}

// Opened is when the session began, or was taken over from another host.
func (s *Session) Opened() time.Time { return s.started }

// Heard is when the agent last gave a sign of life.
func (s *Session) Heard() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// State gives the state of the session, and whether a transport is attached on which
// the agent still sends.
func (s *Session) State() (state State, attached bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state, s.attachedLocked()
}

func (s *Session) attachedLocked() bool { return s.out.stream != nil && !s.ended }

// Away is closed when the agent's transport ends; without one it is closed already.
func (s *Session) Away() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away == nil {
		s.away = make(chan struct{})
		if !s.attachedLocked() {
			close(s.away)
		}
	}
	return s.away
}

// leavesLocked records that the agent is away.
func (s *Session) leavesLocked() {
	if s.away != nil {
		closeOnce(s.away)
	}
}

// closeOnce closes c, unless it is closed; the owner of c locks it.
func closeOnce(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}

// end records that the agent's side of the transport has ended. After an orderly end,
// the agent has read all frames written there.
func (s *Session) end(orderly bool) {
	if orderly {
		s.read()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	s.leavesLocked()
}

// Done is closed when the session has ended.
func (s *Session) Done() <-chan struct{} { return s.done }

// Draining is closed when the session refuses new requests: its agent has sent
// shutdown, or the host ends. Calls that only wait for events should then return.
func (s *Session) Draining() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining == nil {
		s.draining = make(chan struct{})
		if s.state >= StateDraining {
			close(s.draining)
		}
	}
	return s.draining
}

// endsLocked changes to a state in which new requests are refused.
func (s *Session) endsLocked(to State) {
	if s.draining != nil && s.state < StateDraining {
		close(s.draining)
	}
	s.state = to
}

// tick is the session's only clock: it ends a session without a handshake or a
// transport, answers requests past their deadline, and forgets old ids and frames.
func (s *Session) tick() {
	now := time.Now()
	l := &s.h.limits
	s.mu.Lock()
	if s.state == StateClosed {
		s.mu.Unlock()
		return
	}
	s.seen.trim(now, &s.h.answers)
	s.out.expire(now.Add(-l.ReplayFor))
	s.nextTick = now.Add(30 * time.Second)
	for _, r := range s.inflight {
		if !now.Before(r.Deadline) {
			go r.expire()
		} else if r.Deadline.Before(s.nextTick) {
			s.nextTick = r.Deadline
		}
	}
	end := s.nextTick // when the session ends if it stays idle
	switch {
	case s.state == StateConnected:
		end = s.started.Add(l.Handshake)
	case s.out.stream == nil && s.state == StateActive:
		end = s.last.Add(l.Idle)
	}
	if end.Before(s.nextTick) {
		s.nextTick = end
	}
	over := !now.Before(end)
	if !over {
		s.timer.Reset(s.nextTick.Sub(now))
	}
	s.mu.Unlock()
	if over {
		s.close()
	}
}

// tickByLocked schedules tick for t, unless it is due earlier.
func (s *Session) tickByLocked(t time.Time) {
	if t.Before(s.nextTick) {
		s.nextTick = t
		s.timer.Reset(time.Until(t))
	}
}

// attach makes st the session's transport; greeting, if any, precedes all waiting
// frames.
func (s *Session) attach(st *stream, greeting []byte) error {
	s.mu.Lock()
	if s.state == StateClosed || s.moved {
		moved := s.moved
		s.mu.Unlock()
		if moved {
			return ErrMoved
		}
		return ErrClosed
	}
	s.last = time.Now()
	unread := s.out.attach(st)
	s.ended, s.away = false, nil
	if greeting != nil {
		s.out.pushFront(outFrame{line: greeting})
	}
	s.mu.Unlock()
	tell(unread, false)
	s.proved(st.ctx)
	return nil
}

// proved reports a request, stream or connection to the host if its agent's handshake
// succeeded.
func (s *Session) proved(ctx context.Context) {
	s.mu.Lock()
	who, active := s.identity, s.state == StateActive || s.state == StateDraining && s.identity.Name != ""
	s.mu.Unlock()
	if active && s.h.Authenticated != nil {
		s.h.Authenticated(ctx, who)
	}
}

func (s *Session) detach(st *stream) {
	s.mu.Lock()
	over := false
	var unread []func(bool)
	if s.out.detach(st) {
		unread = s.out.takeUnproved()
		s.leavesLocked()
		s.last = time.Now()
		if s.state == StateActive {
			s.tickByLocked(s.last.Add(s.h.limits.Idle))
		}
		over = s.drainedLocked() // the reader is gone
	}
	s.mu.Unlock()
	tell(unread, false)
	if over {
		s.close()
	}
}

// read records that the agent continues on its transport: earlier frames on it have
// reached the agent.
func (s *Session) read() {
	s.mu.Lock()
	fs := s.out.takeUnproved()
	s.mu.Unlock()
	tell(fs, true)
}

func tell(fs []func(bool), returned bool) {
	for _, f := range fs {
		f(returned)
	}
}

// next waits for frames to be written by the transport st, up to len(into). An error
// ends the transport.
func (s *Session) next(ctx context.Context, st *stream, into []outFrame) (int, error) {
	for {
		s.mu.Lock()
		if s.out.stream != st {
			s.mu.Unlock()
			return 0, errReplaced
		}
		n := s.out.first(into)
		closed := s.state == StateClosed
		s.mu.Unlock()
		switch {
		case n > 0:
			return n, nil
		case closed:
			return 0, ErrClosed
		}
		select {
		case <-st.wake:
		case <-st.gone:
			return 0, errReplaced
		case <-s.done:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

var errReplaced = errors.New("a2e: a newer transport took over")

// first gives the frames to be written by st now, up to len(into).
func (s *Session) first(st *stream, into []outFrame) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.out.stream != st {
		return 0
	}
	return s.out.first(into)
}

// waits reports whether st has frames to write.
func (s *Session) waits(st *stream) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.stream == st && s.out.len() > 0
}

// wrote records that st has written frames.
func (s *Session) wrote(st *stream, frames []outFrame) {
	s.mu.Lock()
	var upTo uint64
	for _, f := range frames {
		upTo = max(upTo, f.seq)
	}
	if s.out.stream == st && len(frames) <= s.out.len() {
		now := time.Now()
		s.last = now
		keep := s.h.limits.Replay
		if s.state == StateConnected {
			keep = 0
		}
		s.out.written(len(frames), now, keep)
	} else {
		upTo = 0
	}
	drained := s.drainedLocked()
	s.mu.Unlock()
	if upTo > 0 && s.h.Store != nil {
		s.storeMu.Lock()
		err := s.h.Store.Delivered(s.ctx, s.id, upTo)
		if moved := err != nil && s.movedOn(err); moved {
			s.moveLocked()
			err = nil
		}
		s.storeMu.Unlock()
		if err != nil {
			s.lost(err)
		}
	}
	if drained {
		s.close()
	}
}

// send queues one line for the agent, without waiting for the agent.
func (s *Session) send(line []byte) error {
	err := s.queue(outFrame{line: line})
	s.mu.Lock()
	st := s.out.stream
	s.mu.Unlock()
	if st != nil {
		poke(st.wake)
	}
	return err
}

// queue is send, but the caller must wake the transport.
func (s *Session) queue(f outFrame) error {
	if s.h.Store == nil || !s.isActive() {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.queueLocked(f)
	}
	s.storeMu.Lock()
	defer s.storeMu.Unlock()
	if s.moved {
		return s.forwardLocked(f)
	}
	if err := s.h.Store.Append(s.ctx, s.id, s.seq+1, f.line); err != nil {
		if s.movedOn(err) {
			s.moveLocked()
			return s.forwardLocked(f)
		}
		s.lost(err)
		return ErrClosed.Because(err)
	}
	s.seq++
	f.seq = s.seq
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.queueLocked(f)
}

func (s *Session) queueLocked(f outFrame) error {
	if s.state == StateClosed {
		return ErrClosed
	}
	s.out.push(f)
	return nil
}

func (s *Session) isActive() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state == StateActive || s.state == StateDraining
}

// lost drops a session that the store refused: another host owns it now.
func (s *Session) lost(err error) {
	s.h.Log.Warn("a2e: session given up", "identity", s.Identity().Name, "err", err)
	s.mu.Lock()
	s.keep = true
	s.mu.Unlock()
	s.close()
}

// Bounds of the frames that wait for an agent before the handshake.
const (
	pendingFrames = 16
	pendingBytes  = 4 << 10
)

// full reports whether the agent reads too slowly for more requests, and gives a
// channel that is closed when that may have changed.
func (s *Session) full() (bool, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	frames, bytes := s.h.limits.OutFrames, s.h.limits.OutBytes
	if s.state == StateConnected {
		frames, bytes = min(frames, pendingFrames), min(bytes, pendingBytes)
	}
	if s.out.len() < frames && s.out.bytes < bytes {
		return false, nil
	}
	return true, s.out.whenRoom()
}

// waitRoom waits until the agent has read enough; it stalls only this session.
func (s *Session) waitRoom(ctx context.Context) error {
	for {
		full, room := s.full()
		if !full {
			return nil
		}
		select {
		case <-room:
		case <-s.done:
			return ErrClosed
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// refuse answers a message with an error instead of serving it.
func (s *Session) refuse(m *Envelope, size int, e *Error) {
	s.h.refused(s, m, size, e, false)
	_ = s.send(errorFrame(e, s.h.Now()))
}

// frameLimit is the current limit of a line.
func (s *Session) frameLimit() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == StateConnected {
		return s.h.limits.HandshakeFrame
	}
	return s.h.limits.Frame
}

// receive serves one line, which it takes over (A2E §5.2). last: the line had no end.
// If a handshake resumed another session, receive gives that session and its answer.
func (s *Session) receive(line []byte, last bool) (resumed *Session, greeting []byte) {
	s.read()
	now := time.Now()
	m, e := s.h.types.decode(line, s.h.limits.Depth)
	if e != nil || m.Capability() == "" {
		s.mu.Lock()
		s.last = now
		s.mu.Unlock()
	}
	if e == nil && m.Class != ClassRequest {
		e = ErrInvalid // unrequested, or too late (A2E-057)
	}
	if e != nil {
		switch {
		case m == nil && last, m != nil && m.Class != ClassRequest: // an unfinished tail, or no request
			s.h.refused(s, m, len(line), e, true)
		case m != nil && m.Type == "handshake/req" && errors.Is(e, ErrVersion):
			s.denied(m, "version_mismatch", e)
		default:
			s.refuse(m, len(line), e)
		}
		return nil, nil
	}
	var r *Request
	switch m.Type {
	case "ping", "shutdown", "handshake/req":
		e = m.check()
	default:
		r, e = s.admit(m, now)
	}
	switch {
	case e != nil:
		s.refuse(m, len(line), e)
	case r != nil:
		s.start(r)
	case m.Type == "ping":
		s.pong(m)
	case m.Type == "shutdown":
		s.shutdown(m)
	default:
		return s.handshake(m)
	}
	return nil, nil
}

func (s *Session) pong(m *Envelope) {
	f := appendHead(nil, "pong", NewID(), s.h.Now()).text("req_id", m.ID).name("uptime_seconds")
	f = strconv.AppendFloat(f, time.Since(s.started).Seconds(), 'f', 6, 64)
	_ = s.send(append(f, '}'))
}

// shutdown drains for as long as the agent grants, within 0 and the limit (A2E §8.4);
// it sends no answer.
func (s *Session) shutdown(m *Envelope) {
	grant := m.Int("timeout")
	limit := s.h.limits.Drain
	d := limit
	if grant < 0 {
		d = 0
	} else if grant < int64(limit/time.Second) {
		d = time.Duration(grant) * time.Second
	}
	s.drain(d, false)
}

// drain refuses new requests, waits for running ones, and closes.
func (s *Session) drain(d time.Duration, keep bool) {
	s.mu.Lock()
	if s.state == StateDraining || s.state == StateClosed {
		s.mu.Unlock()
		return
	}
	s.keep = s.keep || keep && s.state == StateActive
	s.endsLocked(StateDraining)
	s.drainer = time.AfterFunc(d, s.drainOver)
	over := s.drainedLocked()
	s.mu.Unlock()
	if over {
		s.close()
	}
}

// drainOver answers the requests that still run, and gives the transport a last moment
// to write.
func (s *Session) drainOver() {
	s.mu.Lock()
	left := slices.Collect(maps.Values(s.inflight))
	s.mu.Unlock()
	for _, r := range left {
		r.fail(ErrTimeout)
	}
	s.mu.Lock()
	over := s.drainedLocked() || s.out.stream == nil
	if !over && s.state == StateDraining {
		s.drainer = time.AfterFunc(s.h.limits.Hangup, func() { s.close() })
	}
	s.mu.Unlock()
	if over {
		s.close()
	}
}

func (s *Session) drainedLocked() bool {
	return s.state == StateDraining && len(s.inflight) == 0 && (s.out.len() == 0 || s.out.stream == nil && s.keep)
}

// closeIf closes the session if spare, called with mu held, returns true; a session in
// use stays.
func (s *Session) closeIf(spare func() bool) (closed bool) {
	if !s.mu.TryLock() {
		return false
	}
	defer s.mu.Unlock()
	closed = spare()
	if closed {
		s.closeLocked()
	}
	return closed
}

// close ends the session at once.
func (s *Session) close() {
	s.mu.Lock()
	was := s.state
	var read []func(bool)
	if s.drainedLocked() && s.attachedLocked() { // orderly end: all frames written, agent still attached
		read = s.out.takeUnproved()
	}
	s.closeLocked()
	keep := s.keep
	s.mu.Unlock()
	tell(read, true)
	if was == StateClosed {
		return
	}
	if s.h.Store != nil && was != StateConnected && !keep {
		s.storeMu.Lock()
		if err := s.h.Store.Close(context.WithoutCancel(s.ctx), s.id); err != nil {
			s.h.Log.Warn("a2e: session not closed in the store", "err", err)
		}
		s.storeMu.Unlock()
	}
	s.h.forget(s)
}

func (s *Session) closeLocked() {
	if s.state == StateClosed {
		return
	}
	s.endsLocked(StateClosed)
	s.timer.Stop()
	if s.drainer != nil {
		s.drainer.Stop()
	}
	s.waiting = nil
	s.seen.clear(&s.h.answers)
	if unread := s.out.takeReturned(); len(unread) > 0 {
		go tell(unread, false) // the callbacks may query the session
	}
	close(s.done)
	s.cancel()
}

// Push sends a message without a request. It is refused when the agent negotiated no
// capability: such agents know only the core types (A2E §10). SDK agents need a handler
// registered for the type.
func (s *Session) Push(ctx context.Context, m Message) error {
	s.mu.Lock()
	ok := s.state == StateActive && len(s.accepted) > 0
	s.mu.Unlock()
	if !ok {
		return ErrInvalid
	}
	line, err := m.Encode(s.h.Now())
	if err != nil {
		return err
	}
	if err := s.waitRoom(ctx); err != nil {
		return err
	}
	return s.send(line)
}
