package a2a

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
)

// A badParams is a row about the parameters of a method: it is sent by JSON-RPC in its
// version, and in 1.0 by REST too where that has them.
type badParams struct {
	name, version, method, params string

	verb, path, body string // of REST; no path: only JSON-RPC has it
	field            string // of BadRequest
}

func badRows() []badParams {
	send := func(name, message, field string) badParams {
		params := `{"message":` + message + `}`
		return badParams{name, V1, "SendMessage", params, "POST", "message:send", params, field}
	}
	old := func(name, message, field string) badParams {
		return badParams{name, V03, "message/send", `{"message":` + message + `}`, "", "", "", field}
	}
	list := func(name, params, query, field string) badParams {
		return badParams{name, V1, "ListTasks", params, "GET", "tasks?" + query, "", field}
	}
	long := strings.Repeat("x", maxID+1)
	return []badParams{
		{"no message", V1, "SendMessage", `{}`, "POST", "message:send", `{}`, "message"},
		{"no message", V03, "message/send", `{}`, "", "", "", "message"},
		send("no messageId", `{"role":"ROLE_USER","parts":[{"text":"x"}]}`, "message.messageId"),
		old("no messageId", `{"role":"user","parts":[{"kind":"text","text":"x"}]}`, "message.messageId"),
		send("long messageId", `{"messageId":"`+long+`","role":"ROLE_USER","parts":[{"text":"x"}]}`, "message.messageId"),
		send("no parts", `{"messageId":"m","role":"ROLE_USER"}`, "message.parts"),
		send("empty parts", `{"messageId":"m","role":"ROLE_USER","parts":[]}`, "message.parts"),
		old("no parts", `{"messageId":"m","role":"user"}`, "message.parts"),
		send("empty part", `{"messageId":"m","role":"ROLE_USER","parts":[{}]}`, "message.parts[0]"),
		send("two contents", `{"messageId":"m","role":"ROLE_USER","parts":[{"text":"a"},{"text":"a","url":"b"}]}`,
			"message.parts[1]"),
		old("unknown kind", `{"messageId":"m","role":"user","parts":[{"kind":"audio"}]}`, "message.parts[0].kind"),
		old("kind without its member", `{"messageId":"m","role":"user","parts":[{"kind":"text","data":{}}]}`,
			"message.parts[0].text"),
		old("data is no object", `{"messageId":"m","role":"user","parts":[{"kind":"data","data":1}]}`,
			"message.parts[0].data"),
		old("file without content", `{"messageId":"m","role":"user","parts":[{"kind":"file","file":{}}]}`,
			"message.parts[0].file"),
		old("file with both", `{"messageId":"m","role":"user","parts":[{"kind":"file","file":{"bytes":"","uri":"x:y"}}]}`,
			"message.parts[0].file"),
		send("unknown role", `{"messageId":"m","role":"boss","parts":[{"text":"x"}]}`, "message.role"),
		send("role of an agent", `{"messageId":"m","role":"ROLE_AGENT","parts":[{"text":"x"}]}`, "message.role"),
		old("role of an agent", `{"messageId":"m","role":"agent","parts":[{"kind":"text","text":"x"}]}`, "message.role"),
		old("role of 1.0", `{"messageId":"m","role":"ROLE_AGENT","parts":[{"kind":"text","text":"x"}]}`, "message.role"),
		send("bad base64", `{"messageId":"m","role":"ROLE_USER","parts":[{"raw":"a?b"}]}`, "message.parts[0].raw"),
		send("base64 with stray bits", `{"messageId":"m","role":"ROLE_USER","parts":[{"raw":"YR=="}]}`,
			"message.parts[0].raw"),
		old("bad base64", `{"messageId":"m","role":"user","parts":[{"kind":"file","file":{"bytes":"a?b"}}]}`,
			"message.parts[0].file.bytes"),
		send("wrong type", `{"messageId":7,"role":"ROLE_USER","parts":[{"text":"x"}]}`, "message.messageId"),
		send("wrong type of a part", `{"messageId":"m","role":"ROLE_USER","parts":[{"text":"x"},{"text":[]}]}`,
			"message.parts[1].text"),
		old("wrong type of a part", `{"messageId":"m","role":"user","parts":[{"kind":"text","text":7}]}`,
			"message.parts[0].text"),
		{"negative historyLength", V1, "SendMessage", strings.TrimSuffix(hello1, "}") +
			`,"configuration":{"historyLength":-1}}`, "", "", "", "configuration.historyLength"},
		{"negative historyLength", V1, "GetTask", `{"id":"T","historyLength":-1}`, "GET", "tasks/T?historyLength=-1", "",
			"historyLength"},
		{"negative historyLength", V03, "tasks/get", `{"id":"T","historyLength":-1}`, "", "", "", "historyLength"},
		{"fractional historyLength", V1, "GetTask", `{"id":"T","historyLength":1.5}`, "GET",
			"tasks/T?historyLength=1.5", "", "historyLength"},
		list("unknown status", `{"status":"TASK_STATE_LOST"}`, "status=TASK_STATE_LOST", "status"),
		list("pageSize 0", `{"pageSize":0}`, "pageSize=0", "pageSize"),
		list("pageSize 101", `{"pageSize":101}`, "pageSize=101", "pageSize"),
		list("pageSize is text", `{"pageSize":"x"}`, "pageSize=x", "pageSize"),
		list("bad time", `{"statusTimestampAfter":"yesterday"}`, "statusTimestampAfter=yesterday",
			"statusTimestampAfter"),
		{"no id", V1, "GetTask", `{}`, "", "", "", "id"},
		{"no id", V03, "tasks/get", `{}`, "", "", "", "id"},
		{"no id", V1, "CancelTask", `{}`, "", "", "", "id"},
		{"no id", V1, "SubscribeToTask", `{}`, "", "", "", "id"},
		{"no id", V03, "tasks/resubscribe", `{}`, "", "", "", "id"},
		{"no url", V1, "CreateTaskPushNotificationConfig", `{"taskId":"T"}`, "POST", "tasks/T/pushNotificationConfigs",
			`{}`, "url"},
		{"no config", V03, "tasks/pushNotificationConfig/set", `{"taskId":"T"}`, "", "", "", "pushNotificationConfig"},
		{"another id than in the path", V1, "", "", "POST", "tasks/T:cancel", `{"id":"U"}`, "id"},
	}
}

// TestBadParameters: they are -32602, or 400, and BadRequest names the field.
func TestBadParameters(t *testing.T) {
	t.Parallel()
	w := newServing(t)
	for _, c := range badRows() {
		check := func(by string, rec *httptest.ResponseRecorder, status int) {
			t.Helper()
			a := parseAnswer(t, rec)
			if rec.Code != status || a.Error == nil || by != "REST" && a.Error.Code != -32602 {
				t.Errorf("%s, %s %s: %d %s", c.name, by, c.version, rec.Code, rec.Body)
				return
			}
			reason, m := a.info(t)
			if reason != "INVALID_PARAMS" || m["ref"] == nil || a.violation() != c.field {
				t.Errorf("%s, %s %s: field %q, want %q: %s", c.name, by, c.version, a.violation(), c.field, rec.Body)
			}
			if w.fake.call != nil {
				t.Errorf("%s, %s %s: the method was called", c.name, by, c.version)
			}
		}
		if c.method != "" {
			w.fake.call = nil
			check("JSON-RPC", w.rpc(c.version, fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":%s}`, c.method,
				c.params)), 200)
		}
		if c.path != "" {
			w.fake.call = nil
			check("REST", w.ask(c.verb, "/a2a/alice/"+c.path, c.body, protocol.SvcParamVersion, V1), 400)
		}
	}
}

// TestBadRequests: what is no request of JSON-RPC, in both versions (A2A-010).
func TestBadRequests(t *testing.T) {
	t.Parallel()
	w := newServing(t)
	for _, version := range []string{V1, V03} {
		get, card := "GetTask", "GetExtendedAgentCard"
		if version == V03 {
			get, card = "tasks/get", "agent/getAuthenticatedExtendedCard"
		}
		task := func(member, value string) string {
			return fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{"id":"T",%q:%s}}`, get, member, value)
		}
		for _, c := range []struct {
			name, body string
			code       int
			id         string
		}{
			{"no JSON", `{`, -32700, "null"},
			{"empty", ``, -32700, "null"},
			{"blank", ` `, -32700, "null"},
			{"trailing bytes", task("a", "1") + `x`, -32700, "null"},
			{"two values", task("a", "1") + `{}`, -32700, "null"},
			{"byte order mark", "\ufeff" + task("a", "1"), -32700, "null"},
			{"not UTF-8", task("a", "\"\xff\""), -32700, "null"},
			{"lone surrogate", task("a", `"\ud800"`), -32700, "null"},
			{"duplicate member", `{"jsonrpc":"2.0","id":1,"id":2,"method":"` + get + `","params":{"id":"T"}}`, -32700, "null"},
			{"duplicate parameter", task("id", `"U"`), -32700, "null"},
			{"duplicate in what is unknown", task("a", `{"b":[{"c":1,"c":2}]}`), -32700, "null"},
			{"escaped duplicate", task(`id`, `"U"`), -32700, "null"},
			{"too deep", task("a", strings.Repeat("[", 200)+strings.Repeat("]", 200)), -32700, "null"},
			{"batch", "[" + task("a", "1") + "]", -32600, "null"},
			{"empty batch", "[]", -32600, "null"},
			{"scalar", `7`, -32600, "null"},
			{"Method", strings.Replace(task("a", "1"), `"method"`, `"Method"`, 1), -32600, "1"},
			{"ID", strings.Replace(task("a", "1"), `"id":1`, `"ID":1`, 1), -32600, "null"},
			{"wrong case of a parameter", task("HistoryLength", "1"), -32600, "1"},
			{"wrong case of an alias", task("History_Length", "1"), -32600, "1"},
			{"both spellings", strings.Replace(task("historyLength", "1"), `"id":"T"`, `"id":"T","history_length":1`, 1),
				-32600, "1"},
			{"jsonrpc 1.0", strings.Replace(task("a", "1"), `"2.0"`, `"1.0"`, 1), -32600, "1"},
			{"jsonrpc is a number", strings.Replace(task("a", "1"), `"2.0"`, `2.0`, 1), -32600, "1"},
			{"no jsonrpc", strings.Replace(task("a", "1"), `"jsonrpc":"2.0",`, ``, 1), -32600, "1"},
			{"id is an object", strings.Replace(task("a", "1"), `"id":1`, `"id":{}`, 1), -32600, "null"},
			{"id is an array", strings.Replace(task("a", "1"), `"id":1`, `"id":[1]`, 1), -32600, "null"},
			{"id is true", strings.Replace(task("a", "1"), `"id":1`, `"id":true`, 1), -32600, "null"},
			{"id is long", strings.Replace(task("a", "1"), `"id":1`, `"id":"`+strings.Repeat("x", 2000)+`"`, 1), -32600,
				"null"},
			{"no method", `{"jsonrpc":"2.0","id":1,"params":{}}`, -32600, "1"},
			{"method is a number", `{"jsonrpc":"2.0","id":1,"method":1,"params":{}}`, -32600, "1"},
			{"unknown method", `{"jsonrpc":"2.0","id":1,"method":"Dance","params":{}}`, -32601, "1"},
			{"no params", fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q}`, get), -32602, "1"},
			{"params are null", fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":null}`, get), -32602, "1"},
			{"params by position", fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":["T"]}`, get), -32602, "1"},
			{"params are text", fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":"T"}`, get), -32600, "1"},
			{"card without params", fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q}`, card), 0, "1"},
			{"card with null", fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":null}`, card), 0, "1"},
			{"unknown members", task("Unknown", `{"ID":1,"id":2}`), 0, "1"},
			{"id is text", strings.Replace(task("a", "1"), `"id":1`, `"id":"a\u0062"`, 1), 0, `"a\u0062"`},
			{"id is null", strings.Replace(task("a", "1"), `"id":1`, `"id":null`, 1), 0, "null"},
			{"id is large", strings.Replace(task("a", "1"), `"id":1`, `"id":12345678901234567890`, 1), 0,
				"12345678901234567890"},
			{"id is a fraction", strings.Replace(task("a", "1"), `"id":1`, `"id":1.50`, 1), 0, "1.50"},
		} {
			rec := w.ask("POST", "/a2a/alice", c.body, protocol.SvcParamVersion, version, "Content-Type", "",
				"Content-Type", "application/json")
			a := parseAnswer(t, rec)
			if rec.Code != 200 || a.Version != "2.0" || string(a.ID) != c.id {
				t.Errorf("%s, %s: status %d, id %s, want %s: %s", version, c.name, rec.Code, a.ID, c.id, rec.Body)
				continue
			}
			switch {
			case c.code == 0 && (a.Error != nil || len(a.Result) == 0):
				t.Errorf("%s, %s: %s", version, c.name, rec.Body)
			case c.code != 0 && (a.Error == nil || a.Error.Code != c.code):
				t.Errorf("%s, %s: %s, want %d", version, c.name, rec.Body, c.code)
			case c.code != 0:
				a.info(t)
			}
		}
	}
}

// TestBadBodies: the same by REST.
func TestBadBodies(t *testing.T) {
	t.Parallel()
	w := newServing(t)
	send := func(member, value string) string {
		return strings.TrimSuffix(hello1, "}") + `,"` + member + `":` + value + `}`
	}
	for _, c := range []struct{ name, body, reason string }{
		{"no JSON", `{`, "PARSE_ERROR"},
		{"empty", ``, "PARSE_ERROR"},
		{"trailing bytes", hello1 + `x`, "PARSE_ERROR"},
		{"byte order mark", "\ufeff" + hello1, "PARSE_ERROR"},
		{"not UTF-8", send("metadata", "{\"a\":\"\xff\"}"), "PARSE_ERROR"},
		{"duplicate member", send("message", "{}"), "PARSE_ERROR"},
		{"too deep", send("metadata", strings.Repeat(`{"a":`, 200)+"1"+strings.Repeat("}", 200)), "PARSE_ERROR"},
		{"array", `[` + hello1 + `]`, "INVALID_REQUEST"},
		{"wrong case", strings.Replace(hello1, "messageId", "messageID", 1), "INVALID_REQUEST"},
		{"wrong case in a part", strings.Replace(hello1, `"text"`, `"Text"`, 1), "INVALID_REQUEST"},
	} {
		rec := w.ask("POST", "/a2a/alice/message:send", c.body, protocol.SvcParamVersion, V1, "Content-Type", "",
			"Content-Type", "application/json")
		if reason, _ := parseAnswer(t, rec).info(t); rec.Code != 400 || reason != c.reason {
			t.Errorf("%s: %d %s", c.name, rec.Code, rec.Body)
		}
	}
	for _, query := range []string{"HistoryLength=1", "historyLength=1&historyLength=2",
		"historyLength=1&history_length=2", "historyLength=%zz"} {
		rec := w.ask("GET", "/a2a/alice/tasks/T?"+query, "", protocol.SvcParamVersion, V1)
		if reason, _ := parseAnswer(t, rec).info(t); rec.Code != 400 || reason != "INVALID_REQUEST" {
			t.Errorf("%s: %d %s", query, rec.Code, rec.Body)
		}
	}
}

// TestTooLarge: a body over the limit is 413 on both transports, whether its length is
// said or not.
func TestTooLarge(t *testing.T) {
	t.Parallel()
	w := newServing(t, func(c *Config) { c.MaxBody = 1000 })
	long := strings.Repeat(" ", 1001)
	for _, path := range []string{"/a2a/alice", "/a2a/alice/message:send"} {
		for _, said := range []bool{true, false} {
			r := httptest.NewRequest("POST", path, strings.NewReader(long))
			r.Header.Set("Content-Type", "application/json")
			r.Header.Set(protocol.SvcParamVersion, V1)
			if !said {
				r.ContentLength = -1
			}
			rec := httptest.NewRecorder()
			w.ServeHTTP(rec, r)
			if _, m := parseAnswer(t, rec).info(t); rec.Code != 413 || m["code"] != "too_large" {
				t.Errorf("%s: %d %s", path, rec.Code, rec.Body)
			}
		}
	}
	if rec := w.ask("POST", "/a2a/alice/message:send", hello1+strings.Repeat(" ", 1000-len(hello1)),
		protocol.SvcParamVersion, V1); rec.Code != 200 {
		t.Errorf("at the limit: %d", rec.Code)
	}
}

// TestAliases: snake_case names are accepted everywhere, and the call has the camelCase ones.
func TestAliases(t *testing.T) {
	t.Parallel()
	w := newServing(t)
	rec := w.rpc(V1, `{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":{"message_id":"m1",
		"context_id":"c","role":"ROLE_USER","parts":[{"text":"hi","media_type":"text/plain"}],
		"reference_task_ids":["a"]},"configuration":{"history_length":3,"return_immediately":true,
		"task_push_notification_config":{"task_id":"T","url":"https://x.example/"}},"metadata":{"keep_me":1}}}`)
	r, ok := w.fake.request.(*protocol.SendMessageRequest)
	if !ok {
		t.Fatalf("%s", rec.Body)
	}
	m := r.Message
	if m.ID != "m1" || m.ContextID != "c" || m.Parts[0].MediaType != "text/plain" || len(m.ReferenceTasks) != 1 ||
		*r.Config.HistoryLength != 3 || !r.Config.ReturnImmediately || r.Config.PushConfig.TaskID != "T" {
		t.Errorf("%+v %+v", m, r.Config)
	}
	if p := string(w.fake.call.params); strings.Contains(p, "_id") || !strings.Contains(p, `"keep_me"`) ||
		!strings.Contains(p, `"messageId":"m1"`) {
		t.Errorf("params %s", p)
	}
	if !strings.Contains(string(w.fake.call.body), "message_id") {
		t.Error("the body is not as it came")
	}
	w.ask("GET", "/a2a/alice/tasks?context_id=c&page_size=7&include_artifacts=true&history_length=0&x=1", "",
		protocol.SvcParamVersion, V1)
	l, ok := w.fake.request.(*protocol.ListTasksRequest)
	if !ok || l.ContextID != "c" || l.PageSize != 7 || !l.IncludeArtifacts || l.HistoryLength == nil {
		t.Errorf("%+v", l)
	}
	w.rpc(V03, `{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"id":"T","history_length":2}}`)
	if g, ok := w.fake.request.(*protocol.GetTaskRequest); !ok || *g.HistoryLength != 2 {
		t.Errorf("%+v", w.fake.request)
	}
}

// TestNotifications: rule A2A-011. A message that is sent so is recorded, and waits for
// nothing.
func TestNotifications(t *testing.T) {
	t.Parallel()
	w := newServing(t)
	for version, methods := range map[string][]string{V1: {"SendMessage", "SendStreamingMessage"},
		V03: {"message/send", "message/stream"}} {
		params := map[string]string{V1: hello1, V03: hello03}[version]
		for _, method := range methods {
			w.fake.request = nil
			rec := w.rpc(version, `{"jsonrpc":"2.0","method":"`+method+`","params":`+params+`}`)
			r, ok := w.fake.request.(*protocol.SendMessageRequest)
			if rec.Code != 204 || rec.Body.Len() > 0 || !ok || r.Config == nil || !r.Config.ReturnImmediately {
				t.Errorf("%s: %d %q, %+v", method, rec.Code, rec.Body, r)
			}
		}
	}
	// What is not done is said: the client may have forgotten the id.
	for body, code := range map[string]int{
		`{"jsonrpc":"2.0","method":"Dance"}`:   -32601,
		`{"jsonrpc":"2.0","method":"GetTask"}`: -32602,
	} {
		if a := parseAnswer(t, w.rpc(V1, body)); a.Error == nil || a.Error.Code != code || string(a.ID) != "null" {
			t.Errorf("%s: %+v", body, a)
		}
	}
	subscribe := `{"jsonrpc":"2.0","method":"SubscribeToTask","params":{"id":"T"}}`
	if rec := w.rpc(V1, subscribe); rec.Code != 204 || rec.Body.Len() > 0 {
		t.Errorf("%d %q", rec.Code, rec.Body)
	}
	if rec := w.rpc(V1, `{"jsonrpc":"1.0","method":"GetTask"}`); parseAnswer(t, rec).Error.Code != -32600 {
		t.Errorf("no request: %s", rec.Body) // it may not be a notification
	}
}
