package mcp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/bridge/peerauth"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/internal/netguard"
	"github.com/parley-hub/parley/internal/recorder"
	"github.com/parley-hub/parley/internal/sleep"
)

const (
	maxEvents     = 10_000           // of one stream, and of progress of one call
	maxErrorBody  = 64 << 10         // bytes of an answer with an HTTP status that is no success
	maxStatusText = 200              // of its text
	maxRedirects  = 3                // within the origin
	noticeTimeout = 30 * time.Second // of a message that has no answer
	streamFirst   = time.Second      // before a stream of notices is opened again
	streamLongest = 5 * time.Minute
)

// A wire is the HTTP side of a link: it sees each exchange before the SDK does. It shows credentials to the enrolled
// origin alone, bounds each answer, and gives the SDK only answers that are sound. One that is not ends its own call,
// while the SDK would end the session with all calls.
type wire struct {
	link *link
	peer *peerauth.Client
	max  int64 // bytes of an answer, and of an event
}

// transport gives the SDK's transport over a wire.
func (w *wire) transport(endpoint string) *mcp.StreamableClientTransport {
	return &mcp.StreamableClientTransport{Endpoint: endpoint, MaxEventSize: -1, // the wire bounds events
		HTTPClient: &http.Client{Transport: w, CheckRedirect: noRedirect}}
}

func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// newWire makes the wire of a link to an enrolled URL.
func (b *Binding) newWire(l *link, at *url.URL, c peerauth.Credentials) *wire {
	return &wire{link: l, max: b.c.MaxAnswer, peer: peerauth.NewClient(at, c, peerauth.Config{Allow: b.c.Allow,
		RootCAs: b.c.RootCAs, Transport: b.c.Transport, Exchange: traceSent, Resource: at.String(), Now: b.c.Now})}
}

// A lostError is an exchange without an answer.
type lostError struct {
	sent bool // the server may have the request
	err  error
}

func (e *lostError) Error() string { return e.err.Error() }
func (e *lostError) Unwrap() error { return e.err }

// traceSent makes an exchange, and notes whether the server may have the request.
func traceSent(r *http.Request, do func(*http.Request) (*http.Response, error)) (*http.Response, error) {
	var sent atomic.Bool
	o := ongoingOf(r.Context())
	resp, err := do(r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		WroteHeaderField: func(string, []string) {
			sent.Store(true)
			if o != nil {
				o.sent.Store(true)
			}
		},
	})))
	if err != nil {
		return nil, &lostError{sent.Load(), err}
	}
	return resp, nil
}

// A serverStatus is an answer of an attached server with an HTTP status that is no success.
type serverStatus struct {
	status int
	after  time.Duration // of Retry-After; 0: none
	text   string        // that the server gave, clipped
	gone   bool          // the session ended
}

func (e *serverStatus) Error() string {
	return strings.TrimSuffix(fmt.Sprintf("HTTP status %d: %s", e.status, e.text), ": ")
}

// refused reports that the request was refused before anything was done.
func (e *serverStatus) refused() bool {
	return e.status >= 300 && e.status < 500 && e.status != http.StatusRequestTimeout
}

// RoundTrip implements http.RoundTripper.
func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		body, err = io.ReadAll(r.Body) // the SDK's, in memory
		if err = errors.Join(err, r.Body.Close()); err != nil {
			return nil, err
		}
	}
	id, method := string(jsonx.Member(body, "id")), jsonx.Member(body, "method")
	call := id != "" && method != nil
	switch {
	case r.Method == http.MethodGet && r.Header.Get("Last-Event-ID") == "",
		call && string(method) == `"subscriptions/listen"`:
		return w.notices(r.WithContext(recorder.With(r.Context(), nil)), body), nil
	case string(method) != `"tools/call"`:
		r = r.WithContext(recorder.Aside(r.Context()))
	}
	o := ongoingOf(r.Context())
	switch {
	case o == nil:
	case call:
		o.id.Store(&id)
	case r.Method == http.MethodGet && o.id.Load() != nil: // the answer's stream goes on
		id = *o.id.Load()
	}
	ctx, cancel := context.WithCancel(r.Context())
	unbind := context.AfterFunc(w.link.ctx, cancel)
	release := func() { unbind(); cancel() }
	if r.Method == http.MethodPost && !call {
		timer := time.AfterFunc(noticeTimeout, cancel)
		defer timer.Stop()
	}
	resp, err := w.exchange(r.WithContext(ctx), body)
	if err != nil {
		release()
		return nil, err
	}
	resp, err = w.take(r, resp, id, call || r.Method == http.MethodGet, o)
	if err != nil {
		release()
		return nil, err
	}
	resp.Body = &releasing{resp.Body, release}
	return resp, nil
}

// releasing is a body that releases what belongs to its exchange.
type releasing struct {
	io.ReadCloser
	release func()
}

func (b *releasing) Close() error {
	defer b.release()
	return b.ReadCloser.Close()
}

// exchange sends a request, and follows redirects of its origin that keep the method.
func (w *wire) exchange(r *http.Request, body []byte) (*http.Response, error) {
	for n := 0; ; n++ {
		if body != nil {
			r.Body = io.NopCloser(bytes.NewReader(body))
			r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
			r.ContentLength = int64(len(body))
		}
		resp, err := w.peer.RoundTrip(r)
		if err != nil {
			if _, lost := errors.AsType[*lostError](err); !lost { // a token, before the call
				err = &lostError{false, err}
			}
			return nil, err
		}
		if s := resp.StatusCode; s != http.StatusTemporaryRedirect && s != http.StatusPermanentRedirect {
			return resp, nil
		}
		to, err := resp.Location()
		if err != nil || n == maxRedirects || netguard.Origin(to) != netguard.Origin(r.URL) {
			return resp, nil // a status like others
		}
		_ = resp.Body.Close() // its content says nothing more
		r = r.Clone(r.Context())
		r.URL, r.Host = to, ""
	}
}

// take makes a response fit for the SDK. wants: it is to have the answer to the call id.
func (w *wire) take(r *http.Request, resp *http.Response, id string, wants bool, o *ongoing) (*http.Response, error) {
	media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	switch {
	case resp.StatusCode < 200 || resp.StatusCode > 299:
		return w.failed(r, resp)
	case !wants || resp.StatusCode == http.StatusNoContent:
		_, _ = io.CopyN(io.Discard, resp.Body, maxErrorBody) // so that the connection is used again
		_ = resp.Body.Close()
		resp.Body = http.NoBody
		return resp, nil
	case media == "text/event-stream":
		resp.Body = &eventFilter{w: w, body: resp.Body, in: bufio.NewReader(resp.Body), id: id, ongoing: o,
			ids: r.Header.Get("Mcp-Protocol-Version") < statelessRevision}
		return resp, nil
	case media != "application/json":
		_ = resp.Body.Close()
		return nil, &lostError{true, fmt.Errorf("%w: an answer of type %q", errMalformed, bridge.Shorten(media, 60))}
	}
	raw, err := netguard.ReadAll(resp.Body, w.max)
	_ = resp.Body.Close()
	if err == nil {
		raw, err = w.message(raw, id, o)
	}
	if err == nil && raw == nil {
		err = fmt.Errorf("%w: it is no answer to the call", errMalformed)
	}
	if err != nil {
		return nil, &lostError{true, err}
	}
	resp.Body = io.NopCloser(bytes.NewReader(raw))
	resp.ContentLength = int64(len(raw))
	resp.Header.Del("Content-Length")
	return resp, nil
}

// errMalformed is the cause of errors about an answer that does not keep to the protocol.
var errMalformed = errors.New("the server's answer is malformed")

// failed gives the SDK a JSON-RPC error that came with an HTTP status, and an error for all other statuses.
func (w *wire) failed(r *http.Request, resp *http.Response) (*http.Response, error) {
	raw, _ := netguard.ReadAll(resp.Body, maxErrorBody) // without it there is a status
	_ = resp.Body.Close()
	e := &serverStatus{status: resp.StatusCode, text: shownText(string(raw), maxStatusText)}
	if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s > 0 {
		e.after = time.Duration(min(s, int(24*time.Hour/time.Second))) * time.Second
	}
	if e.status >= 300 && e.status < 400 {
		e.text = "the server redirects to another address; enrol that one"
	}
	session := r.Header.Get("Mcp-Session-Id") != ""
	e.gone = session && (e.status == http.StatusNotFound || // so the specification; some servers answer with 400
		e.status == http.StatusBadRequest && strings.Contains(strings.ToLower(e.text), "session"))
	raw, err := strictObject(raw)
	if err != nil || jsonx.Kind(jsonx.Member(raw, "error")) != '{' {
		return nil, e
	}
	e.text = shownText(textOf(jsonx.Member(jsonx.Member(raw, "error"), "message")), maxStatusText)
	switch e.status {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusInternalServerError:
		if !e.gone {
			resp.Body = io.NopCloser(bytes.NewReader(raw))
			resp.ContentLength = int64(len(raw))
			return resp, nil
		}
	}
	return nil, e
}

// textOf gives a JSON string; "" for other values.
func textOf(v jsonx.Value) string {
	if jsonx.Kind(v) != '"' {
		return ""
	}
	s, _ := jsonx.Unquote(v)
	return s
}

// message checks a message that the server sent on the stream of the call id, "" for none, and gives it to the SDK;
// nil: it is not for the SDK.
func (w *wire) message(raw []byte, id string, o *ongoing) ([]byte, error) {
	raw, err := withRaw(raw)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errMalformed, err)
	}
	if jsonx.Member(raw, "method") == nil && (id == "" || string(jsonx.Member(raw, "id")) != id) {
		return nil, nil // an answer to another call
	}
	m, err := jsonrpc.DecodeMessage(raw)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errMalformed, err)
	}
	if m, err = w.link.receive(m, o); m == nil || err != nil {
		return nil, err
	}
	return jsonrpc.EncodeMessage(m)
}

// An eventFilter is the body of an event stream as the SDK may read it: bounded, and with sound messages only.
type eventFilter struct {
	w       *wire
	body    io.ReadCloser
	in      *bufio.Reader
	id      string   // of the call whose answer ends the stream; "": none
	ongoing *ongoing // nil: no call of a tool
	ids     bool     // the stream may be resumed after an event

	events int
	out    []byte // to be read next
	ended  bool
}

func (f *eventFilter) Close() error { return f.body.Close() }

// Read implements io.Reader.
func (f *eventFilter) Read(p []byte) (int, error) {
	for len(f.out) == 0 {
		if f.ended {
			return 0, io.EOF
		}
		if err := f.next(); err != nil {
			return 0, err
		}
	}
	n := copy(p, f.out)
	f.out = f.out[n:]
	return n, nil
}

// next reads one event.
func (f *eventFilter) next() error {
	e, err := readEvent(f.in, f.w.max)
	if f.events++; err == nil && f.events > maxEvents && f.id != "" {
		err = errFlood
	}
	var data []byte
	if err == nil && len(e.data) > 0 && (e.name == "" || e.name == "message") {
		data, err = f.w.message(e.data, f.id, f.ongoing)
	}
	if err != nil {
		if !errors.Is(err, errMalformed) && !errors.Is(err, errFlood) && !errors.Is(err, netguard.ErrTooLarge) {
			return err // of the connection, or its end
		}
		f.ended = true
		if f.ongoing != nil {
			f.ongoing.fail(err)
		}
		if f.id == "" {
			return nil
		}
		data, _ = jsonx.Encode(map[string]any{"jsonrpc": "2.0", "id": jsonx.Value(f.id), // no input can make it fail
			"error": map[string]any{"code": jsonrpc.CodeInternalError, "message": err.Error()}})
	}
	if !f.ids {
		e.id = ""
	}
	if data == nil && e.id == "" && e.retry == "" {
		return nil
	}
	var out bytes.Buffer
	for _, l := range []struct{ name, value string }{{"id", e.id}, {"retry", e.retry}, {"data", string(data)}} {
		if l.value != "" {
			fmt.Fprintf(&out, "%s: %s\n", l.name, l.value)
		}
	}
	out.WriteByte('\n')
	f.out = out.Bytes()
	return nil
}

// An sseEvent is one of an event stream (WHATWG HTML, section 9.2).
type sseEvent struct {
	name, id, retry string
	data            []byte
}

// readEvent reads the next event, of at most max bytes.
func readEvent(in *bufio.Reader, max int64) (e sseEvent, err error) {
	tooLarge := func() (sseEvent, error) {
		return sseEvent{}, fmt.Errorf("%w: an event of more than %d bytes", netguard.ErrTooLarge, max)
	}
	var size int64
	var some, data bool
	for {
		var line []byte
		for more := true; more; {
			var part []byte
			part, err = in.ReadSlice('\n')
			if more = errors.Is(err, bufio.ErrBufferFull); err != nil && !more {
				return sseEvent{}, err
			}
			if size += int64(len(part)); size > max {
				return tooLarge()
			}
			line = append(line, part...)
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			if some {
				return e, nil
			}
			size = 0
			continue
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(name) {
		case "":
			continue // a comment
		case "event":
			e.name = string(value)
		case "id":
			if e.id = string(value); len(e.id) > 1024 || strings.ContainsRune(e.id, 0) {
				e.id = ""
			}
		case "retry":
			if n, err := strconv.Atoi(string(value)); err == nil && n >= 0 {
				e.retry = strconv.Itoa(min(n, int(streamLongest.Milliseconds())))
			}
		case "data":
			if data {
				e.data = append(e.data, '\n')
			}
			e.data, data = append(e.data, value...), true
		}
		some = true
	}
}

// notices answers the SDK's request for a stream of notices at once, because the SDK waits for the header without a
// bound. The stream itself is opened in the background, and again when it ends, for as long as the link lasts.
func (w *wire) notices(r *http.Request, body []byte) *http.Response {
	ctx, cancel := context.WithCancel(r.Context())
	out, in := io.Pipe()
	unbind := context.AfterFunc(w.link.ctx, cancel)
	context.AfterFunc(ctx, func() { _ = in.CloseWithError(io.EOF) }) // a pipe does not fail to close
	go w.pump(r.WithContext(ctx), body, in)
	return &http.Response{StatusCode: http.StatusOK, Status: "200 OK", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {"text/event-stream"}}, Request: r,
		Body: &releasing{out, func() { unbind(); cancel() }}}
}

// pump copies notices from the server to the SDK.
func (w *wire) pump(r *http.Request, body []byte, in io.Writer) {
	for pause := streamFirst; ; pause = min(2*pause, streamLongest) {
		since := time.Now()
		resp, err := w.exchange(r, body)
		if err == nil {
			media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
			if resp.StatusCode != http.StatusOK || media != "text/event-stream" {
				_ = resp.Body.Close()
				if resp.StatusCode < 500 && resp.StatusCode != http.StatusTooManyRequests {
					return // the server has no such stream
				}
			} else {
				f := &eventFilter{w: w, body: resp.Body, in: bufio.NewReader(resp.Body)}
				_, _ = io.Copy(in, f) // it ends one way or another
				_ = f.Close()
				w.link.listChanged() // a notice may have been missed
			}
		}
		if time.Since(since) > streamLongest {
			pause = streamFirst
		}
		if sleep.For(r.Context(), pause) != nil {
			return
		}
	}
}
