package a2a

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
)

// rough is an agent that answers as a test says, over JSON-RPC or HTTP+JSON.
func rough(t *testing.T, binding protocol.TransportProtocol, extension bool, answer http.HandlerFunc) string {
	t.Helper()
	mux := http.NewServeMux()
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	capabilities := `{"streaming":true}`
	if extension {
		capabilities = `{"streaming":true,"extensions":[{"uri":"` + ExtensionURI + `"}]}`
	}
	mux.HandleFunc(CardPath, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, strings.Replace(fmt.Sprintf(card1, iface(s.URL+"/rpc", string(binding), "1.0")),
			`"capabilities":{}`, `"capabilities":`+capabilities, 1))
	})
	mux.HandleFunc("/rpc", answer)
	mux.HandleFunc("/rpc/", answer)
	return s.URL
}

func respond(status int, media, body string, headers ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", media)
		for i := 0; i < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}
}

// deliver makes one attempt.
func (c *caller) deliver(agent string, m *parley.Message, edit func(*hub.Outbound)) hub.Outcome {
	c.t.Helper()
	e, ok := c.dir.Agent(agent)
	if !ok {
		c.t.Fatalf("no agent %s", agent)
	}
	id, _ := e.Identity(Protocol)
	if m.ID.IsZero() {
		m.ID = parley.ID{0xa2, 0xa}
	}
	m.Deadline = time.Now().Add(time.Hour)
	o := hub.Outbound{Message: m, Recipient: e, Identity: id, Attempt: 1, Waits: true}
	if edit != nil {
		edit(&o)
	}
	return c.Deliver(c.t.Context(), o)
}

func request() *parley.Message { return submission("quiet", "elsewhere", parley.Text("hi")).Message }

// A2A-014: errors are read with data absent, an object, an array or anything; each code and
// status has its code and reason at the hub.
func TestErrorsOfAgents(t *testing.T) {
	rpc := func(code int, data string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":null,"error":{"code":%d,"message":"no way"%s}}`, code, data)
	}
	rest := func(reason string) string {
		return fmt.Sprintf(`{"error":{"code":400,"message":"no way","status":"X","details":[{"@type":"t"},{"reason":%q}]}}`,
			reason)
	}
	const js = "application/json"
	for _, x := range []struct {
		name    string
		rest    bool
		answer  http.HandlerFunc
		code    parley.Code
		reason  parley.Reason
		retry   bool // the attempt failed, and may be repeated
		unknown bool
		wait    time.Duration
	}{
		{"absent", false, respond(200, js, rpc(-32602, "")), parley.InvalidContent, parley.PeerContent, false, false, 0},
		{"object", false, respond(200, js, rpc(-32602, `,"data":{"a":1}`)), parley.InvalidContent, parley.PeerContent, false,
			false, 0},
		{"array", false, respond(200, js, rpc(-32005, `,"data":[{"@type":"x"}]`)), parley.InvalidContent, parley.PeerContent,
			false, false, 0},
		{"array of others", false, respond(200, js, rpc(-32004, `,"data":["x",1]`)), parley.Unsupported,
			parley.PeerUnsupported, false, false, 0},
		{"string", false, respond(200, js, rpc(-32603, `,"data":"x"`)), parley.HandlerFailed, parley.PeerFailed, false,
			false, 0},
		{"null", false, respond(200, js, rpc(-32003, `,"data":null`)), parley.Unsupported, parley.PeerUnsupported, false,
			false, 0},
		{"unknown code", false, respond(200, js, rpc(-12, "")), parley.HandlerFailed, parley.PeerFailed, false, false, 0},
		{"in a status", false, respond(400, js, rpc(-32008, "")), parley.Unsupported, parley.PeerUnsupported, false,
			false, 0},
		{"REST", true, respond(400, js, rest("CONTENT_TYPE_NOT_SUPPORTED")), parley.InvalidContent, parley.PeerContent, false,
			false, 0},
		{"REST internal", true, respond(500, js, rest("INTERNAL_ERROR")), parley.HandlerFailed, parley.PeerFailed, false,
			false, 0},
		{"401", false, respond(401, "text/plain", "who?"), parley.Unauthenticated, parley.WrongToken, false, false, 0},
		{"403", true, respond(403, js, rest("UNAUTHORIZED")), parley.Forbidden, parley.PeerForbids, false, false, 0},
		{"404", false, respond(404, "text/plain", ""), parley.Unavailable, parley.PeerGone, true, false, 0},
		{"301", false, respond(301, "text/plain", "", "Location", "/x"), parley.Unavailable, parley.PeerGone, true, false, 0},
		{"413", true, respond(413, "text/plain", ""), parley.TooLarge, parley.PeerContent, false, false, 0},
		{"429", false, respond(429, "text/plain", "", "Retry-After", "7"), parley.RateLimited, parley.PeerRate, true, false,
			7 * time.Second},
		{"500", false, respond(500, "text/html", "<b>"), parley.HandlerFailed, parley.PeerFailed, false, false, 0},
		{"502", false, respond(502, "text/html", "<b>"), parley.Unavailable, parley.PeerBusy, true, true, 0},
		{"503", true, respond(503, "text/html", "", "Retry-After", "3"), parley.Unavailable, parley.PeerBusy, true, false,
			3 * time.Second},
		{"content type", false, respond(200, "text/html", "<b>"), parley.HandlerFailed, parley.PeerAnswer, false, false, 0},
		{"not JSON", false, respond(200, js, "{"), parley.HandlerFailed, parley.PeerAnswer, false, false, 0},
		{"duplicate", false, respond(200, js, `{"jsonrpc":"2.0","id":"1","id":"2","result":{}}`), parley.HandlerFailed,
			parley.PeerAnswer, false, false, 0},
		{"deep", true, respond(200, js, `{"message":{"metadata":`+strings.Repeat(`{"a":`, 100)+"1"+strings.Repeat("}", 102)),
			parley.HandlerFailed, parley.PeerAnswer, false, false, 0},
		{"neither task nor message", true, respond(200, js, `{"x":1}`), parley.HandlerFailed, parley.PeerAnswer, false, false,
			0},
		{"unknown part", true, respond(200, js, `{"message":{"messageId":"1","role":"ROLE_AGENT","parts":[{"video":"x"}]}}`),
			parley.HandlerFailed, parley.PeerAnswer, false, false, 0},
		{"two contents", true, respond(200, js,
			`{"message":{"messageId":"1","role":"ROLE_AGENT","parts":[{"text":"x","data":1}]}}`), parley.HandlerFailed,
			parley.PeerAnswer, false, false, 0},
		{"a task without an id", true, respond(200, js, `{"task":{"status":{"state":"TASK_STATE_WORKING"}}}`),
			parley.HandlerFailed, parley.PeerAnswer, false, false, 0},
		{"too large", true, respond(200, js, `{"message":{"messageId":"`+strings.Repeat("x", 70_000)+`"}}`),
			parley.HandlerFailed, parley.PeerAnswerLarge, false, false, 0},
		{"hangs up", false, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, parley.Unavailable,
			parley.ConnectionLost, true, true, 0},
	} {
		for _, streams := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, streams %t", x.name, streams), func(t *testing.T) {
				binding := protocol.TransportProtocolJSONRPC
				if x.rest {
					binding = protocol.TransportProtocolHTTPJSON
				}
				c := newCaller(t, callerConfig{max: 64 << 10})
				c.add("elsewhere", rough(t, binding, false, x.answer))
				o := c.deliver("elsewhere", request(), func(o *hub.Outbound) { o.Streams = streams })
				e := o.Failure
				if x.retry {
					e = o.Err
				}
				if e == nil || e.Code != x.code || e.Reason != x.reason || o.Answered == x.retry || o.Unknown != x.unknown ||
					o.Wait != x.wait || e.Retryable != x.retry {
					t.Errorf("%+v\n%+v", o, e)
				}
			})
		}
	}
}

// Nothing that was not sent is of unknown outcome.
func TestUnreachableAgent(t *testing.T) {
	c := newCaller(t, callerConfig{})
	c.add("elsewhere", serveAt(t, fmt.Sprintf(card1, iface("http://127.0.0.1:1/rpc", "JSONRPC", "1.0")), CardPath))
	o := c.deliver("elsewhere", request(), nil)
	if o.Err == nil || o.Unknown || o.Err.Reason != parley.ConnectionRefused || !o.Err.Retryable {
		t.Errorf("%+v", o)
	}
}

// A required extension that the hub does not know.
func TestRequiredExtension(t *testing.T) {
	a := serveAgent(t, V1, protocol.TransportProtocolJSONRPC, echoWork, func(a *agentElsewhere) {
		a.card.Capabilities.Extensions = []protocol.AgentExtension{{URI: "https://x.test/ext", Required: true}}
	})
	c := newCaller(t, callerConfig{})
	c.add("elsewhere", a.URL)
	if o := c.deliver("elsewhere", request(), nil); o.Failure == nil || o.Failure.Code != parley.Unsupported ||
		!strings.Contains(o.Failure.Detail, "https://x.test/ext") || a.count() != 0 {
		t.Errorf("%+v", o)
	}
}

// A2A-032: events with CRLF, several data lines, comments and ids; one that is too large
// ends the request, as does one that is no event.
func TestEventsOfAgents(t *testing.T) {
	task := `{"task":{"id":"T","contextId":"C","status":{"state":"TASK_STATE_SUBMITTED"}}}`
	piece := `{"artifactUpdate":{"taskId":"T","contextId":"C","artifact":{"artifactId":"A","parts":[{"text":"%s"}]}}}`
	done := `{"statusUpdate":{"taskId":"T","contextId":"C","status":{"state":"TASK_STATE_COMPLETED"}}}`
	event := func(s string) string { return "data: " + s + "\n\n" }
	const strange = `error handler_failed the answer of "elsewhere" is not understood`
	const large = "error handler_failed the agent's answer is too large"
	for name, x := range map[string]struct{ stream, want string }{
		"plain": {event(task) + event(fmt.Sprintf(piece, "x")) + event(done), "none x | response x"},
		"CRLF, lines, comments": {": hello\r\n\r\nid: 1\r\nevent: x\r\n" +
			"data: {\"task\":{\"id\":\"T\",\r\ndata:\"contextId\":\"C\"," +
			"\r\ndata: \"status\":{\"state\":\"TASK_STATE_SUBMITTED\"}}}\r\n\r\n: beat\n\n" + event(done), "response"},
		"replaced": {event(task) + event(fmt.Sprintf(piece, "x")) + event(fmt.Sprintf(piece, "y")) + event(done),
			"none x | none y | response y"},
		"unknown state": {event(task) + event(strings.Replace(done, "COMPLETED", "DREAMING", 1)) + event(done), "response"},
		"not an event":  {event(task) + event(`{"x":1}`), strange},
		"not JSON":      {event(task) + event(`{"x`), strange},
		"another task": {event(task) + event(strings.Replace(done, `"T"`, `"U"`, 1)),
			strange},
		"too large": {event(task) + event(fmt.Sprintf(piece, strings.Repeat("x", 70_000))),
			large},
		"too large in sum": {event(task) + strings.Repeat(event(strings.Replace(fmt.Sprintf(piece, strings.Repeat("x",
			30_000)), `"artifact":{`, `"append":true,"artifact":{`, 1)), 3),
			large},
		"endless line": {event(task) + ": " + strings.Repeat("x", 70_000), large},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCaller(t, callerConfig{max: 64 << 10})
			c.add("elsewhere", rough(t, protocol.TransportProtocolHTTPJSON, false, func(w http.ResponseWriter, r *http.Request) {
				if !strings.HasSuffix(r.URL.Path, ":stream") {
					http.Error(w, "", http.StatusServiceUnavailable)
					return
				}
				respond(200, "text/event-stream", x.stream)(w, r)
			}))
			got := said(c.answered(c.send("reader", "elsewhere", parley.Text("hi")).ID))
			if name == "too large in sum" {
				got = got[strings.LastIndex(got, "|")+2:]
			}
			if got != x.want {
				t.Errorf("%.300s, want %s", got, x.want)
			}
		})
	}
}

// Numbers keep their digits in both directions, and objects their members' order in
// answers.
func TestNumbersKeepTheirDigits(t *testing.T) {
	for _, wire := range wires {
		t.Run(wire.name, func(t *testing.T) {
			a := serveAgent(t, wire.version, wire.binding, echoWork, nil)
			c := newCaller(t, callerConfig{})
			c.add("elsewhere", a.URL)
			for _, doc := range []string{`{"n":12345678901234567890}`, `{"z":0.1000000000000000055511151231257827,"a":1}`,
				`[9007199254740993]`, `{"cityName":"Bern","a_b":{"c":1e400}}`, `1.5`, `{"n":0.1}`} {
				m := c.ask("elsewhere", parley.Part{MediaType: "application/json", Data: []byte(doc)})
				if m.Kind != parley.Response || string(m.Parts[0].Data) != doc || m.Parts[0].MediaType != "application/json" {
					t.Errorf("%s: %s", doc, said([]*parley.Message{m}))
				}
			}
		})
	}
	c := newCaller(t, callerConfig{})
	const raw = `{"b": 12345678901234567890, "a": [1.10, {"parts": [{"data": 1}]}]}`
	c.add("elsewhere", rough(t, protocol.TransportProtocolHTTPJSON, false, respond(200, "application/json",
		`{"message":{"messageId":"1","role":"ROLE_AGENT","parts":[{"data":`+raw+`,"metadata":{"k":2.50}}]}}`)))
	o := c.deliver("elsewhere", request(), nil)
	if len(o.Parts) != 1 || string(o.Parts[0].Data) != raw {
		t.Errorf("%+v", o)
	}
}

func TestExact(t *testing.T) {
	for doc, want := range map[string]bool{`1`: true, `{"a":0.1}`: true, `9007199254740992`: true,
		`9007199254740993`: false,
		`1e400`:            false, `1e-400`: false, `0e-400`: true, `1e22`: true, `1e308`: true, `"9007199254740993"`: true,
		`0.1000000000000000055511151231257827`: false, `[1.5,-2]`: true} {
		if keepsNumbers([]byte(doc)) != want {
			t.Errorf("%s: %t", doc, !want)
		}
	}
}

// A2A-072: the connection breaks before the answer. An agent that declares the extension
// gets the same message again; of another one the hub asks which tasks it has; if that does
// not tell, the outcome is unknown. Nothing is done twice.
func TestConnectionBreaksBeforeTheAnswer(t *testing.T) {
	for _, x := range []struct {
		name               string
		declares, had, end bool // the agent: declares the extension, had the message, lists its task
		lists              bool
		calls              int64
	}{
		{"declares", true, false, true, true, 1},
		{"lists, and had it", false, true, true, true, 1},
		{"lists, and had it not", false, false, false, true, 0},
		{"does not list", false, true, false, false, 1},
	} {
		t.Run(x.name, func(t *testing.T) {
			var calls, met atomic.Int64
			a := serveAgent(t, V1, protocol.TransportProtocolJSONRPC, func(ctx context.Context, e *a2asrv.ExecutorContext,
				yield func(protocol.Event) bool) {
				calls.Add(1)
				echoWork(ctx, e, yield)
			}, func(a *agentElsewhere) {
				if x.declares {
					a.card.Capabilities.Extensions = []protocol.AgentExtension{{URI: ExtensionURI}}
				}
				a.wrap = func(h http.Handler) http.Handler {
					return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						var q struct{ Method string }
						if err := json.Unmarshal(readAll(t, r), &q); err != nil {
							t.Error(err)
						}
						switch {
						case q.Method == "SendMessage" && met.Add(1) == 1:
							if x.had {
								rec := httptest.NewRecorder()
								h.ServeHTTP(rec, r)
								var answer struct {
									Result struct{ Task protocol.Task }
								}
								_ = json.Unmarshal(rec.Body.Bytes(), &answer)
							}
							panic(http.ErrAbortHandler)
						case q.Method == "ListTasks" && !x.lists:
							respond(200, "application/json", `{"jsonrpc":"2.0","id":"1","error":{"code":-32601,"message":"no"}}`)(w, r)
						default:
							h.ServeHTTP(w, r)
						}
					})
				}
			})
			c := newCaller(t, callerConfig{})
			c.add("elsewhere", a.URL)
			all := c.answered(c.send("quiet", "elsewhere", parley.Text("hi")).ID)
			last := all[len(all)-1]
			if x.end && (last.Kind != parley.Response || last.Parts[0].MediaType == "") ||
				!x.end && (last.Error == nil || last.Error.Code != parley.OutcomeUnknown) {
				t.Errorf("%s", said(all))
			}
			if calls.Load() != x.calls {
				t.Errorf("done %d times", calls.Load())
			}
		})
	}
}

// A slow agent: the attempt ends with its time, and its outcome is unknown.
func TestSlowAgent(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	c := newCaller(t, callerConfig{})
	c.add("elsewhere", rough(t, protocol.TransportProtocolJSONRPC, false, func(_ http.ResponseWriter, r *http.Request) {
		readAll(t, r)
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	for _, streams := range []bool{false, true} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		e, _ := c.dir.Agent("elsewhere")
		id, _ := e.Identity(Protocol)
		m := request()
		m.ID, m.Deadline = parley.ID{7}, time.Now().Add(time.Hour)
		o := c.Deliver(ctx, hub.Outbound{Message: m, Recipient: e, Identity: id, Attempt: 1, Waits: true, Streams: streams})
		cancel()
		if o.Err == nil || o.Err.Code != parley.TimedOut || !o.Unknown {
			t.Errorf("streams %t: %+v %+v", streams, o, o.Err)
		}
	}
}

// A notice whose connection breaks goes again to an agent that deduplicates, and to no other.
func TestNoticeIsRepeated(t *testing.T) {
	for _, declares := range []bool{true, false} {
		var calls atomic.Int64
		c := newCaller(t, callerConfig{})
		c.add("elsewhere", rough(t, protocol.TransportProtocolHTTPJSON, declares, func(w http.ResponseWriter,
			r *http.Request) {
			if calls.Add(1) == 1 {
				panic(http.ErrAbortHandler)
			}
			respond(200, "application/json", `{"message":{"messageId":"1","role":"ROLE_AGENT","parts":[{"text":"x"}]}}`)(w, r)
		}))
		s := submission("quiet", "elsewhere", parley.Text("note"))
		s.Message.Kind = parley.Notice
		m, err := c.hub.Accept(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, c.j, "the notice is not settled", func() bool {
			d, open := c.j.Delivery(m.ID, "elsewhere")
			return !open && declares || open && d.State == parley.Dead && !declares
		})
		want := map[bool]int64{true: 2, false: 1}[declares]
		if d, _ := c.j.Delivery(m.ID, "elsewhere"); calls.Load() != want || !declares && (d.Error == nil ||
			d.Error.Code != parley.OutcomeUnknown) {
			t.Errorf("declares %t: %d calls, %+v", declares, calls.Load(), d.Error)
		}
		eventuallyRow(t, c, m.ID, false)
	}
}
