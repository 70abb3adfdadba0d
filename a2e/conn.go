package a2e

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// ServeConn serves one agent on a byte stream: TCP, a unix socket, any pipe.
// It returns when the stream ends, after a shutdown, or soon after ctx ends,
// and closes conn. A session whose connection broke stays for [Limits.Idle], so
// that the agent may resume it. nil means an orderly end.
func (h *Host) ServeConn(ctx context.Context, conn io.ReadWriteCloser) error {
	remote := ""
	if c, ok := conn.(net.Conn); ok && c.RemoteAddr() != nil {
		remote = remoteOf(c.RemoteAddr().String())
	}
	return h.serveStream(ctx, conn, conn, conn.Close, remote, transportConn)
}

// ServeStdio serves one agent on a pair of pipes, as the child process of that
// agent (A2E §7.2): pass os.Stdin and os.Stdout, and keep stderr nearly silent,
// because agents do not read it. It returns within 3 s of the end of input; the
// session ends with it.
func (h *Host) ServeStdio(ctx context.Context, in io.Reader, out io.Writer) error {
	closeIn := func() error {
		if c, ok := in.(io.Closer); ok {
			return c.Close()
		}
		return nil
	}
	return h.serveStream(ctx, in, out, closeIn, "stdio", transportStdio)
}

func (h *Host) serveStream(ctx context.Context, in io.Reader, out io.Writer, hangup func() error, remote string,
	kind transportKind) error {
	s, err := h.open(remote, kind)
	if err != nil {
		_ = hangup()
		return err
	}
	// Running requests go on for a while after ctx has ended.
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	w := newConnWriter(h, out)
	if err := w.follow(run, s, nil); err != nil {
		_ = hangup()
		return err
	}
	read := make(chan error, 1)
	go func() { read <- h.readLines(run, in, w) }()

	var end error
	select {
	case end = <-read: // end of input
		w.session().end(errors.Is(end, io.EOF))
		w.session().hangUp(ctx, h.limits.Hangup, w.broken)
	case <-w.broken: // the writer failed, or its session is closed and written
	case <-ctx.Done():
		s := w.session()
		s.drain(h.limits.Drain, h.Store != nil)
		select {
		case <-w.broken:
		case <-s.done:
		case end = <-read:
			s.hangUp(run, h.limits.Hangup, w.broken)
		}
	}
	cancel()
	_ = hangup()
	s = w.stop()
	if state, _ := s.State(); kind == transportStdio || state == StateConnected {
		s.close()
	}
	if errors.Is(end, io.EOF) || errors.Is(end, net.ErrClosed) || errors.Is(end, io.ErrClosedPipe) ||
		errors.Is(end, ErrClosed) {
		end = nil
	}
	return end
}

// readLines feeds lines to the session.
func (h *Host) readLines(ctx context.Context, in io.Reader, w *connWriter) error {
	r := NewReader(in)
	r.hold = func(n int) { h.hold(w.session(), n) } // one message always has room: other sessions give way
	faults := 0
	for {
		s := w.session()
		if r.Limit != h.limits.Frame { // the limit stays once the handshake has succeeded
			r.Limit = s.frameLimit()
		}
		line, last, err := r.Next()
		if err == nil || errors.Is(err, ErrTooLarge) {
			if err := s.waitRoom(ctx); err != nil {
				return err
			}
		}
		switch {
		case err == nil:
			resumed, greeting := s.receive(bytes.Clone(line), last)
			if resumed == nil {
				continue
			}
			s.hangUp(ctx, h.limits.Hangup, w.broken) // pending answers go first
			if err := w.follow(ctx, resumed, greeting); err != nil {
				return err
			}
			s.close()
		case errors.Is(err, ErrTooLarge):
			s.refuse(nil, r.Limit+1, ErrTooLarge)
			faults++
			if faults >= h.limits.FrameFaults {
				s.drain(h.limits.Hangup, false)
				return nil
			}
		default:
			return err
		}
	}
}

// hangUp waits, after the end of input, until running requests are answered and
// written, at most for d.
func (s *Session) hangUp(ctx context.Context, d time.Duration, broken <-chan struct{}) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	for {
		s.mu.Lock()
		quiet := s.state == StateClosed || len(s.inflight) == 0 && s.out.len() == 0
		room := s.out.whenRoom()
		s.mu.Unlock()
		if quiet {
			return
		}
		select {
		case <-room:
		case <-s.done:
			return
		case <-broken:
			return
		case <-ctx.Done():
			return
		}
	}
}

// writeDeadline cuts off a peer that reads nothing. Setting the deadline costs as much
// as a short write, so it is set further ahead than needed and then left alone for a
// while.
type writeDeadline struct {
	conn interface{ SetWriteDeadline(time.Time) error } // nil: no deadline
	at   time.Time
}

func deadlineOf(w any) (d writeDeadline) {
	d.conn, _ = w.(interface{ SetWriteDeadline(time.Time) error })
	return d
}

// extend gives the next write at least wait, at most an eighth more.
func (d *writeDeadline) extend(wait time.Duration) {
	if d.conn == nil {
		return
	}
	if now := time.Now(); d.at.Sub(now) < wait {
		d.at = now.Add(wait + wait/8)
		_ = d.conn.SetWriteDeadline(d.at)
	}
}

// connWriter writes the frames of one session at a time: one line, one write. The
// goroutine that has the turn writes: the connWriter's own, or that of a request, which
// saves waking another one.
type connWriter struct {
	h      *Host
	broken chan struct{} // closed when writing has ended or failed
	once   sync.Once     // closes it
	s      atomic.Pointer[Session]

	mu     sync.Mutex
	st     *stream
	cancel context.CancelFunc
	ended  chan struct{}
	closed bool

	turn     chan struct{} // holds one token while a goroutine writes
	out      io.Writer
	deadline writeDeadline
	batch    [16]outFrame
	line     []byte
}

func newConnWriter(h *Host, out io.Writer) *connWriter {
	return &connWriter{h: h, out: out, deadline: deadlineOf(out), turn: make(chan struct{}, 1),
		broken: make(chan struct{})}
}

func (w *connWriter) session() *Session { return w.s.Load() }

// follow ends writing for the previous session, between two lines, and begins with s.
func (w *connWriter) follow(ctx context.Context, s *Session, greeting []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return ErrClosed
	}
	if w.cancel != nil {
		w.cancel()
		<-w.ended
		w.turn <- struct{}{} // waits for a request that writes
		w.session().detach(w.st)
		<-w.turn
	}
	st := newStream(ctx)
	st.write = func() { w.help(s, st) }
	w.s.Store(s)
	w.st = st
	if err := s.attach(st, greeting); err != nil {
		return err
	}
	ctx, w.cancel = context.WithCancel(ctx)
	w.ended = make(chan struct{})
	go w.run(ctx, s, st, w.ended)
	return nil
}

// stop ends writing for good, even in the middle of a line.
func (w *connWriter) stop() *Session {
	if d := deadlineOf(w.out); d.conn != nil {
		_ = d.conn.SetWriteDeadline(time.Now())
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.cancel()
	select {
	case <-w.ended:
	case <-time.After(w.h.limits.Hangup): // a pipe without deadline whose reader sleeps
	}
	s := w.session()
	s.detach(w.st)
	return s
}

func (w *connWriter) fail() { w.once.Do(func() { close(w.broken) }) }

func (w *connWriter) run(ctx context.Context, s *Session, st *stream, ended chan struct{}) {
	defer close(ended)
	var one [1]outFrame
	for {
		_, err := s.next(ctx, st, one[:])
		if err == nil {
			w.turn <- struct{}{}
			err = w.write(s, st)
			<-w.turn
		}
		if err != nil {
			if ctx.Err() == nil { // stop did not cancel it
				w.fail()
			}
			return
		}
	}
}

// help writes the waiting frames, in a few rounds at most, and leaves more than that to
// run. Frames queued meanwhile are written by the goroutine that has the turn.
func (w *connWriter) help(s *Session, st *stream) {
	for range 4 {
		select {
		case w.turn <- struct{}{}:
		default:
			return
		}
		err := w.write(s, st)
		<-w.turn
		if err != nil {
			w.fail()
			return
		}
		if !s.waits(st) {
			return
		}
	}
	poke(st.wake)
}

// write writes a batch of waiting frames; the caller has the turn.
func (w *connWriter) write(s *Session, st *stream) error {
	n := s.first(st, w.batch[:])
	done, err := 0, error(nil)
	for done < n && err == nil {
		w.line = append(append(w.line[:0], w.batch[done].line...), '\n')
		w.deadline.extend(w.h.limits.Write)
		if _, err = w.out.Write(w.line); err == nil {
			done++
		}
	}
	if done > 0 {
		s.wrote(st, w.batch[:done])
	}
	clear(w.batch[:n])
	if cap(w.line) > minBuffer {
		w.line = nil
	}
	return err
}
