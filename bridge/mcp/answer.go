package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/internal/source"
	"github.com/parley-hub/parley/internal/sse"
)

// writeStall is how long one write to a client may take.
const writeStall = 30 * time.Second

// maxSDKError bounds what is kept of an error that the SDK answers with.
const maxSDKError = 64 << 10

// Headers of answers.
const (
	refHeader     = "Parley-Ref" // reference of a refusal
	sessionHeader = "Mcp-Session-Id"
)

// An httpReply is the answer to one request, as the SDK writes it. Plain texts become errors of JSON-RPC, code 0
// becomes another, and a stream in which nothing happens gets comments.
type httpReply struct {
	x      *httpExchange
	cancel context.CancelFunc // ends the request
	opened func(session string)
	header http.Header // as the SDK sets it

	mu      sync.Mutex
	status  int           // 0: not known yet
	events  *sse.Writer   // nil: no event stream, or not yet
	failure *bytes.Buffer // an error of the SDK; nil: none
	early   *time.Timer   // begins the stream before the first event
	muted   bool          // the client wants no answer
	over    bool
}

func newHTTPReply(x *httpExchange, cancel context.CancelFunc) *httpReply {
	return &httpReply{x: x, cancel: cancel, header: http.Header{}}
}

// waitsForEvents begins the stream of a call when nothing has happened for a while. Until then an error has its status.
func (p *httpReply) waitsForEvents() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.early = time.AfterFunc(p.x.b.c.KeepAlive, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.status == 0 && !p.over && !p.muted {
			p.begin()
			_ = p.events.Write([]byte(keepAliveComment))
		}
	})
}

const keepAliveComment = ": keep-alive\n\n"

// begin begins an event stream; mu is held.
func (p *httpReply) begin() {
	if p.events != nil {
		return
	}
	h := p.x.w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // a proxy must not hold events back
	h.Set("X-Content-Type-Options", "nosniff")
	p.events = sse.Start(p.x.w, "text/event-stream", sse.Options{Stall: writeStall, Idle: p.x.b.c.KeepAlive,
		Beat: keepAliveComment, Gone: p.cancel})
}

// Header implements http.ResponseWriter.
func (p *httpReply) Header() http.Header { return p.header }

// WriteHeader implements http.ResponseWriter.
func (p *httpReply) WriteHeader(status int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.head(status)
}

func (p *httpReply) head(status int) {
	if p.status != 0 || p.over || status < 200 {
		return
	}
	p.status = status
	if id := p.header.Get(sessionHeader); id != "" && status < 300 {
		p.x.w.Header().Set(sessionHeader, id)
		if p.opened != nil {
			p.opened(id)
		}
	}
	switch {
	case p.muted:
	case status >= 400:
		p.failure = &bytes.Buffer{}
	case p.events != nil || strings.HasPrefix(p.header.Get("Content-Type"), "text/event-stream"):
		p.begin()
	default:
		h := p.x.w.Header()
		h.Set("Cache-Control", "no-store")
		if t := p.header.Get("Content-Type"); t != "" {
			h.Set("Content-Type", t)
		}
		p.x.w.WriteHeader(status)
	}
}

// Write implements http.ResponseWriter. The SDK writes whole events.
func (p *httpReply) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return 0, http.ErrHandlerTimeout
	}
	p.head(http.StatusOK)
	switch {
	case p.muted:
	case p.failure != nil:
		p.failure.Write(b[:min(len(b), maxSDKError-p.failure.Len())])
	case p.events != nil:
		if err := p.events.Write(p.coded(b)); err != nil {
			return 0, err
		}
	default:
		return p.x.w.Write(b)
	}
	return len(b), nil
}

// FlushError is for http.ResponseController. Events are flushed as they are written.
func (p *httpReply) FlushError() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over || p.muted || p.failure != nil || p.events != nil || p.status == 0 {
		return nil
	}
	return http.NewResponseController(p.x.w).Flush()
}

// Unwrap is for http.ResponseController.
func (p *httpReply) Unwrap() http.ResponseWriter { return p.x.w }

// mute ends the answer: nothing more is written.
func (p *httpReply) mute() {
	p.mu.Lock()
	p.muted = true
	p.mu.Unlock()
	p.cancel()
}

// finish ends the answer when the SDK has returned.
func (p *httpReply) finish() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	if p.early != nil {
		p.early.Stop()
	}
	switch {
	case p.muted:
		p.begin() // what was a stream ends as one, without an event
	case p.failure != nil && p.events != nil: // too late for a status
		if b, err := p.x.body(p.x.of(p.status, p.failure.Bytes())); err == nil {
			_ = p.events.Write(errorEvent(b))
		}
	case p.failure != nil:
		if allow := p.header.Get("Allow"); allow != "" {
			p.x.w.Header().Set("Allow", allow)
		}
		p.x.fail("decode", p.x.of(p.status, p.failure.Bytes()))
	}
	if p.events != nil {
		p.events.Close()
	}
}

func errorEvent(data []byte) []byte {
	return append(append(append(make([]byte, 0, len(data)+32), "event: message\ndata: "...), data...), '\n', '\n')
}

// coded gives an event as the client gets it: an error without a code gets one, and a text that says nothing of the
// inside (rule MCP-028).
func (p *httpReply) coded(event []byte) []byte {
	before, data, ok := bytes.Cut(event, []byte("data: "))
	if !ok || !bytes.HasPrefix(before, []byte("event: ")) || !bytes.Contains(data, []byte(`"error":`)) {
		return event
	}
	id, fault := errorOf(data)
	if fault == nil || fault.Code != 0 {
		return event
	}
	e := &wireError{http: http.StatusInternalServerError, rpc: jsonrpc.CodeInternalError, code: parley.Internal,
		text: "internal error", err: errors.New(fault.Message)}
	p.x.note("answer", e)
	b, err := rpcErrorBody(id, e.rpc, e.text, e.data)
	if err != nil {
		return event
	}
	return errorEvent(b)
}

// errorOf reads an error response; nil: it is none.
func errorOf(message []byte) (id jsonx.Value, _ *jsonrpc.Error) {
	var fault jsonx.Value
	jsonx.Members(message, func(name string, v jsonx.Value) bool {
		switch name {
		case "id":
			id = v
		case "error":
			fault = v
		}
		return true
	})
	e := &jsonrpc.Error{}
	if fault == nil || json.Unmarshal(fault, e) != nil {
		return nil, nil
	}
	return id, e
}

// of is the error for an error answer of the SDK. The door refuses what it can before; so few are left.
func (x *httpExchange) of(status int, body []byte) *wireError {
	e := &wireError{http: status, rpc: jsonrpc.CodeInvalidRequest, code: parley.Malformed,
		text: "the request is not valid", err: errors.New(strings.TrimSpace(string(body)))}
	if id, fault := errorOf(body); fault != nil && fault.Code != 0 {
		x.id, e.rpc, e.text = id, fault.Code, fault.Message
		if fault.Data != nil {
			e.data = fault.Data
		}
		return e
	}
	switch {
	case status == http.StatusForbidden || status == http.StatusNotFound: // the session is another caller's, or is ending
		return noSession()
	case status == http.StatusMethodNotAllowed:
		e.text = "this HTTP method is not allowed here"
	case status == http.StatusConflict:
		e.code, e.text = parley.Conflict, "the session has an open stream already"
	case status >= 500 || status == http.StatusUnauthorized:
		e.http, e.rpc, e.code = http.StatusInternalServerError, jsonrpc.CodeInternalError, parley.Internal
		e.text = "internal error"
	}
	return e
}

// httpStatuses are the HTTP statuses of refusals.
var httpStatuses = map[parley.Code]int{
	parley.Malformed: 400, parley.Unsupported: 400, parley.Unauthenticated: 401, parley.Forbidden: 403,
	parley.UnknownAgent: 404, parley.TooLarge: 413, parley.RateLimited: 429,
	parley.Unavailable: 503, parley.NoSpace: 503, parley.Cancelled: 503, parley.TimedOut: 504,
}

// toWireError gives an error as a client gets it.
func toWireError(err error) *wireError {
	if e, ok := errors.AsType[*wireError](err); ok {
		return e
	}
	e := parley.AsError(err)
	status, ok := httpStatuses[e.Code]
	if !ok {
		return &wireError{http: http.StatusInternalServerError, rpc: jsonrpc.CodeInternalError, code: parley.Internal,
			text: "internal error", err: err}
	}
	w := &wireError{http: status, rpc: jsonrpc.CodeInvalidRequest, code: e.Code, text: e.Text, err: err}
	if status >= 500 {
		w.rpc = jsonrpc.CodeInternalError
	}
	return w
}

// refusalData is what hub.parley/error tells of an error.
type refusalData struct {
	Code      parley.Code `json:"code"`
	Retryable bool        `json:"retryable"`
	After     int64       `json:"after,omitzero"` // ms
	Ref       string      `json:"ref,omitzero"`
}

// note keeps a refusal for operators, and tells the client its reference.
func (x *httpExchange) note(step string, e *wireError) {
	hubs, said := errors.AsType[*parley.Error](e.err)
	meta := refusalData{Code: e.code}
	if said {
		meta.Ref, meta.Retryable = hubs.Ref, hubs.Retryable
		if hubs.Retryable {
			meta.After = hubs.After.Milliseconds()
		}
	}
	if meta.Ref == "" {
		r := hub.Refusal{Protocol: Protocol, Source: source.Host(x.r.RemoteAddr), Claim: x.caller.Name, To: x.to.agent,
			Step: step, Code: e.code, Text: e.text, Size: x.size, Verdict: x.caller.Verdict}
		if e.err != nil {
			r.Cause = e.err.Error()
		}
		meta.Ref = x.b.c.Hub.Refuse(r.Because(e.err))
	}
	if e.code == parley.Internal {
		x.b.c.Logger.Error("an MCP request failed", "path", x.r.URL.Path, "ref", meta.Ref, "error", e.err)
	}
	x.ref, x.after = meta.Ref, (meta.After+999)/1000
	if e.data == nil {
		e.data = map[string]refusalData{"hub.parley/error": meta}
	}
}

// body is the body of an error response.
func (x *httpExchange) body(e *wireError) ([]byte, error) {
	x.note("answer", e)
	return rpcErrorBody(x.id, e.rpc, e.text, e.data)
}

// fail answers an error. step is where it arose: "origin", "decode", "verify" or "admit".
func (x *httpExchange) fail(step string, err error) {
	if x.r.Context().Err() != nil {
		return // the caller is gone
	}
	e := toWireError(err)
	x.note(step, e)
	body, err := rpcErrorBody(x.id, e.rpc, e.text, e.data)
	if err != nil {
		x.b.c.Logger.Error("an error of MCP cannot be encoded", "ref", x.ref, "error", err)
		body = nil
	}
	h := x.w.Header()
	h.Set(refHeader, x.ref)
	if x.after > 0 && (e.http == http.StatusTooManyRequests || e.http == http.StatusServiceUnavailable) {
		h.Set("Retry-After", strconv.FormatInt(x.after, 10))
	}
	if e.http == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", x.challenge())
	}
	x.write(e.http, body)
}

// write answers with JSON.
func (x *httpExchange) write(status int, body []byte) {
	h := x.w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	x.w.WriteHeader(status)
	_, _ = x.w.Write(body) // an error: the caller is gone
}
