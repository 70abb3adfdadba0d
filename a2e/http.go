package a2e

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/parley-hub/parley/internal/sse"
)

// sessionHeader names the HTTP session. Its value is a bearer secret.
const sessionHeader = "X-Session-Id"

// ServeHTTP is the network transport (A2E §7.1): POST /session, GET /stream,
// POST /send, GET /health. Mount it under a prefix with [http.StripPrefix].
// Tokens and session ids cross the network, so put TLS in front.
func (h *Host) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.init()
	method, serve := "", http.HandlerFunc(nil)
	switch r.URL.Path {
	case "/session":
		method, serve = http.MethodPost, h.serveSession
	case "/stream":
		method, serve = http.MethodGet, h.serveSSE
	case "/send":
		method, serve = http.MethodPost, h.serveSend
	case "/health":
		method, serve = http.MethodGet, func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, `{"status":"ok"}`) }
	default:
		writeDetail(w, http.StatusNotFound, "Not Found")
		return
	}
	if r.Method != method {
		w.Header().Set("Allow", method)
		writeDetail(w, http.StatusMethodNotAllowed, "Method Not Allowed")
		return
	}
	serve(w, r)
}

func writeJSON(w http.ResponseWriter, body string) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, body)
}

func (h *Host) serveSession(w http.ResponseWriter, r *http.Request) {
	s, err := h.open(remoteOf(r.RemoteAddr), transportHTTP)
	if err != nil {
		if errors.Is(err, ErrBusy) {
			w.Header().Set("Retry-After", "60")
		}
		WriteError(w, err)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	writeJSON(w, `{"session_id":"`+s.id+`"}`)
}

// sessionOf finds the session that a request names, or answers 400, 404 or 503.
func (h *Host) sessionOf(w http.ResponseWriter, r *http.Request) *Session {
	id := r.Header.Get(sessionHeader)
	if id == "" {
		writeDetail(w, http.StatusBadRequest, "Missing X-Session-Id")
		return nil
	}
	s, err := h.find(r.Context(), id, transportHTTP)
	if err == nil {
		if state, _ := s.State(); s.kind == transportHTTP && state != StateClosed {
			return s
		}
	}
	if errors.Is(err, ErrFull) || errors.Is(err, ErrNotLoaded) {
		WriteError(w, err)
		return nil
	}
	writeDetail(w, http.StatusNotFound, "Session not found")
	return nil
}

// serveSend takes one message, or several on separate lines, and answers before they
// are executed. The stream carries their errors.
func (h *Host) serveSend(w http.ResponseWriter, r *http.Request) {
	if h.sendElsewhere(w, r) {
		return
	}
	s := h.sessionOf(w, r)
	if s == nil {
		return
	}
	s.proved(r.Context())
	if full, _ := s.full(); full {
		writeFull(w)
		return
	}
	limit, first, held := s.frameLimit(), 64<<10, 0
	if !s.isActive() {
		first = minBuffer
		// A session that gives way releases its memory, even if its body does not end.
		defer context.AfterFunc(s.ctx, func() { _ = http.NewResponseController(w).SetReadDeadline(time.Now()) })()
	}
	body, err := readBody(r, limit, first, func(n int) bool {
		ok := h.hold(s, n)
		if ok {
			held += n
		}
		return ok
	})
	if held > 0 {
		defer h.hold(s, -held)
	}
	if !takeBody(w, body, err) {
		return
	}
	for line := range bytes.SplitSeq(body, []byte{'\n'}) {
		line = trimLine(line)
		if len(line) == 0 {
			continue
		}
		if full, _ := s.full(); full {
			writeFull(w)
			return
		}
		s.receive(line[:len(line):len(line)], false)
	}
	s.proved(r.Context())
	writeJSON(w, `{"ok":true}`)
}

func writeFull(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	writeDetail(w, http.StatusServiceUnavailable, "read the stream first")
}

// readBody reads at most limit bytes. Its memory grows with what arrives, beyond
// first only as far as hold allows; else the error is [ErrBusy].
func readBody(r *http.Request, limit, first int, hold func(n int) bool) ([]byte, error) {
	if r.ContentLength > int64(limit) {
		return nil, ErrTooLarge
	}
	most := int64(limit) + 1 // one more byte shows that the body is too long
	if r.ContentLength >= 0 {
		most = r.ContentLength
	}
	body := make([]byte, 0, min(most, int64(first)))
	for {
		n, err := r.Body.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		switch {
		case len(body) > limit:
			return nil, ErrTooLarge
		case err == io.EOF && int64(len(body)) < r.ContentLength:
			return nil, io.ErrUnexpectedEOF
		case err == io.EOF, err == nil && int64(len(body)) == r.ContentLength:
			return body, nil
		case err != nil:
			return nil, err
		case len(body) == cap(body):
			size := min(2*len(body), int(most))
			if !hold(size - cap(body)) {
				return nil, ErrBusy
			}
			body = append(make([]byte, 0, size), body...)
		}
	}
}

// serveSSE is the stream to the agent. A newer stream replaces an older one; otherwise
// the stream ends with the session.
func (h *Host) serveSSE(w http.ResponseWriter, r *http.Request) {
	s := h.sessionOf(w, r)
	if s == nil {
		return
	}
	st := newStream(r.Context())
	err := s.attach(st, nil)
	if errors.Is(err, ErrMoved) { // just now; a new stream will bring the session back
		s = h.sessionOf(w, r)
		if s == nil {
			return
		}
		err = s.attach(st, nil)
	}
	if err != nil {
		writeDetail(w, http.StatusNotFound, "Session not found")
		return
	}
	defer s.detach(st)
	w.Header().Set("Cache-Control", "no-cache")
	w.Header().Set("X-Accel-Buffering", "no")
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	out := sse.Start(w, "text/event-stream; charset=utf-8",
		sse.Options{Stall: h.limits.Write, Idle: h.limits.KeepAlive, Beat: ":\n\n", Gone: cancel})
	defer out.Close()
	s.writeSSE(ctx, out, st)
}

// writeSSE writes frames as they become available, until the transport ends.
func (s *Session) writeSSE(ctx context.Context, out *sse.Writer, st *stream) {
	var batch [8]outFrame // on the stack, which lasts as long as an idle stream
	var buf []byte
	for {
		n, err := s.next(ctx, st, batch[:])
		if err != nil {
			return
		}
		buf = buf[:0]
		taken := 0
		for taken < n && (taken == 0 || len(buf) < 64<<10) {
			buf = append(append(append(buf, "data: "...), batch[taken].line...), "\n\n"...)
			taken++
		}
		if err := out.Write(buf); err != nil {
			s.h.Log.Debug("a2e: stream broken", "identity", s.Identity().Name)
			return
		}
		s.wrote(st, batch[:taken])
		clear(batch[:n])
		if cap(buf) > minBuffer && !s.waits(st) {
			buf = nil
		}
	}
}

// Health gives a program in this process the counts that GET /health reports: all
// sessions, and those without a handshake.
func (h *Host) Health() (sessions, pending int) {
	h.init()
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.sessions), h.pending.Len()
}

var _ http.Handler = (*Host)(nil)

// retryAfter reads the header Retry-After, in seconds.
func retryAfter(resp *http.Response) time.Duration {
	n, err := strconv.Atoi(resp.Header.Get("Retry-After"))
	if err != nil || n < 0 || n > 3600 {
		return 0
	}
	return time.Duration(n) * time.Second
}
