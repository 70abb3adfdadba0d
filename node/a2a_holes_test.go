package node

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	bridge "github.com/parley-hub/parley/bridge/a2a"
)

// web is a client of one agent's A2A endpoint, with a token; "": none.
type web struct {
	t     testing.TB
	n     *Node
	agent string
	token string
}

// ask sends a request, whose answer the caller must close.
func (w web) ask(method, path, body string) *http.Response {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), method, w.n.Addresses().Local+"/a2a/"+w.agent+path,
		strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	r.Header.Set("A2A-Version", "1.0")
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	if w.token != "" {
		r.Header.Set("Authorization", "Bearer "+w.token)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp
}

// rest sends a request of REST, and gives the status and the body of the answer.
func (w web) rest(method, path, body string) (status int, answer string) {
	w.t.Helper()
	resp := w.ask(method, path, body)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// rpc calls a method of JSON-RPC, and gives the HTTP status, the code of its error and the body.
func (w web) rpc(method, params string) (status, code int, answer string) {
	w.t.Helper()
	status, answer = w.rest("POST", "", fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":%s}`, method, params))
	var a struct{ Error struct{ Code int } }
	if status == 200 && json.Unmarshal([]byte(answer), &a) != nil {
		w.t.Fatalf("%s: %s", method, answer)
	}
	return status, a.Error.Code, answer
}

func speech(id, text string) string {
	return fmt.Sprintf(`{"message":{"messageId":%q,"role":"ROLE_USER","parts":[{"text":%q}]}}`, id, text)
}

// send sends a message, and gives the id and the context of its task.
func (w web) send(id, text string) (task, conversation string) {
	w.t.Helper()
	status, body := w.rest("POST", "/message:send", speech(id, text))
	var a struct {
		Task struct{ ID, ContextID string }
	}
	if err := json.Unmarshal([]byte(body), &a); err != nil || status != 200 || a.Task.ID == "" {
		w.t.Fatalf("%d %s", status, body)
	}
	return a.Task.ID, a.Task.ContextID
}

// caller issues a token for an agent.
func caller(t testing.TB, n *Node, agent, name string) web {
	t.Helper()
	issued, err := n.Admin().IssueToken(t.Context(), everything, admin.NewToken{Name: name, Agent: "crew/" + name})
	if err != nil {
		t.Fatal(err)
	}
	return web{t, n, agent, issued.Secret}
}

// speaker adds an agent that answers with what it got.
func speaker(t testing.TB, n *Node, name string) {
	t.Helper()
	err := n.Handle(parley.Agent{Name: name, Exposed: parley.Everywhere},
		parley.RawSkill("say", func(_ context.Context, m *parley.Message, r parley.Replier) error {
			return r.Reply(m.Parts...)
		}))
	if err != nil {
		t.Fatal(err)
	}
}

// TestA2ATasksOfOthers: over both transports, and for every method, the task of another caller is
// one that does not exist (A2A-040). The two errors do not differ.
func TestA2ATasksOfOthers(t *testing.T) {
	n := running(t, Config{})
	speaker(t, n, "parrot")
	alice, bob := caller(t, n, "parrot", "alice"), caller(t, n, "parrot", "bob")
	task, _ := alice.send("m1", "hello")
	const none = "01a21893-0000-7000-8000-000000000000"
	same := func(what, own, other string) {
		t.Helper()
		cut := func(s, id string) string { // without references and the id
			if before, after, ok := strings.Cut(s, `"ref":"`); ok {
				_, rest, _ := strings.Cut(after, `"`)
				s = before + rest
			}
			return strings.ReplaceAll(s, id, "ID")
		}
		if cut(own, task) != cut(other, none) {
			t.Errorf("%s: a task of another is told from none:\n%s\n%s", what, own, other)
		}
	}
	for method, params := range map[string]string{
		"GetTask": `{"id":%q}`, "CancelTask": `{"id":%q}`, "SubscribeToTask": `{"id":%q}`,
		"CreateTaskPushNotificationConfig": `{"taskId":%q,"url":"https://192.0.2.1/hook"}`,
		"GetTaskPushNotificationConfig":    `{"taskId":%q,"id":"x"}`,
		"ListTaskPushNotificationConfigs":  `{"taskId":%q}`,
		"DeleteTaskPushNotificationConfig": `{"taskId":%q,"id":"x"}`,
		"SendMessage":                      `{"message":{"messageId":"m2","taskId":%q,"role":"ROLE_USER","parts":[{"text":"x"}]}}`,
	} {
		status, code, own := bob.rpc(method, fmt.Sprintf(params, task))
		_, _, other := bob.rpc(method, fmt.Sprintf(params, none))
		if status != 200 || code != -32001 {
			t.Errorf("%s: %d %d %s", method, status, code, own)
		}
		same(method, own, other)
	}
	for _, c := range []struct{ method, path, body string }{
		{"GET", "/tasks/%s", ""}, {"POST", "/tasks/%s:cancel", "{}"}, {"POST", "/tasks/%s:subscribe", "{}"},
		{"GET", "/tasks/%s:subscribe", ""},
		{"POST", "/tasks/%s/pushNotificationConfigs", `{"url":"https://192.0.2.1/hook"}`},
		{"GET", "/tasks/%s/pushNotificationConfigs/x", ""}, {"GET", "/tasks/%s/pushNotificationConfigs", ""},
		{"DELETE", "/tasks/%s/pushNotificationConfigs/x", ""},
	} {
		status, own := bob.rest(c.method, fmt.Sprintf(c.path, task), c.body)
		_, other := bob.rest(c.method, fmt.Sprintf(c.path, none), c.body)
		if status != 404 || !strings.Contains(own, "TASK_NOT_FOUND") {
			t.Errorf("%s %s: %d %s", c.method, c.path, status, own)
		}
		same(c.method+" "+c.path, own, other)
	}
	if status, body := bob.rest("GET", "/tasks", ""); status != 200 || strings.Contains(body, task) {
		t.Errorf("bob's list: %d %s", status, body)
	}
	if status, body := alice.rest("GET", "/tasks/"+task, ""); status != 200 || !strings.Contains(body, "hello") {
		t.Errorf("the task itself: %d %s", status, body)
	}
}

// TestA2ABadRequests: each mistake has its error over both transports, and none tells what is inside.
func TestA2ABadRequests(t *testing.T) {
	n := running(t, Config{})
	speaker(t, n, "parrot")
	w := caller(t, n, "parrot", "alice")
	deep := func(levels int) string {
		return `{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"data":` + strings.Repeat("[", levels) +
			strings.Repeat("]", levels) + `}]}}`
	}
	large := speech("m", strings.Repeat("x", 2<<20))
	leaks := func(what, body string) {
		t.Helper()
		for _, s := range []string{".go:", "goroutine", "json:", "http:", "0x", "runtime", "sqlite", "nats", "a2asrv",
			"context ", "parley/"} {
			if strings.Contains(body, s) {
				t.Errorf("%s: the answer has %q: %s", what, s, body)
			}
		}
	}
	for _, c := range []struct {
		name, method, params string
		status, code, rest   int // of HTTP and of JSON-RPC; of REST, 0: it has no such request
	}{
		{"unknown method", "Dance", "{}", 200, -32601, 0},
		{"method of 0.3", "message/send", "{}", 200, -32601, 0},
		{"unknown part", "SendMessage", `{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"video":"x"}]}}`,
			200, -32602,
			400},
		{"unknown role", "SendMessage", `{"message":{"messageId":"m","role":"ROLE_KING","parts":[{"text":"x"}]}}`,
			200, -32602,
			400},
		{"deep", "SendMessage", deep(5000), 200, -32700, 400},
		{"large", "SendMessage", large, 413, 0, 413},
	} {
		status, code, body := w.rpc(c.method, c.params)
		if status != c.status || code != c.code {
			t.Errorf("%s: %d, %d: %.300s", c.name, status, code, body)
		}
		leaks(c.name, body)
		if c.rest != 0 {
			status, body := w.rest("POST", "/message:send", c.params)
			if status != c.rest {
				t.Errorf("%s by REST: %d: %.300s", c.name, status, body)
			}
			leaks(c.name, body)
		}
	}
	for path, want := range map[string]int{"/dance": 404, "/message:dance": 404, "/../parrot": 404, "//": 404} {
		status, body := w.rest("POST", path, "{}")
		if status != want {
			t.Errorf("%s: %d %s", path, status, body)
		}
		leaks(path, body)
	}
}

// TestA2AGuestFlood: a guest that sends tasks, opens streams and sets webhooks without end uses up the
// budget of guests, and is told when to come again; callers with a token are served as before.
func TestA2AGuestFlood(t *testing.T) {
	n := running(t, Config{Policy: Policy{Assurance: "unsigned"}, Guests: Guests{Disk: "4MiB"},
		A2A: A2A{Streams: 2, PlainPush: true}, Network: Network{Allow: []string{"loopback"}}})
	waiting := make(chan struct{})
	release := sync.OnceFunc(func() { close(waiting) })
	defer release()
	err := n.Handle(parley.Agent{Name: "slow", Exposed: parley.Everywhere},
		parley.RawSkill("say", func(ctx context.Context, m *parley.Message, r parley.Replier) error {
			select {
			case <-waiting:
			case <-ctx.Done():
			}
			return r.Reply(m.Parts...)
		}))
	if err != nil {
		t.Fatal(err)
	}
	n.A2A().SetAgent("slow", bridge.AgentSettings{Guests: true})
	guest, alice := web{t, n, "slow", ""}, caller(t, n, "slow", "alice")
	immediately := func(id string) string {
		return strings.TrimSuffix(speech(id, "hello"), "}") + `,"configuration":{"returnImmediately":true}}`
	}
	// flood sends until the hub refuses, and gives how often it did not.
	flood := func(what string, most int, send func(i int) *http.Response) int {
		t.Helper()
		for i := range most + 1 {
			resp := send(i)
			switch resp.StatusCode {
			case 200:
				t.Cleanup(func() { resp.Body.Close() })
				continue
			case 429:
				if what != "webhooks" && resp.Header.Get("Retry-After") == "" { // a task's webhooks are a number
					t.Errorf("%s: it is not told when to come again", what)
				}
			default:
				b, _ := io.ReadAll(resp.Body)
				t.Errorf("%s: %d %s", what, resp.StatusCode, b)
			}
			resp.Body.Close()
			return i
		}
		t.Fatalf("%s: %d and more are accepted", what, most)
		return 0
	}
	var task struct{ Task struct{ ID string } }
	if status, body := guest.rest("POST", "/message:send", immediately("first")); status != 200 ||
		json.Unmarshal([]byte(body), &task) != nil {
		t.Fatalf("%d %s", status, body)
	}
	if opened := flood("streams", 2, func(int) *http.Response {
		return guest.ask("GET", "/tasks/"+task.Task.ID+":subscribe", "")
	}); opened != 2 {
		t.Errorf("%d streams, want 2", opened)
	}
	hooks := flood("webhooks", 8, func(i int) *http.Response {
		return guest.ask("POST", "/tasks/"+task.Task.ID+"/pushNotificationConfigs",
			fmt.Sprintf(`{"id":"h%d","url":"http://127.0.0.1:9/hook"}`, i))
	})
	tasks := flood("tasks", 40, func(i int) *http.Response {
		return guest.ask("POST", "/message:send", immediately(fmt.Sprint("m", i)))
	})
	if hooks == 0 || tasks == 0 {
		t.Errorf("%d webhooks and %d tasks: the budget refuses everything", hooks, tasks)
	}
	if s := n.Hub().Guests().Stats(); s.Refused == 0 || s.Written > 256<<10 {
		t.Errorf("%+v", s)
	}
	for i := range 8 {
		if status, body := alice.rest("POST", "/message:send", immediately(fmt.Sprint("a", i))); status != 200 {
			t.Fatalf("a caller with a token: %d %s", status, body)
		}
	}
	release()
	resp := alice.ask("POST", "/message:stream", speech("last", "hello"))
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); err != nil || !bytes.Contains(b, []byte("TASK_STATE_COMPLETED")) {
		t.Errorf("her stream: %s %v", b, err)
	}
}

// TestA2ARevokedToken: the open streams of a token end when it is revoked, and no other's.
func TestA2ARevokedToken(t *testing.T) {
	n := running(t, Config{})
	release := make(chan struct{})
	err := n.Handle(parley.Agent{Name: "slow", Exposed: parley.Everywhere},
		parley.RawSkill("say", func(ctx context.Context, m *parley.Message, r parley.Replier) error {
			select {
			case <-release:
			case <-ctx.Done():
			}
			return r.Reply(m.Parts...)
		}))
	if err != nil {
		t.Fatal(err)
	}
	open := func(w web, id string) (events *bufio.Reader, first string) {
		t.Helper()
		resp := w.ask("POST", "/message:stream", speech(id, "hello"))
		t.Cleanup(func() { resp.Body.Close() })
		events = bufio.NewReader(resp.Body)
		line, err := events.ReadString('\n')
		if err != nil || resp.StatusCode != 200 || !strings.HasPrefix(line, `data: {"task":`) {
			t.Fatalf("%d %q %v", resp.StatusCode, line, err)
		}
		return events, line
	}
	alice, bob := caller(t, n, "slow", "alice"), caller(t, n, "slow", "bob")
	hers, _ := open(alice, "m1")
	his, _ := open(bob, "m2")
	if err := n.Admin().RevokeToken(t.Context(), everything, "alice", false); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(hers) // it ends
	if err != nil || strings.Contains(string(rest), "COMPLETED") || strings.Contains(string(rest), "error") {
		t.Errorf("%q %v", rest, err)
	}
	if status, body := alice.rest("GET", "/tasks", ""); status != 401 {
		t.Errorf("the revoked token: %d %s", status, body)
	}
	close(release)
	if rest, err = io.ReadAll(his); err != nil || !bytes.Contains(rest, []byte("TASK_STATE_COMPLETED")) {
		t.Errorf("the stream of another: %q %v", rest, err)
	}
}

// TestA2AForget: the task of a conversation that was forgotten, or whose retention ended, does not exist.
func TestA2AForget(t *testing.T) {
	clock := newFakeClock()
	n := erasable(t, Config{Now: clock.now, Retention: Retention{Keep: Duration{2 * time.Hour},
		Every: Duration{1000 * time.Hour}}})
	speaker(t, n, "parrot")
	alice := caller(t, n, "parrot", "alice")
	first, _ := alice.send("m1", "quincunx")
	second, _ := alice.send("m2", "saxifrage")
	gone := func(task string) {
		t.Helper()
		for path, want := range map[string]int{"/tasks/" + task: 404, "/tasks/" + task + "/pushNotificationConfigs": 404} {
			if status, body := alice.rest("GET", path, ""); status != want || strings.Contains(body, "quincunx") {
				t.Errorf("%s: %d %s", path, status, body)
			}
		}
		if _, body := alice.rest("GET", "/tasks", ""); strings.Contains(body, task) {
			t.Errorf("the list has it: %s", body)
		}
	}
	m, err := n.Admin().Message(t.Context(), everything, first, true)
	if err != nil {
		t.Fatal(err)
	}
	got, err := n.Admin().Forget(t.Context(), everything, admin.Forget{Conversation: m.Conversation.String()})
	if err != nil || got.Erased == 0 || got.Kept() != 0 {
		t.Fatalf("%+v %v", got, err)
	}
	gone(first)
	if status, body := alice.rest("GET", "/tasks/"+second, ""); status != 200 || !strings.Contains(body, "saxifrage") {
		t.Errorf("another conversation: %d %s", status, body)
	}
	n.eraser.cancel() // the test alone makes passes
	n.eraser.work.Wait()
	clock.add(3 * time.Hour)
	if err := n.eraser.retain(t.Context()); err != nil {
		t.Fatal(err)
	}
	gone(second)
	if files := inFiles(t, n.c.Data, "quincunx"); len(files) > 0 {
		t.Errorf("it is still in %v", files)
	}
}
