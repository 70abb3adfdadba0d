package samvad

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/parley-hub/parley/internal/memhttp"
	"github.com/parley-hub/parley/internal/netguard"
)

// newClient gives a client of the world's sender that reaches its server
// under the host self.test, without a network.
func newClient(w *world) *Client {
	return &Client{Identity: w.me, HTTP: &http.Client{Transport: memhttp.Hosts{"self.test": w.srv}}, Now: w.clk.now}
}

// SAM-161: our client against our server, over real HTTP, under a prefix.
func TestClientServer(t *testing.T) {
	w := newWorld(t)
	h := w.agent.Handler
	w.agent.Handler = func(ctx context.Context, r *Request) (Response, error) {
		if r.Endpoint == ModeStream && r.Skill.ID == "echo" {
			for _, c := range []string{`"a"`, `{"b":1.0}`} {
				if err := r.Chunk(json.RawMessage(c)); err != nil {
					return Response{}, err
				}
			}
		}
		return h(ctx, r)
	}
	srv := httptest.NewServer(w.srv)
	defer srv.Close()
	guard := AllowPrefixes(netip.MustParsePrefix("127.0.0.0/8"))
	c := &Client{Identity: w.me, Guard: guard, Now: w.clk.now, PollEvery: time.Millisecond}
	defer func() { c.get.CloseIdleConnections() }()
	ctx := t.Context()
	for _, base := range []string{srv.URL, srv.URL + "/", srv.URL + "/a/b%20c/"} {
		call := Call{URL: base, Skill: "echo", Payload: json.RawMessage(`{"text":"hi"}`)} // To from the card
		r, err := c.Ask(ctx, call)
		if err != nil || string(r.Result) != `{"got":{"text":"hi"}}` || r.TraceID == "" || r.SpanID == "" {
			t.Errorf("%s: sync: %+v, %v", base, r, err)
		}
		id, err := c.Send(ctx, call)
		if err != nil {
			t.Fatal(err)
		}
		task, err := c.Wait(ctx, base, id)
		if err != nil || task.Status != TaskDone || string(task.Result) != `{"got":{"text":"hi"}}` {
			t.Errorf("%s: async: %+v, %v", base, task, err)
		}
		var got []string
		for ev, err := range c.Stream(ctx, call) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, string(ev.Chunk)+string(ev.Result))
		}
		if strings.Join(got, " ") != `"a" {"b":1.0} {"got":{"text":"hi"}}` {
			t.Errorf("%s: stream: %q", base, got)
		}
	}
	fail := Call{URL: srv.URL, To: worldID, Skill: "fail"}
	var e *Error
	if _, err := c.Ask(ctx, fail); !errors.As(err, &e) || e.Code != CodeAgentUnavailable || !e.Retryable ||
		!errors.Is(err, ErrRemote) {
		t.Errorf("%v", err)
	}
	id, err := c.Send(ctx, fail)
	if err != nil {
		t.Fatal(err)
	}
	if task, err := c.Wait(ctx, srv.URL, id); !errors.As(err, &e) || e.Code != CodeAgentUnavailable ||
		task.Status != TaskFailed {
		t.Errorf("%+v, %v", task, err)
	}
	for _, err := range c.Stream(ctx, fail) {
		if !errors.As(err, &e) || e.Code != CodeAgentUnavailable {
			t.Errorf("%v", err)
		}
	}
	for _, err := range c.Stream(ctx, Call{URL: srv.URL, To: worldID, Skill: "nope"}) {
		if !errors.As(err, &e) || e.Code != CodeSkillNotFound || e.HTTPStatus() != 404 {
			t.Errorf("%v", err)
		}
	}
	if _, err := c.Task(ctx, srv.URL, "undefined"); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	// Breaking off a stream ends the call.
	for range c.Stream(ctx, Call{URL: srv.URL, To: worldID, Skill: "echo", Payload: json.RawMessage(`{"text":"x"}`)}) {
		break
	}
	// By default, internal addresses are not called.
	strict := &Client{Identity: w.me}
	var blocked *netguard.BlockedError
	if _, err := strict.Ask(ctx, fail); !errors.As(err, &blocked) {
		t.Error(err)
	}
	if _, err := strict.Card(ctx, srv.URL); !errors.As(err, &blocked) {
		t.Error(err)
	}
	if _, err := strict.Task(ctx, srv.URL, "x"); !errors.As(err, &blocked) {
		t.Error(err)
	}
}

// TestGuardAdvice: the error about a blocked address names the field that allows it, and what it says works.
func TestGuardAdvice(t *testing.T) {
	srv := httptest.NewServer(http.NotFoundHandler())
	defer srv.Close()
	w := newWorld(t)
	c := &Client{Identity: w.me}
	_, err := c.Card(t.Context(), srv.URL)
	const want = `set Client.Guard to samvad.AllowPrefixes(netip.MustParsePrefix("127.0.0.1/32"))`
	if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "parley.toml") {
		t.Errorf("%v\nwant %s", err, want)
	}
	c = &Client{Identity: w.me, Guard: AllowPrefixes(netip.MustParsePrefix("127.0.0.1/32"))}
	if _, err := c.Card(t.Context(), srv.URL); err == nil || errors.Is(err, netguard.ErrBlocked) {
		t.Errorf("the advice does not help: %v", err)
	}
	if err := CheckCallback("https://10.1.2.3/", nil); err == nil || !strings.Contains(err.Error(), "set Webhook.Guard") {
		t.Error(err)
	}
	_, err = (&CardStore{}).Keys(t.Context(), "agent://10.1.2.3")
	if err == nil || !strings.Contains(err.Error(), "set CardStore.Guard") {
		t.Error(err)
	}
	// A hub's guard speaks of the hub's configuration.
	hub := &netguard.Guard{Advice: netguard.HubAdvice}
	_, err = (&Client{Identity: w.me, Guard: hub}).Card(t.Context(), srv.URL)
	if err == nil || !strings.Contains(err.Error(), "parley.toml: [network] allow") {
		t.Error(err)
	}
}

// SAM-152, SAM-153
func TestClientRequests(t *testing.T) {
	w := newWorld(t)
	c := newClient(w)
	t.Run("SAM-152 no null, no query, always a payload", func(t *testing.T) {
		for _, mode := range []Mode{ModeSync, ModeAsync, ModeStream} {
			r, e, err := c.Request(t.Context(), Call{URL: "https://self.test/p/", To: worldID,
				Skill: "echo", CallbackURL: "https://cb.example/x"}, mode)
			if err != nil {
				t.Fatal(err)
			}
			b, _ := io.ReadAll(r.Body)
			if err := RequestDocument.Validate(b); err != nil {
				t.Error(err)
			}
			var m map[string]any
			into(t, b, &m)
			for k, v := range m {
				if v == nil {
					t.Errorf("%s: %s is null", mode, k)
				}
			}
			if _, ok := m["payload"].(map[string]any); !ok {
				t.Errorf("%s: payload %v", mode, m["payload"])
			}
			if _, ok := m["callbackUrl"]; ok != (mode == ModeAsync) {
				t.Errorf("%s: callbackUrl %v", mode, m["callbackUrl"])
			}
			path := map[Mode]string{ModeSync: "/p/agent/message", ModeAsync: "/p/agent/task",
				ModeStream: "/p/agent/stream"}[mode]
			if r.URL.RawQuery != "" || r.URL.Path != path || e.Mode != mode {
				t.Errorf("%s: %s", mode, r.URL)
			}
			if _, err := VerifySignature(&Incoming{Method: "POST", Paths: []string{path}, Header: r.Header, Body: b},
				w.clk.now(), w.me.Key()); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("SAM-153 relay", func(t *testing.T) {
		body := w.envelope(map[string]any{"traceId": "root", "spanId": "hop-1",
			"payload": json.RawMessage(`{"n":1.0}`)})
		m, err := w.srv.Verifier.CheckMessage(t.Context(), &Incoming{
			Self: worldID, Method: "POST", Paths: []string{"/agent/message"}, Body: body,
			Header: signedRequest(t, w.me, "/agent/message", body, w.clk.now()).Header,
		})
		if err != nil {
			t.Fatal(err)
		}
		hub := &Client{Identity: identity(t, "agent://hub.test", "h", 6), HTTP: c.HTTP,
			Now: func() time.Time { return epoch.Add(time.Second) }}
		e, b, err := hub.Envelope(Call{URL: "https://next.test", To: "agent://next.test",
			Skill: m.Envelope.Skill, Payload: m.Envelope.Payload, TraceID: m.TraceID, ParentSpanID: m.SpanID}, ModeSync)
		if err != nil {
			t.Fatal(err)
		}
		if e.TraceID != "root" || e.ParentSpanID != "hop-1" || e.SpanID == "hop-1" || e.SpanID == "" ||
			e.Nonce == m.Nonce || e.From != "agent://hub.test" ||
			e.To != "agent://next.test" || !e.Timestamp.Equal(epoch.Add(time.Second)) ||
			!strings.Contains(string(b), `{"n":1.0}`) {
			t.Errorf("%s", b)
		}
	})
	t.Run("what cannot be sent", func(t *testing.T) {
		for name, call := range map[string]Call{
			"no address": {}, "query": {URL: "https://self.test/?x=1", To: worldID},
			"scheme": {URL: "ftp://self.test", To: worldID}, "user": {URL: "https://u@self.test", To: worldID},
			"payload": {URL: "https://self.test", To: worldID, Payload: json.RawMessage(`[]`)},
			"nonce":   {URL: "https://self.test", To: worldID, Nonce: "x"},
		} {
			if _, err := c.Ask(t.Context(), call); err == nil {
				t.Errorf("%s: sent", name)
			}
		}
		if _, err := (&Client{HTTP: c.HTTP}).Ask(t.Context(), Call{URL: "https://self.test", To: worldID}); err == nil {
			t.Error("sent without an identity")
		}
		if _, _, err := c.Request(t.Context(), Call{URL: "https://self.test", To: worldID, Skill: "s"},
			"batch"); err == nil {
			t.Error("unknown mode")
		}
	})
}

// SAM-151: the answers of deployed agents and SDK servers, in all dialects.
func TestDialects(t *testing.T) {
	h := http.Header{}
	h.Set("Retry-After", "7")
	for _, c := range []struct {
		name   string
		status int
		body   string
		code   Code
		is     error
		text   string
	}{
		{"schema", 401, `{"traceId":"t","spanId":"s","status":"error","error":{"code":"AUTH_FAILED","message":"m"}}`,
			CodeAuthFailed, ErrRemote, "m"},
		{"no spanId", 429, `{"status":"error","error":{"code":"RATE_LIMITED","message":"m"}}`, CodeRateLimited,
			ErrRateLimited, "m"},
		{"TIMESTAMP_EXPIRED", 400, `{"status":"error","error":{"code":"TIMESTAMP_EXPIRED","message":"m"}}`,
			CodeTimestampExpired, ErrStale, "m"},
		{"stale as replay", 401,
			`{"traceId":"","spanId":"s","status":"error","error":{"code":"REPLAY_DETECTED","message":"m"}}`,
			CodeReplayDetected, ErrStale, "m"},
		{"code beside", 404, `{"status":"error","code":"NOT_FOUND","message":"gone"}`, CodeNotFound, ErrNotFound,
			"gone"},
		{"string error", 404, `{"error":"Task not found"}`, CodeNotFound, ErrNotFound, "Task not found"},
		{"Fastify 500", 500, `{"statusCode":500,"error":"Internal Server Error","message":"x"}`, CodeAgentUnavailable,
			ErrUnavailable, "x"},
		{"Fastify 413", 413,
			`{"statusCode":413,"code":"FST_ERR_CTP_BODY_TOO_LARGE","error":"Payload Too Large","message":"big"}`,
			CodeSchemaInvalid, ErrTooLarge, "big"},
		{"Fastify 415", 415, `{"statusCode":415,"error":"Unsupported Media Type","message":"x"}`, CodeSchemaInvalid,
			ErrMediaType, "x"},
		{"text 404", 404, `Not Found`, CodeNotFound, ErrNotFound, "Not Found"},
		{"HTML 502", 502, `<html>`, CodeAgentUnavailable, ErrUnavailable, "Bad Gateway"},
		{"empty 403", 403, ``, CodeAuthFailed, ErrRemote, "Forbidden"},
		{"redirect", 302, ``, CodeAgentUnavailable, ErrUnavailable, "Found"},
		{"422", 422, `{}`, CodeSchemaInvalid, ErrRemote, ""},
		{"unknown code", 400, `{"status":"error","error":{"code":"OWN","message":"m"}}`, CodeSchemaInvalid, ErrRemote,
			"m"},
		{"ok status, error inside", 200, `{"status":"error","error":{"code":"AGENT_UNAVAILABLE","message":"m"}}`,
			CodeAgentUnavailable, ErrUnavailable, "m"},
		{"neither", 200, `{}`, CodeAgentUnavailable, ErrResponse, "The agent's answer is not understood."},
		{"no JSON", 200, `x`, CodeAgentUnavailable, ErrResponse, "The agent's answer is not understood."},
		{"result array", 200, `{"status":"ok","result":[]}`, CodeAgentUnavailable, ErrResponse,
			"The agent's answer is not understood."},
		{"budget", 429, `{"error":{"code":"TOKEN_BUDGET_EXCEEDED","message":"m"}}`, CodeTokenBudgetExceeded,
			ErrTokenBudget, "m"},
		{"delegation", 400, `{"error":{"code":"DELEGATION_EXCEEDED","message":"m"}}`, CodeDelegationExceeded,
			ErrDelegationExceeded, "m"},
		{"injection", 400, `{"error":{"code":"INJECTION_DETECTED","message":"m"}}`, CodeInjectionDetected, ErrInjection,
			"m"},
		{"skill", 404, `{"error":{"code":"SKILL_NOT_FOUND","message":"m"}}`, CodeSkillNotFound, ErrSkillNotFound, "m"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := decodeReply(c.status, h, []byte(c.body))
			var e *Error
			if !errors.As(err, &e) || e.Code != c.code || !errors.Is(err, c.is) || e.Text != c.text {
				t.Fatalf("got %+v, %v", e, err)
			}
			if e.Code == CodeRateLimited && (e.RetryAfter != 7*time.Second || !e.Retryable) {
				t.Errorf("%+v", e)
			}
		})
	}
	if r, err := decodeReply(200, h,
		[]byte(`{"status":"ok","traceId":"t","spanId":"s","result":{"x":1},"more":true}`)); err != nil ||
		string(r.Result) != `{"x":1}` {
		t.Error(r, err)
	}
	t.Run("tasks", func(t *testing.T) {
		for body, want := range map[string]TaskStatus{
			`{"taskId":"t","status":"pending"}`:                                                     TaskPending,
			`{"taskId":"t","status":"running","progress":0.4}`:                                      TaskRunning,
			`{"taskId":"t","status":"processing"}`:                                                  TaskRunning,
			`{"taskId":"t","status":"done","result":{},"createdAt":1,"completedAt":2,"progress":0}`: TaskDone,
			`{"taskId":"t","status":"completed","result":{"a":1}}`:                                  TaskDone,
			`{"taskId":"t","status":"failed","error":{"code":"SCHEMA_INVALID","message":"m"}}`:      TaskFailed,
			`{"taskId":"t","status":"failed","error":"went wrong"}`:                                 TaskFailed,
			`{"taskId":"t","status":"failed"}`:                                                      TaskFailed,
		} {
			got, err := decodeTask(200, h, []byte(body))
			if err != nil || got.Status != want || (want == TaskFailed) != (got.Err != nil) {
				t.Errorf("%s: %+v, %v", body, got, err)
			}
			if got.Err != nil && (got.Err.Code == "" || got.Err.Text == "") {
				t.Errorf("%s: %+v", body, got.Err)
			}
		}
		for _, body := range []string{`{"taskId":"t","status":"odd"}`, `{"taskId":"t","status":"done"}`, `[]`,
			`{"status":1}`} {
			if got, err := decodeTask(200, h, []byte(body)); !errors.Is(err, ErrResponse) {
				t.Errorf("%s: %+v, %v", body, got, err)
			}
		}
		if id, err := decodeAccepted(202, h,
			[]byte(`{"taskId":"x","status":"accepted","traceId":"t","spanId":"s"}`)); err != nil || id != "x" {
			t.Error(id, err)
		}
		if _, err := decodeAccepted(200, h, []byte(`{"status":"ok"}`)); !errors.Is(err, ErrResponse) {
			t.Error(err)
		}
	})
	t.Run("webhooks", func(t *testing.T) {
		r, err := DecodeReply([]byte(`{"traceId":"t","spanId":"s","status":"error","error":{"code":"AGENT_UNAVAILABLE","message":"m"}}`))
		if err != nil || r.Err == nil || r.Err.Code != CodeAgentUnavailable || r.TraceID != "t" {
			t.Errorf("%+v, %v", r, err)
		}
		if _, err := DecodeReply([]byte(`{`)); err == nil {
			t.Error("half an object read")
		}
	})
	t.Run("streams", func(t *testing.T) {
		read := func(s string) (chunks int, err error) {
			p := &sseParser{limit: 200}
			for ev, e := range p.feed([]byte(s)) {
				if e != nil {
					return chunks, e
				}
				if ev.Done {
					return chunks, nil
				}
				chunks++
			}
			return chunks, p.end(io.EOF)
		}
		for s, want := range map[string]int{
			"data: {\"chunk\":1}\r\rdata: {\"done\":true,\"result\":{}}\r\r": 1, // CR alone
			// data in two lines
			": ping\r\n\r\ndata: {\"done\":true,\ndata: \"result\":{}}\n\n":               0,
			"id: 1\nretry: 5\nevent: result\ndata: {\"status\":\"ok\",\"result\":{}}\n\n": 0,
			// a plain envelope
			"data:{\"status\":\"ok\",\"result\":{}}\n\n": 0,
			// nothing to report
			"data: {\"x\":1}\n\ndata: {\"done\":true,\"result\":{}}\n\n":                                 0,
			"\n\n\n: a\n: b\n\ndata: {\"chunk\":[]}\n\n\ndata: {\"done\":true,\"result\":{\"a\":1}}\n\n": 1,
		} {
			if n, err := read(s); err != nil || n != want {
				t.Errorf("%q: %d, %v", s, n, err)
			}
		}
		for s, is := range map[string]error{
			"data: {\n\n": ErrResponse, "data: {\"done\":true}\n\n": ErrResponse,
			"event: done\ndata: {}\n\n": ErrResponse, "data: " + strings.Repeat("x", 300): ErrTooLarge,
			"event: error\ndata: {\"code\":\"AUTH_FAILED\",\"message\":\"m\"}\n\n": ErrRemote,
			"data: {\"done\":true,\"result\":{}}\n":                                ErrUnavailable, "": ErrUnavailable,
		} {
			if _, err := read(s); !errors.Is(err, is) {
				t.Errorf("%q: %v, want %v", s, err, is)
			}
		}
	})
}

func TestClientWaits(t *testing.T) {
	hang := roundTrip(func(r *http.Request) (*http.Response, error) {
		<-r.Context().Done()
		return nil,
			r.Context().Err()
	})
	id := identity(t, "agent://peer.test", "k", 1)
	t.Run("default time-outs", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := &Client{Identity: id, HTTP: &http.Client{Transport: hang}}
			call := Call{URL: "https://self.test", To: worldID, Skill: "s"}
			start := time.Now()
			if _, err := c.Ask(context.Background(), call); !errors.Is(err, ErrTimeout) ||
				time.Since(start) != DefaultCallTimeout {
				t.Error(err, time.Since(start))
			}
			start = time.Now()
			if _, err := c.Card(context.Background(), call.URL); !errors.Is(err, ErrCard) ||
				time.Since(start) != DefaultFetchTimeout {
				t.Error(err, time.Since(start))
			}
			start = time.Now()
			for _, err := range c.Stream(context.Background(), call) {
				if !errors.Is(err, ErrTimeout) || time.Since(start) != DefaultStreamIdle {
					t.Error(err, time.Since(start))
				}
			}
		})
	})
	t.Run("a stream that falls silent", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := &Client{Identity: id,
				HTTP: &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
					pr, pw := io.Pipe()
					go func() {
						_, _ = pw.Write([]byte("data: {\"chunk\":1,\"done\":false}\n\n"))
						<-r.Context().Done()
						_ = pw.CloseWithError(r.Context().Err())
					}()
					return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}},
						Body: pr, Request: r}, nil
				})}}
			n := 0
			for ev, err := range c.Stream(context.Background(),
				Call{URL: "https://self.test", To: worldID, Skill: "s"}) {
				if n++; n == 1 && (err != nil || string(ev.Chunk) != "1") || n == 2 && !errors.Is(err, ErrTimeout) {
					t.Error(n, ev, err)
				}
			}
			if n != 2 {
				t.Errorf("%d events", n)
			}
		})
	})
	t.Run("what was not sent can be repeated", func(t *testing.T) {
		for name, dial := range map[string]func(context.Context, context.CancelFunc) error{
			"nobody listens": func(context.Context, context.CancelFunc) error { return io.EOF },
			"the caller leaves before there is a connection": func(ctx context.Context,
				leave context.CancelFunc) error {
				leave()
				<-ctx.Done()
				return ctx.Err()
			},
		} {
			ctx, leave := context.WithCancel(t.Context())
			c := &Client{Identity: id,
				HTTP: &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string,
					string) (net.Conn, error) {
					return nil, dial(ctx, leave)
				}}}}
			_, err := c.Ask(ctx, Call{URL: "http://self.test", To: worldID, Skill: "s"})
			var e *Error
			if !errors.As(err, &e) || errors.Is(err, ErrOutcomeUnknown) || !e.Retryable {
				t.Errorf("%s: %v; retryable: %t", name, err, e != nil && e.Retryable)
			}
			leave()
		}
	})
	t.Run("what broke after it was sent is not repeated", func(t *testing.T) {
		const last = `data: {"done":true,"result":{"a":1}}` + "\n\n"
		stream := func(body string) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}},
				Body: io.NopCloser(strings.NewReader(body))}, nil
		}
		answer := func(body io.Reader) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Body: io.NopCloser(body)}, nil
		}
		broken := func() io.Reader {
			return io.MultiReader(strings.NewReader(`{"status":"ok","res`), iotest.ErrReader(io.ErrUnexpectedEOF))
		}
		for _, x := range []struct {
			name           string
			mode           Mode
			answer         func() (*http.Response, error)
			unknown, retry bool
		}{
			{"a stream ends inside its last event", ModeStream,
				func() (*http.Response, error) { return stream(last[:20]) }, true, false},
			{"a stream ends before the empty line", ModeStream,
				func() (*http.Response, error) { return stream(last[:len(last)-1]) }, true, false},
			{"a stream ends after a chunk", ModeStream, func() (*http.Response,
				error) {
				return stream("data: {\"chunk\":1}\n\n")
			}, true, false},
			{"a last event without a result", ModeStream, func() (*http.Response,
				error) {
				return stream("data: {\"done\":true}\n\n")
			}, false, false},
			{"an answer is cut", ModeSync, func() (*http.Response, error) { return answer(broken()) }, true, false},
			{"a task's acceptance is cut", ModeAsync, func() (*http.Response, error) { return answer(broken()) }, true,
				false},
			{"a connection is cut", ModeSync, func() (*http.Response, error) { return nil, io.EOF }, true, false},
			{"the agent is unavailable", ModeSync, func() (*http.Response, error) {
				return answer(strings.NewReader(`{"status":"error","error":{"code":"AGENT_UNAVAILABLE","message":"x"}}`))
			}, false, true},
		} {
			c := &Client{Identity: id,
				HTTP: &http.Client{Transport: roundTrip(func(*http.Request) (*http.Response,
					error) {
					return x.answer()
				})}}
			call := Call{URL: "https://self.test", To: worldID, Skill: "s"}
			var err error
			switch x.mode {
			case ModeStream:
				for _, err = range c.Stream(t.Context(), call) {
				}
			case ModeAsync:
				_, err = c.Send(t.Context(), call)
			default:
				_, err = c.Ask(t.Context(), call)
			}
			var e *Error
			if !errors.As(err, &e) || errors.Is(err, ErrOutcomeUnknown) != x.unknown || e.Retryable != x.retry {
				t.Errorf("%s: %v; retryable: %t", x.name, err, e != nil && e.Retryable)
			}
		}
	})
	t.Run("an answer that is also said as a chunk", func(t *testing.T) {
		const chunk, last = `data: {"chunk":{"a":1},"done":false}` + "\n\n", `data: {"done":true,"result":{"a":1}}` +
			"\n\n"
		for _, x := range []struct {
			name, want string
			reads      []string
		}{
			{"at once", `{"a":1}:true {"a":1}`, []string{chunk + last}},
			{"the last event is cut", `{"a":1}:true {"a":1}`, []string{chunk + last[:9], last[9:]}},
			{"later", `{"a":1}:false {"a":1}`, []string{chunk, last}},
			{"more pieces", `{"b":2}:false {"a":1}:true {"a":1}`,
				[]string{strings.Replace(chunk, `"a":1`, `"b":2`, 1) + chunk + last}},
			{"another", `{"b":2}:false {"a":1}`, []string{strings.Replace(chunk, `"a":1`, `"b":2`, 1) + last}},
			{"no end", `{"a":1}:false error`, []string{chunk + last[:9]}},
		} {
			c := &Client{Identity: id,
				HTTP: &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
					var body []io.Reader
					for _, p := range x.reads {
						body = append(body, strings.NewReader(p))
					}
					return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}},
						Body: io.NopCloser(io.MultiReader(body...)), Request: r}, nil
				})}}
			var got []string
			for ev, err := range c.Stream(t.Context(), Call{URL: "https://self.test", To: worldID, Skill: "s"}) {
				switch {
				case err != nil:
					got = append(got, "error")
				case ev.Done:
					got = append(got, string(ev.Result))
				default:
					got = append(got, fmt.Sprintf("%s:%t", ev.Chunk, ev.Again))
				}
			}
			if s := strings.Join(got, " "); s != x.want {
				t.Errorf("%s: %s, want %s", x.name, s, x.want)
			}
		}
	})
	t.Run("the end of a stream is read, which keeps its connection", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			for name, ends := range map[string]bool{"ends": true, "stays open": false} {
				after := make(chan error, 1) // the result of the reads after the last event
				c := &Client{Identity: id,
					HTTP: &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
						pr, pw := io.Pipe()
						go func() {
							_, _ = pw.Write([]byte("data: {\"done\":true,\"result\":{}}\n\n"))
							if !ends {
								<-r.Context().Done()
								_ = pw.CloseWithError(r.Context().Err())
								after <- nil
								return
							}
							<-time.After(streamEnd / 2)
							_, err := pw.Write([]byte(": the end\n"))
							_ = pw.Close()
							after <- err
						}()
						return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}},
							Body: pr, Request: r}, nil
					})}}
				start := time.Now()
				for ev, err := range c.Stream(context.Background(),
					Call{URL: "https://self.test", To: worldID, Skill: "s"}) {
					if err != nil || !ev.Done || time.Since(start) != 0 {
						t.Errorf("%s: %+v, %v", name, ev, err)
					}
				}
				took := time.Since(start)
				if err := <-after; err != nil || ends != (took == streamEnd/2) || !ends && took != streamEnd {
					t.Errorf("%s: %v after %s", name, err, took)
				}
			}
		})
	})
	t.Run("Wait goes on over failures that pass, and ends", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			answers := []string{"", `{"taskId":"t","status":"running"}`,
				`{"taskId":"t","status":"completed","result":{}}`}
			c := &Client{HTTP: &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
				if answers[0] == "" {
					answers = answers[1:]
					return nil, errors.New("reset")
				}
				b := answers[0]
				if len(answers) > 1 {
					answers = answers[1:]
				}
				return &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(b)),
					Request: r}, nil
			})}}
			if task, err := c.Wait(t.Context(), "https://self.test", "t"); err != nil || task.Status != TaskDone {
				t.Error(task, err)
			}
			answers = []string{`{"taskId":"t","status":"running"}`}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			if _, err := c.Wait(ctx, "https://self.test", "t"); !errors.Is(err, ErrTimeout) {
				t.Error(err)
			}
		})
	})
	t.Run("answers are capped", func(t *testing.T) {
		c := &Client{Identity: id, MaxReply: 100,
			HTTP: &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: 200, Header: http.Header{},
					Body: io.NopCloser(strings.NewReader(strings.Repeat(" ", 1000))), Request: r}, nil
			})}}
		if _, err := c.Ask(t.Context(), Call{URL: "https://self.test", To: worldID, Skill: "s"}); !errors.Is(err,
			ErrTooLarge) {
			t.Error(err)
		}
	})
}

// The card of an agent is fetched once for many calls, again when its cardTTL
// is over, and again when the agent there refuses a call.
func TestClientRemembersWhoIsThere(t *testing.T) {
	w := newWorld(t)
	cards, other := 0, false
	c := newClient(w)
	c.HTTP = &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		if r.Method == http.MethodGet {
			cards++
			if other {
				card := *w.agent.Card
				card.ID = "agent://another.example"
				b, err := card.Encode()
				return &http.Response{StatusCode: http.StatusOK, Header: http.Header{},
					Body: io.NopCloser(strings.NewReader(string(b))), Request: r}, err
			}
		}
		return memhttp.Hosts{"self.test": w.srv}.RoundTrip(r)
	})}
	ask := func(want int, ok bool) {
		t.Helper()
		if _, err := c.Ask(t.Context(), Call{URL: "http://self.test", Skill: "echo",
			Payload: json.RawMessage(`{"text":"hi"}`)}); (err == nil) != ok {
			t.Error(err)
		}
		if cards != want {
			t.Errorf("%d cards were fetched, want %d", cards, want)
		}
	}
	ask(1, true)
	ask(1, true)
	w.clk.move(time.Duration(w.agent.Card.ttl()) * time.Second)
	other = true
	ask(2, false) // another agent is there now
	other = false
	ask(3, true)
	ask(3, true)
}
