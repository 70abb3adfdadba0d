package mcp

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-hub/parley/internal/memhttp"
)

// stream makes a request over a connection, and gives the answer as it comes.
func (w *doorWorld) stream(t *testing.T, a ask) (*http.Response, context.CancelFunc) {
	t.Helper()
	c, stop := memhttp.Client(w)
	ctx, cancel := context.WithCancel(context.Background())
	r := a.on().WithContext(ctx)
	r.RequestURI = ""
	resp, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); stop() })
	return resp, cancel
}

// line reads the next line of a stream that is not empty.
func line(t *testing.T, s *bufio.Scanner) string {
	t.Helper()
	for s.Scan() {
		if s.Text() != "" {
			return s.Text()
		}
	}
	return "end"
}

// MCP-031: a stream in which nothing happens gets a comment every 15 s, and no proxy holds it back.
func TestMCP031KeepAlive(t *testing.T) {
	t.Parallel()
	for _, modern := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			w := newDoorWorld(t)
			a := modernAsk("tools/call", `"name":"slow"`)
			if !modern {
				a = legacyAsk("alice", w.begin("alice"), `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"slow"}}`)
			}
			began := time.Now()
			r, _ := w.stream(t, a)
			if h := r.Header; h.Get("X-Accel-Buffering") != "no" || h.Get("Cache-Control") != "no-store" ||
				h.Get("Content-Type") != "text/event-stream" {
				t.Errorf("header %v", h)
			}
			s := bufio.NewScanner(r.Body)
			for i := range 3 {
				got, after := line(t, s), time.Since(began)
				if got != ": keep-alive" || after != time.Duration(i+1)*15*time.Second {
					t.Fatalf("%q after %s", got, after)
				}
			}
			w.slow <- struct{}{}
			if got := line(t, s) + line(t, s); !strings.HasPrefix(got, "event: messagedata: {") ||
				!strings.Contains(got, "late") {
				t.Errorf("the answer is %q", got)
			}
			if got := line(t, s); got != "end" {
				t.Errorf("after the answer: %q", got)
			}
		})
	}
}

// MCP-007, MCP-031: the stream of a session is announced at once, and kept alive.
func TestMCP031StandaloneStream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newDoorWorld(t)
		session := w.begin("alice")
		r, _ := w.stream(t, with(ask{method: "GET", token: "alice"}, "Mcp-Session-Id", session))
		if r.StatusCode != 200 || r.Header.Get("X-Accel-Buffering") != "no" {
			t.Errorf("%d, header %v", r.StatusCode, r.Header)
		}
		s, began := bufio.NewScanner(r.Body), time.Now()
		for i, want := range []string{": ok", ": keep-alive", ": keep-alive"} {
			got, after := line(t, s), time.Since(began)
			if got != want || after != time.Duration(i)*15*time.Second {
				t.Errorf("%q after %s", got, after)
			}
		}
		again := w.do(with(ask{method: "GET", token: "alice"}, "Mcp-Session-Id", session))
		if got := replyOf(t, again); again.StatusCode != 409 || got.Error == nil {
			t.Errorf("a second stream: %d %+v", again.StatusCode, got.Error)
		}
	})
}

// An error that comes after a comment cannot have a status any more: it is an event.
func TestLateErrorIsAnEvent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newDoorWorld(t)
		x := &httpExchange{b: w.Binding, w: discardAnswer{http.Header{}, &strings.Builder{}}, r: ask{}.on(), id: []byte("7")}
		p := newHTTPReply(x, func() {})
		p.waitsForEvents()
		time.Sleep(20 * time.Second)
		p.WriteHeader(http.StatusBadRequest)
		if _, err := io.WriteString(p, `{"jsonrpc":"2.0","id":7,"error":{"code":-32602,"message":"bad"}}`); err != nil {
			t.Fatal(err)
		}
		p.finish()
		got := x.w.(discardAnswer).String()
		if !strings.HasPrefix(got, ": keep-alive\n\nevent: message\ndata: {") || !strings.Contains(got, `"code":-32602`) ||
			!strings.HasSuffix(got, "}\n\n") {
			t.Errorf("%q", got)
		}
		if _, err := p.Write([]byte("more")); err == nil {
			t.Error("something is written after the end")
		}
	})
}

type discardAnswer struct {
	header http.Header
	*strings.Builder
}

func (d discardAnswer) Header() http.Header { return d.header }
func (d discardAnswer) WriteHeader(int)     {}

// MCP-028: an error of a handler has a code, and its text is for the operator.
func TestMCP028NoCodeZero(t *testing.T) {
	t.Parallel()
	w := newDoorWorld(t)
	for name, a := range map[string]ask{
		"modern": modernAsk("tools/call", `"name":"broken"`),
		"legacy": legacyAsk("alice", w.begin("alice"),
			`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"broken"}}`),
	} {
		got := replyOf(t, w.do(a))
		if got.Error == nil || got.Error.Code != -32603 || string(got.ID) != "7" ||
			strings.Contains(got.Error.Message+string(got.Error.Data), "secret") {
			t.Errorf("%s: %+v", name, got.Error)
		}
		seen := false
		for _, r := range w.hub.Refused(0) {
			seen = seen || r.Step == "answer" && strings.Contains(r.Cause, "secret of the inside")
		}
		if !seen {
			t.Errorf("%s: the operator does not see the cause", name)
		}
	}
}

// MCP-033: a client that cancels gets no answer, and its stream ends.
func TestMCP033NoAnswerAfterACancel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newDoorWorld(t)
		session := w.begin("alice")
		r, _ := w.stream(t, legacyAsk("alice", session,
			`{"jsonrpc":"2.0","id":"a\u0062","method":"tools/call","params":{"name":"slow"}}`))
		s := bufio.NewScanner(r.Body)
		if got := line(t, s); got != ": keep-alive" {
			t.Fatalf("%q", got)
		}
		cancel := `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"ab"}}`
		if r := w.do(legacyAsk("bob", session, cancel)); r.StatusCode != 404 {
			t.Errorf("another caller cancels: %d", r.StatusCode)
		}
		synctest.Wait()
		select {
		case err := <-w.ended:
			t.Fatalf("the call ended: %v", err)
		default:
		}
		if r := w.do(legacyAsk("alice", session, cancel)); r.StatusCode != 202 {
			t.Errorf("cancel: %d", r.StatusCode)
		}
		if got := line(t, s); got != "end" {
			t.Errorf("after the cancel: %q", got)
		}
		if err := <-w.ended; err == nil {
			t.Error("the context of the call goes on")
		}
		if r := w.do(legacyAsk("alice", session, `{"jsonrpc":"2.0","id":9,"method":"ping"}`)); r.StatusCode != 200 {
			t.Errorf("the session after it: %d", r.StatusCode)
		}
	})
}

// MCP-033: the SDK may answer between the cancel and the end of the stream.
func TestMCP033MutedAnswer(t *testing.T) {
	t.Parallel()
	w := newDoorWorld(t)
	x := &httpExchange{b: w.Binding, w: discardAnswer{http.Header{}, &strings.Builder{}}, r: ask{}.on()}
	ended := false
	p := newHTTPReply(x, func() { ended = true })
	p.Header().Set("Content-Type", "text/event-stream")
	if p.mute(); !ended {
		t.Error("the request goes on")
	}
	if _, err := io.WriteString(p, "event: message\ndata: {}\n\n"); err != nil {
		t.Error(err)
	}
	p.finish()
	if got := x.w.(discardAnswer); got.String() != "" || got.header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("%q %v", got, got.header)
	}
}

// MCP-032: a closed stream ends a call of 2026-07-28, and none of a handshake session.
func TestMCP032ClosedStream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newDoorWorld(t)
		_, cancel := w.stream(t, modernAsk("tools/call", `"name":"slow"`))
		cancel()
		if err := <-w.ended; err == nil {
			t.Error("a closed modern stream does not end the context of the call")
		}
		_, cancel = w.stream(t, legacyAsk("alice", w.begin("alice"),
			`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"slow"}}`))
		cancel()
		time.Sleep(time.Minute)
		synctest.Wait()
		select {
		case err := <-w.ended:
			t.Errorf("a lost legacy stream ended the call: %v", err)
		case w.slow <- struct{}{}:
		}
	})
}
