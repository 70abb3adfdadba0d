package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/connect"

	wire "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2acompat/a2av0"
	"github.com/a2aproject/a2a-go/v2/a2asrv"

	"github.com/parley-hub/parley/node"
)

const goodCard = `{"name":"Lab","description":"Answers.","version":"1","capabilities":{},
"supportedInterfaces":[{"url":"https://lab.example/a2a","protocolBinding":"JSONRPC","protocolVersion":"1.0"}],
"defaultInputModes":["text/plain"],"defaultOutputModes":["text/plain"],
"skills":[{"id":"echo","name":"Echo","description":"Echoes.","tags":["echo"]}]}`

// echoA2A is an agent of the official SDK that answers with what it got.
type echoA2A struct{}

func (echoA2A) Execute(_ context.Context, c *a2asrv.ExecutorContext) iter.Seq2[wire.Event, error] {
	return func(yield func(wire.Event, error) bool) {
		said := a2aText(c.Message.Parts)
		if m, ok := c.Message.Meta()["https://github.com/parley-hub/parley/a2a/v1"].(map[string]any); ok {
			if skill, ok := m["skill"].(string); ok {
				said += " " + skill
			}
		}
		if said == "ask" {
			yield(wire.NewSubmittedTask(c, c.Message), nil)
			yield(wire.NewStatusUpdateEvent(c, wire.TaskStateInputRequired, wire.NewMessage(wire.MessageRoleAgent,
				wire.NewTextPart("which day?"))), nil)
			return
		}
		failed := strings.Contains(said, "fail")
		for _, e := range []wire.Event{wire.NewSubmittedTask(c, c.Message),
			wire.NewStatusUpdateEvent(c, wire.TaskStateWorking, wire.NewMessage(wire.MessageRoleAgent,
				wire.NewTextPart("thinking"))),
			wire.NewArtifactEvent(c, wire.NewTextPart("echo: "+said)),
			wire.NewStatusUpdateEvent(c,
				map[bool]wire.TaskState{false: wire.TaskStateCompleted, true: wire.TaskStateFailed}[failed],
				wire.NewMessage(wire.MessageRoleAgent, wire.NewTextPart("no luck")))} {
			if !yield(e, nil) {
				return
			}
		}
	}
}

func (echoA2A) Cancel(_ context.Context, c *a2asrv.ExecutorContext) iter.Seq2[wire.Event, error] {
	return func(yield func(wire.Event, error) bool) {
		yield(wire.NewStatusUpdateEvent(c, wire.TaskStateCanceled, nil), nil)
	}
}

// startA2A serves the agent in both versions at /lab, behind a bearer token.
func startA2A(t *testing.T, token string) (base string) {
	t.Helper()
	mux := http.NewServeMux()
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	base = s.URL + "/lab"
	card := &wire.AgentCard{Name: "Lab", Description: "Echoes.", Version: "7", DefaultInputModes: []string{"text/plain"},
		DefaultOutputModes: []string{"text/plain"}, Capabilities: wire.AgentCapabilities{Streaming: true},
		Skills: []wire.AgentSkill{{ID: "echo", Name: "Echo", Description: "Says it again.", Tags: []string{"echo"}}},
		SupportedInterfaces: []*wire.AgentInterface{
			{URL: base + "/rpc", ProtocolBinding: wire.TransportProtocolJSONRPC, ProtocolVersion: "1.0"},
			{URL: base + "/old", ProtocolBinding: wire.TransportProtocolJSONRPC, ProtocolVersion: "0.3"}}}
	h := a2asrv.NewHandler(echoA2A{})
	guarded := func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if token != "" && r.Header.Get("Authorization") != "Bearer "+token {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			h.ServeHTTP(w, r)
		})
	}
	mux.Handle("/lab/.well-known/agent-card.json", a2asrv.NewAgentCardHandler(a2av0.NewStaticAgentCardProducer(card)))
	mux.Handle("/lab/rpc", guarded(a2asrv.NewJSONRPCHandler(h)))
	mux.Handle("/lab/old", guarded(a2av0.NewJSONRPCHandler(h)))
	return base
}

// TestSendA2A: send speaks to an agent of the official SDK in both versions, with text, JSON,
// files, a skill and a token, and shows tasks and streams.
func TestSendA2A(t *testing.T) {
	t.Parallel()
	base := startA2A(t, "secret")
	dir := t.TempDir()
	token, file := filepath.Join(dir, "token"), filepath.Join(dir, "note.txt")
	for path, text := range map[string]string{token: "secret\n", file: "abc"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		args []string
		code int
		want []string
	}{
		{[]string{"hello"}, exitOK, []string{"echo: hello\n"}},
		{[]string{"hello", "--version", "0.3"}, exitOK, []string{"echo: hello\n"}},
		{[]string{`{"city":"Bern","big":2}`, "--skill", "echo"}, exitOK, []string{`echo: {"big":2,"city":"Bern"} echo`}},
		{[]string{"see", "--file", file}, exitOK, []string{"echo: see\n[note.txt text/plain", "3 bytes]"}},
		{[]string{"hello", "--stream"}, exitOK,
			[]string{"TASK_STATE_SUBMITTED", "TASK_STATE_WORKING  thinking", "echo: hello",
				"TASK_STATE_COMPLETED"}},
		{[]string{"hello", "--stream", "--version", "0.3"}, exitOK, []string{"thinking", "echo: hello"}},
		{[]string{"fail"}, exitRefused, []string{"the task is TASK_STATE_FAILED: no luck"}},
		{[]string{"fail", "--stream"}, exitRefused, []string{"the task is TASK_STATE_FAILED: no luck"}},
		{[]string{"hello", "--no-wait"}, exitOK, []string{"task "}},
		{[]string{"ask"}, exitOK, []string{"TASK_STATE_INPUT_REQUIRED\nwhich day?"}},
		{[]string{"ask", "--stream"}, exitOK, []string{"TASK_STATE_INPUT_REQUIRED  which day?"}},
	} {
		var out bytes.Buffer
		args := append([]string{"send", "--protocol", "a2a", "--url", base, "--token-file", token}, c.args...)
		if code := run(args, strings.NewReader(""), &out, &out); code != c.code {
			t.Errorf("%v: exit code %d\n%s", c.args, code, &out)
		}
		for _, w := range c.want {
			if !strings.Contains(out.String(), w) {
				t.Errorf("%v: no %q in\n%s", c.args, w, &out)
			}
		}
	}
	var out bytes.Buffer
	if code := run([]string{"send", "--protocol", "a2a", "--url", base, "--json", "--token-file", token, "hi"},
		strings.NewReader(""), &out, &out); code != exitOK || !json.Valid(out.Bytes()) ||
		!strings.Contains(out.String(), `"TASK_STATE_COMPLETED"`) {
		t.Errorf("exit code %d: %s", code, &out)
	}
	// Without the token, at a wrong URL, and wrong flags.
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--url", base, "hi"}, exitRefused, "is the token right?"},
		{[]string{"--url", base + "/rpc", "hi"}, exitRefused, "give the URL to which /.well-known/agent-card.json is added"},
		{[]string{"--url", "http://127.0.0.1:1/x", "hi"}, exitUnreachable, "refused"},
		{[]string{"hi"}, exitUsage, "--url URL"},
		{[]string{"--url", base}, exitUsage, "at least one part"},
		{[]string{"--url", base, "--version", "2", "hi"}, exitUsage, "want 1.0 or 0.3"},
		{[]string{"--url", base, "--to", "x", "hi"}, exitUsage, "through a hub"},
		{[]string{"--url", base, "--kind", "notice", "hi"}, exitUsage, "requests only"},
	} {
		var out bytes.Buffer
		if code := run(append([]string{"send", "--protocol", "a2a"}, c.args...), strings.NewReader(""), &out, &out); code !=
			c.code || !strings.Contains(out.String(), c.want) {
			t.Errorf("%v: exit code %d\n%s", c.args, code, &out)
		}
	}
}

// TestA2ACardVersions: a card of 0.3 need not name its transport, versions may have a patch
// number, and an agent of another version is not called as one of 0.3.
func TestA2ACardVersions(t *testing.T) {
	t.Parallel()
	base := startA2A(t, "")
	mux := http.NewServeMux()
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	const rest = `,"name":"Lab","description":"x","version":"1","capabilities":{},"defaultInputModes":[],` +
		`"defaultOutputModes":[],"skills":[]}`
	for path, card := range map[string]string{
		"plain":  `{"url":"` + base + `/old"` + rest,
		"patch":  `{"url":"` + base + `/old","preferredTransport":"JSONRPC","protocolVersion":"0.3.0"` + rest,
		"before": `{"url":"` + base + `/old","protocolVersion":"0.2.5"` + rest,
		"new": `{"supportedInterfaces":[null,{"url":"` + base + `/rpc","protocolBinding":"JSONRPC",` +
			`"protocolVersion":"1.0.1"}]` + rest,
	} {
		mux.HandleFunc("/"+path+"/.well-known/agent-card.json", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(card))
		})
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"send", "--protocol", "a2a", "hi", "--url", s.URL + "/plain"}, exitOK, "echo: hi"},
		{[]string{"send", "--protocol", "a2a", "hi", "--url", s.URL + "/patch", "--version", "0.3"}, exitOK, "echo: hi"},
		{[]string{"send", "--protocol", "a2a", "hi", "--url", s.URL + "/new"}, exitOK, "echo: hi"},
		{[]string{"send", "--protocol", "a2a", "hi", "--url", s.URL + "/patch", "--version", "1.0"}, exitRefused,
			"in 1.0, and the card lists no such interface: it has JSONRPC 0.3"},
		{[]string{"send", "--protocol", "a2a", "hi", "--url", s.URL + "/before"}, exitRefused, "it has JSONRPC 0.2"},
		{[]string{"doctor", "plain"}, exitOK, "Lab, 0 skills, A2A 0.3, not signed"},
		{[]string{"doctor", "patch"}, exitOK, "Lab, 0 skills, A2A 0.3, not signed"},
		{[]string{"doctor", "before"}, exitFailed, "failed   a2a version"},
	} {
		args := c.args
		if args[0] == "doctor" {
			config := filepath.Join(t.TempDir(), "parley.toml")
			text := "data = \"data\"\n[network]\nallow = [\"loopback\"]\n[agents." + args[1] + ".a2a]\nurl = \"" + s.URL +
				"/" + args[1] + "\"\n"
			if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			args = append(args, "--config", config)
		}
		var out bytes.Buffer
		if code := run(args, strings.NewReader(""), &out, &out); code != c.code || !strings.Contains(out.String(), c.want) {
			t.Errorf("%v: exit code %d, want %q\n%s", c.args, code, c.want, &out)
		}
	}
}

// TestA2ACardElsewhere: where no card is, the error says why; a card may be redirected within
// its origin, and may want the credentials that the hub has.
func TestA2ACardElsewhere(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	away := startA2A(t, "")
	for path, to := range map[string]string{"moved": "/lab", "away": away, "circle": "/circle"} {
		mux.Handle("/"+path+"/.well-known/agent-card.json",
			http.RedirectHandler(to+"/.well-known/agent-card.json", http.StatusFound))
	}
	for path, status := range map[string]int{"broken": http.StatusBadGateway, "guarded": http.StatusUnauthorized} {
		mux.HandleFunc("/"+path+"/", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
	}
	mux.HandleFunc("/lab/.well-known/agent-card.json", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(goodCard))
	})
	mux.HandleFunc("/samvad/.well-known/agent.json", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"id":"agent://x.example","name":"X","url":"https://x.example","publicKeys":[],"skills":[]}`))
	})
	for path, want := range map[string]string{
		"moved": "", "away": "a redirect to another host is not followed", "circle": "a redirect",
		"broken": "HTTP 502\n        the server there fails now", "samvad": "a SAMVAD agent answers there",
		"guarded": "the card itself wants credentials"} {
		_, _, err := connect.ReadA2ACard(t.Context(), http.DefaultTransport, s.URL+"/"+path, "")
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestAddA2A: agents add reads the card of an agent and shows what it says; at a wrong URL it
// says where the card is.
func TestAddA2A(t *testing.T) {
	t.Parallel()
	base := startA2A(t, "")
	data := t.TempDir()
	n, err := node.Open(t.Context(), node.Config{Data: data,
		Listen:  node.Listen{HTTP: "127.0.0.1:0", Admin: "127.0.0.1:0"},
		Network: node.Network{Allow: []string{"loopback"}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close(context.Background()) })
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(data, "parley.toml")
	if err := os.WriteFile(config, []byte("[network]\nallow = [\"loopback\"]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	origin := strings.TrimSuffix(base, "/lab")
	for _, c := range []struct {
		args []string
		code int
		want []string
	}{
		{[]string{"agents", "add", "lab", "--a2a", base}, exitOK, []string{"agent lab is added", "a2a        " + base,
			"its card: Lab, version 7, A2A 1.0 and 0.3; not signed", "skill echo: Says it again."}},
		{[]string{"agents", "add", "x", "--a2a", base + "/rpc"}, exitRefused, []string{"no A2A card at", "not that of an " +
			"interface"}},
		{[]string{"agents", "add", "x", "--a2a", origin}, exitRefused, []string{"no A2A card at " + origin}},
		{[]string{"agents", "add", "x", "--a2a", "lab"}, exitUsage, []string{"want new", "http(s)://HOST"}},
		{[]string{"agents", "add", "later", "--a2a", "http://127.0.0.1:1"}, exitOK, []string{"could not be read"}},
		{[]string{"agents", "add", "caller", "--a2a", "new"}, exitOK,
			[]string{"parley tokens add caller-a2a --agent caller", "Authorization: Bearer TOKEN", "/a2a/NAME"}},
		{[]string{"agents", "export", "lab", "caller"}, exitOK, []string{"a2a.url = '" + base + "'", "a2a.calls = true"}},
	} {
		var out bytes.Buffer
		args := append(c.args, "--data", data, "--config", config)
		if code := run(args, strings.NewReader(""), &out, &out); code != c.code {
			t.Errorf("%v: exit code %d\n%s", c.args, code, &out)
		}
		for _, w := range c.want {
			if !strings.Contains(out.String(), w) {
				t.Errorf("%v: no %q in\n%s", c.args, w, &out)
			}
		}
	}
}

// TestDoctorA2A: doctor reads the card of an agent as clients of both versions do.
func TestDoctorA2A(t *testing.T) {
	t.Parallel()
	base, dir := startA2A(t, ""), t.TempDir()
	config := filepath.Join(dir, "parley.toml")
	guarded := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
	}))
	t.Cleanup(guarded.Close)
	for url, want := range map[string][]string{
		base:          {"asked with A2A-Version 1.0: Lab, 1 skill, A2A 1.0 and 0.3, not signed", "asked with no version"},
		base + "/rpc": {"failed   a2a card", "no A2A card at", "agents.lab.a2a.url"},
		guarded.URL:   {"skipped  a2a card", "it wants credentials"}} {
		text := "data = \"data\"\n[network]\nallow = [\"loopback\"]\n[agents.lab.a2a]\nurl = \"" + url + "\"\n"
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		run([]string{"doctor", "lab", "--config", config}, strings.NewReader(""), &out, &out)
		for _, w := range want {
			if !strings.Contains(out.String(), w) {
				t.Errorf("no %q in\n%s", w, &out)
			}
		}
	}
	// A running hub names the interface that it calls. The card is not below that URL.
	data := filepath.Join(dir, "running")
	n, err := node.Open(t.Context(), node.Config{Data: data,
		Listen: node.Listen{HTTP: "127.0.0.1:0", Admin: "127.0.0.1:0"}, Network: node.Network{Allow: []string{"loopback"}},
		Agents: map[string]node.Agent{"lab": {A2A: &node.A2AAgent{URL: base}}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close(context.Background()) })
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	text := "[network]\nallow = [\"loopback\"]\n[agents.lab.a2a]\nurl = \"" + base + "\"\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"doctor", "lab"}, {"doctor"}} { // the second is about the hub's own cards
		var out bytes.Buffer
		run(append(args, "--config", config, "--data", data), strings.NewReader(""), &out, &out)
		got := out.String()
		if !strings.Contains(got, "asked with no version") || strings.Contains(got, "failed   a2a card") {
			t.Errorf("%v of a running hub:\n%s", args, got)
		}
	}
}

// TestAddA2ACredentials: credentials that come with `agents add` are used in a call. They are in no output, log, record
// of the audit trail, export or file of the hub, and do not follow the agent to another address.
func TestAddA2ACredentials(t *testing.T) {
	t.Parallel()
	const secret = "secret-7f1c9a"
	base, elsewhere := startA2A(t, secret), startA2A(t, secret)
	dir := t.TempDir()
	data, file := filepath.Join(dir, "data"), filepath.Join(dir, "token")
	if err := os.WriteFile(file, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var log lockedBuffer
	n, err := node.Open(t.Context(), node.Config{Data: data,
		Listen:  node.Listen{HTTP: "127.0.0.1:0", Admin: "127.0.0.1:0"},
		Network: node.Network{Allow: []string{"loopback"}}, Delivery: node.Delivery{Tries: 1},
		Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close(context.Background()) })
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	var all bytes.Buffer
	parley := func(want int, args ...string) string {
		t.Helper()
		var out bytes.Buffer
		if code := run(append(args, "--data", data), strings.NewReader(""), &out, &out); code != want {
			t.Errorf("%v: exit code %d\n%s", args, code, &out)
		}
		all.Write(out.Bytes())
		return out.String()
	}
	parley(exitOK, "agents", "add", "lab", "--a2a", base, "--a2a-token-file", file, "--json")
	if got := parley(exitOK, "send", "--to", "lab", "hi"); !strings.Contains(got, "echo: hi") {
		t.Errorf("with the token: %s", got)
	}
	for _, args := range [][]string{{"agents", "show", "lab", "--json"}, {"agents", "export", "lab"}, {"audit", "--json"},
		{"agents", "list", "--json"}, {"keys", "list", "--json"}, {"journal", "stats", "--json"}} {
		parley(exitOK, args...)
	}
	// What is refused changes nothing, and the refusal does not tell the secret.
	parley(exitUsage, "agents", "add", "x", "--a2a", "new", "--a2a-token-file", file)
	parley(exitUsage, "agents", "add", "x", "--a2a", base, "--a2a-token-file", file,
		"--a2a-token-url", "https://x.example",
		"--a2a-client-id", "hub")
	parley(exitUsage, "agents", "add", "x", "--a2a", base, "--a2a-cert", file, "--a2a-key", file)
	by := admin.Actor{Name: "test", Role: admin.Administer}
	for _, id := range []admin.NewIdentity{
		{Protocol: "a2a", ID: base, URL: base, Credentials: admin.Secret(`{"token":"` + secret + `","other":1}`)},
		{Protocol: "a2a", ID: base, URL: base, Credentials: admin.Secret(`["` + secret + `"]`)},
		{Protocol: "a2a", ID: base, Credentials: admin.Secret(`{"token":"` + secret + `"}`)},
		{Protocol: "agh", ID: "w/p", URL: "x:", Credentials: admin.Secret(`{"token":"` + secret + `"}`)},
	} {
		_, err := n.Admin().AddAgent(t.Context(), by, admin.NewAgent{Name: "x", Identities: []admin.NewIdentity{id}})
		if err == nil {
			t.Errorf("%v was taken", id)
		}
		fmt.Fprintf(&all, "%v %+v %#v %s\n", err, id, id, id.Credentials)
	}
	// The agent moves: its token stays behind.
	parley(exitOK, "agents", "add", "lab", "--a2a", elsewhere)
	if got := parley(exitRefused, "send", "--to", "lab", "hi"); strings.Contains(got, "echo") {
		t.Errorf("without the token: %s", got)
	}
	files, err := os.ReadDir(data)
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{"an output": all.String(), "the log": log.String()}
	for _, f := range files {
		if b, err := os.ReadFile(filepath.Join(data, f.Name())); err == nil {
			texts[f.Name()] = string(b)
		}
	}
	for where, text := range texts {
		if strings.Contains(text, secret) {
			t.Errorf("the token is in %s", where)
		}
	}
}

// lockedBuffer takes the lines of a log.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
