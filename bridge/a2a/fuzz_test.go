package a2a

import (
	"encoding/json"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
)

// fuzzed sends a request, whose answer must be well-formed: JSON, a stream of it, or nothing
// for a notification.
func fuzzed(t *testing.T, w *serving, r *httptest.ResponseRecorder) {
	t.Helper()
	body := r.Body.String()
	switch ct := r.Header().Get("Content-Type"); {
	case r.Code == 204 && body == "":
	case ct == "text/event-stream":
		for _, line := range dataOf(t, r) {
			if !json.Valid([]byte(line)) {
				t.Fatalf("event %q", line)
			}
		}
	case ct != "application/json" || !json.Valid([]byte(body)):
		t.Fatalf("status %d, type %q: %q", r.Code, ct, body)
	}
	if w.fake.call != nil && w.fake.call.params != nil && !json.Valid(w.fake.call.params) {
		t.Fatalf("params %q", w.fake.call.params)
	}
}

func fuzzServing(f *testing.F) *serving {
	w := newServing(f)
	w.fake.events = yields(nil, taskIn(protocol.TaskStateWorking), wirePiece(true), update(protocol.TaskStateCompleted))
	w.fake.task = fullTask()
	w.fake.result = w.fake.task
	return w
}

func FuzzRPC(f *testing.F) {
	for _, b := range badRows() {
		f.Add(b.version, "application/json", `{"jsonrpc":"2.0","id":1,"method":"`+b.method+`","params":`+b.params+`}`)
	}
	for _, body := range []string{send1, subscribe1, `[]`, `{`,
		`{"jsonrpc":"2.0","method":"SendMessage","params":` + hello1 + `}`} {
		f.Add("1.0", "application/json", body)
	}
	f.Add("", "application/json; charset=utf-8", send03)
	f.Add("9.9", "text/plain", `{"id":"x"`)
	w := fuzzServing(f)
	f.Fuzz(func(t *testing.T, version, contentType, body string) {
		w.fake.call = nil
		rec := w.ask("POST", "/a2a/alice", body, protocol.SvcParamVersion, version, "Content-Type", "",
			"Content-Type", contentType)
		fuzzed(t, w, rec)
		if rec.Code != 200 || rec.Header().Get("Content-Type") != "application/json" {
			return
		}
		if a := parseAnswer(t, rec); a.Version != "2.0" || (a.Error == nil) == (a.Result == nil) {
			t.Fatalf("%s", rec.Body)
		}
	})
}

func FuzzREST(f *testing.F) {
	for _, b := range badRows() {
		if b.path != "" {
			path, query, _ := strings.Cut(b.path, "?")
			f.Add(b.verb, path, query, "1.0", b.body)
		}
	}
	f.Add("POST", "message:stream", "", "1.0", hello1)
	f.Add("DELETE", "tasks/T/pushNotificationConfigs/P:é", "", "1.0", "")
	f.Add("GET", "../alice/tasks", "A2A-Version=1.0", "", "")
	f.Add("GET", ".well-known/agent-card.json", "", "", "")
	w := fuzzServing(f)
	f.Fuzz(func(t *testing.T, verb, path, query, version, body string) {
		u, err := url.Parse("http://hub.example/a2a/alice/" + strings.ReplaceAll(path, "?", ""))
		if err != nil || strings.HasSuffix(u.Path, CardPath) {
			return // the client sends nothing; cards have tests of their own
		}
		u.RawQuery = query
		w.fake.call = nil
		r := httptest.NewRequest("POST", "/", strings.NewReader(body))
		r.URL, r.Method, r.Host = u, verb, "hub.example"
		if body == "" {
			r.ContentLength = 0
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set(protocol.SvcParamVersion, version)
		rec := httptest.NewRecorder()
		w.ServeHTTP(rec, r)
		fuzzed(t, w, rec)
	})
}
