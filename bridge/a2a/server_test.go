package a2a

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/testjournal"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/keyring"
	"github.com/parley-hub/parley/policy"
)

// fakeMethods are the protocol's methods without a journal. It keeps the last call and request.
type fakeMethods struct {
	service
	call    *call
	request any

	result protocol.SendMessageResult
	task   *protocol.Task
	list   *protocol.ListTasksResponse
	card   *protocol.AgentCard
	config *protocol.PushConfig
	events func(ctx context.Context) eventSeq
	err    error
}

func noteCall[R any](f *fakeMethods, ctx context.Context, request any, result R) (R, error) {
	f.call, f.request = callOf(ctx), request
	return result, f.err
}

func (f *fakeMethods) SendMessage(ctx context.Context, r *protocol.SendMessageRequest) (
	protocol.SendMessageResult, error) {
	return noteCall(f, ctx, r, f.result)
}

func (f *fakeMethods) stream(ctx context.Context, r any) eventSeq {
	f.call, f.request = callOf(ctx), r
	if f.err != nil {
		return failedStream(f.err)
	}
	return f.events(ctx)
}

func (f *fakeMethods) SendStreamingMessage(ctx context.Context, r *protocol.SendMessageRequest) eventSeq {
	return f.stream(ctx, r)
}

func (f *fakeMethods) SubscribeToTask(ctx context.Context, r *protocol.SubscribeToTaskRequest) eventSeq {
	return f.stream(ctx, r)
}

func (f *fakeMethods) GetTask(ctx context.Context, r *protocol.GetTaskRequest) (*protocol.Task, error) {
	return noteCall(f, ctx, r, f.task)
}

func (f *fakeMethods) ListTasks(ctx context.Context, r *protocol.ListTasksRequest) (
	*protocol.ListTasksResponse, error) {
	return noteCall(f, ctx, r, f.list)
}

func (f *fakeMethods) CancelTask(ctx context.Context, r *protocol.CancelTaskRequest) (*protocol.Task, error) {
	return noteCall(f, ctx, r, f.task)
}

func (f *fakeMethods) CreateTaskPushConfig(ctx context.Context, r *protocol.PushConfig) (*protocol.PushConfig, error) {
	return noteCall(f, ctx, r, r)
}

func (f *fakeMethods) GetTaskPushConfig(ctx context.Context, r *protocol.GetTaskPushConfigRequest) (
	*protocol.PushConfig, error) {
	return noteCall(f, ctx, r, f.config)
}

func (f *fakeMethods) ListTaskPushConfigs(ctx context.Context, r *protocol.ListTaskPushConfigRequest) (
	*protocol.ListTaskPushConfigResponse, error) {
	return noteCall(f, ctx, r, &protocol.ListTaskPushConfigResponse{})
}

func (f *fakeMethods) DeleteTaskPushConfig(ctx context.Context, r *protocol.DeleteTaskPushConfigRequest) error {
	_, err := noteCall(f, ctx, r, struct{}{})
	return err
}

func (f *fakeMethods) GetExtendedAgentCard(ctx context.Context, r *protocol.GetExtendedAgentCardRequest) (
	*protocol.AgentCard, error) {
	return noteCall(f, ctx, r, f.card)
}

// serving is a binding with the agents alice and crew/echo, who take guests, closed, who
// takes none, and hidden, who is not exposed.
type serving struct {
	*Binding
	fake *fakeMethods
	hub  *hub.Hub
}

func newServing(t testing.TB, change ...func(*Config)) *serving {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx := context.Background()
	j, err := journal.Open(ctx, journal.Config{Store: testjournal.Memory(t)})
	must(err)
	dir, err := directory.Open(ctx, directory.Options{})
	must(err)
	p, err := policy.New(policy.Config{Hub: "here"})
	must(err)
	h, err := hub.New(hub.Config{ID: "here", Secret: bytes.Repeat([]byte("s"), 32), Journal: j, Directory: dir, Policy: p})
	must(err)
	keys, err := keyring.Open(keyring.Options{})
	must(err)
	c := Config{Hub: h, Keys: keys, Journal: j, PublicURL: "http://hub.example/base"}
	for _, f := range change {
		f(&c)
	}
	b, err := New(c)
	must(err)
	for _, name := range []string{"alice", "crew/echo", "closed", "hidden"} {
		a := parley.Agent{Name: name, Exposed: []string{Protocol}}
		if name == "hidden" {
			a.Exposed = nil
		}
		_, err := dir.Put(ctx, a, directory.FromOperator)
		must(err)
		b.SetAgent(name, AgentSettings{Guests: name != "closed"})
	}
	w := &serving{Binding: b, hub: h, fake: &fakeMethods{service: service{b}}}
	w.fake.task = &protocol.Task{ID: "T", ContextID: "C", Status: protocol.TaskStatus{State: protocol.TaskStateWorking}}
	w.fake.result = w.fake.task
	w.fake.list = &protocol.ListTasksResponse{PageSize: 50}
	w.fake.card = &protocol.AgentCard{Name: "alice", Version: "1", SupportedInterfaces: []*protocol.AgentInterface{
		{URL: "http://hub.example/a2a/alice", ProtocolBinding: protocol.TransportProtocolJSONRPC, ProtocolVersion: V03}}}
	w.fake.config = &protocol.PushConfig{TaskID: "T", ID: "P", URL: "https://hook.example/"}
	w.fake.events = func(context.Context) eventSeq {
		return func(yield func(protocol.Event, error) bool) { yield(w.fake.task, nil) }
	}
	b.methods = checked{w.fake}
	t.Cleanup(func() {
		must(b.Close())
		must(h.Close(ctx))
		dir.Close()
		must(keys.Close())
		must(j.Close())
	})
	return w
}

// ask sends a request; headers are pairs. A body has the type of JSON where no header says
// another.
func (w *serving) ask(method, target, body string, headers ...string) *httptest.ResponseRecorder {
	var in io.Reader
	if body != "" {
		in = strings.NewReader(body)
	}
	r := httptest.NewRequest(method, target, in)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i+1] == "" {
			r.Header.Del(headers[i])
		} else {
			r.Header.Add(headers[i], headers[i+1])
		}
	}
	rec := httptest.NewRecorder()
	w.ServeHTTP(rec, r)
	return rec
}

// rpc sends a JSON-RPC request to alice in a version; "" names none.
func (w *serving) rpc(version, body string) *httptest.ResponseRecorder {
	return w.ask("POST", "/a2a/alice", body, protocol.SvcParamVersion, version)
}

// A wireAnswer is a JSON-RPC or HTTP answer.
type wireAnswer struct {
	Version string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Result  json.RawMessage `json:"result"`
	Error   *struct {
		Code    int
		Status  string
		Message string
		Data    []map[string]any
		Details []map[string]any
	}
}

func parseAnswer(t testing.TB, rec *httptest.ResponseRecorder) wireAnswer {
	t.Helper()
	var a wireAnswer
	if err := json.Unmarshal(rec.Body.Bytes(), &a); err != nil {
		t.Fatalf("status %d, %q: %v", rec.Code, rec.Body, err)
	}
	return a
}

// info gives ErrorInfo.
func (a wireAnswer) info(t testing.TB) (reason string, metadata map[string]any) {
	t.Helper()
	if a.Error == nil {
		t.Fatal("no error")
	}
	d := append(a.Error.Data, a.Error.Details...)
	if len(d) == 0 || d[0]["@type"] != "type.googleapis.com/google.rpc.ErrorInfo" || d[0]["domain"] != "a2a-protocol.org" {
		t.Fatalf("details %v", d)
	}
	metadata, _ = d[0]["metadata"].(map[string]any)
	reason, _ = d[0]["reason"].(string)
	return reason, metadata
}

// violation gives the field of a BadRequest, "" without one.
func (a wireAnswer) violation() string {
	for _, d := range append(a.Error.Data, a.Error.Details...) {
		if d["@type"] == "type.googleapis.com/google.rpc.BadRequest" {
			list, _ := d["fieldViolations"].([]any)
			v, _ := list[0].(map[string]any)
			s, _ := v["field"].(string)
			return s
		}
	}
	return ""
}

const hello1 = `{"message":{"messageId":"m1","role":"ROLE_USER","parts":[{"text":"hi"}]}}`
const hello03 = `{"message":{"kind":"message","messageId":"m1","role":"user","parts":[{"kind":"text","text":"hi"}]}}`

// TestRouting: the path says agent and endpoint; what has no single reading is not found.
func TestRouting(t *testing.T) {
	t.Parallel()
	w := newServing(t)
	for _, c := range []struct {
		method, path string
		status       int
		agent, rest  string // of the call
	}{
		{"POST", "/a2a/alice/message:send", 200, "alice", "*a2a.SendMessageRequest"},
		{"POST", "/a2a/crew/echo/message:send", 200, "crew/echo", ""},
		{"GET", "/a2a/crew/echo/tasks", 200, "crew/echo", ""},
		{"GET", "/a2a/alice/tasks/T", 200, "alice", ""},
		{"POST", "/a2a/alice/tasks/T:cancel", 200, "alice", ""},
		{"POST", "/a2a/alice/tasks/T:subscribe", 200, "alice", ""},
		{"GET", "/a2a/alice/tasks/T:subscribe", 200, "alice", ""},
		{"GET", "/a2a/alice/tasks/T/pushNotificationConfigs", 200, "alice", ""},
		{"GET", "/a2a/alice/tasks/T/pushNotificationConfigs/P:1", 200, "alice", ""},
		{"DELETE", "/a2a/alice/tasks/T/pushNotificationConfigs/P", 200, "alice", ""},
		{"GET", "/a2a/alice/extendedAgentCard", 200, "alice", ""},
		{"GET", "/a2a/alice", 405, "", ""},
		{"PUT", "/a2a/alice", 405, "", ""},
		{"OPTIONS", "/a2a/alice", 405, "", ""},
		{"GET", "/a2a/alice/message:send", 405, "", ""},
		{"DELETE", "/a2a/alice/tasks/T", 405, "", ""},
		{"GET", "/a2a/alice/tasks/T:cancel", 405, "", ""},
		{"POST", "/a2a/alice/tasks", 405, "", ""},
		{"POST", "/a2a/nobody", 404, "", ""},
		{"POST", "/a2a/hidden", 404, "", ""},
		{"POST", "/a2a/hidden/message:send", 404, "", ""},
		{"POST", "/a2a/", 404, "", ""},
		{"POST", "/a2a//alice", 404, "", ""},
		{"POST", "/a2a/crew//echo", 404, "", ""},
		{"POST", "/a2a/x/../alice", 404, "", ""},
		{"POST", "/a2a/crew%2fecho", 404, "", ""},
		{"POST", "/a2a/x/%2e%2e/alice", 404, "", ""},
		{"POST", "/a2a/alice/v1/message:send", 404, "", ""},
		{"GET", "/a2a/alice/tasks/T:delete", 404, "", ""},
	} {
		w.fake.call = nil
		body := ""
		if strings.HasSuffix(c.path, ":send") {
			body = hello1
		}
		rec := w.ask(c.method, c.path, body, protocol.SvcParamVersion, V1)
		if rec.Code != c.status {
			t.Errorf("%s %s: status %d, want %d: %s", c.method, c.path, rec.Code, c.status, rec.Body)
			continue
		}
		switch {
		case c.status == 200:
			if w.fake.call == nil || w.fake.call.agent != c.agent {
				t.Errorf("%s %s: call %+v", c.method, c.path, w.fake.call)
			}
		case c.status == 405:
			if rec.Header().Get("Allow") == "" {
				t.Errorf("%s %s: no Allow", c.method, c.path)
			}
			fallthrough
		default:
			_, m := parseAnswer(t, rec).info(t)
			if m["ref"] == nil || m["code"] == nil || rec.Header().Get(refHeader) != m["ref"] {
				t.Errorf("%s %s: metadata %v", c.method, c.path, m)
			}
			if _, ok := w.hub.Explain(rec.Header().Get(refHeader)); !ok {
				t.Errorf("%s %s: the hub does not know the reference", c.method, c.path)
			}
		}
	}
}

// TestAgentNamedAsEndpoint: an agent whose name ends as an endpoint is reached by POST.
func TestAgentNamedAsEndpoint(t *testing.T) {
	t.Parallel()
	w := newServing(t)
	if _, err := w.hub.Directory().Put(t.Context(), parley.Agent{Name: "alice/tasks", Exposed: []string{Protocol}},
		directory.FromOperator); err != nil {
		t.Fatal(err)
	}
	w.SetAgent("alice/tasks", AgentSettings{Guests: true})
	w.ask("POST", "/a2a/alice/tasks", `{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":`+hello1+`}`,
		protocol.SvcParamVersion, V1)
	if w.fake.call == nil || w.fake.call.agent != "alice/tasks" {
		t.Errorf("call %+v", w.fake.call)
	}
	w.ask("GET", "/a2a/alice/tasks", "", protocol.SvcParamVersion, V1)
	if w.fake.call.agent != "alice" {
		t.Errorf("call %+v", w.fake.call)
	}
}

// TestCardRouting: rule A2A-003.
func TestCardRouting(t *testing.T) {
	t.Parallel()
	w := newServing(t, func(c *Config) { c.Domain, c.Root = "agents.example", "alice" })
	for _, c := range []struct{ host, path, agent string }{
		{"hub.example", "/a2a/crew/echo/.well-known/agent-card.json", "crew/echo"},
		{"hub.example", "/.well-known/agent-card.json", "alice"},
		{"closed.agents.example:8080", "/.well-known/agent-card.json", "closed"},
		{bridge.HostLabel("crew/echo") + ".agents.example", "/.well-known/agent-card.json", "crew/echo"},
		{"hidden.agents.example", "/.well-known/agent-card.json", ""},
		{"hub.example", "/a2a/hidden/.well-known/agent-card.json", ""},
		{"hub.example", "/a2a/crew//echo/.well-known/agent-card.json", ""},
	} {
		r := httptest.NewRequest("GET", "http://"+c.host+c.path, nil)
		if agent, ok := w.cardOf(r); !ok || agent != c.agent {
			t.Errorf("%s%s: card of %q, %t, want %q", c.host, c.path, agent, ok, c.agent)
		}
	}
	rec := w.ask("OPTIONS", "/a2a/alice/.well-known/agent-card.json", "", "Origin", "https://page.example",
		"Access-Control-Request-Method", "GET")
	h := rec.Header()
	if rec.Code != 204 || h.Get("Access-Control-Allow-Origin") != "*" || h.Get("Access-Control-Allow-Credentials") != "" {
		t.Errorf("preflight of a card: %d, %v", rec.Code, h)
	}
	if rec := w.ask("POST", "/a2a/alice/.well-known/agent-card.json", "{}"); rec.Code != 405 {
		t.Errorf("POST to a card: %d", rec.Code)
	}
}

// TestOrigins: endpoints follow Config.Origins.
func TestOrigins(t *testing.T) {
	t.Parallel()
	const page = "https://page.example"
	for _, c := range []struct {
		origins []string
		want    string
	}{{nil, ""}, {[]string{page}, page}, {[]string{"*"}, "*"}, {[]string{"https://other.example"}, ""}} {
		w := newServing(t, func(cfg *Config) { cfg.Origins = c.origins })
		rec := w.ask("GET", "/a2a/alice/tasks", "", protocol.SvcParamVersion, V1, "Origin", page)
		if got := rec.Header().Get("Access-Control-Allow-Origin"); got != c.want || rec.Code != 200 {
			t.Errorf("%v: origin %q, status %d", c.origins, got, rec.Code)
		}
		rec = w.ask("OPTIONS", "/a2a/alice", "", "Origin", page, "Access-Control-Request-Method", "POST")
		if ok := rec.Code == 204; ok != (c.want != "") {
			t.Errorf("%v: preflight %d", c.origins, rec.Code)
		}
	}
}

// TestVersions: rules A2A-001 and A2A-002.
func TestVersions(t *testing.T) {
	t.Parallel()
	w := newServing(t)
	rpc := func(method, params string) string {
		return `{"jsonrpc":"2.0","id":7,"method":"` + method + `","params":` + params + `}`
	}
	for _, c := range []struct {
		header, query, body string
		code                int // 0: a result
		version             string
	}{
		{"1.0", "", rpc("SendMessage", hello1), 0, V1},
		{"1.0.3", "", rpc("SendMessage", hello1), 0, V1},
		{"", "", rpc("message/send", hello03), 0, V03},
		{"0.3", "", rpc("message/send", hello03), 0, V03},
		{"0.3.0", "", rpc("message/send", hello03), 0, V03},
		{"", "1.0", rpc("SendMessage", hello1), 0, V1},
		{"", "", rpc("message/send", hello03), 0, V03},
		{"1.0", "0.3", rpc("SendMessage", hello1), 0, V1},
		{"0.3", "1.0", rpc("message/send", hello03), 0, V03},
		{"1.0", "", rpc("message/send", hello03), -32601, ""},
		{"", "", rpc("SendMessage", hello1), -32601, ""},
		{"9.9", "", rpc("SendMessage", hello1), -32009, ""},
		{"1", "", rpc("SendMessage", hello1), -32009, ""},
		{"1.0, 0.3", "", rpc("SendMessage", hello1), -32009, ""},
		{"", "2.0", rpc("SendMessage", hello1), -32009, ""},
		{"9.9", "", `{"id":7,"jsonrpc":"1.0",,`, -32009, ""}, // before anything else
	} {
		w.fake.call = nil
		rec := w.ask("POST", "/a2a/alice?A2A-Version="+c.query, c.body, protocol.SvcParamVersion, c.header)
		a := parseAnswer(t, rec)
		switch {
		case rec.Code != 200 || string(a.ID) != "7":
			t.Errorf("%q %q: status %d, id %s", c.header, c.query, rec.Code, a.ID)
		case c.code == 0:
			if a.Error != nil || w.fake.call == nil || w.fake.call.version != c.version {
				t.Errorf("%q %q: %s", c.header, c.query, rec.Body)
			}
		case a.Error == nil || a.Error.Code != c.code:
			t.Errorf("%q %q: %s, want %d", c.header, c.query, rec.Body, c.code)
		case c.code == -32009:
			if _, m := a.info(t); m["supportedVersions"] != "1.0,0.3" {
				t.Errorf("%q: metadata %v", c.header, m)
			}
		}
	}
	for _, version := range []string{"9.9", "0.3", ""} {
		rec := w.ask("GET", "/a2a/alice/tasks", "", protocol.SvcParamVersion, version)
		reason, m := parseAnswer(t, rec).info(t)
		if rec.Code != 400 || reason != "VERSION_NOT_SUPPORTED" || m["supportedVersions"] != V1 {
			t.Errorf("REST %q: %d %s %v", version, rec.Code, reason, m)
		}
	}
	// Not authenticated, of a wrong type, too long: the version counts first.
	rec := w.ask("POST", "/a2a/closed", rpc("SendMessage", hello1), protocol.SvcParamVersion, "9.9",
		"Content-Type", "text/plain")
	if a := parseAnswer(t, rec); a.Error.Code != -32009 || string(a.ID) != "7" {
		t.Errorf("%s", rec.Body)
	}
}

// fakeCallers knows two tokens.
type fakeCallers struct{}

func (fakeCallers) Identify(_ context.Context, _ string, h http.Header, _ *tls.ConnectionState, _ string) (
	bridge.Caller, error) {
	switch h.Get("Authorization") {
	case "":
		return bridge.Caller{Name: "guest/a2a/x", Guest: true}, nil
	case "Bearer bob":
		return bridge.Caller{Name: "bob", Peer: "token bob"}, nil
	case "Bearer wait":
		return bridge.Caller{}, parley.Fail(parley.Unavailable, nil, "the issuer does not answer")
	}
	return bridge.Caller{}, parley.Refuse(parley.Unauthenticated, "the token is not known")
}

func (fakeCallers) Schemes() []bridge.CallerScheme { return nil }

// TestCallers: rules A2A-060 and A2A-061, on both transports.
func TestCallers(t *testing.T) {
	t.Parallel()
	known := newServing(t, func(c *Config) { c.Callers = fakeCallers{} })
	nobody := newServing(t)
	for _, c := range []struct {
		w                  *serving
		agent, credentials string
		status             int
		caller             string
	}{
		{nobody, "alice", "", 200, directory.GuestName(Protocol, "192.0.2.1", "")},
		{nobody, "closed", "", 401, ""},
		{known, "alice", "", 200, "guest/a2a/x"},
		{known, "closed", "", 401, ""},
		{known, "closed", "Bearer bob", 200, "bob"},
		{known, "alice", "Bearer wrong", 401, ""},
		{known, "alice", "Bearer wait", 503, ""},
	} {
		for _, rest := range []bool{false, true} {
			c.w.fake.call = nil
			path, body := "/a2a/"+c.agent, `{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":`+hello1+`}`
			if rest {
				path, body = path+"/message:send", hello1
			}
			rec := c.w.ask("POST", path, body, protocol.SvcParamVersion, V1, "Authorization", c.credentials)
			if rec.Code != c.status {
				t.Errorf("%s, %q: status %d, want %d: %s", path, c.credentials, rec.Code, c.status, rec.Body)
				continue
			}
			if c.status == 200 {
				if c.w.fake.call == nil || c.w.fake.call.caller.Name != c.caller {
					t.Errorf("%s, %q: %+v", path, c.credentials, c.w.fake.call)
				}
				continue
			}
			challenge := rec.Header().Get("WWW-Authenticate")
			if (c.status == 401) != strings.HasPrefix(challenge, "Bearer ") ||
				strings.Contains(challenge, "invalid_token") != (c.status == 401 && c.credentials != "") {
				t.Errorf("%s, %q: challenge %q", path, c.credentials, challenge)
			}
			if strings.Contains(rec.Body.String(), "-314") {
				t.Errorf("%s", rec.Body)
			}
			if _, m := parseAnswer(t, rec).info(t); m["ref"] == nil {
				t.Errorf("%s: no reference", rec.Body)
			}
		}
	}
}

// TestVouch: the connection of a caller with credentials is no guest's any more.
func TestVouch(t *testing.T) {
	t.Parallel()
	w := newServing(t, func(c *Config) { c.Callers = fakeCallers{} })
	for _, credentials := range []string{"", "Bearer bob"} {
		caller := policy.NewCaller("192.0.2.1", nil)
		r := httptest.NewRequestWithContext(policy.WithCaller(t.Context(), caller), "GET", "/a2a/alice/tasks", nil)
		r.Header.Set(protocol.SvcParamVersion, V1)
		r.Header.Set("Authorization", credentials)
		rec := httptest.NewRecorder()
		w.ServeHTTP(rec, r)
		if rec.Code != 200 || caller.Vouched() != (credentials != "") {
			t.Errorf("%q: status %d, vouched %t", credentials, rec.Code, caller.Vouched())
		}
	}
}

// TestContentType: rule A2A-012. The type is checked before the body, which is not JSON.
func TestContentType(t *testing.T) {
	t.Parallel()
	w := newServing(t)
	for given, ok := range map[string]bool{
		"application/json": true, "application/a2a+json": true, "Application/JSON; charset=UTF-8": true,
		"application/json; charset=latin1": false, "text/plain": false, "": false, "application/jsonx": false,
		"application/json, text/plain": false, ";": false,
	} {
		rec := w.ask("POST", "/a2a/alice", "{", protocol.SvcParamVersion, V1, "Content-Type", "",
			"Content-Type", given)
		want := map[bool]int{true: -32700, false: -32005}[ok]
		if a := parseAnswer(t, rec); rec.Code != 200 || a.Error == nil || a.Error.Code != want || string(a.ID) != "null" {
			t.Errorf("JSON-RPC, %q: %d %s, want %d", given, rec.Code, rec.Body, want)
		}
		rec = w.ask("POST", "/a2a/alice/message:send", "{", protocol.SvcParamVersion, V1, "Content-Type", "",
			"Content-Type", given)
		status := map[bool]int{true: 400, false: 415}[ok]
		if reason, _ := parseAnswer(t, rec).info(t); rec.Code != status || !ok && reason != "CONTENT_TYPE_NOT_SUPPORTED" {
			t.Errorf("REST, %q: %d %s", given, rec.Code, rec.Body)
		}
	}
}
