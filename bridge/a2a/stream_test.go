package a2a

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/policy"
)

// yields is a stream of events, and then err unless it is nil.
func yields(err error, list ...protocol.Event) func(context.Context) eventSeq {
	return func(context.Context) eventSeq {
		return func(yield func(protocol.Event, error) bool) {
			for _, e := range list {
				if !yield(e, nil) {
					return
				}
			}
			if err != nil {
				yield(nil, err)
			}
		}
	}
}

func taskIn(s protocol.TaskState) *protocol.Task {
	return &protocol.Task{ID: "T", ContextID: "C", Status: protocol.TaskStatus{State: s}}
}

func update(s protocol.TaskState) protocol.Event {
	return &protocol.TaskStatusUpdateEvent{TaskID: "T", ContextID: "C", Status: protocol.TaskStatus{State: s}}
}

func wirePiece(last bool) protocol.Event {
	return &protocol.TaskArtifactUpdateEvent{TaskID: "T", ContextID: "C", LastChunk: last, Append: !last,
		Artifact: &protocol.Artifact{ID: "result", Parts: protocol.ContentParts{protocol.NewTextPart("a\nb")}}}
}

const (
	send1      = `{"jsonrpc":"2.0","id":"q1","method":"SendStreamingMessage","params":` + hello1 + `}`
	send03     = `{"jsonrpc":"2.0","id":"q1","method":"message/stream","params":` + hello03 + `}`
	subscribe1 = `{"jsonrpc":"2.0","id":"q1","method":"SubscribeToTask","params":{"id":"T"}}`
	resume03   = `{"jsonrpc":"2.0","id":"q1","method":"tasks/resubscribe","params":{"id":"T"}}`
)

// dataOf gives the data of the events of a stream: one line each, with LF.
func dataOf(t *testing.T, rec *httptest.ResponseRecorder) (out []string) {
	t.Helper()
	if ct := rec.Header().Get("Content-Type"); rec.Code != 200 || ct != "text/event-stream" || !rec.Flushed ||
		rec.Header().Get("Cache-Control") != "no-cache" {
		t.Fatalf("status %d, type %q: %s", rec.Code, ct, rec.Body)
	}
	text, ok := strings.CutSuffix(rec.Body.String(), "\n\n")
	if !ok || strings.Contains(text, "\r") {
		t.Fatalf("%q", rec.Body)
	}
	for block := range strings.SplitSeq(text, "\n\n") {
		line, ok := strings.CutPrefix(block, "data: ")
		if !ok || strings.Contains(line, "\n") {
			t.Fatalf("block %q", block)
		}
		out = append(out, line)
	}
	return out
}

// TestStreams: rules A2A-030, A2A-032 and A2A-033.
func TestStreams(t *testing.T) {
	t.Parallel()
	w := newServing(t)
	w.fake.events = yields(nil, taskIn(protocol.TaskStateSubmitted), update(protocol.TaskStateWorking), wirePiece(true),
		update(protocol.TaskStateCompleted))
	events := []string{`{"task":{"id":"T","contextId":"C","status":{"state":"TASK_STATE_SUBMITTED"}}}`,
		`{"statusUpdate":{"taskId":"T","contextId":"C","status":{"state":"TASK_STATE_WORKING"}}}`,
		`{"artifactUpdate":{"taskId":"T","contextId":"C","artifact":{"artifactId":"result","parts":[{"text":"a\nb"}]},` +
			`"lastChunk":true}}`,
		`{"statusUpdate":{"taskId":"T","contextId":"C","status":{"state":"TASK_STATE_COMPLETED"}}}`}
	rest := dataOf(t, w.ask("POST", "/a2a/alice/message:stream", hello1, protocol.SvcParamVersion, V1))
	if strings.Join(rest, "\n") != strings.Join(events, "\n") {
		t.Errorf("REST\n%s", strings.Join(rest, "\n"))
	}
	for _, body := range []string{send1, subscribe1} {
		for i, line := range dataOf(t, w.rpc(V1, body)) {
			if want := `{"jsonrpc":"2.0","id":"q1","result":` + events[i] + `}`; line != want {
				t.Errorf("JSON-RPC\n%s\nwant\n%s", line, want)
			}
		}
	}
	old := dataOf(t, w.rpc(V03, send03))
	want := []string{`{"kind":"task","id":"T","contextId":"C","status":{"state":"submitted"}}`,
		`{"kind":"status-update","taskId":"T","contextId":"C","status":{"state":"working"},"final":false}`,
		`{"kind":"artifact-update","taskId":"T","contextId":"C","artifact":{"artifactId":"result",` +
			`"parts":[{"kind":"text","text":"a\nb"}]},"lastChunk":true}`,
		`{"kind":"status-update","taskId":"T","contextId":"C","status":{"state":"completed"},"final":true}`}
	for i, line := range old {
		if len(old) != len(want) || line != `{"jsonrpc":"2.0","id":"q1","result":`+want[i]+`}` {
			t.Errorf("0.3\n%s\nwant\n%s", line, want[i])
		}
	}
}

// TestFinal: a stream of 0.3 has final on its last status update alone. Where a task waits
// for its client, the stream of a message ends, and a subscription goes on.
func TestFinal(t *testing.T) {
	t.Parallel()
	w := newServing(t)
	for name, c := range map[string]struct {
		body   string
		events []protocol.Event
		final  string // of each status update: t or f
	}{
		"waits": {send03, []protocol.Event{taskIn(protocol.TaskStateSubmitted),
			update(protocol.TaskStateInputRequired)}, "t"},
		"waits, auth": {send03, []protocol.Event{taskIn(protocol.TaskStateSubmitted),
			update(protocol.TaskStateAuthRequired)}, "t"},
		"subscribed": {resume03, []protocol.Event{taskIn(protocol.TaskStateInputRequired),
			update(protocol.TaskStateInputRequired), update(protocol.TaskStateWorking),
			update(protocol.TaskStateFailed)}, "fft"},
		"the task of before": {send03, []protocol.Event{taskIn(protocol.TaskStateCompleted)}, "t"},
		"piece at the end": {send03, []protocol.Event{taskIn(protocol.TaskStateWorking), update(protocol.TaskStateCompleted),
			wirePiece(true)}, "t"},
		"cut off": {send03, []protocol.Event{taskIn(protocol.TaskStateWorking)}, ""},
		"message": {send03, []protocol.Event{&protocol.Message{ID: "m", Role: protocol.MessageRoleAgent}}, ""},
	} {
		w.fake.events = yields(nil, c.events...)
		got := ""
		for _, line := range dataOf(t, w.rpc(V03, c.body)) {
			switch {
			case strings.Contains(line, `"final":true`):
				got += "t"
			case strings.Contains(line, `"final":false`):
				got += "f"
			}
		}
		if got != c.final {
			t.Errorf("%s: final %q, want %q", name, got, c.final)
		}
	}
}

// TestStreamErrors: before the first event an error is a plain answer, after it an event.
func TestStreamErrors(t *testing.T) {
	t.Parallel()
	w := newServing(t)
	w.fake.events = yields(protocol.ErrTaskNotFound)
	for version, body := range map[string]string{V1: subscribe1, V03: resume03} {
		rec := w.rpc(version, body)
		if a := parseAnswer(t, rec); rec.Header().Get("Content-Type") != "application/json" || a.Error.Code != -32001 ||
			string(a.ID) != `"q1"` {
			t.Errorf("%s: %s", version, rec.Body)
		}
	}
	for _, method := range []string{"GET", "POST"} {
		rec := w.ask(method, "/a2a/alice/tasks/T:subscribe", "", protocol.SvcParamVersion, V1)
		if reason, _ := parseAnswer(t, rec).info(t); rec.Code != 404 || reason != "TASK_NOT_FOUND" {
			t.Errorf("%s: %d %s", method, rec.Code, rec.Body)
		}
	}
	w.fake.events = yields(errors.New("secret"), taskIn(protocol.TaskStateWorking))
	lines := dataOf(t, w.rpc(V1, subscribe1))
	if len(lines) != 2 || !strings.HasPrefix(lines[1], `{"jsonrpc":"2.0","id":"q1","error":{"code":-32603,`) ||
		strings.Contains(lines[1], "secret") {
		t.Errorf("%q", lines)
	}
	lines = dataOf(t, w.ask("GET", "/a2a/alice/tasks/T:subscribe", "", protocol.SvcParamVersion, V1))
	if len(lines) != 2 || !strings.HasPrefix(lines[1], `{"error":{"code":500,`) {
		t.Errorf("%q", lines)
	}
	w.fake.events = yields(nil)
	if a := parseAnswer(t, w.rpc(V1, subscribe1)); a.Error.Code != -32603 {
		t.Errorf("no event: %+v", a.Error)
	}
}

// TestStreamBound: a caller has Config.Streams streams, of all transports.
func TestStreamBound(t *testing.T) {
	t.Parallel()
	w := newServing(t, func(c *Config) { c.Streams = 2; c.Callers = fakeCallers{} })
	open := func(credentials string, inside func()) *httptest.ResponseRecorder {
		w.fake.events = func(context.Context) eventSeq {
			return func(yield func(protocol.Event, error) bool) {
				yield(taskIn(protocol.TaskStateWorking), nil)
				inside()
			}
		}
		return w.ask("POST", "/a2a/alice", subscribe1, protocol.SvcParamVersion, V1, "Authorization", credentials)
	}
	nothing := func() {}
	open("", func() {
		open("", func() {
			rec := open("", nothing)
			if _, m := parseAnswer(t, rec).info(t); rec.Code != 429 || rec.Header().Get("Retry-After") == "" ||
				m["code"] != "rate_limited" {
				t.Errorf("third stream: %d %s", rec.Code, rec.Body)
			}
			if rec := open("Bearer bob", nothing); rec.Code != 200 {
				t.Errorf("stream of another: %d", rec.Code)
			}
		})
		if rec := open("", nothing); rec.Code != 200 {
			t.Errorf("after one ended: %d %s", rec.Code, rec.Body)
		}
	})
	if n := len(w.opened.open); n != 0 {
		t.Errorf("%d callers are kept", n)
	}
}

// TestEndStreams: open streams end, and new ones are refused.
func TestEndStreams(t *testing.T) {
	t.Parallel()
	w := newServing(t)
	ended := false
	w.fake.events = func(ctx context.Context) eventSeq {
		return func(yield func(protocol.Event, error) bool) {
			yield(taskIn(protocol.TaskStateWorking), nil)
			w.EndStreams()
			<-ctx.Done()
			ended = true
			yield(nil, ctx.Err())
		}
	}
	if lines := dataOf(t, w.rpc(V1, subscribe1)); len(lines) != 1 || !ended {
		t.Errorf("%q, ended %t", lines, ended)
	}
	rec := w.rpc(V1, subscribe1)
	if _, m := parseAnswer(t, rec).info(t); rec.Code != 503 || m["code"] != string(parley.Unavailable) {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
}

// revocable knows one caller, whose credentials end with valid.
type revocable struct {
	fakeCallers
	valid context.Context
	ended *int
}

func (r revocable) Identify(context.Context, string, http.Header, *tls.ConnectionState, string) (bridge.Caller, error) {
	return bridge.Caller{Name: "bob", Peer: "token bob", During: func(ctx context.Context) (context.Context, func()) {
		ctx, cancel := context.WithCancel(ctx)
		stop := context.AfterFunc(r.valid, cancel)
		return ctx, func() { *r.ended++; stop(); cancel() }
	}}, nil
}

// TestRevokedCaller: the streams of a caller end with its credentials; one that has not begun is
// refused.
func TestRevokedCaller(t *testing.T) {
	t.Parallel()
	for _, begun := range []bool{true, false} {
		valid, revoke := context.WithCancel(t.Context())
		ended := 0
		w := newServing(t, func(c *Config) { c.Callers = revocable{valid: valid, ended: &ended} })
		w.fake.events = func(ctx context.Context) eventSeq {
			return func(yield func(protocol.Event, error) bool) {
				if begun {
					yield(taskIn(protocol.TaskStateWorking), nil)
				}
				revoke()
				<-ctx.Done()
				yield(nil, ctx.Err())
			}
		}
		rec := w.rpc(V1, subscribe1)
		if begun {
			if lines := dataOf(t, rec); len(lines) != 1 {
				t.Errorf("%q", lines)
			}
		} else if rec.Code != 401 || rec.Header().Get("WWW-Authenticate") == "" ||
			!strings.Contains(rec.Body.String(), "no longer valid") {
			t.Errorf("%d %s", rec.Code, rec.Body)
		}
		if ended != 1 || len(w.opened.open) != 0 {
			t.Errorf("ended %d times, %d streams are open", ended, len(w.opened.open))
		}
	}
}

// TestDisconnect: a client that leaves ends its stream.
func TestDisconnect(t *testing.T) {
	t.Parallel()
	w := newServing(t)
	ctx, leave := context.WithCancel(t.Context())
	w.fake.events = func(ctx context.Context) eventSeq {
		return func(yield func(protocol.Event, error) bool) {
			yield(taskIn(protocol.TaskStateWorking), nil)
			leave()
			<-ctx.Done()
			yield(nil, ctx.Err())
		}
	}
	r := httptest.NewRequestWithContext(ctx, "POST", "/a2a/alice", strings.NewReader(subscribe1))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set(protocol.SvcParamVersion, V1)
	rec := httptest.NewRecorder()
	w.ServeHTTP(rec, r)
	if lines := dataOf(t, rec); len(lines) != 1 {
		t.Errorf("%q", lines)
	}
}

// TestKeepAlive: an idle stream has comments.
func TestKeepAlive(t *testing.T) {
	t.Parallel()
	w := newServing(t)
	_ = w.streaming.Done() // its channel is made here, outside of the bubble
	synctest.Test(t, func(t *testing.T) {
		w.fake.events = func(ctx context.Context) eventSeq {
			return func(yield func(protocol.Event, error) bool) {
				yield(taskIn(protocol.TaskStateWorking), nil)
				<-time.After(2*w.c.KeepAlive + time.Second)
				yield(update(protocol.TaskStateCompleted), nil)
			}
		}
		body := w.rpc(V1, subscribe1).Body.String()
		if n := strings.Count(body, ": keep-alive\n\n"); n != 2 || !strings.HasPrefix(body, "data: ") {
			t.Errorf("%d comments: %q", n, body)
		}
	})
}

// Guests of one source share its streams: one guest may have many addresses.
func TestStreamsOfASource(t *testing.T) {
	t.Parallel()
	w := newServing(t, func(c *Config) { c.Streams = 1 })
	open := func(address string, inside func()) int {
		w.fake.events = func(context.Context) eventSeq {
			return func(yield func(protocol.Event, error) bool) {
				yield(taskIn(protocol.TaskStateWorking), nil)
				inside()
			}
		}
		ctx := policy.WithCaller(t.Context(), policy.NewCaller(policy.Source(address), nil))
		r := httptest.NewRequestWithContext(ctx, "POST", "/a2a/alice", strings.NewReader(subscribe1))
		r.RemoteAddr = net.JoinHostPort(address, "99")
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set(protocol.SvcParamVersion, V1)
		rec := httptest.NewRecorder()
		w.ServeHTTP(rec, r)
		return rec.Code
	}
	open("2001:db8::1", func() {
		for address, want := range map[string]int{"2001:db8::2": 429, "2001:db8:0:1::1": 200, "192.0.2.7": 200} {
			if got := open(address, func() {}); got != want {
				t.Errorf("%s: status %d, want %d", address, got, want)
			}
		}
	})
	if n := len(w.opened.open); n != 0 {
		t.Errorf("%d callers are kept", n)
	}
}
