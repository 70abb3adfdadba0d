package a2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/internal/netguard"
	"github.com/parley-hub/parley/internal/recorder"
)

// dial opens a link of the kind that the client is configured for.
func (c *Client) dial(ctx context.Context) (link, error) {
	if c.Command != nil {
		return c.startProcess()
	}
	if c.Dial != nil {
		conn, err := c.Dial(ctx)
		if err != nil {
			return nil, err
		}
		return c.connLink(conn), nil
	}
	u, err := url.Parse(c.URL)
	if err != nil {
		return nil, badURL(err)
	}
	var conn net.Conn
	switch u.Scheme {
	case "http", "https":
		return c.httpLink(ctx, u)
	case "tcp":
		conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", u.Host)
	case "tls":
		conn, err = (&tls.Dialer{Config: c.TLS}).DialContext(ctx, "tcp", u.Host)
	case "unix":
		conn, err = (&net.Dialer{}).DialContext(ctx, "unix", u.Path)
	default:
		return nil, badURL(fmt.Errorf("scheme %q", u.Scheme))
	}
	if err != nil {
		return nil, err
	}
	return c.connLink(conn), nil
}

func (c *Client) connLink(conn io.ReadWriteCloser) link {
	l := c.streamLink(conn)
	if n, ok := conn.(net.Conn); ok {
		l.address = n.RemoteAddr().String()
	}
	go l.read(conn)
	return l
}

func badURL(err error) error {
	return &Error{Code: InvalidMessage, Reason: "url", Text: "URL must be http, https, tcp, tls or unix",
		Step: "dial", cause: err}
}

// ending is the part that all links share: their end.
type ending struct {
	c        *Client
	once     sync.Once
	ended    chan struct{}
	release  func()      // called once, at the end
	remember atomic.Bool // the host remembers ids: a POST may be repeated
}

func (e *ending) end() {
	e.once.Do(func() {
		close(e.ended)
		e.release()
	})
}

func (e *ending) down() bool {
	select {
	case <-e.ended:
		return true
	default:
		return false
	}
}

func (e *ending) remembers(yes bool) { e.remember.Store(yes) }

// streamLink is a link over a byte stream.
type streamLink struct {
	ending
	out     io.Writer
	address string // of the peer; "": the stream has none

	mu       sync.Mutex // one write per line, one at a time
	deadline writeDeadline

	wait func() // for the end of a child process
}

func (c *Client) streamLink(out io.WriteCloser) *streamLink {
	return &streamLink{ending: ending{c: c, ended: make(chan struct{}), release: func() { _ = out.Close() }}, out: out,
		deadline: deadlineOf(out)}
}

func (l *streamLink) read(in io.Reader) {
	r := NewReader(in)
	r.Limit = l.c.limits.Frame
	for {
		line, _, err := r.Next()
		switch {
		case err == nil:
			l.c.received(l, bytes.Clone(line))
		case errors.Is(err, ErrTooLarge):
			l.c.tooLarge(r.head)
		default:
			l.c.broken(l, err)
			return
		}
	}
}

func (l *streamLink) send(ctx context.Context, line []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down() {
		return ErrClosed
	}
	recorder.Sent(ctx, l.address, line[:len(line)-1])
	l.deadline.extend(30 * time.Second)
	if n, err := l.out.Write(line); err != nil {
		go l.c.broken(l, err) // a partial line may have left: the stream is unusable
		if n == 0 {
			return ErrClosed.Because(err)
		}
		return ErrOutcomeUnknown.Because(err)
	}
	return nil
}

func (l *streamLink) close(last []byte) {
	if last != nil {
		_ = l.send(l.c.ctx, last)
	}
	l.end()
	if l.wait != nil {
		l.wait()
	}
}

// startProcess starts the child that the user's Command makes.
func (c *Client) startProcess() (link, error) {
	cmd := c.Command()
	if cmd == nil {
		return nil, badURL(errors.New("no command"))
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	// Not StdoutPipe: Wait would close it under the reader.
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdout = w
	err = cmd.Start()
	_ = w.Close()
	if err != nil {
		_ = r.Close()
		return nil, err
	}
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		if err := cmd.Wait(); err != nil {
			c.Log.Debug("a2e: child process", "err", err)
		}
	}()
	l := c.streamLink(in)
	l.wait = func() {
		stopProcess(cmd, exited, c.limits.Exit, c.limits.Term)
		_ = r.Close()
	}
	go func() {
		l.read(r)
		l.wait()
	}()
	return l, nil
}

// stopProcess waits for the exit, sends SIGTERM, then kills (A2E §7.2).
func stopProcess(cmd *exec.Cmd, exited <-chan struct{}, exit, term time.Duration) {
	for _, step := range []struct {
		wait time.Duration
		then os.Signal
	}{{exit, syscall.SIGTERM}, {term, os.Kill}} {
		select {
		case <-exited:
			return
		case <-time.After(step.wait):
			if err := cmd.Process.Signal(step.then); err != nil {
				_ = cmd.Process.Kill()
			}
		}
	}
	<-exited
}

// httpLink is a link over HTTP + SSE (A2E §7.1).
type httpLink struct {
	ending
	http    *http.Client
	base    string
	session string
	ctx     context.Context
	closing chan struct{} // closed when the client is closed
	closed  sync.Once
	read    chan struct{} // closed when reading of the stream has ended
}

func (c *Client) httpLink(ctx context.Context, u *url.URL) (link, error) {
	hc := c.HTTP
	if hc == nil {
		hc = netguard.Live(nil, netguard.ClientAdvice).
			Client(netguard.Options{Timeout: -1, MaxRedirects: -1, MaxResponseBytes: -1})
	}
	linkCtx, cancel := context.WithCancel(c.ctx)
	l := &httpLink{ending: ending{c: c, ended: make(chan struct{}), release: cancel}, http: hc, ctx: linkCtx,
		base: strings.TrimSuffix(u.String(), "/"), closing: make(chan struct{}), read: make(chan struct{})}
	l.session = c.SessionID() // on Parley's hosts the HTTP session and the A2E session are one
	if err := l.open(ctx); err != nil {
		cancel()
		return nil, err
	}
	go l.stream()
	return l, nil
}

func (l *httpLink) request(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	var r io.Reader
	if body != nil {
		r = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, l.base+path, r)
	if err != nil {
		return nil, badURL(err)
	}
	if l.session != "" {
		req.Header.Set(sessionHeader, l.session)
	}
	req.Header.Set("Accept", "text/event-stream")
	req.Header.Set("Content-Type", "text/plain")
	return netguard.Do(l.http, req)
}

// discard drains a response so that its connection is reused.
func discard(resp *http.Response) {
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 4096))
	_ = resp.Body.Close()
}

// statusError maps the status of an answer to an error; failure says, for example,
// "stream refused".
func statusError(failure string, status int, retryable bool) *Error {
	e := *ErrStatus
	e.Text, e.Retryable = fmt.Sprintf("%s with status %d", failure, status), retryable
	return &e
}

// open resumes the previous session, or opens a new one.
func (l *httpLink) open(ctx context.Context) error {
	if l.session != "" {
		there, err := l.probe(ctx)
		if there || err != nil {
			return err
		}
		l.session = ""
	}
	resp, err := l.request(ctx, http.MethodPost, "/session", []byte{})
	if err != nil {
		return err
	}
	defer discard(resp)
	switch status := resp.StatusCode; {
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return ErrUnknownKey.Because(statusError("session refused", status, false))
	case status/100 != 2:
		return statusError("session refused", status, true)
	}
	var answer struct {
		SessionID string `json:"session_id"`
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, 4096))
	if err == nil {
		err = jsonx.Decode(b, &answer)
	}
	if err != nil || answer.SessionID == "" || strings.ContainsAny(answer.SessionID, "\r\n\x00") {
		return ErrParse.Because(err)
	}
	l.session = answer.SessionID
	return nil
}

// probe reports whether the session still exists. If the host cannot say, the link asks
// again later: a new session would lose the frames of this one.
func (l *httpLink) probe(ctx context.Context) (there bool, err error) {
	resp, err := l.request(ctx, http.MethodPost, "/send", []byte{})
	if err != nil {
		return false, err
	}
	defer discard(resp)
	switch status := resp.StatusCode; {
	case status == http.StatusOK:
		return true, nil
	case status == http.StatusTooManyRequests || status/100 == 5:
		return false, statusError("session not found", status, true)
	}
	return false, nil
}

// stream reads the SSE stream and opens it again when it breaks, until the host reports
// that the session is gone.
func (l *httpLink) stream() {
	defer close(l.read)
	pause := l.c.limits.BackoffLo
	for again := false; l.ctx.Err() == nil; {
		opened := false
		err := l.readStream(func() {
			opened = true
			if again {
				l.c.reopened(l)
			}
			again = true
		})
		if e, ok := errors.AsType[*Error](err); ok && !e.Retryable {
			l.c.broken(l, err)
			return
		}
		if opened {
			pause = l.c.limits.BackoffLo
			l.c.linked(false)
		}
		select {
		case <-time.After(pause):
		case <-l.ctx.Done():
		case <-l.closing:
			return
		}
		pause = min(2*pause, l.c.limits.BackoffHi)
	}
}

func (l *httpLink) readStream(opened func()) error {
	resp, err := l.request(l.ctx, http.MethodGet, "/stream", nil)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		gone := resp.StatusCode == http.StatusNotFound || resp.StatusCode == http.StatusBadRequest ||
			resp.StatusCode == http.StatusUnauthorized
		return statusError("stream refused", resp.StatusCode, !gone)
	}
	return readEvents(resp.Body, resp.Header.Get("Content-Type"), l.c.limits.Frame, opened,
		func(data []byte) { l.c.received(l, data) }, l.c.tooLarge)
}

// send posts one line. It repeats a refused line; a line that the host may have,
// because the connection broke, it repeats only to a host that remembers ids.
func (l *httpLink) send(caller context.Context, line []byte) error {
	ctx, cancel := context.WithTimeout(caller, 30*time.Second)
	defer cancel()
	stop := context.AfterFunc(l.ctx, cancel)
	defer stop()
	unknown := false
	for try := 1; ; try++ {
		if err := ctx.Err(); err != nil && !unknown {
			return ErrClosed.Because(err) // the link ended, or the caller gave up, before the POST began
		}
		resp, err := l.request(ctx, http.MethodPost, "/send", line[:len(line)-1])
		pause := time.Second
		if err == nil {
			status := resp.StatusCode
			pause = max(pause, retryAfter(resp))
			discard(resp)
			switch {
			case status/100 == 2:
				return nil
			case status == http.StatusRequestEntityTooLarge:
				return ErrTooLarge
			case status == http.StatusNotFound || status == http.StatusUnauthorized:
				go l.c.broken(l, ErrClosed)
				if unknown {
					return ErrOutcomeUnknown
				}
				return ErrClosed
			case status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable:
				err = ErrFull
			default:
				err = fmt.Errorf("a2e: status %d", status)
				unknown = true
			}
		} else {
			unknown = unknown || !netguard.NotSent(err)
		}
		if unknown && !l.remember.Load() || try >= l.c.limits.Tries || ctx.Err() != nil {
			switch {
			case unknown && caller.Err() != nil: // the caller gave up, which says nothing about the host
				return ErrOutcomeUnknown.Because(err)
			case unknown:
				go l.c.broken(l, err)
				return ErrOutcomeUnknown.Because(err)
			case errors.Is(err, ErrFull):
				return ErrFull
			}
			go l.c.broken(l, err)
			return ErrClosed.Because(err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// close sends the last line once, then briefly waits for the host to end the stream, so
// that the host learns that all frames were read.
func (l *httpLink) close(last []byte) {
	l.closed.Do(func() { close(l.closing) })
	defer l.end()
	if last == nil {
		return
	}
	ctx, cancel := context.WithTimeout(l.ctx, 5*time.Second)
	defer cancel()
	resp, err := l.request(ctx, http.MethodPost, "/send", last[:len(last)-1])
	if err != nil {
		return // the host is gone
	}
	discard(resp)
	select {
	case <-l.read:
	case <-time.After(time.Second):
	}
}
