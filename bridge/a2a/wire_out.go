package a2a

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/internal/netguard"
)

// wire is the HTTP side of calls to one agent elsewhere, below the SDK's clients. They
// read any body to its end, accept duplicate members, lose the digits of numbers and the
// status of an error, and join no data lines. So wire bounds and checks each JSON document
// before they see it, and gives answers that are no success as a [statusError].
type wire struct {
	conn *connection
	max  int64 // bytes of an answer, and of one event
}

// maxEvent bounds an event more than any configuration: the SDK reads lines of up to
// 10 MiB, and data parts grow by a third on the way to it (see [literalParts]).
const maxEvent = 7 << 20

// RoundTrip implements http.RoundTripper.
func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := w.conn.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return nil, readStatus(resp)
	}
	stream := strings.HasPrefix(r.Header.Get("Accept"), "text/event-stream")
	media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")) // "" is refused below
	switch {
	case stream && media == "text/event-stream":
		resp.Body = &eventReader{body: resp.Body, r: bufio.NewReader(resp.Body), max: min(w.max, maxEvent)}
		return resp, nil
	case media == "application/json", strings.HasSuffix(media, "+json"):
	default:
		_ = resp.Body.Close()
		return nil, fmt.Errorf("%w: content type %.60q", errAnswer, media)
	}
	defer resp.Body.Close()
	b, err := netguard.ReadAll(resp.Body, w.max)
	if err != nil {
		return nil, readError(err)
	}
	if b, err = checkDocument(b); err != nil {
		return nil, err
	}
	if stream { // an error before the first event, or an agent that has one event to tell
		b = append(append([]byte("data: "), b...), "\n\n"...)
	}
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
	return resp, nil
}

var (
	// errAnswer is the cause of errors about an answer that is not the protocol's.
	errAnswer = errors.New("not an A2A answer")
	// errLarge is the cause of errors about an answer beyond its bound.
	errLarge = errors.New("the answer is too large")
)

// A lostError is a call without an answer.
type lostError struct {
	sent bool // the agent may have the request
	err  error
}

func (e *lostError) Error() string { return e.err.Error() }
func (e *lostError) Unwrap() error { return e.err }

// readError is the error of a body that could not be read: its request was sent.
func readError(err error) error {
	if errors.Is(err, netguard.ErrTooLarge) {
		return fmt.Errorf("%w: %w", errLarge, err)
	}
	return &lostError{true, err}
}

type traceKey struct{}

// withTrace makes calls part of a message's trace.
func withTrace(ctx context.Context, t parley.Trace) context.Context {
	if !bridge.IsTraceParent(t.Parent) {
		return ctx
	}
	return context.WithValue(ctx, traceKey{}, t)
}

// nameTrace names the trace of a call to the agent (W3C Trace Context, section 3).
func nameTrace(r *http.Request) {
	t, _ := r.Context().Value(traceKey{}).(parley.Trace)
	if t.Parent == "" {
		return
	}
	r.Header.Set("traceparent", t.Parent)
	if t.State != "" && len(t.State) <= maxTraceState {
		r.Header.Set("tracestate", t.State)
	}
}

// exchangeCall makes one exchange with an agent, in the trace of the message. A redirect is an answer: the card may
// have moved too.
func exchangeCall(r *http.Request, do func(*http.Request) (*http.Response, error)) (*http.Response, error) {
	nameTrace(r)
	if r.Method == http.MethodGet { // the SDK sends "null"
		r.Body, r.GetBody, r.ContentLength = nil, nil, 0
	}
	return traced(r, do)
}

// traced makes a request note whether the agent may have it.
func traced(r *http.Request, do func(*http.Request) (*http.Response, error)) (*http.Response, error) {
	var sent atomic.Bool
	resp, err := do(r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		WroteHeaders: func() { sent.Store(true) },
	})))
	if err != nil {
		return nil, &lostError{sent.Load(), err}
	}
	return resp, nil
}

// A statusError is an answer with an HTTP status that is no success.
type statusError struct {
	status int
	after  time.Duration // of Retry-After
	text   string        // that the agent gave
	is     error         // the protocol's error in the body; nil: none
}

func (e *statusError) Error() string {
	return strings.TrimSuffix(fmt.Sprintf("HTTP status %d: %s", e.status, e.text), ": ")
}

func (e *statusError) Unwrap() error { return e.is }

// moved reports that the agent may have another endpoint by now.
func (e *statusError) moved() bool {
	switch e.status {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect,
		http.StatusPermanentRedirect, http.StatusGone:
		return true
	case http.StatusNotFound, http.StatusMethodNotAllowed:
		return e.is == nil
	}
	return false
}

// maxErrorBody bounds what is read of an error's body.
const maxErrorBody = 64 << 10

// readStatus reads and closes an answer that is no success. What cannot be read of its
// body is left out: the status says enough.
func readStatus(resp *http.Response) error {
	defer resp.Body.Close()
	e := &statusError{status: resp.StatusCode, after: retryAfter(resp.Header.Get("Retry-After"))}
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	if err != nil || jsonx.Valid(b, answerDepth) != nil {
		return e
	}
	e.text = clipped(text(jsonx.Member(b, "detail")), maxErrorText) // RFC 9457
	inner := jsonx.Member(b, "error")
	if jsonx.Kind(inner) != '{' {
		e.text = cmp.Or(e.text, clipped(text(inner), maxErrorText))
		return e
	}
	e.text = cmp.Or(clipped(text(jsonx.Member(inner, "message")), maxErrorText), e.text)
	if n, err := strconv.Atoi(string(jsonx.Member(inner, "code"))); err == nil {
		e.is = codeErrors[n]
	}
	for _, name := range []string{"details", "data"} {
		jsonx.Elements(jsonx.Member(inner, name), func(v jsonx.Value) bool {
			if is := reasonErrors[text(jsonx.Member(v, "reason"))]; is != nil {
				e.is = is
			}
			return e.is == nil
		})
	}
	return e
}

// retryAfter reads Retry-After in seconds (RFC 9110, section 10.2.3); 0: none. The form
// with a date is not used by agents, and depends on their clocks.
func retryAfter(s string) time.Duration {
	n, err := strconv.Atoi(strings.TrimSpace(s))
	if err != nil || n <= 0 {
		return 0
	}
	return min(time.Duration(min(n, 1<<20))*time.Second, time.Hour)
}

// text decodes a JSON string; "" for anything else.
func text(v jsonx.Value) string {
	if jsonx.Kind(v) != '"' {
		return ""
	}
	s, _ := jsonx.Unquote(v)
	return s
}

const (
	answerDepth  = 64   // of a JSON document
	maxErrorText = 1000 // bytes
)

// checkDocument checks a JSON document from an agent, and gives it in the form in which the
// SDK loses nothing of it.
func checkDocument(b []byte) ([]byte, error) {
	if err := jsonx.Valid(b, answerDepth); err != nil {
		return nil, fmt.Errorf("%w: %w", errAnswer, err)
	}
	if jsonx.Kind(b) != '{' {
		return nil, fmt.Errorf("%w: not an object", errAnswer)
	}
	out := literalParts(make([]byte, 0, len(b)+len(b)/2), bytes.TrimSpace(b), false)
	// Only white space between values can be a line break.
	return bytes.ReplaceAll(bytes.ReplaceAll(out, []byte{'\n'}, []byte{' '}), []byte{'\r'}, []byte{' '}), nil
}

// literalParts copies a value, with each data part as bytes of type JSON: so its numbers keep
// their digits and its members their order. inParts: the value is an element of "parts",
// or that array.
func literalParts(out, b []byte, inParts bool) []byte {
	comma := func(open byte) {
		if out[len(out)-1] != open {
			out = append(out, ',')
		}
	}
	switch jsonx.Kind(b) {
	case '[':
		out = append(out, 0) // tells the begin from an element that ends in '['
		at := len(out) - 1
		jsonx.Elements(b, func(v jsonx.Value) bool {
			comma(0)
			out = literalParts(out, v, inParts)
			return true
		})
		out[at] = '['
		return append(out, ']')
	case '{':
		if inParts {
			if part, ok := dataPart(b); ok {
				return append(out, part...)
			}
		}
		out = append(out, 0)
		at := len(out) - 1
		jsonx.Places(b, func(name, value jsonx.Place) bool {
			comma(0)
			out = append(append(out, name.Of(b)...), ':')
			switch n, _ := jsonx.Unquote(name.Of(b)); n {
			case "metadata", "params":
				out = append(out, value.Of(b)...)
			case "data": // of an error: an array, an object or anything else (rule A2A-014)
				out = append(out, objects(value.Of(b))...)
			default:
				out = literalParts(out, value.Of(b), n == "parts")
			}
			return true
		})
		out[at] = '{'
		return append(out, '}')
	}
	return append(out, b...)
}

// objects gives the objects of an array, or an object, as an array.
func objects(b []byte) []byte {
	out := []byte{'['}
	add := func(v jsonx.Value) bool {
		if jsonx.Kind(v) == '{' {
			if len(out) > 1 {
				out = append(out, ',')
			}
			out = append(out, v...)
		}
		return true
	}
	if !jsonx.Elements(b, add) {
		out = out[:1]
		add(b)
	}
	return append(out, ']')
}

// dataPart gives a data part of either version as bytes; false for another part.
func dataPart(b []byte) ([]byte, bool) {
	var data, media, name, metadata jsonx.Value
	legacy, other := false, false
	jsonx.Members(b, func(n string, v jsonx.Value) bool {
		switch n {
		case "data":
			data = v
		case "kind":
			legacy = true
		case "mediaType":
			media = v
		case "filename":
			name = v
		case "metadata":
			metadata = v
		case "text", "raw", "url", "file":
			other = other || !jsonx.IsNull(v)
		}
		return true
	})
	if data == nil || other {
		return nil, false // the SDK refuses a part with several contents
	}
	if legacy && string(jsonx.Member(metadata, "data_part_compat")) == "true" && jsonx.Kind(data) == '{' {
		if v := jsonx.Member(data, "value"); v != nil {
			data = v
		}
	}
	if m := text(media); m == "" || !isJSONType(m) {
		media = jsonx.Value(`"application/json"`)
	}
	content := `"` + base64.StdEncoding.EncodeToString(data) + `"`
	var out []byte
	if legacy {
		out = fmt.Appendf(nil, `{"kind":"file","file":{"bytes":%s,"mimeType":%s}`, content, media)
	} else {
		out = fmt.Appendf(nil, `{"raw":%s,"mediaType":%s`, content, media)
		if name != nil {
			out = append(append(out, `,"filename":`...), name...)
		}
	}
	if metadata != nil {
		out = append(append(out, `,"metadata":`...), metadata...)
	}
	return append(out, '}'), true
}

func isJSONType(t string) bool {
	media, _, err := mime.ParseMediaType(t)
	return err == nil && (media == "application/json" || strings.HasSuffix(media, "+json"))
}

// eventReader reads server-sent events (WHATWG HTML, section 9.2) and gives them with one
// data line each, checked and bounded.
type eventReader struct {
	body io.Closer
	r    *bufio.Reader
	max  int64
	out  []byte // of the current event, not read yet
	data []byte // lines of the next event
	some bool   // data has a line
	size int64  // bytes of the next event so far
}

func (e *eventReader) Close() error { return e.body.Close() }

func (e *eventReader) Read(p []byte) (int, error) {
	for len(e.out) == 0 {
		if err := e.line(); err != nil {
			return 0, err
		}
	}
	n := copy(p, e.out)
	e.out = e.out[n:]
	return n, nil
}

// line reads one line, or a part of it that fills the buffer.
func (e *eventReader) line() error {
	var line []byte
	for {
		piece, err := e.r.ReadSlice('\n')
		if e.size += int64(len(piece)); e.size > e.max {
			return fmt.Errorf("%w: an event has more than %d bytes", errLarge, e.max)
		}
		line = append(line, piece...)
		switch {
		case err == nil:
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF):
			return io.EOF // an event without its blank line does not count
		default:
			return &lostError{true, err}
		}
		break
	}
	line = bytes.TrimSuffix(line, []byte("\n"))
	line = bytes.TrimSuffix(line, []byte("\r"))
	if len(line) > 0 {
		field, value, _ := bytes.Cut(line, []byte(":"))
		if string(field) == "data" {
			if e.some {
				e.data = append(e.data, '\n')
			}
			e.data, e.some = append(e.data, bytes.TrimPrefix(value, []byte(" "))...), true
		}
		return nil
	}
	data, some := e.data, e.some
	e.data, e.some, e.size = nil, false, 0
	if !some {
		return nil // comments alone
	}
	doc, err := checkDocument(data)
	if err != nil {
		return err
	}
	e.out = append(append([]byte("data: "), doc...), "\n\n"...)
	return nil
}

// codeErrors are the SDK's errors by JSON-RPC code (A2A 1.0, section 5.4).
var codeErrors = map[int]error{
	-32700: protocol.ErrParseError, -32600: protocol.ErrInvalidRequest, -32601: protocol.ErrMethodNotFound,
	-32602: protocol.ErrInvalidParams, -32603: protocol.ErrInternalError, -32000: protocol.ErrServerError,
	-32001: protocol.ErrTaskNotFound, -32002: protocol.ErrTaskNotCancelable,
	-32003: protocol.ErrPushNotificationNotSupported, -32004: protocol.ErrUnsupportedOperation,
	-32005: protocol.ErrUnsupportedContentType, -32006: protocol.ErrInvalidAgentResponse,
	-32007: protocol.ErrExtendedCardNotConfigured, -32008: protocol.ErrExtensionSupportRequired,
	-32009: protocol.ErrVersionNotSupported,
	-31401: protocol.ErrUnauthenticated, -31403: protocol.ErrUnauthorized, // of a2a-go alone
}

// reasonErrors are the same by the reason of google.rpc.ErrorInfo.
var reasonErrors = func() map[string]error {
	out := map[string]error{}
	for _, err := range codeErrors {
		out[protocol.ErrorReason(err)] = err
	}
	return out
}()

// clipped bounds a text of an agent: valid UTF-8 without control characters.
func clipped(s string, max int) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r == 0x7f {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	if len(s) > max {
		s = strings.ToValidUTF8(s[:max], "")
	}
	return s
}

// marshal encodes a value that cannot fail to encode.
func marshal(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		return nil // a value of an agent that came in as JSON
	}
	return b
}
