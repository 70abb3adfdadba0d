package a2a

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
)

// fullTask has what a task can have.
func fullTask() *protocol.Task {
	at := time.Date(2026, 11, 26, 12, 0, 0, 120_999_999, time.FixedZone("", 3600))
	m := &protocol.Message{ID: "m1", ContextID: "C", TaskID: "T", Role: protocol.MessageRoleUser,
		Parts: protocol.ContentParts{protocol.NewTextPart("a<b"), {Content: protocol.Raw("\x00\xff"), Filename: "f",
			MediaType: "image/png"}, protocol.NewFileURLPart("https://x.example/?a&b", "text/html"),
			{Content: protocol.Data{Value: json.RawMessage(`{"n": 12345678901234567890}`)},
				Metadata: map[string]any{"k": json.RawMessage("1.00")}},
			protocol.NewDataPart(json.RawMessage(`[1.10]`)), protocol.NewDataPart(nil)},
		Extensions: []string{"urn:x"}, ReferenceTasks: []protocol.TaskID{"R"}}
	return &protocol.Task{ID: "T", ContextID: "C", History: []*protocol.Message{m}, Artifacts: []*protocol.Artifact{
		{ID: "result", Name: "n", Description: "d"}}, Status: protocol.TaskStatus{State: protocol.TaskStateInputRequired,
		Timestamp: &at, Message: &protocol.Message{ID: "m2", Role: protocol.MessageRoleAgent}}}
}

// TestEncoding: lists are never null, numbers keep their literals, times are UTC with
// milliseconds, and 0.3 has its own names.
func TestEncoding(t *testing.T) {
	t.Parallel()
	w := newServing(t)
	w.fake.task = fullTask()
	const want1 = `{"id":"T","contextId":"C","status":{"state":"TASK_STATE_INPUT_REQUIRED","message":{"messageId":"m2",` +
		`"role":"ROLE_AGENT","parts":[]},"timestamp":"2026-11-26T11:00:00.120Z"},"artifacts":[{"artifactId":"result",` +
		`"name":"n","description":"d","parts":[]}],"history":[{"messageId":"m1","contextId":"C","taskId":"T",` +
		`"role":"ROLE_USER","parts":[{"text":"a<b"},{"raw":"AP8=","filename":"f","mediaType":"image/png"},` +
		`{"url":"https://x.example/?a&b","mediaType":"text/html"},{"data":{"n":12345678901234567890},` +
		`"metadata":{"k":1.00}},{"data":[1.10]},{"text":"null","mediaType":"application/json"}],"extensions":["urn:x"],` +
		`"referenceTaskIds":["R"]}]}`
	if rec := w.ask("GET", "/a2a/alice/tasks/T", "", protocol.SvcParamVersion, V1); rec.Body.String() != want1 {
		t.Errorf("REST\n%s\nwant\n%s", rec.Body, want1)
	}
	rec := w.rpc(V1, `{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":"T"}}`)
	if got := rec.Body.String(); got != `{"jsonrpc":"2.0","id":1,"result":`+want1+`}` {
		t.Errorf("JSON-RPC\n%s", got)
	}
	const want03 = `{"jsonrpc":"2.0","id":1,"result":{"kind":"task","id":"T","contextId":"C","status":{` +
		`"state":"input-required","message":{"kind":"message","messageId":"m2","role":"agent","parts":[]},` +
		`"timestamp":"2026-11-26T11:00:00.120Z"},"artifacts":[{"artifactId":"result","name":"n","description":"d",` +
		`"parts":[]}],"history":[{"kind":"message","messageId":"m1","contextId":"C","taskId":"T","role":"user","parts":[` +
		`{"kind":"text","text":"a<b"},{"kind":"file","file":{"bytes":"AP8=","mimeType":"image/png","name":"f"}},` +
		`{"kind":"file","file":{"uri":"https://x.example/?a&b","mimeType":"text/html"}},` +
		`{"kind":"data","data":{"n":12345678901234567890},"metadata":{"k":1.00}},` +
		`{"kind":"data","data":{"value":[1.10]},"metadata":{"data_part_compat":true}},` +
		`{"kind":"data","data":{"value":null},"metadata":{"data_part_compat":true}}],"extensions":["urn:x"],` +
		`"referenceTaskIds":["R"]}]}}`
	rec = w.rpc(V03, `{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"id":"T"}}`)
	if rec.Body.String() != want03 {
		t.Errorf("0.3\n%s\nwant\n%s", rec.Body, want03)
	}
	const config = `{"taskId":"T","url":"https://x.example/"}`
	const config03 = `{"taskId":"T","pushNotificationConfig":{"url":"https://x.example/",` +
		`"authentication":{"schemes":["Bearer"],"credentials":"c"}}}`
	for _, c := range []struct{ version, method, params, want string }{
		{V1, "ListTasks", `{}`, `{"tasks":[],"nextPageToken":"","pageSize":50,"totalSize":0}`},
		{V1, "ListTaskPushNotificationConfigs", `{"taskId":"T"}`, `{"configs":[]}`},
		{V1, "DeleteTaskPushNotificationConfig", `{"taskId":"T","id":"P"}`, `{}`},
		{V1, "GetTaskPushNotificationConfig", `{"taskId":"T","id":"P"}`,
			`{"taskId":"T","id":"P","url":"https://hook.example/"}`},
		{V1, "CreateTaskPushNotificationConfig", config, config},
		{V03, "tasks/pushNotificationConfig/list", `{"id":"T"}`, `[]`},
		{V03, "tasks/pushNotificationConfig/delete", `{"id":"T","pushNotificationConfigId":"P"}`, `null`},
		{V03, "tasks/pushNotificationConfig/get", `{"id":"T"}`,
			`{"taskId":"T","pushNotificationConfig":{"id":"P","url":"https://hook.example/"}}`},
		{V03, "tasks/pushNotificationConfig/set", config03, config03},
	} {
		body := `{"jsonrpc":"2.0","id":1,"method":"` + c.method + `","params":` + c.params + `}`
		if a := parseAnswer(t, w.rpc(c.version, body)); string(a.Result) != c.want {
			t.Errorf("%s: %s, want %s", c.method, a.Result, c.want)
		}
	}
}

// TestDecoding: what comes in is the same message in both versions.
func TestDecoding(t *testing.T) {
	t.Parallel()
	w := newServing(t)
	const v1 = `{"message":{"messageId":"m1","role":"ROLE_USER","taskId":"T","contextId":"C","parts":[{"text":""},` +
		`{"raw":"AP8","mediaType":"image/png","filename":"f"},{"url":"https://x.example/","mediaType":"text/html"},` +
		`{"data":{"n": 12345678901234567890},"metadata":{"k":"v"}},{"data":[1.10]},{"data":null},` +
		`{"text":"x","raw":null,"data":null}],"kind":{"any":"thing"}},` +
		`"configuration":{"returnImmediately":true,"historyLength":0,"acceptedOutputModes":["text/plain"],` +
		`"taskPushNotificationConfig":{"url":"https://hook.example/","authentication":{"scheme":"Bearer"}}},` +
		`"metadata":{"a":1}}`
	const v03 = `{"message":{"kind":"message","messageId":"m1","role":"user","taskId":"T","contextId":"C","parts":[` +
		`{"kind":"text","text":""},{"kind":"file","file":{"bytes":"AP8=","mimeType":"image/png","name":"f"}},` +
		`{"kind":"file","file":{"uri":"https://x.example/","mimeType":"text/html"}},` +
		`{"kind":"data","data":{"n": 12345678901234567890},"metadata":{"k":"v"}},` +
		`{"kind":"data","data":{"value":[1.10]},"metadata":{"data_part_compat":true}},` +
		`{"kind":"data","data":{"value":null},"metadata":{"data_part_compat":true}},{"kind":"text","text":"x"}]},` +
		`"configuration":{"blocking":false,"historyLength":0,"acceptedOutputModes":["text/plain"],` +
		`"pushNotificationConfig":{"url":"https://hook.example/","authentication":{"schemes":["Bearer"]}}},` +
		`"metadata":{"a":1}}`
	for version, body := range map[string]string{
		V1:  `{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":` + v1 + `}`,
		V03: `{"jsonrpc":"2.0","id":1,"method":"message/send","params":` + v03 + `}`, "REST": v1} {
		var rec = w.rpc(version, body)
		if version == "REST" {
			rec = w.ask("POST", "/a2a/alice/message:send", body, protocol.SvcParamVersion, V1)
		}
		r, ok := w.fake.request.(*protocol.SendMessageRequest)
		if !ok || rec.Code != 200 {
			t.Fatalf("%s: %s", version, rec.Body)
		}
		m := r.Message
		if m.ID != "m1" || m.Role != protocol.MessageRoleUser || m.TaskID != "T" || m.ContextID != "C" ||
			len(m.Parts) != 7 || r.Metadata["a"] != 1.0 {
			t.Fatalf("%s: %+v", version, m)
		}
		if m.Parts[0].Content != protocol.Text("") || string(m.Parts[1].Raw()) != "\x00\xff" ||
			m.Parts[1].Filename != "f" || m.Parts[1].MediaType != "image/png" || m.Parts[2].URL() != "https://x.example/" ||
			m.Parts[3].Metadata["k"] != "v" || m.Parts[6].Text() != "x" {
			t.Errorf("%s: %+v", version, m.Parts)
		}
		for i, want := range map[int]string{3: `{"n": 12345678901234567890}`, 4: `[1.10]`, 5: `null`} {
			if got, ok := m.Parts[i].Data().(json.RawMessage); !ok || string(got) != want {
				t.Errorf("%s: data %d is %s, want %s", version, i, got, want)
			}
		}
		if len(m.Parts[4].Metadata) != 0 {
			t.Errorf("%s: metadata %v", version, m.Parts[4].Metadata)
		}
		c := r.Config
		if !c.ReturnImmediately || *c.HistoryLength != 0 || c.AcceptedOutputModes[0] != "text/plain" ||
			c.PushConfig.URL != "https://hook.example/" || c.PushConfig.Auth.Scheme != "Bearer" {
			t.Errorf("%s: %+v", version, c)
		}
		if p := string(w.fake.call.params); !strings.Contains(p, `"data":{"n": 12345678901234567890}`) {
			t.Errorf("%s: params %s", version, p)
		}
	}
	// Without configuration.blocking a call of 0.3 waits.
	w.rpc(V03, `{"jsonrpc":"2.0","id":1,"method":"message/send","params":`+hello03+`}`)
	if r, ok := w.fake.request.(*protocol.SendMessageRequest); !ok || r.Config != nil && r.Config.ReturnImmediately {
		t.Errorf("%+v", w.fake.request)
	}
}

// TestCallOfTransport: what the transport tells the methods.
func TestCallOfTransport(t *testing.T) {
	t.Parallel()
	w := newServing(t)
	rec := w.ask("GET", "/a2a/alice/tasks/T?historyLength=2", "", protocol.SvcParamVersion, V1,
		"A2A-Extensions", "urn:a, "+ExtensionURI, "X-A2A-Extensions", "urn:b,urn:a")
	c := w.fake.call
	if c == nil || c.body != nil || c.remote != "192.0.2.1:1234" || strings.Join(c.extensions, " ") !=
		"urn:a "+ExtensionURI+" urn:b" {
		t.Errorf("%+v", c)
	}
	if got := string(c.params); got != `{"id":"T","historyLength":2}` {
		t.Errorf("params %s", got)
	}
	if got := rec.Header().Get("A2A-Extensions"); got != ExtensionURI {
		t.Errorf("A2A-Extensions: %q", got)
	}
	rec = w.ask("POST", "/a2a/alice", `{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"id":"T"}}`,
		"X-A2A-Extensions", ExtensionURI)
	if h := rec.Header(); h.Get("X-A2A-Extensions") != ExtensionURI || h.Get("Cache-Control") != "no-store" {
		t.Errorf("0.3: %v", rec.Header())
	}
	w.ask("POST", "/a2a/alice/tasks/T:cancel", `{"metadata":{"a":1}}`, protocol.SvcParamVersion, V1)
	if r, ok := w.fake.request.(*protocol.CancelTaskRequest); !ok || r.ID != "T" || r.Metadata["a"] != 1.0 {
		t.Errorf("%+v", w.fake.request)
	}
	w.ask("POST", "/a2a/alice/tasks/T/pushNotificationConfigs", `{ "url":"https://x.example/"}`,
		protocol.SvcParamVersion, V1)
	if r, ok := w.fake.request.(*protocol.PushConfig); !ok || r.TaskID != "T" || r.URL == "" {
		t.Errorf("%+v", w.fake.request)
	}
	w.ask("DELETE", "/a2a/alice/tasks/T/pushNotificationConfigs/a%20b", "", protocol.SvcParamVersion, V1)
	if r, ok := w.fake.request.(*protocol.DeleteTaskPushConfigRequest); !ok || r.TaskID != "T" || r.ID != "a b" {
		t.Errorf("%+v", w.fake.request)
	}
}
